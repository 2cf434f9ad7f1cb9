//! Walks over all leases, in slices: other decisions come in between, so none of them waits for the whole.
//!
//! ```text
//!   slots   [lease, lease, –, lease │ lease, –, … │ …]
//!            └────── slice ────────┘ └── slice ──┘
//! ```
//! A lease keeps its slot for life. So one that lives from the first slice to the last is met once, as it is when its
//! slice comes; one that is granted or ends meanwhile may be met or not.

use std::sync::Arc;

use super::core::Ledger;
use super::lease::{Holder, Lease, LeaseId, LeaseState, SessionId};
use super::request::tenant_or_default;
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

/// The first so many leases in order of grant, sought slice by slice: whoever guards the ledger with a lock lets go of it
/// between two looks.
///
/// ```text
///  ledger ── look ─► found ── sift ─► the first `most` of it, in order; later ones need not be found any more
///    └── locked ──┘        └ not ┘
/// ```
#[derive(Debug)]
pub struct Listing {
    tenants: Option<Vec<Arc<str>>>,
    after: Option<LeaseId>,
    /// Those from this one on are too many.
    before: Option<LeaseId>,
    most: usize,
    walk: Walk,
    found: Vec<Lease>,
}

impl Listing {
    /// Of these tenants, or of all; those after `after`, at most `most`.
    pub fn new(tenants: Option<&[&str]>, after: Option<LeaseId>, most: usize) -> Self {
        let name = |name: &&str| Arc::from(tenant_or_default(name));
        let tenants = tenants.map(|tenants| tenants.iter().map(name).collect());
        Self { tenants, after, before: None, most, walk: Walk::default(), found: Vec::new() }
    }

    /// Looks at the next slice; `false` when all have been looked at.
    pub fn look(&mut self, ledger: &Ledger) -> bool {
        let Some(slice) = self.walk.next_slice(ledger.slots()) else { return false };
        // Looked up in every slice: numbers of tenants that hold nothing are given to others.
        let tenants = self.tenants.as_ref().map(|names| {
            let mut known: Vec<_> = names.iter().filter_map(|name| ledger.tenants.find(name)).collect();
            known.sort_unstable();
            known
        });
        let wanted = slice.filter_map(|slot| ledger.record_at(slot)).filter(|record| {
            self.after.is_none_or(|after| record.id > after)
                && self.before.is_none_or(|before| record.id < before)
                && tenants.as_ref().is_none_or(|known| known.binary_search(&record.tenant).is_ok())
        });
        self.found.extend(wanted.map(|record| ledger.view(record)));
        true
    }

    /// Lets go of what is not among the first. Without it a listing says the same, and grows.
    pub fn sift(&mut self) {
        if self.found.len() > self.most {
            self.found.sort_unstable_by_key(|lease| lease.id);
            self.found.truncate(self.most);
            self.before = self.found.last().and_then(|lease| lease.id);
        }
    }

    /// What was found, in order of grant.
    pub fn leases(mut self) -> Vec<Lease> {
        self.found.sort_unstable_by_key(|lease| lease.id);
        self.found.truncate(self.most);
        self.found
    }
}

impl Ledger {
    /// Live leases in order of grant, those after `after`, at most `most`; of one tenant, or of all. At one go: see
    /// [`Listing`].
    pub fn list(&self, tenant: Option<&str>, after: Option<LeaseId>, most: usize) -> Vec<Lease> {
        let mut listing = Listing::new(tenant.as_ref().map(std::slice::from_ref), after, most);
        while listing.look(self) {
            listing.sift();
        }
        listing.leases()
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
