//! The length rule, written a second time: what a request of so many tokens takes.

use std::sync::Arc;

use hisparse_core::ledger::{AdmitRequest, Lease, Length, Pool};

use super::{Auditor, Terms};

/// One number per pool, in the order of [`Pool::ALL`].
pub(super) type PerPool = [u64; 5];

impl Terms {
    pub(super) fn tokens_of(&self, request: &AdmitRequest) -> u64 {
        match request.length {
            Length::Tokens { prompt, generated, max_new } => prompt + generated + max_new,
            Length::Pages(pages) => pages * self.config.capacity.page_tokens,
        }
    }

    pub(super) fn demand(&self, tokens: u64) -> PerPool {
        let node = &self.config.capacity;
        let whole = |tokens: u64| tokens.div_ceil(node.page_tokens);
        let window = node.window.map_or(0, |window| whole(tokens.min(window.per_request.get())) * node.page_tokens);
        Pool::ALL.map(|pool| match pool {
            Pool::HostPages => whole(tokens),
            Pool::Seats | Pool::RequestSlots => 1,
            Pool::IndexerTokens => whole(tokens) * node.page_tokens,
            Pool::WindowTokens => window,
        })
    }

    pub(super) fn totals(&self) -> PerPool {
        let node = &self.config.capacity;
        Pool::ALL.map(|pool| match pool {
            Pool::HostPages => node.host_pages.get(),
            Pool::Seats => node.seats,
            Pool::IndexerTokens => node.indexer_tokens.get(),
            Pool::RequestSlots => node.request_slots,
            Pool::WindowTokens => node.window.map_or(0, |window| window.total.get()),
        })
    }
}

impl Auditor {
    /// What a tenant's leases add up to, by their lengths.
    pub(super) fn used_by(&self, tenant: &str, leases: &[Lease]) -> PerPool {
        let mut used = [0; 5];
        for lease in leases.iter().filter(|lease| *lease.tenant == *tenant) {
            for (sum, amount) in used.iter_mut().zip(self.terms.demand(lease.tokens.get())) {
                *sum += amount;
            }
        }
        used
    }

    /// What floors keep from this tenant.
    pub(super) fn set_aside(&self, for_others_than: &str, leases: &[Lease]) -> PerPool {
        let mut kept = [0; 5];
        let others = self.terms.policies.iter().filter(|(name, _): &(&Arc<str>, _)| ***name != *for_others_than);
        for (name, policy) in others {
            let used = self.used_by(name, leases);
            for pool in Pool::ALL {
                kept[pool as usize] += policy.floor[pool].saturating_sub(used[pool as usize]);
            }
        }
        kept
    }
}
