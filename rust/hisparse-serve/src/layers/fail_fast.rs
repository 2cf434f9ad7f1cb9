//! Failing fast: after a second in which no place became free, nobody waits for one any more.
//!
//! ```text
//!  place had or freed ─► ready ── no place ─► unready since then ── 1 s ─► open: shed without a wait
//!                          ▲───────────────────── a place is freed ──────────┘
//! ```
//! A wait is worth its time while the service moves. When it is stuck, a line of callers that each wait for nothing only
//! adds to what it has to do when it moves again.

use std::sync::atomic::{AtomicU64, Ordering};

use hisparse_core::env::Moment;
use hisparse_core::limits::FAIL_FAST_AFTER;

/// Whether it is worth waiting.
#[derive(Debug, Default)]
pub(crate) struct FailFast {
    /// Microseconds from the origin, and one; zero while ready.
    unready_since: AtomicU64,
}

impl FailFast {
    /// A place was had, or became free.
    pub(crate) fn ready(&self) {
        // Read first: in the good case nobody writes, and no core takes the line from another.
        if self.unready_since.load(Ordering::Relaxed) != 0 {
            self.unready_since.store(0, Ordering::Relaxed);
        }
    }

    /// There is no place now. Whether that is so for longer than waits are worth.
    pub(crate) fn unready(&self, now: Moment) -> bool {
        let us = |moment: Moment| u64::try_from(moment.since_origin().as_micros()).unwrap_or(u64::MAX - 1);
        let since = us(now) + 1;
        match self.unready_since.compare_exchange(0, since, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => false,
            Err(before) => u128::from(since.saturating_sub(before)) >= FAIL_FAST_AFTER.as_micros(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_opens_after_a_second_without_a_place_and_closes_with_the_first_one() {
        let at = |ms| Moment::from_origin(Duration::from_millis(ms));
        let state = FailFast::default();
        assert!(!state.unready(at(0)), "the first one waits, at the origin too");
        assert!(!state.unready(at(999)));
        assert!(state.unready(at(1_000)));
        assert!(state.unready(at(60_000)));
        state.ready();
        assert!(!state.unready(at(60_001)));
        assert!(!state.unready(at(61_000)));
        assert!(state.unready(at(61_001)));
    }
}
