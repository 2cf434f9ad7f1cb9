//! A survey of the pool, to be looked at: which state each page is in, and which leases there are.
//!
//! ```text
//!   pages   │ free … held … None │ … │          first all pages, in slices, …
//!   leases  [lease, lease, –, lease │ …]        … then all leases, in slices: each fills in the pages that are its own
//!   map     ▐ 512 free ▐ 200 free, 312 committed ▐ …      one bucket per so many pages, however large the pool
//! ```
//! Other decisions come in between, so that none of them waits for the whole. Each page is counted once, as it was when
//! its slice came; on a node where nothing changes meanwhile the map adds up to the pools.

use std::time::Duration;

use super::core::Ledger;
use super::lease::{LeaseId, LeaseState};
use super::walk::Walk;
use crate::env::Moment;
use crate::limits::MAX_PAGES_PER_SLICE;
use crate::pages::{Extent, Extents, Standing};
use crate::units::Tokens;

/// A lease as it is shown: how long it is, how old, and where its pages lie. No name of anybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glance {
    /// Its own name.
    pub id: LeaseId,
    /// Where it stands.
    pub state: LeaseState,
    /// Whole length.
    pub tokens: Tokens,
    /// Pages in all.
    pub pages: u32,
    /// Those at its start that come from the prefix index.
    pub shared_pages: u32,
    /// Those from its start that are durable in host memory.
    pub durable_pages: u32,
    /// Its pages in token order.
    pub extents: Extents,
    /// Time since its grant; since this start where an earlier one granted it.
    pub age: Duration,
    /// Whether an earlier start granted it, so that it is older than `age` says.
    pub restored: bool,
    /// When it ends unless committed or renewed; `None` while a session keeps it.
    pub expires_in: Option<Duration>,
}

/// The state of one page, in the order of [`PageMap::STATES`]; after the last: a lease's own, or being zeroed.
type State = u8;
const FREE: State = 0;
const RESERVED: State = 1;
const COMMITTED: State = 2;
const EVICTABLE: State = 3;
const SCRUBBING: State = 4;
const QUARANTINED: State = 5;

/// A survey on its way; the default is its beginning.
#[derive(Debug, Default)]
pub struct Survey {
    states: Vec<State>,
    leases: Walk,
    /// Whether pages were being zeroed at its end.
    scrubs: bool,
}

/// Every page by state, in buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageMap {
    /// Pages of one bucket; the last one may have fewer.
    pub pages_per_bucket: u32,
    /// Per state of [`PageMap::STATES`] the pages of each bucket. The states add up to the bucket.
    pub counts: [Vec<u32>; 6],
    /// The lease that has the longest run in each bucket.
    pub leases: Vec<Option<LeaseId>>,
}

impl PageMap {
    /// The states, by the names that pools give them.
    pub const STATES: [&'static str; 6] = ["free", "reserved", "committed", "evictable", "scrubbing", "quarantined"];
}

impl Ledger {
    /// Looks at the next slice; the leases in it, which are none while pages are looked at. `None` when all has been seen.
    pub fn survey(&self, survey: &mut Survey, now: Moment) -> Option<Vec<Glance>> {
        let total = self.pages.total();
        let from = u32::try_from(survey.states.len()).unwrap_or(total).min(total);
        if from < total {
            let slice = Extent::new(from, MAX_PAGES_PER_SLICE.min(total - from));
            survey.states.extend(self.pages.standing(slice).into_iter().map(|standing| match standing {
                Some(Standing::Free) => FREE,
                Some(Standing::Held) => COMMITTED,
                Some(Standing::Evictable) => EVICTABLE,
                None => SCRUBBING, // or a lease's, which says so itself
            }));
            return Some(Vec::new());
        }
        survey.scrubs = self.pages.counts().scrubbing > 0;
        let slice = survey.leases.next_slice(self.slots())?;
        let records = slice.filter_map(|slot| self.record_at(slot));
        Some(records.map(|record| record.glance(self.epoch, now)).inspect(|lease| survey.mark(lease)).collect())
    }
}

impl super::record::Record {
    fn glance(&self, epoch: super::Epoch, now: Moment) -> Glance {
        let mut extents = self.shared.clone();
        extents.append(&self.own);
        Glance {
            id: self.id,
            state: self.state,
            tokens: self.tokens,
            pages: extents.pages(),
            shared_pages: self.shared.pages(),
            durable_pages: self.durable,
            extents,
            age: now.saturating_since(self.since),
            restored: self.id.parts().0 != epoch.get(),
            expires_in: self.ends.map(|end| end.saturating_since(now)),
        }
    }
}

impl Survey {
    /// The pages that are this lease's alone are in its state.
    fn mark(&mut self, lease: &Glance) {
        let state = match lease.state {
            LeaseState::Reserved => RESERVED,
            LeaseState::Committed => COMMITTED,
            LeaseState::Quarantined => QUARANTINED,
            LeaseState::Released => return,
        };
        for run in lease.extents.iter() {
            let pages = self.states.get_mut(run.start as usize..run.end() as usize).unwrap_or_default();
            pages.iter_mut().filter(|page| **page == SCRUBBING).for_each(|page| *page = state);
        }
    }

    /// The map, in at most `most` buckets, with the places of `leases`.
    pub fn map<'a>(&self, most: u32, leases: impl IntoIterator<Item = &'a Glance>) -> PageMap {
        let total = u32::try_from(self.states.len()).unwrap_or(u32::MAX);
        let pages_per_bucket = total.div_ceil(most.max(1)).max(1);
        let buckets = total.div_ceil(pages_per_bucket) as usize;
        let mut counts: [Vec<u32>; 6] = Default::default();
        for bucket in self.states.chunks(pages_per_bucket as usize) {
            let mut counted = [0; 6];
            for state in bucket {
                counted[usize::from(*state)] += 1;
            }
            if !self.scrubs {
                // Nobody's, and not being zeroed: their lease ended meanwhile.
                counted[usize::from(FREE)] += std::mem::take(&mut counted[usize::from(SCRUBBING)]);
            }
            counts.iter_mut().zip(counted).for_each(|(counts, count)| counts.push(count));
        }
        let mut longest: Vec<Option<(u32, LeaseId)>> = vec![None; buckets];
        for lease in leases {
            for run in lease.extents.iter().filter(|run| run.end() <= total) {
                for bucket in run.start / pages_per_bucket..=(run.end() - 1) / pages_per_bucket {
                    let (start, end) = (bucket * pages_per_bucket, (bucket + 1).saturating_mul(pages_per_bucket));
                    let within = run.end().min(end) - run.start.max(start);
                    let place = &mut longest[bucket as usize];
                    if place.is_none_or(|(length, _)| within > length) {
                        *place = Some((within, lease.id));
                    }
                }
            }
        }
        let leases = longest.into_iter().map(|place| place.map(|(_, id)| id)).collect();
        PageMap { pages_per_bucket, counts, leases }
    }
}
