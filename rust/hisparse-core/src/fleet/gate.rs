//! How fast one router's waiting requests go for room that has come free.
//!
//! ```text
//!   a lease ends ─► every router's view says so, at the same moment ─► all go for it, one gets it
//!   lost  ─► twice the window      ┐  each router waits for a random part of its window between two such calls,
//!   won   ─► a tenth less of it    ┘  so that most find out from their view that the room is gone
//! ```
//! The window settles where about one call in eight is lost. It holds back requests that wait already, and no others.

use std::time::Duration;

use super::dice::Dice;
use crate::env::Moment;
use crate::limits::{FLEET_GATE_FIRST, FLEET_GATE_MOST};

/// One router's window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gate {
    window: Duration,
    opens_at: Moment,
}

impl Gate {
    /// How long it is still closed; `None` where a waiting request may go.
    pub fn closed(&self, now: Moment) -> Option<Duration> {
        let left = self.opens_at.saturating_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// A waiting request goes: the next one after a random part of the window.
    pub fn passed(&mut self, now: Moment, dice: &mut Dice) {
        let micros = u64::try_from(self.window.as_micros()).unwrap_or(u64::MAX);
        self.opens_at = now.saturating_add(Duration::from_micros(dice.below(micros.saturating_add(1))));
    }

    /// It found room.
    pub fn won(&mut self) {
        let window = self.window * 9 / 10;
        self.window = if window * 4 < FLEET_GATE_FIRST { Duration::ZERO } else { window };
    }

    /// Somebody else was there first.
    pub fn lost(&mut self) {
        self.window = (self.window * 2).clamp(FLEET_GATE_FIRST, FLEET_GATE_MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_open_until_a_call_is_lost_and_opens_again_as_calls_are_won() {
        let (mut gate, mut dice, now) = (Gate::default(), Dice::of_seed(1), Moment::ORIGIN);
        gate.passed(now, &mut dice);
        assert_eq!(gate.closed(now), None);
        for _ in 0..20 {
            gate.lost();
            gate.passed(now, &mut dice);
            assert!(gate.closed(now).unwrap_or_default() <= FLEET_GATE_MOST);
        }
        let most = (0..100).filter_map(|_| {
            gate.passed(now, &mut dice);
            gate.closed(now)
        });
        assert!(most.max().unwrap() > FLEET_GATE_MOST / 2);
        (0..100).for_each(|_| gate.won());
        gate.passed(now, &mut dice);
        assert_eq!(gate.closed(now), None);
    }
}
