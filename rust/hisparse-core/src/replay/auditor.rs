//! The replay's own count of what is handed out, kept apart from the ledger that it judges.
//!
//! ```text
//!  grant ─► a new page must be nobody's; a shared one must be somebody's prefix; sums must stay within totals
//! ```

use crate::ledger::{Amounts, Lease, NodeCapacity, Pool};
use crate::units::Tokens;

#[derive(Debug)]
pub(super) struct Auditor {
    node: NodeCapacity,
    totals: Amounts,
    used: Amounts,
    holders: Vec<u32>,
    /// Units handed out twice or beyond a total.
    pub(super) overcommit: u64,
}

impl Auditor {
    pub(super) fn new(node: &NodeCapacity) -> Self {
        let pages = usize::try_from(node.host_pages.get()).unwrap_or(0);
        Self { node: *node, totals: node.totals(), used: Amounts::ZERO, holders: vec![0; pages], overcommit: 0 }
    }

    pub(super) fn granted(&mut self, lease: &Lease, tokens: Tokens) {
        let demand = self.node.demand(tokens);
        for pool in [Pool::Seats, Pool::IndexerTokens, Pool::RequestSlots, Pool::WindowTokens] {
            self.used[pool] += demand[pool];
            self.overcommit += u64::from(self.used[pool] > self.totals[pool]);
        }
        if u64::from(lease.pages) < demand[Pool::HostPages] {
            self.overcommit += demand[Pool::HostPages] - u64::from(lease.pages);
        }
        for (place, page) in (0_u32..).zip(lease.extents.page_numbers()) {
            let new = place >= lease.shared_pages;
            match self.holders.get_mut(page as usize) {
                Some(holders) => {
                    self.overcommit += u64::from(new && *holders > 0);
                    *holders += 1;
                }
                None => self.overcommit += 1,
            }
        }
    }

    pub(super) fn released(&mut self, lease: &Lease, tokens: Tokens) {
        let demand = self.node.demand(tokens);
        for pool in [Pool::Seats, Pool::IndexerTokens, Pool::RequestSlots, Pool::WindowTokens] {
            self.used[pool] -= demand[pool];
        }
        for page in lease.extents.page_numbers() {
            if let Some(holders) = self.holders.get_mut(page as usize) {
                *holders -= 1;
            }
        }
    }
}
