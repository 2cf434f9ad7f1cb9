//! Making certain that a node holds nothing for an attempt whose outcome is unknown.
//!
//! ```text
//!   asked ──── the attempt's deadline ──► Release until the node answers ─► safe ─► once more ─► settled
//!              (after it the node does                 │                      ▲
//!               not touch its ledger)                  └─ silent: past its ttl ┘
//! ```
//! Once it is safe another node may be asked. The second release follows in the background: the network may deliver
//! the attempt after the first one.

use std::time::Duration;

use super::breaker::Backoff;
use super::dice::Dice;
use crate::env::Moment;
use crate::limits::{FLEET_LOOK_FIRST, FLEET_SETTLE_MARGIN};

/// Releases that the node must answer.
const RELEASES: u32 = 2;

/// Longest rest between two releases.
const MOST_REST: Duration = Duration::from_secs(1);

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// Wait so long.
    Rest(Duration),
    /// Release by the request's id.
    Release,
    /// Nothing: it is certain.
    Done,
}

/// One attempt that is being settled.
#[derive(Clone, Debug)]
pub struct Settling {
    next_at: Moment,
    ended_at: Moment,
    answered: u32,
    backoff: Backoff,
    dice: Dice,
}

impl Settling {
    /// Begins with the attempt's own deadline and the ttl it asked for.
    pub fn new(deadline: Moment, ttl: Duration, dice: Dice) -> Self {
        let ended_at = deadline.saturating_add(ttl).saturating_add(FLEET_SETTLE_MARGIN);
        Self { next_at: deadline, ended_at, answered: 0, backoff: Backoff::default(), dice }
    }

    /// The next step.
    pub fn next(&self, now: Moment) -> Settle {
        if self.answered >= RELEASES || now >= self.ended_at {
            return Settle::Done;
        }
        let rest = self.next_at.saturating_since(now);
        if rest.is_zero() { Settle::Release } else { Settle::Rest(rest) }
    }

    /// Notes one release: whether the node answered.
    pub fn released(&mut self, answered: bool, now: Moment) {
        if answered {
            self.answered = self.answered.saturating_add(1);
            self.backoff.reset();
        }
        self.next_at = now.saturating_add(self.backoff.rest_within(5 * FLEET_LOOK_FIRST, MOST_REST, &mut self.dice));
    }

    /// Whether nothing is held there any more, so that another node may be asked.
    pub fn is_safe(&self, now: Moment) -> bool {
        self.answered > 0 || now >= self.ended_at
    }

    /// When it is safe at the latest.
    pub const fn ends_at(&self) -> Moment {
        self.ended_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    fn settling() -> Settling {
        Settling::new(at(1_000), Duration::from_secs(10), Dice::of_seed(3))
    }

    #[test]
    fn nothing_is_released_before_the_attempts_deadline() {
        assert_eq!(settling().next(at(200)), Settle::Rest(Duration::from_millis(800)));
        assert_eq!(settling().next(at(1_000)), Settle::Release);
    }

    #[test]
    fn one_answer_is_safe_and_a_second_release_follows() {
        let mut settling = settling();
        settling.released(true, at(1_001));
        assert!(settling.is_safe(at(1_001)));
        assert!(matches!(settling.next(at(1_001)), Settle::Rest(_)));
        assert_eq!(settling.next(at(1_200)), Settle::Release);
        settling.released(true, at(1_200));
        assert_eq!(settling.next(at(1_200)), Settle::Done);
    }

    #[test]
    fn a_silent_node_is_asked_until_its_grant_has_ended_by_itself() {
        let (mut settling, mut now) = (settling(), 1_000);
        let mut releases = 0;
        loop {
            match settling.next(at(now)) {
                Settle::Done => break,
                Settle::Release => {
                    assert!(!settling.is_safe(at(now)));
                    settling.released(false, at(now));
                    releases += 1;
                }
                Settle::Rest(rest) => now += u64::try_from(rest.as_millis()).unwrap().max(1),
            }
        }
        assert!((8..40).contains(&releases), "{releases}");
        assert!(settling.is_safe(at(now)) && now >= 11_500);
    }
}
