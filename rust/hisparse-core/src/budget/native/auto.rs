//! `--auto`: the hot buffer and the pools that run the most requests of one length.
//!
//! ```text
//!  seats(h): requests whose h hot rows and whole context fit GPU and host together       falls as h rises
//!  most = seats(smallest legal h)          h = the largest with seats(h) = most          what is left: more context
//! ```
//! More requests first; then the largest hot buffer that costs none of them, since more hot rows mean fewer misses.

use std::ops::RangeInclusive;

use crate::budget::device_bytes::SeatBytes;
use crate::budget::native::solve::{Budget, Pools, largest};
use crate::budget::rank::{PAGE_ROWS, Rank};
use crate::limits::MAX_RATIO;

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
        let budget = self.budget(hot_rows)?;
        let device_pages = budget.seat_pages().checked_mul(most)?;
        let limit = self.host_pages.min(device_pages.saturating_mul(MAX_RATIO));
        let logical_pages = largest(limit, |pages| budget.fits(device_pages, pages));
        Some((hot_rows, Pools { device_pages, logical_pages, seats: most }))
    }

    /// The budget with this hot buffer; `None` on overflow.
    fn budget(&self, hot_rows: u64) -> Option<Budget<'_>> {
        let seat = SeatBytes::new(self.rank, hot_rows, self.query_len, self.rank.model.context_tokens.get())?;
        Some(Budget { rank: self.rank, seat, hot_rows, max_seqs: self.max_seqs, kv_bytes: self.kv_bytes })
    }

    /// Requests of the wished length that run at once with this hot buffer.
    fn seats(&self, hot_rows: u64) -> u64 {
        self.budget(hot_rows).map_or(0, |budget| budget.requests(self.host_pages, self.context_tokens))
    }
}
