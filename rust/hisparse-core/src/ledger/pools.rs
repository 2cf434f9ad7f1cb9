//! The five pools that a request draws on, all at once or not at all.

use std::fmt;
use std::ops::{Index, IndexMut};

use serde::Serialize;

use crate::error::{Problem, Problems};
use crate::limits::{MAX_CONTEXT_TOKENS, MAX_HOT_ROWS, MAX_POOL_PAGES, MAX_SEATS, PAGE_TOKENS};
use crate::units::{Pages, Rows, Tokens};

/// Something a node has a bounded amount of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Pages of host memory that hold main KV and indexer keys.
    HostPages,
    /// Hot buffers in GPU memory; one per running request.
    Seats,
    /// Tokens of the indexer cache in GPU memory, whole pages of them.
    IndexerTokens,
    /// Rows of the engine's request tables; one per request.
    RequestSlots,
    /// Tokens of the sliding-window pool, where the model has one.
    WindowTokens,
}

impl Pool {
    /// Every pool, in the order they are reported.
    pub const ALL: [Self; 5] =
        [Self::HostPages, Self::Seats, Self::IndexerTokens, Self::RequestSlots, Self::WindowTokens];

    /// Its name in gRPC, JSON and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HostPages => "host_pages",
            Self::Seats => "seats",
            Self::IndexerTokens => "indexer_tokens",
            Self::RequestSlots => "request_slots",
            Self::WindowTokens => "window_tokens",
        }
    }
}

impl std::str::FromStr for Pool {
    type Err = Problem;

    /// Reads [`Pool::name`].
    fn from_str(text: &str) -> Result<Self, Problem> {
        Self::ALL.into_iter().find(|pool| pool.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Problem::new("pool", format!("{text:.80}"), format!("must be one of {names}"), "name a pool")
        })
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An amount of each pool, in that pool's own unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amounts([u64; Pool::ALL.len()]);

impl Amounts {
    /// Nothing of anything.
    pub const ZERO: Self = Self([0; Pool::ALL.len()]);

    /// More of everything than any node has: a ceiling that never binds.
    pub const UNBOUNDED: Self = Self([u64::MAX; Pool::ALL.len()]);

    /// So many thousandths of each, at most all there can be.
    #[must_use]
    pub fn scaled(&self, milli: u64) -> Self {
        Self(self.0.map(|amount| thousandths(amount, milli)))
    }

    /// Each pool with its amount.
    pub fn iter(&self) -> impl Iterator<Item = (Pool, u64)> + '_ {
        Pool::ALL.into_iter().map(|pool| (pool, self[pool]))
    }

    /// So many times as much of everything.
    pub(super) fn times(&self, count: u64) -> Self {
        Self(self.0.map(|amount| amount.saturating_mul(count)))
    }
}

/// `amount` × `milli` ÷ 1,000, at most all there can be. Wide arithmetic only where it must be: it is several times slower.
fn thousandths(amount: u64, milli: u64) -> u64 {
    amount.checked_mul(milli).map_or_else(
        || u64::try_from(u128::from(amount) * u128::from(milli) / 1_000).unwrap_or(u64::MAX),
        |product| product / 1_000,
    )
}

impl Index<Pool> for Amounts {
    type Output = u64;

    fn index(&self, pool: Pool) -> &u64 {
        &self.0[pool as usize]
    }
}

impl IndexMut<Pool> for Amounts {
    fn index_mut(&mut self, pool: Pool) -> &mut u64 {
        &mut self.0[pool as usize]
    }
}

/// The pool of a model with a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WindowCapacity {
    /// Tokens of the pool.
    pub total: Tokens,
    /// Most tokens one request keeps in it.
    pub per_request: Tokens,
}

/// What one node can hold: the numbers that a plan yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NodeCapacity {
    /// Pages of the host pool that requests may have (the pad page is not among them).
    pub host_pages: Pages,
    /// Hot buffers that fit in GPU memory.
    pub seats: u64,
    /// Tokens of the indexer cache: the logical capacity.
    pub indexer_tokens: Tokens,
    /// Rows of the request tables.
    pub request_slots: u64,
    /// The sliding-window pool, where the model has one.
    pub window: Option<WindowCapacity>,
    /// Tokens of one page.
    pub page_tokens: u64,
    /// Rows of one hot buffer.
    pub hot_rows: Rows,
    /// Longest request, prompt and output together: the logical capacity bounded by the model's context.
    pub max_request_tokens: Tokens,
}

impl NodeCapacity {
    /// A node without GPU limits: `host_pages` pages, and of everything else enough for them.
    pub const fn of_host_pages(host_pages: u64, seats: u64) -> Self {
        let tokens = host_pages.saturating_mul(PAGE_TOKENS);
        Self {
            host_pages: Pages::new(host_pages),
            seats,
            indexer_tokens: Tokens::new(tokens),
            request_slots: seats,
            window: None,
            page_tokens: PAGE_TOKENS,
            hot_rows: Rows::new(4_096),
            max_request_tokens: Tokens::new(tokens),
        }
    }

    /// How much there is of each pool.
    pub fn totals(&self) -> Amounts {
        let mut totals = Amounts::ZERO;
        totals[Pool::HostPages] = self.host_pages.get();
        totals[Pool::Seats] = self.seats;
        totals[Pool::IndexerTokens] = self.indexer_tokens.get();
        totals[Pool::RequestSlots] = self.request_slots;
        totals[Pool::WindowTokens] = self.window.map_or(0, |window| window.total.get());
        totals
    }

    /// What a request of `tokens` tokens takes when no page of it is shared.
    pub(crate) fn demand(&self, tokens: Tokens) -> Amounts {
        let pages = tokens.to_pages(self.page_tokens).get();
        let mut demand = Amounts::ZERO;
        demand[Pool::HostPages] = pages;
        demand[Pool::Seats] = 1;
        demand[Pool::IndexerTokens] = pages.saturating_mul(self.page_tokens);
        demand[Pool::RequestSlots] = 1;
        if let Some(window) = self.window {
            let kept = tokens.min(window.per_request).to_pages(self.page_tokens).get();
            demand[Pool::WindowTokens] = kept.saturating_mul(self.page_tokens);
        }
        demand
    }

    /// Checks that the ledger can keep books of such a node, and returns the pages of its pool.
    ///
    /// # Errors
    /// Every figure that is out of its range.
    pub fn checked_pages(&self) -> Result<u32, Problems> {
        let mut problems = Problems::new();
        let mut range = |field: &str, value: u64, min: u64, max: u64| {
            if !(min..=max).contains(&value) {
                let remedy = format!("give a number from {min} to {max}");
                problems.push(Problem::new(field, value, "must be in range", remedy));
            }
        };
        range("page_tokens", self.page_tokens, 1, MAX_HOT_ROWS);
        range("host_pages", self.host_pages.get(), 1, MAX_POOL_PAGES);
        range("seats", self.seats, 1, MAX_SEATS);
        range("request_slots", self.request_slots, 1, MAX_SEATS);
        let most_tokens = MAX_POOL_PAGES * MAX_HOT_ROWS;
        range("indexer_tokens", self.indexer_tokens.get(), 1, most_tokens);
        range("hot_rows", self.hot_rows.get(), 0, MAX_HOT_ROWS);
        range("max_request_tokens", self.max_request_tokens.get(), 1, MAX_CONTEXT_TOKENS);
        if let Some(window) = self.window {
            range("window.total", window.total.get(), 1, most_tokens);
            range("window.per_request", window.per_request.get(), 1, MAX_CONTEXT_TOKENS);
        }
        // In range, the figure fits; out of range, it is a problem and the value is not returned.
        problems.into_result(u32::try_from(self.host_pages.get()).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_is_exact_and_stays_at_the_far_end() {
        let mut amounts = Amounts::ZERO;
        amounts[Pool::HostPages] = 7;
        amounts[Pool::IndexerTokens] = u64::MAX;
        assert_eq!(amounts.scaled(1_500)[Pool::HostPages], 10);
        assert_eq!(amounts.scaled(500)[Pool::IndexerTokens], u64::MAX / 2);
        assert_eq!(amounts.scaled(1_500)[Pool::IndexerTokens], u64::MAX);
    }

    #[test]
    fn a_window_is_charged_up_to_its_width_in_whole_pages() {
        let window = WindowCapacity { total: Tokens::new(4_096), per_request: Tokens::new(100) };
        let node = NodeCapacity { window: Some(window), ..NodeCapacity::of_host_pages(100, 4) };
        assert_eq!(node.demand(Tokens::new(3))[Pool::WindowTokens], 64);
        assert_eq!(node.demand(Tokens::new(3_000))[Pool::WindowTokens], 128);
        assert_eq!(NodeCapacity::of_host_pages(100, 4).demand(Tokens::new(3_000))[Pool::WindowTokens], 0);
    }

    #[test]
    fn every_figure_out_of_range_is_named() {
        let node = NodeCapacity { page_tokens: 0, ..NodeCapacity::of_host_pages(0, 0) };
        let problems = node.checked_pages().unwrap_err();
        let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(
            fields,
            ["page_tokens", "host_pages", "seats", "request_slots", "indexer_tokens", "max_request_tokens"]
        );
    }
}
