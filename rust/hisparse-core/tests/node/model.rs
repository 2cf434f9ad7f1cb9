//! A plain model of the ledger without prefixes and scrubbing: every question is answered by adding up all leases.

use std::collections::BTreeMap;

use hisparse_core::ledger::{LeaseId, LeaseState, Pool};

pub(crate) const UNCOMMITTED: u64 = 30;
pub(crate) const ROUTER: u64 = 600;
pub(crate) const BOUND: u64 = 120;

/// What an answer comes to: an id, or reason and binding.
pub(crate) type Verdict = Result<(LeaseId, bool), (&'static str, &'static str)>;

#[derive(Clone, Debug)]
pub(crate) struct PlainLease {
    pub(crate) tenant: usize,
    pub(crate) name: String,
    /// Whether a repeated request finds it; not while quarantined, nor while a newer lease has its name.
    pub(crate) answers_to_name: bool,
    pub(crate) length: (u64, u64, u64),
    pub(crate) tokens: u64,
    pub(crate) state: LeaseState,
    pub(crate) ends: Option<u64>,
    pub(crate) ttl: u64,
    /// Session, or 0 for a router.
    pub(crate) holder: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) totals: [u64; 5],
    pub(crate) floors: [[u64; 5]; 3],
    pub(crate) ceilings: [[u64; 5]; 3],
    pub(crate) longest: u64,
    pub(crate) window: u64,
    pub(crate) draining: bool,
    pub(crate) leases: BTreeMap<LeaseId, PlainLease>,
}

impl Model {
    pub(crate) fn demand(&self, tokens: u64) -> [u64; 5] {
        let pages = tokens.div_ceil(64);
        [pages, 1, pages * 64, 1, tokens.min(self.window).div_ceil(64) * 64]
    }

    pub(crate) fn used(&self, pool: usize, tenant: Option<usize>) -> u64 {
        let leases = self.leases.values().filter(|lease| tenant.is_none_or(|tenant| lease.tenant == tenant));
        leases.map(|lease| self.demand(lease.tokens)[pool]).sum()
    }

    pub(crate) fn in_state(&self, pool: usize, state: LeaseState) -> u64 {
        let leases = self.leases.values().filter(|lease| lease.state == state);
        leases.map(|lease| self.demand(lease.tokens)[pool]).sum()
    }

    fn free_for(&self, pool: usize, tenant: usize) -> u64 {
        let others = (0..3).filter(|other| *other != tenant);
        let set_aside: u64 =
            others.map(|other| self.floors[other][pool].saturating_sub(self.used(pool, Some(other)))).sum();
        (self.totals[pool] - self.used(pool, None)).saturating_sub(set_aside)
    }

    pub(crate) fn named(&self, tenant: usize, name: &str) -> Option<LeaseId> {
        let mut found = self.leases.iter().filter(|(_, lease)| {
            lease.answers_to_name && lease.tenant == tenant && lease.name == name && !name.is_empty()
        });
        found.next().map(|(id, _)| *id)
    }

    /// What more of each pool would be refused for; `whole` is the length it leads to.
    pub(crate) fn room(&self, tenant: usize, whole: u64, more: [u64; 5]) -> Result<(), (&'static str, &'static str)> {
        if whole > self.longest {
            return Err(("NEVER_FITS", "max_request_tokens"));
        }
        let demand = self.demand(whole);
        for (pool, name) in Pool::ALL.map(Pool::name).into_iter().enumerate() {
            let others: u64 = (0..3).filter(|other| *other != tenant).map(|other| self.floors[other][pool]).sum();
            if demand[pool] > self.totals[pool] - others || demand[pool] > self.ceilings[tenant][pool] {
                return Err(("NEVER_FITS", name));
            }
        }
        for (pool, name) in Pool::ALL.map(Pool::name).into_iter().enumerate() {
            if self.used(pool, Some(tenant)) + more[pool] > self.ceilings[tenant][pool] {
                return Err(("QUOTA", name));
            }
        }
        for (pool, name) in Pool::ALL.map(Pool::name).into_iter().enumerate() {
            if more[pool] > self.free_for(pool, tenant) {
                return Err(("POOL_BUSY", name));
            }
        }
        Ok(())
    }

    /// What an admission comes to; a fresh grant's id is not the model's to know.
    pub(crate) fn admit(&self, tenant: usize, name: &str, length: (u64, u64, u64)) -> Option<Verdict> {
        if let Some(id) = self.named(tenant, name) {
            let same = self.leases[&id].length == length;
            return Some(if same { Ok((id, true)) } else { Err(("REQUEST_ID_REUSED", "")) });
        }
        if self.draining {
            return Some(Err(("DRAINING", "")));
        }
        let tokens = length.0 + length.1 + length.2;
        self.room(tenant, tokens, self.demand(tokens)).err().map(Err)
    }

    pub(crate) fn quarantine(&mut self, id: LeaseId, now: u64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.state = LeaseState::Quarantined;
            lease.answers_to_name = false;
            lease.ends = Some(now + BOUND);
        }
    }

    pub(crate) fn advance(&mut self, now: u64) {
        let ended: Vec<_> = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.ends.is_some_and(|ends| ends <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in ended {
            if self.leases[&id].state == LeaseState::Quarantined {
                self.leases.remove(&id);
            } else {
                self.quarantine(id, now);
            }
        }
    }
}
