//! What is left of a node, in a form a router can decide by.

use serde::Serialize;

use super::books::PoolState;
use super::core::Ledger;
use super::lease::Epoch;
use super::pools::Pool;
use super::request::DEFAULT_TENANT;
use crate::error::{Problem, Problems};
use crate::limits::{MAX_CONTEXT_TOKENS, MAX_LENGTHS_ASKED};
use crate::pages::TenantIndex;
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
enum View {
    /// That of a tenant without settings that holds nothing, once what is being zeroed is zero: what is kept for others
    /// is not free to it.
    Node,
    /// One tenant's: what it could have at once. `None` for one that is not known yet.
    Tenant(Option<TenantIndex>),
}

impl Ledger {
    /// The node now. With a tenant, the grants are those this tenant would get; without, those of one that has no
    /// settings and holds nothing, scrubbing pages counted as clean.
    ///
    /// # Errors
    /// Too many lengths, or one that no node could hold.
    pub fn capacity(&self, tenant: Option<&str>, lengths: &[u64]) -> Result<Capacity, Problems> {
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
        let view = match tenant {
            Some(name) => View::Tenant(self.tenants.find(if name.is_empty() { DEFAULT_TENANT } else { name })),
            None => View::Node,
        };
        let node = &self.config.capacity;
        let shown = |pool: &Pool| *pool != Pool::WindowTokens || node.window.is_some();
        let largest_extent_pages = match view {
            View::Node => self.pages.longest_run(),
            View::Tenant(tenant) => self.pages.longest_run_for(tenant),
        };
        problems.into_result(()).map(|()| Capacity {
            epoch: self.epoch,
            sequence: self.sequence,
            pools: Pool::ALL
                .into_iter()
                .filter(shown)
                .map(|pool| self.books.state_of(pool, self.pages.counts()))
                .collect(),
            largest_grant_tokens: self.largest_grant(view),
            max_request_tokens: node.max_request_tokens.get(),
            largest_extent_pages,
            draining: self.draining,
            fits: lengths.iter().map(|length| self.fit(*length, view)).collect(),
        })
    }

    /// A tenant's part of every pool that the node has; empty for a tenant without settings that holds nothing.
    pub fn quotas(&self, tenant: &str) -> Vec<Quota> {
        let name = if tenant.is_empty() { DEFAULT_TENANT } else { tenant };
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

    fn left(&self, pool: Pool, view: View) -> u64 {
        match view {
            View::Tenant(tenant) => self.available(pool, tenant).min(self.quota_left(pool, tenant)),
            View::Node => {
                let unheld = match pool {
                    Pool::HostPages => self.pages.obtainable_after_scrub(),
                    _ => self.books.free(pool),
                };
                unheld.saturating_sub(self.tenants.set_aside_for_others(None, pool)).min(self.quota_left(pool, None))
            }
        }
    }

    fn quota_left(&self, pool: Pool, tenant: Option<TenantIndex>) -> u64 {
        let used = tenant.map_or(0, |tenant| self.tenants.get(tenant).used[pool]);
        self.tenants.ceiling(tenant, pool).saturating_sub(used)
    }

    fn largest_grant(&self, view: View) -> u64 {
        let node = &self.config.capacity;
        if self.draining || self.left(Pool::Seats, view) == 0 || self.left(Pool::RequestSlots, view) == 0 {
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

    fn fit(&self, tokens: u64, view: View) -> Fit {
        if tokens > self.config.capacity.max_request_tokens.get() {
            return Fit { tokens, count: 0, binding: "max_request_tokens" };
        }
        let demand = self.config.capacity.demand(Tokens::new(tokens));
        let counts = demand.iter().filter(|(_, amount)| *amount > 0);
        let (count, pool) = counts
            .map(|(pool, amount)| (self.left(pool, view) / amount, pool))
            .min()
            .expect("a request always takes a seat");
        Fit { tokens, count: if self.draining { 0 } else { count }, binding: pool.name() }
    }
}
