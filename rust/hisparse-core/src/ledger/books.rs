//! The books: how much of each pool is reserved, committed and quarantined.
//!
//! ```text
//!  total = free + reserved + committed + evictable + scrubbing + quarantined      (the conservation law, per pool)
//! ```
//! Of host pages the books hold what leases have for themselves. Free, evictable and scrubbing pages, and the shared
//! ones, are counted where they live, in [`PagePool`](crate::pages::PagePool); a shared page that any lease holds
//! counts as committed, once.

use serde::Serialize;

use super::lease::LeaseState;
use super::pools::{Amounts, Pool};
use crate::pages::PageCounts;
use crate::violation::{Violation, holds};

/// One pool, by state. The states add up to `total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PoolState {
    /// Which pool.
    pub name: Pool,
    /// All there is.
    pub total: u64,
    /// In nobody's hands.
    pub free: u64,
    /// Granted, not yet in use.
    pub reserved: u64,
    /// In use.
    pub committed: u64,
    /// Cached prefixes that nobody uses.
    pub evictable: u64,
    /// Being zeroed before another tenant gets it.
    pub scrubbing: u64,
    /// Kept from everyone until no transfer can touch it any more.
    pub quarantined: u64,
}

#[derive(Debug)]
pub(super) struct Books {
    pub(super) totals: Amounts,
    reserved: Amounts,
    committed: Amounts,
    quarantined: Amounts,
}

impl Books {
    pub(super) const fn new(totals: Amounts) -> Self {
        Self { totals, reserved: Amounts::ZERO, committed: Amounts::ZERO, quarantined: Amounts::ZERO }
    }

    /// The account of leases in this state.
    fn account(&mut self, state: LeaseState) -> Option<&mut Amounts> {
        match state {
            LeaseState::Reserved => Some(&mut self.reserved),
            LeaseState::Committed => Some(&mut self.committed),
            LeaseState::Quarantined => Some(&mut self.quarantined),
            LeaseState::Released => None,
        }
    }

    pub(super) fn enter(&mut self, state: LeaseState, amounts: &Amounts) {
        if let Some(account) = self.account(state) {
            for (pool, amount) in amounts.iter() {
                account[pool] += amount;
            }
        }
    }

    pub(super) fn leave(&mut self, state: LeaseState, amounts: &Amounts) {
        if let Some(account) = self.account(state) {
            for (pool, amount) in amounts.iter() {
                account[pool] -= amount;
            }
        }
    }

    /// So many of a committed lease's own pages became shared ones.
    pub(super) fn shared(&mut self, pages: u64) {
        self.committed[Pool::HostPages] -= pages;
    }

    /// What leases have of a pool for themselves, in every state.
    pub(super) fn in_leases(&self, pool: Pool) -> u64 {
        self.reserved[pool] + self.committed[pool] + self.quarantined[pool]
    }

    /// What is free of a pool other than host pages.
    pub(super) fn free(&self, pool: Pool) -> u64 {
        self.totals[pool].saturating_sub(self.in_leases(pool))
    }

    pub(super) fn state_of(&self, pool: Pool, pages: PageCounts) -> PoolState {
        let (free, held, evictable, scrubbing) = match pool {
            Pool::HostPages => (pages.free, pages.held, pages.evictable, pages.scrubbing),
            _ => (self.free(pool), 0, 0, 0),
        };
        PoolState {
            name: pool,
            total: self.totals[pool],
            free,
            reserved: self.reserved[pool],
            committed: self.committed[pool] + held,
            evictable,
            scrubbing,
            quarantined: self.quarantined[pool],
        }
    }

    /// Every unit of every pool is in exactly one state (control-plane rule 9).
    pub(super) fn conserved(&self, counts: PageCounts) -> Result<(), Violation> {
        for pool in Pool::ALL {
            let in_leases = self.in_leases(pool);
            let (free, in_pool, agreed) = match pool {
                // The page pool and the books each count the pages of leases: two witnesses of one number.
                Pool::HostPages => {
                    let in_pool = counts.held + counts.evictable + counts.scrubbing;
                    (counts.free, in_pool, counts.private == in_leases)
                }
                _ => (self.free(pool), 0, true),
            };
            holds("conservation", free + in_leases + in_pool == self.totals[pool] && agreed, || {
                format!("{:?} with {in_leases} in leases, {counts:?}", self.state_of(pool, counts))
            })?;
        }
        Ok(())
    }
}
