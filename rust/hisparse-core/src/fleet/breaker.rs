//! Leaving a node alone that does not answer, and trying it again.
//!
//! ```text
//!   closed ── failures in a row ──► open: nobody asks ── rest over ──► half-open: one call is let through
//!     ▲                              ▲    │                              │      │
//!     └──────────── answered ────────│────┴── a watch got through ───────│──────┘
//!                                    └────────── failed: twice the rest ─┘
//! ```

use std::time::Duration;

use super::dice::Dice;
use crate::env::Moment;
use crate::limits::{FLEET_FAILURES, FLEET_PROBE_FIRST, FLEET_PROBE_MOST};

/// Rests that double, with jitter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    tries: u32,
}

impl Backoff {
    /// The next rest.
    pub fn rest(&mut self, dice: &mut Dice) -> Duration {
        self.rest_within(FLEET_PROBE_FIRST, FLEET_PROBE_MOST, dice)
    }

    /// The next rest, from `first` on and at most about `most`.
    pub fn rest_within(&mut self, first: Duration, most: Duration, dice: &mut Dice) -> Duration {
        let rest = first.saturating_mul(1 << self.tries.min(20)).min(most);
        self.tries = self.tries.saturating_add(1);
        dice.jittered(rest)
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

/// Whether a node is asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Breaker {
    failures: u32,
    open_until: Option<Moment>,
    trial: bool,
    backoff: Backoff,
}

impl Breaker {
    /// Whether a call may go there now.
    pub fn allows(&self, now: Moment) -> bool {
        self.open_until.is_none_or(|until| until <= now && !self.trial)
    }

    /// Notes a call. The first one after the rest is the trial: no other goes until it has ended.
    pub fn asked(&mut self) {
        self.trial = self.open_until.is_some();
    }

    /// The node answered, with whatever word.
    pub fn answered(&mut self) {
        *self = Self::default();
    }

    /// It did not.
    pub fn failed(&mut self, now: Moment, dice: &mut Dice) {
        self.failures = self.failures.saturating_add(1);
        if self.open_until.is_some() || self.failures >= FLEET_FAILURES {
            self.open_until = Some(now.saturating_add(self.backoff.rest(dice)));
        }
        self.trial = false;
    }

    /// A call ended without telling anything of the node, for example because its caller gave up.
    pub fn abandoned(&mut self) {
        self.trial = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    #[test]
    fn three_failures_in_a_row_open_it_and_one_trial_at_a_time_is_let_through() {
        let (mut breaker, mut dice) = (Breaker::default(), Dice::of_seed(1));
        breaker.failed(at(0), &mut dice);
        breaker.answered();
        for _ in 0..FLEET_FAILURES {
            assert!(breaker.allows(at(0)));
            breaker.failed(at(0), &mut dice);
        }
        assert!(!breaker.allows(at(100)));
        assert!(breaker.allows(at(301)));
        breaker.asked();
        assert!(!breaker.allows(at(301)), "one trial at a time");
        breaker.failed(at(301), &mut dice);
        assert!(!breaker.allows(at(301 + 350)), "the rest doubles");
        assert!(breaker.allows(at(301 + 601)));
        breaker.asked();
        breaker.answered();
        assert!(breaker.allows(at(301 + 601)));
    }

    #[test]
    fn rests_double_up_to_their_bound() {
        let (mut backoff, mut dice) = (Backoff::default(), Dice::of_seed(1));
        let rests: Vec<_> = (0..80).map(|_| backoff.rest(&mut dice)).collect();
        assert!(rests[0] <= FLEET_PROBE_FIRST * 6 / 5 && rests[3] >= FLEET_PROBE_FIRST * 6);
        assert!(rests.iter().all(|rest| *rest <= FLEET_PROBE_MOST * 6 / 5), "{rests:?}");
    }
}
