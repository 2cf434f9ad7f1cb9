//! How many further attempts a router may make: a share of its requests and a few besides. Without such a bound, routers
//! that are refused ask more, and the fuller a fleet is the more it is asked.

use crate::env::Moment;
use crate::limits::{FLEET_RETRIES_PER_SECOND, FLEET_RETRY_MILLI, FLEET_RETRY_SAVINGS};

/// A token bucket, in thousandths of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct RetryBudget {
    milli: u64,
    earned_at: Moment,
}

impl RetryBudget {
    /// A full one.
    pub const fn new(now: Moment) -> Self {
        Self { milli: FLEET_RETRY_SAVINGS * 1_000, earned_at: now }
    }

    /// A request begins: it earns a share of a further attempt.
    pub fn request(&mut self) {
        self.earn(FLEET_RETRY_MILLI);
    }

    /// Takes one further attempt, if there is one.
    pub fn take(&mut self, now: Moment) -> bool {
        let millis = now.saturating_since(self.earned_at).as_millis();
        let earned = u64::try_from(millis).unwrap_or(u64::MAX).saturating_mul(FLEET_RETRIES_PER_SECOND);
        if earned > 0 {
            self.earn(earned);
            self.earned_at = now;
        }
        let left = self.milli.checked_sub(1_000);
        self.milli = left.unwrap_or(self.milli);
        left.is_some()
    }

    fn earn(&mut self, milli: u64) {
        self.milli = self.milli.saturating_add(milli).min(FLEET_RETRY_SAVINGS * 1_000);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn attempts_end_with_the_savings_and_come_back_with_requests_and_time() {
        let now = Moment::ORIGIN;
        let mut budget = RetryBudget::new(now);
        let taken = (0..10_000).filter(|_| budget.take(now)).count() as u64;
        assert_eq!(taken, FLEET_RETRY_SAVINGS);
        for _ in 0..1_000 / FLEET_RETRY_MILLI {
            assert!(!budget.take(now));
            budget.request();
        }
        assert!(budget.take(now) && !budget.take(now));
        let later = now.saturating_add(Duration::from_secs(2));
        assert_eq!((0..100).filter(|_| budget.take(later)).count() as u64, 2 * FLEET_RETRIES_PER_SECOND);
    }
}
