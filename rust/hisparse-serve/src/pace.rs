//! When to try again: an estimate from how often room has been freed of late.
//!
//! ```text
//!  freed ──gap──► freed ──gap──► …      retry = mean gap × (requests ahead + 1), within bounds
//! ```
//! The mean forgets: each gap counts an eighth. Callers add their own jitter.

use std::time::Duration;

use hisparse_core::env::Moment;
use hisparse_core::limits::{MAX_RETRY_DELAY, MIN_RETRY_DELAY};

/// How much of the mean each new gap is, as a divisor.
const MEMORY: u32 = 8;
/// The delay while nothing has been freed yet.
const FIRST_GUESS: Duration = Duration::from_secs(1);

/// The rate at which room is freed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    last: Option<Moment>,
    mean_gap: Option<Duration>,
}

impl Pace {
    /// Something was freed.
    pub(crate) fn freed(&mut self, now: Moment) {
        if let Some(last) = self.last.replace(now) {
            // Bounded, so that one night without a request does not make the next day's callers wait.
            let gap = now.saturating_since(last).min(MAX_RETRY_DELAY);
            self.mean_gap = Some(self.mean_gap.map_or(gap, |mean| (mean * (MEMORY - 1) + gap) / MEMORY));
        }
    }

    /// When a request with so many ahead of it should try again.
    pub(crate) fn retry_delay(&self, ahead: usize) -> Duration {
        let gap = self.mean_gap.unwrap_or(FIRST_GUESS);
        let turns = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
        gap.saturating_mul(turns).clamp(MIN_RETRY_DELAY, MAX_RETRY_DELAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_follows_the_rate_and_the_line_within_its_bounds() {
        let mut pace = Pace::default();
        assert_eq!(pace.retry_delay(0), FIRST_GUESS);
        for tick in 0..100 {
            pace.freed(Moment::from_origin(Duration::from_millis(tick * 200)));
        }
        let ms = |ahead| pace.retry_delay(ahead).as_millis();
        assert!((195..=200).contains(&ms(0)), "{}", ms(0));
        assert!((780..=800).contains(&ms(3)), "{}", ms(3));
        assert_eq!(pace.retry_delay(1_000_000), MAX_RETRY_DELAY);
        for tick in 0..100 {
            pace.freed(Moment::from_origin(Duration::from_secs(20) + Duration::from_micros(tick)));
        }
        assert_eq!(pace.retry_delay(0), MIN_RETRY_DELAY);
    }
}
