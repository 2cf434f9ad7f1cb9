//! What is left of a node, in a form a router can decide by.

use serde::Serialize;

use super::admit::check_pools;
use super::ahead::Head;
use super::books::PoolState;
use super::core::Ledger;
use super::lease::Epoch;
use super::pools::{Amounts, Pool};
use super::refusal::Refusal;
use super::request::tenant_or_default;
use crate::error::{Problem, Problems};
use crate::limits::{MAX_CONTEXT_TOKENS, MAX_LENGTHS_ASKED, MAX_TENANTS};
use crate::pages::{Hits, TenantIndex};
use crate::units::Tokens;

/// How many requests of one length fit now, no page of them shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fit {
    /// The whole length asked about.
    pub tokens: u64,
    /// How many.
    pub count: u64,
    /// What binds: a pool, or `max_request_tokens` for a length that never fits.
    pub binding: &'static str,
    /// Why the next one would be refused, as [`Refusal::reason`] says it; empty after a fault.
    pub reason: &'static str,
}

/// What one tenant may hold of a pool, and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Quota {
    /// Which pool.
    pub pool: Pool,
    /// Kept free for it at all times.
    pub floor: u64,
    /// Most it may hold; `None` where nothing but the pool bounds it.
    pub ceiling: Option<u64>,
    /// What its leases hold, shared pages included.
    pub used: u64,
}

/// A node at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capacity {
    /// Generation of the pool.
    pub epoch: Epoch,
    /// Number of changes so far.
    pub sequence: u64,
    /// Every pool; `window_tokens` only where the model has a window.
    pub pools: Vec<PoolState>,
    /// Longest single request that would be granted now, in tokens, no page of it shared.
    pub largest_grant_tokens: u64,
    /// Longest request that can ever be granted.
    pub max_request_tokens: u64,
    /// Longest run of free pages.
    pub largest_extent_pages: u32,
    /// Whether nothing new is granted.
    pub draining: bool,
    /// One answer per length asked about.
    pub fits: Vec<Fit>,
}

/// Whose view of the node.
#[derive(Clone, Copy, Debug)]
enum Whose {
    /// That of a tenant without settings that holds nothing, once what is being zeroed is zero: what is kept for others
    /// is not free to it.
    Node,
    /// One tenant's: what it could have at once. `None` for one that is not known yet.
    Tenant(Option<TenantIndex>),
}

impl Whose {
    const fn tenant(self) -> Option<TenantIndex> {
        match self {
            Self::Node => None,
            Self::Tenant(tenant) => tenant,
        }
    }
}

/// What somebody who asks now could have.
#[derive(Clone, Copy, Debug)]
struct View {
    whose: Whose,
    /// What goes to the request ahead of him, where all that it still waits for is that pages are zeroed.
    spoken_for: Amounts,
    /// What he may take of each pool, with the pool that the request ahead of him waits for, where one does.
    beside: Option<(Amounts, Pool)>,
    /// Why nothing is granted to him at all, where that is so.
    closed: Option<&'static str>,
}

impl Ledger {
    /// The node now. With a tenant, the grants are those this tenant would get; without, those of one that has no
    /// settings and holds nothing, scrubbing pages counted as clean. Who waits is told by [`WaitQueue::capacity`], which
    /// is what a service asks.
    ///
    /// [`WaitQueue::capacity`]: super::WaitQueue::capacity
    ///
    /// # Errors
    /// Too many lengths, or one that no node could hold.
    pub fn capacity(&self, tenant: Option<&str>, lengths: &[u64]) -> Result<Capacity, Problems> {
        self.capacity_behind(None, tenant, lengths)
    }

    /// As [`Ledger::capacity`], for who comes while `head` waits.
    pub(super) fn capacity_behind(
        &self,
        head: Option<&Head>,
        tenant: Option<&str>,
        lengths: &[u64],
    ) -> Result<Capacity, Problems> {
        let mut problems = Problems::new();
        if lengths.len() as u64 > MAX_LENGTHS_ASKED {
            let rule = format!("must hold at most {MAX_LENGTHS_ASKED} lengths");
            problems.push(Problem::new("lengths", lengths.len(), rule, "ask about fewer"));
        }
        for (place, length) in lengths.iter().enumerate() {
            if !(1..=MAX_CONTEXT_TOKENS).contains(length) {
                let remedy = format!("give a number from 1 to {MAX_CONTEXT_TOKENS}");
                problems.push(Problem::new(format!("lengths[{place}]"), length, "must be a possible length", remedy));
            }
        }
        let whose = match tenant {
            Some(name) => Whose::Tenant(self.tenants.find(tenant_or_default(name))),
            None => Whose::Node,
        };
        let view = self.view_of(whose, head);
        let node = &self.config.capacity;
        let shown = |pool: &Pool| *pool != Pool::WindowTokens || node.window.is_some();
        let largest_extent_pages = match whose {
            Whose::Node => self.pages.longest_run(),
            Whose::Tenant(tenant) => self.pages.longest_run_for(tenant),
        };
        problems.into_result(()).map(|()| Capacity {
            epoch: self.epoch,
            sequence: self.sequence,
            pools: Pool::ALL
                .into_iter()
                .filter(shown)
                .map(|pool| self.books.state_of(pool, self.pages.counts()))
                .collect(),
            largest_grant_tokens: self.largest_grant(&view),
            max_request_tokens: node.max_request_tokens.get(),
            largest_extent_pages,
            draining: self.draining,
            fits: lengths.iter().map(|length| self.fit(*length, &view)).collect(),
        })
    }

    /// A tenant's part of every pool that the node has; empty for a tenant without settings that holds nothing.
    pub fn quotas(&self, tenant: &str) -> Vec<Quota> {
        let name = tenant_or_default(tenant);
        let Some(index) = self.tenants.find(name) else { return Vec::new() };
        let tenant = self.tenants.get(index);
        if tenant.leases == 0 && !tenant.configured {
            return Vec::new();
        }
        let has = |pool: &Pool| *pool != Pool::WindowTokens || self.config.capacity.window.is_some();
        let quota = |pool| {
            let (floor, ceiling, used) =
                (tenant.policy.floor[pool], self.tenants.ceiling(Some(index), pool), tenant.used[pool]);
            Quota { pool, floor, ceiling: (ceiling != u64::MAX).then_some(ceiling), used }
        };
        Pool::ALL.into_iter().filter(has).map(quota).collect()
    }

    fn view_of(&self, whose: Whose, head: Option<&Head>) -> View {
        let tenant = whose.tenant();
        let (spoken_for, beside) = match (head, whose) {
            (Some(head), Whose::Node) if head.lacks_only_zeroes => (head.awaited, None),
            _ => (Amounts::ZERO, head.map(|head| (self.beside(tenant, head), head.waits_for))),
        };
        let closed = if self.fault.is_some() {
            Some("")
        } else if self.draining {
            Refusal::Draining.reason()
        } else if matches!(whose, Whose::Tenant(None)) && !self.has_place_for_a_tenant() {
            Refusal::TooManyTenants { limit: MAX_TENANTS }.reason()
        } else {
            None
        };
        View { whose, spoken_for, beside, closed }
    }

    /// What could be had of a pool, quotas and who waits in earnest aside.
    fn obtainable(&self, pool: Pool, view: &View) -> u64 {
        let obtainable = match view.whose {
            Whose::Tenant(tenant) => self.available(pool, tenant),
            Whose::Node => {
                let unheld = match pool {
                    Pool::HostPages => self.pages.obtainable_after_scrub(),
                    _ => self.books.free(pool),
                };
                unheld.saturating_sub(self.tenants.set_aside_for_others(None, pool))
            }
        };
        obtainable.saturating_sub(view.spoken_for[pool])
    }

    fn left(&self, pool: Pool, view: &View) -> u64 {
        let tenant = view.whose.tenant();
        let used = tenant.map_or(0, |tenant| self.tenants.get(tenant).used[pool]);
        let quota = self.tenants.ceiling(tenant, pool).saturating_sub(used);
        let beside = view.beside.map_or(u64::MAX, |(most, _)| most[pool]);
        self.obtainable(pool, view).min(quota).min(beside)
    }

    fn largest_grant(&self, view: &View) -> u64 {
        let node = &self.config.capacity;
        if view.closed.is_some() || self.left(Pool::Seats, view) == 0 || self.left(Pool::RequestSlots, view) == 0 {
            return 0;
        }
        let by_pages = self.left(Pool::HostPages, view).saturating_mul(node.page_tokens);
        let whole_pages = |tokens: u64| tokens - tokens % node.page_tokens;
        let by_indexer = whole_pages(self.left(Pool::IndexerTokens, view));
        let by_window = match node.window {
            Some(window) => {
                let left = whole_pages(self.left(Pool::WindowTokens, view));
                // A window that has room for one request's share bounds no length.
                if left >= window.per_request.get() { u64::MAX } else { left }
            }
            None => u64::MAX,
        };
        by_pages.min(by_indexer).min(by_window).min(node.max_request_tokens.get())
    }

    /// How many fit: as many as every pool has room for, and the next one is put to the very checks of an admission.
    fn fit(&self, tokens: u64, view: &View) -> Fit {
        let tenant = view.whose.tenant();
        let demand = self.config.capacity.demand(Tokens::new(tokens));
        let room = || {
            let counts = demand.iter().filter(|(_, amount)| *amount > 0);
            counts.map(|(pool, amount)| self.left(pool, view) / amount).min().expect("a request always takes a seat")
        };
        let (count, refusal) = if let Err(never) = self.check_limits(Tokens::new(tokens), &demand, tenant) {
            (0, Some(never))
        } else {
            let count = room();
            let with_next = demand.times(count.saturating_add(1));
            let quota = self.check_quota(&with_next, tenant);
            let pools = || check_pools(&with_next, Hits::default(), |pool| self.obtainable(pool, view));
            (count, quota.and_then(|()| pools()).err())
        };
        let ahead = || view.beside.map(|(_, pool)| Refusal::PoolBusy { pool, asked: 0, available: 0 });
        let refusal = refusal.or_else(ahead).expect("something bounds the count, and one of the three is that");
        let reason = view.closed.or_else(|| refusal.reason()).unwrap_or_default();
        let count = if view.closed.is_some() { 0 } else { count };
        Fit { tokens, count, binding: refusal.binding().unwrap_or_default(), reason }
    }
}
