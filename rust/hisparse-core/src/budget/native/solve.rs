//! How large the pools can be: the most pages whose bytes, tables included, fit the budget.
//!
//! ```text
//!  ratio      logical = ⌊n × r⌋        largest n with bytes(n, ⌊n × r⌋, seats(n)) ≤ kv_bytes
//!  host pool  logical = what the pool holds, at most what all seats can use; then n
//!  resident   no host pool: n = logical, everything stays on the GPU
//! ```
//! Bytes never fall when pages or seats rise, so each search is a bisection, and what it finds is exact: one page more
//! would not fit.

use crate::budget::concurrency::Baseline;
use crate::budget::device_bytes::{SeatBytes, device_bytes, padded_rows};
use crate::budget::rank::{PAGE_ROWS, Rank};
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
    /// Whether the GPU's indexer keys, not the host pool, set the logical size.
    pub(super) indexer_binds: bool,
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

    fn fits(&self, device_pages: u64, logical_pages: u64) -> bool {
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
            indexer_binds: false,
        }
    }

    /// Pools for a host pool of `host_pages` usable pages, for requests of at most `request_pages`.
    pub(super) fn by_host_pool(&self, host_pages: u64, request_pages: u64) -> Pools {
        let device_pages = |m: u64| self.most(|n| self.fits(n, m));
        // Logical pages beyond what all seats can hold are never used, and their indexer keys would cost seats.
        let useful = largest(host_pages, |m| self.seats(device_pages(m)).saturating_mul(request_pages) >= m);
        // More device rows than logical tokens would never be used either.
        let device_pages = device_pages(useful).min(useful);
        Pools {
            device_pages,
            logical_pages: useful,
            seats: self.seats(device_pages),
            indexer_binds: useful < host_pages,
        }
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
        Pools { device_pages: pages, logical_pages: pages, seats, indexer_binds: false }
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
