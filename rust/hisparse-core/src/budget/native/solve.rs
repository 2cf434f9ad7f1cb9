//! How large the pools can be: the most pages whose bytes, tables included, fit the budget.
//!
//! ```text
//!  ratio      logical = ⌊n × r⌋        largest n with bytes(n, ⌊n × r⌋, seats(n)) ≤ kv_bytes
//!  host pool  logical = what the pool holds, at most what all seats can use; then n ≤ logical
//!  resident   no host pool: n = logical, everything stays on the GPU
//! ```
//! Bytes never fall when pages or seats rise, so each search is a bisection, and what it finds is exact: one page more
//! would not fit.

use crate::budget::concurrency::Baseline;
use crate::budget::device_bytes::{SeatBytes, device_bytes, padded_rows};
use crate::budget::plan::Binding;
use crate::budget::rank::{PAGE_ROWS, Rank};
use crate::limits::MAX_RATIO;
use crate::ratio::Ratio;

/// Pools of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pools {
    /// Pages of the device pool.
    pub(super) device_pages: u64,
    /// Logical pages: of the host pool, or of the device pool where there is none.
    pub(super) logical_pages: u64,
    /// Requests that can hold a hot buffer at once.
    pub(super) seats: u64,
}

/// A budget to be filled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget<'a> {
    /// What a page costs.
    pub(super) rank: &'a Rank<'a>,
    /// What a seat costs beside its hot rows.
    pub(super) seat: SeatBytes,
    /// Rows of a hot buffer.
    pub(super) hot_rows: u64,
    /// The engine's own limit on requests.
    pub(super) max_seqs: u64,
    /// Bytes to fill.
    pub(super) kv_bytes: u64,
}

impl Budget<'_> {
    /// Seats of a device pool.
    pub(super) fn seats(&self, device_pages: u64) -> u64 {
        let rows = device_pages.saturating_mul(PAGE_ROWS);
        padded_rows(self.hot_rows).map_or(0, |padded| rows / padded).min(self.max_seqs)
    }

    /// Pages of the device pool that one seat needs.
    pub(super) fn seat_pages(&self) -> u64 {
        padded_rows(self.hot_rows).map_or(u64::MAX, |padded| padded.div_ceil(PAGE_ROWS))
    }

    /// Bytes of one seat with room for `logical_pages`: the least budget that admits anything; `None` on overflow.
    pub(super) fn least_bytes(&self, logical_pages: u64) -> Option<u64> {
        device_bytes(self.rank, &self.seat, self.seat_pages(), logical_pages, 1)?.total()
    }

    pub(super) fn fits(&self, device_pages: u64, logical_pages: u64) -> bool {
        device_bytes(self.rank, &self.seat, device_pages, logical_pages, self.seats(device_pages))
            .and_then(|bytes| bytes.total())
            .is_some_and(|bytes| bytes <= self.kv_bytes)
    }

    /// The most pages that `fits` accepts.
    fn most(&self, fits: impl Fn(u64) -> bool) -> u64 {
        // A page costs at least a byte, so there are never more.
        largest(self.kv_bytes, fits)
    }

    /// Pools in the proportion `ratio`.
    pub(super) fn by_ratio(&self, ratio: Ratio) -> Pools {
        let device_pages = self.most(|n| ratio.scale_floor(n).is_some_and(|m| self.fits(n, m)));
        Pools {
            device_pages,
            logical_pages: ratio.scale_floor(device_pages).unwrap_or(0),
            seats: self.seats(device_pages),
        }
    }

    /// Logical pages that so many requests of `tokens` use: their own, at least those of their hot buffers, since pools
    /// have a ratio of at least 1; and one token more than the longest of them, which the length limit asks for.
    pub(super) fn logical_pages(&self, requests: u64, tokens: u64) -> u64 {
        let each = self.rank.pages(tokens).max(self.seat_pages());
        requests.saturating_mul(each).max(tokens / self.rank.page_tokens + 1)
    }

    /// Pools for a host pool of `host_pages` usable pages, split for the most requests of `tokens`.
    pub(super) fn by_host_pool(&self, host_pages: u64, tokens: u64) -> Pools {
        let device_pages = |m: u64| self.most(|n| self.fits(n, m));
        // Logical pages beyond what all seats can hold are never used, and their indexer keys would cost seats.
        let useful = largest(host_pages, |m| {
            let device_pages = device_pages(m);
            let seats = self.seats(device_pages);
            seats > 0 && self.logical_pages(seats, tokens) >= m && device_pages.saturating_mul(MAX_RATIO) >= m
        });
        // More device rows than logical tokens would be a ratio below 1.
        let device_pages = device_pages(useful).min(useful);
        Pools { device_pages, logical_pages: useful, seats: self.seats(device_pages) }
    }

    /// The most requests of `tokens` that any split of the GPU runs with `host_pages` usable pages; what
    /// [`Budget::by_host_pool`] splits for. It never falls when the budget or the host pool grows.
    pub(super) fn requests(&self, host_pages: u64, tokens: u64) -> u64 {
        largest(self.max_seqs, |requests| {
            let logical_pages = self.logical_pages(requests, tokens);
            let device_pages = requests.saturating_mul(self.seat_pages());
            logical_pages <= host_pages && self.fits(device_pages, logical_pages)
        })
    }

    /// What stops one more request of `tokens` than [`Budget::requests`] finds. Where the GPU does, it is what takes
    /// most of it for each request: the hot buffer, or the indexer keys.
    pub(super) fn requests_binding(&self, host_pages: u64, tokens: u64, requests: u64) -> Binding {
        if requests >= self.max_seqs {
            return Binding::RequestSlots;
        }
        if self.logical_pages(requests + 1, tokens) > host_pages {
            return Binding::HostPages;
        }
        let page = &self.rank.page;
        let keys = self.rank.pages(tokens).saturating_mul(page.logical());
        let hot = self.seat_pages().saturating_mul(page.device());
        if keys > hot { Binding::IndexerTokens } else { Binding::Seats }
    }

    /// What runs without a host pool.
    pub(super) fn baseline(&self) -> Baseline {
        Baseline { total: self.kv_bytes, per_page: self.rank.page.whole(), per_request: self.seat.resident }
    }

    /// Everything on the GPU, no host pool; windows for as many requests of `request_pages` as run at once.
    pub(super) fn resident(&self, request_pages: u64) -> Pools {
        let windows = self.baseline().requests(request_pages).max(1).min(self.max_seqs);
        let taken = windows.saturating_mul(self.seat.resident);
        let pages = self.kv_bytes.saturating_sub(taken).checked_div(self.rank.page.whole()).unwrap_or(0);
        let seats = if self.seat.resident == 0 { pages.min(self.max_seqs) } else { windows };
        Pools { device_pages: pages, logical_pages: pages, seats }
    }
}

/// The largest number up to `limit` that `fits`, which must hold up to some point and not beyond; 0 if none does.
pub(super) fn largest(limit: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut good, mut bad) = (0, limit.saturating_add(1));
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(middle) { good = middle } else { bad = middle }
    }
    good
}
