//! Walks over all leases, in slices: other decisions come in between, so none of them waits for the whole.
//!
//! ```text
//!   slots   [lease, lease, –, lease │ lease, –, … │ …]
//!            └────── slice ────────┘ └── slice ──┘
//! ```
//! A lease keeps its slot for life. So one that lives from the first slice to the last is met once, as it is when its
//! slice comes; one that is granted or ends meanwhile may be met or not.

use super::core::Ledger;
use super::lease::{Holder, Lease, LeaseState, SessionId};
use crate::env::Moment;
use crate::limits::MAX_LEASES_PER_SLICE;

/// How far a walk is; the default is its beginning.
#[derive(Clone, Copy, Debug, Default)]
pub struct Walk {
    next: u32,
}

impl Walk {
    /// The slots of the next slice, which `slots` says there are; `None` at the end.
    pub(super) fn next_slice(&mut self, slots: u32) -> Option<std::ops::Range<u32>> {
        let from = self.next;
        self.next = slots.min(from.saturating_add(MAX_LEASES_PER_SLICE));
        (from < slots).then_some(from..self.next)
    }
}

impl Ledger {
    /// The leases of the next slice; `None` when all have been met.
    pub fn walk(&self, walk: &mut Walk) -> Option<Vec<Lease>> {
        let slice = walk.next_slice(self.slots())?;
        Some(slice.filter_map(|slot| self.record_at(slot)).map(|record| self.view(record)).collect())
    }

    /// As [`Ledger::reclaim`], for the next slice of leases. What it gives are all leases in it that the successor holds
    /// now, so a walk that is made again says the same; `None` when all have been met.
    pub fn reclaim_in_part(
        &mut self,
        dead: SessionId,
        successor: SessionId,
        walk: &mut Walk,
        now: Moment,
    ) -> Option<Vec<Lease>> {
        self.advance(now);
        let slice = walk.next_slice(self.slots())?;
        let held_by = |session, state| {
            move |ledger: &Self, slot: &u32| {
                let held = |record: &super::record::Record| {
                    record.state == state && record.holder == Some(Holder::Session(session))
                };
                ledger.record_at(*slot).is_some_and(held)
            }
        };
        let left = held_by(dead, LeaseState::Quarantined);
        let slots: Vec<u32> = slice.clone().filter(|slot| left(self, slot)).collect();
        self.hand_on(&slots, successor);
        let holds = held_by(successor, LeaseState::Committed);
        let held: Vec<u32> = slice.filter(|slot| holds(self, slot)).collect();
        Some(held.into_iter().map(|slot| self.view(self.record(slot))).collect())
    }
}
