//! Tenants: their names, what each holds, and the bounds on it.
//!
//! ```text
//!              0 ──── floor ─────────── ceiling
//!  used        ██████▏                     │        more than the ceiling is refused (quota)
//!  set aside          ▒▒▒▒                          the unused part of every floor is kept from the others
//! ```
//! A tenant's use is the full length of its leases, shared pages included: what it may run does not depend on luck
//! with the prefix cache.

use std::collections::HashMap;
use std::sync::Arc;

use super::pools::{Amounts, NodeCapacity, Pool};
use super::salt::TenantSalt;
use crate::env::Entropy;
use crate::journal::KeptTenant;
use crate::limits::MAX_TENANTS;
use crate::pages::TenantIndex;
use crate::pages::seeded::Seeded;

/// Bounds on what one tenant may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantPolicy {
    /// Kept free for it at all times.
    pub floor: Amounts,
    /// Most it may hold.
    pub ceiling: Amounts,
}

impl Default for TenantPolicy {
    fn default() -> Self {
        Self { floor: Amounts::ZERO, ceiling: Amounts::UNBOUNDED }
    }
}

impl TenantPolicy {
    /// The same, with floors that can be used: pages are kept with their indexer tokens, seats with their request slots
    /// and windows. A floor in one pool alone would be no promise, as a request needs all of them.
    #[must_use]
    pub fn usable_on(mut self, node: &NodeCapacity) -> Self {
        let (pages, seats) = (self.floor[Pool::HostPages], self.floor[Pool::Seats]);
        let window = node.demand(node.max_request_tokens)[Pool::WindowTokens];
        for (pool, needed) in [
            (Pool::IndexerTokens, pages.saturating_mul(node.page_tokens)),
            (Pool::RequestSlots, seats),
            (Pool::WindowTokens, seats.saturating_mul(window)),
        ] {
            self.floor[pool] = self.floor[pool].max(needed);
        }
        self
    }
}

#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) name: Arc<str>,
    pub(super) policy: TenantPolicy,
    /// Whether somebody set the policy, so that the entry outlives its leases.
    pub(super) configured: bool,
    pub(super) used: Amounts,
    pub(super) leases: u64,
    pub(super) salt: TenantSalt,
}

impl Tenant {
    fn unused_floor(&self, pool: Pool) -> u64 {
        self.policy.floor[pool].saturating_sub(self.used[pool])
    }
}

#[derive(Debug)]
pub(super) struct Tenants {
    list: Vec<Tenant>,
    by_name: HashMap<Arc<str>, TenantIndex, Seeded>,
    /// Sum over all tenants of the unused part of their floors.
    set_aside: Amounts,
    /// Sum of all floors.
    floors: Amounts,
    /// Most that each tenant without a policy of its own may hold.
    others_ceiling: Amounts,
}

impl Tenants {
    pub(super) fn new(entropy: &mut dyn Entropy) -> Self {
        Self {
            list: Vec::new(),
            by_name: HashMap::with_hasher(Seeded::new(entropy)),
            set_aside: Amounts::ZERO,
            floors: Amounts::ZERO,
            others_ceiling: Amounts::UNBOUNDED,
        }
    }

    /// Most that a tenant may hold of a pool; for `None`, one that is not known yet.
    pub(super) fn ceiling(&self, tenant: Option<TenantIndex>, pool: Pool) -> u64 {
        match tenant.map(|tenant| self.get(tenant)) {
            Some(tenant) if tenant.configured => tenant.policy.ceiling[pool],
            _ => self.others_ceiling[pool],
        }
    }

    /// Bounds each tenant that has no policy of its own, those that come later too.
    pub(super) fn set_others_ceiling(&mut self, ceiling: Amounts) {
        self.others_ceiling = ceiling;
    }

    pub(super) fn find(&self, name: &str) -> Option<TenantIndex> {
        self.by_name.get(name).copied()
    }

    pub(super) fn get(&self, tenant: TenantIndex) -> &Tenant {
        &self.list[usize::from(tenant)]
    }

    /// The tenant's number; a new name takes a new one, or that of a tenant that `forgettable` lets go.
    pub(super) fn intern(
        &mut self,
        name: &str,
        salt: TenantSalt,
        forgettable: impl Fn(TenantIndex) -> bool,
    ) -> Option<TenantIndex> {
        if let Some(known) = self.find(name) {
            return Some(known);
        }
        let name: Arc<str> = name.into();
        let fresh = Tenant {
            name: Arc::clone(&name),
            policy: TenantPolicy::default(),
            configured: false,
            used: Amounts::ZERO,
            leases: 0,
            salt,
        };
        let index = if (self.list.len() as u64) < MAX_TENANTS {
            self.list.push(fresh);
            TenantIndex::try_from(self.list.len() - 1).ok()?
        } else {
            let index = self.forgettable(forgettable)?;
            let old = Arc::clone(&self.get(index).name);
            self.by_name.remove(&old);
            self.list[usize::from(index)] = fresh;
            index
        };
        self.by_name.insert(name, index);
        Some(index)
    }

    /// A tenant that nothing needs to be remembered of.
    fn forgettable(&self, forgettable: impl Fn(TenantIndex) -> bool) -> Option<TenantIndex> {
        let numbered = (0..=TenantIndex::MAX).zip(&self.list);
        let mut idle = numbered.filter(|(_, tenant)| tenant.leases == 0 && !tenant.configured);
        idle.find(|(index, _)| forgettable(*index)).map(|(index, _)| index)
    }

    /// Whether a new name would get a number.
    pub(super) fn has_place(&self, forgettable: impl Fn(TenantIndex) -> bool) -> bool {
        (self.list.len() as u64) < MAX_TENANTS || self.forgettable(forgettable).is_some()
    }

    /// The tenants in the order of their numbers, as a journal remembers them.
    pub(super) fn kept(&self) -> Vec<KeptTenant> {
        let kept = |tenant: &Tenant| KeptTenant { name: tenant.name.as_ref().to_owned(), salt: tenant.salt };
        self.list.iter().map(kept).collect()
    }

    /// The next tenant that a journal remembers; `false` where its name is taken.
    pub(super) fn restore(&mut self, name: &str, salt: TenantSalt) -> bool {
        self.find(name).is_none() && self.intern(name, salt, |_| false).is_some()
    }

    /// Sets the bounds of a tenant. The caller has checked that all floors together fit the node.
    pub(super) fn set_policy(&mut self, tenant: TenantIndex, policy: TenantPolicy) {
        for pool in Pool::ALL {
            self.floors[pool] = self.floors_of_others(Some(tenant), pool) + policy.floor[pool];
        }
        self.change(tenant, |entry| {
            entry.policy = policy;
            entry.configured = true;
        });
    }

    /// Books a lease, or its growth, on its tenant.
    pub(super) fn charge(&mut self, tenant: TenantIndex, amounts: &Amounts, leases: u64) {
        self.change(tenant, |entry| {
            for (pool, amount) in amounts.iter() {
                entry.used[pool] += amount;
            }
            entry.leases += leases;
        });
    }

    /// Takes a lease off its tenant's books.
    pub(super) fn discharge(&mut self, tenant: TenantIndex, amounts: &Amounts) {
        self.change(tenant, |entry| {
            for (pool, amount) in amounts.iter() {
                entry.used[pool] -= amount;
            }
            entry.leases -= 1;
        });
    }

    /// What is kept free of a pool for tenants other than this one.
    pub(super) fn set_aside_for_others(&self, tenant: Option<TenantIndex>, pool: Pool) -> u64 {
        let own = tenant.map_or(0, |tenant| self.get(tenant).unused_floor(pool));
        self.set_aside[pool] - own
    }

    /// What of a tenant's floor it does not use yet.
    pub(super) fn unused_floor(&self, tenant: Option<TenantIndex>, pool: Pool) -> u64 {
        tenant.map_or(0, |tenant| self.get(tenant).unused_floor(pool))
    }

    /// Names of the tenants with room of their own in some pool.
    pub(super) fn with_unused_floors(&self) -> Vec<Arc<str>> {
        if self.set_aside == Amounts::ZERO {
            return Vec::new();
        }
        let has_room = |tenant: &&Tenant| Pool::ALL.iter().any(|pool| tenant.unused_floor(*pool) > 0);
        self.list.iter().filter(has_room).map(|tenant| Arc::clone(&tenant.name)).collect()
    }

    /// What the floors of tenants other than this one add up to, used or not.
    pub(super) fn floors_of_others(&self, tenant: Option<TenantIndex>, pool: Pool) -> u64 {
        self.floors[pool] - tenant.map_or(0, |tenant| self.get(tenant).policy.floor[pool])
    }

    /// Sum of the unused floors, counted anew, for checks.
    pub(super) fn recount_set_aside(&self) -> (Amounts, Amounts) {
        let mut counted = Amounts::ZERO;
        for pool in Pool::ALL {
            counted[pool] = self.list.iter().map(|entry| entry.unused_floor(pool)).sum();
        }
        (self.set_aside, counted)
    }

    fn change(&mut self, tenant: TenantIndex, change: impl FnOnce(&mut Tenant)) {
        let entry = &mut self.list[usize::from(tenant)];
        for pool in Pool::ALL {
            self.set_aside[pool] -= entry.unused_floor(pool);
        }
        change(entry);
        for pool in Pool::ALL {
            self.set_aside[pool] += entry.unused_floor(pool);
        }
    }
}
