//! `--auto`: the hot buffer and the pools that run the most requests of one length.
//!
//! ```text
//!  seats(h): requests whose h hot rows and whole context fit GPU and host together       falls as h rises
//!  most = seats(smallest legal h)          h = the largest with seats(h) = most          what is left: more context
//! ```
//! More requests first; then the largest hot buffer that costs none of them, since more hot rows mean fewer misses.

use std::ops::RangeInclusive;

use crate::budget::device_bytes::{SeatBytes, device_bytes, padded_rows};
use crate::budget::native::solve::{Pools, largest};
use crate::budget::rank::{PAGE_ROWS, Rank};

/// What to choose for.
#[derive(Clone, Debug)]
pub(super) struct Wish<'a> {
    /// What a page costs.
    pub(super) rank: &'a Rank<'a>,
    /// Device bytes.
    pub(super) kv_bytes: u64,
    /// Usable pages of the host pool at most.
    pub(super) host_pages: u64,
    /// The engine's own limit on requests.
    pub(super) max_seqs: u64,
    /// Query rows of a step.
    pub(super) query_len: u64,
    /// Tokens of each request.
    pub(super) context_tokens: u64,
    /// Hot rows to choose from; whole pages.
    pub(super) hot_rows: RangeInclusive<u64>,
}

impl Wish<'_> {
    /// Hot rows and pools; `None` where not even one request fits.
    pub(super) fn choose(&self) -> Option<(u64, Pools)> {
        let least = self.hot_rows.start() / PAGE_ROWS;
        let useful = self.context_tokens.div_ceil(self.rank.tokens_per_row).div_ceil(PAGE_ROWS);
        let most = self.seats(least * PAGE_ROWS);
        if most == 0 {
            return None;
        }
        let (mut good, mut bad) = (least, useful.clamp(least, self.hot_rows.end() / PAGE_ROWS) + 1);
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            if self.seats(middle * PAGE_ROWS) == most { good = middle } else { bad = middle }
        }
        let hot_rows = good * PAGE_ROWS;
        let device_pages = device_pages(hot_rows, most)?;
        let logical_pages = largest(self.host_pages, |pages| self.fits(hot_rows, device_pages, pages, most))
            .max(self.logical_pages(most));
        let indexer_binds = logical_pages < self.host_pages;
        Some((hot_rows, Pools { device_pages, logical_pages, seats: most, indexer_binds }))
    }

    fn logical_pages(&self, seats: u64) -> u64 {
        self.rank.pages(self.context_tokens).saturating_mul(seats)
    }

    /// Requests of the wished length that run at once with this hot buffer.
    fn seats(&self, hot_rows: u64) -> u64 {
        let pages = self.rank.pages(self.context_tokens).max(1);
        largest((self.host_pages / pages).min(self.max_seqs), |seats| {
            device_pages(hot_rows, seats)
                .is_some_and(|device| self.fits(hot_rows, device, self.logical_pages(seats), seats))
        })
    }

    fn fits(&self, hot_rows: u64, device_pages: u64, logical_pages: u64, seats: u64) -> bool {
        SeatBytes::new(self.rank, hot_rows, self.query_len, self.rank.model.context_tokens.get())
            .and_then(|seat| device_bytes(self.rank, &seat, device_pages, logical_pages, seats))
            .and_then(|bytes| bytes.total())
            .is_some_and(|bytes| bytes <= self.kv_bytes)
    }
}

/// Pages of the device pool that `seats` hot buffers take.
fn device_pages(hot_rows: u64, seats: u64) -> Option<u64> {
    Some(padded_rows(hot_rows)?.checked_mul(seats)?.div_ceil(PAGE_ROWS))
}
