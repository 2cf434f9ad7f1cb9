//! How one router goes for room that others see too. Routers share nothing, and every one of them sees a lease end, and
//! a burst of requests arrive, at the same moment.
//!
//! ```text
//!   room is seen ─► a claim at a random moment of the window ─► still there? ─► go      not there ─► no call was made
//!   lost  ─► twice the window, half a router more in the crowd   ┐ both settle where few calls are lost
//!   won   ─► a tenth less of the window, a little less crowd     ┘
//! ```
//! The crowd is how many routers seem to ask for what this one asks for: so many times its own calls are taken off a
//! node's room, and so many times fewer nodes are compared. Only requests for which room would be tight then, and those
//! that wait already, go through the gate. Each has a claim of its own: one claim for a router would let through one
//! request a window, however many it has.

use std::time::Duration;

use super::dice::Dice;
use crate::env::Moment;
use crate::limits::{FLEET_CROWD_MOST, FLEET_GATE_FIRST, FLEET_GATE_MOST};

/// A crowd of one: this router alone.
const ALONE_MILLI: u64 = 1_000;

/// One router's window and crowd.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    window: Duration,
    crowd_milli: u64,
}

impl Default for Gate {
    fn default() -> Self {
        Self { window: Duration::ZERO, crowd_milli: ALONE_MILLI }
    }
}

impl Gate {
    /// A request sees room: the moment from which it goes for it.
    pub fn claim(&self, now: Moment, dice: &mut Dice) -> Moment {
        let micros = u64::try_from(self.window.as_micros()).unwrap_or(u64::MAX);
        now.saturating_add(Duration::from_micros(dice.below(micros.saturating_add(1))))
    }

    /// A call found the room that its view had shown.
    pub fn won(&mut self) {
        let window = self.window * 9 / 10;
        self.window = if window * 4 < FLEET_GATE_FIRST { Duration::ZERO } else { window };
        self.crowd_milli -= (self.crowd_milli - ALONE_MILLI) / 32;
    }

    /// Somebody else was there first.
    pub fn lost(&mut self) {
        self.window = (self.window * 2).clamp(FLEET_GATE_FIRST, FLEET_GATE_MOST);
        self.crowd_milli = (self.crowd_milli + ALONE_MILLI / 2).min(FLEET_CROWD_MOST * ALONE_MILLI);
    }

    /// Thousandths of its own calls that are taken off a node's room.
    pub const fn crowd_milli(&self) -> u64 {
        self.crowd_milli
    }

    /// How many nodes are compared of so many that a lone router would compare: routers that compare many and see the
    /// same all go to the same one.
    pub fn choices(&self, alone: usize) -> usize {
        let fewer = (alone as u64).saturating_mul(ALONE_MILLI) / self.crowd_milli;
        usize::try_from(fewer).unwrap_or(alone).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    fn latest(gate: &Gate, dice: &mut Dice) -> Duration {
        let claims = (0..100).map(|_| gate.claim(at(0), dice).saturating_since(at(0)));
        claims.max().unwrap()
    }

    #[test]
    fn it_is_open_until_a_call_is_lost_and_opens_again_as_calls_are_won() {
        let (mut gate, mut dice) = (Gate::default(), Dice::of_seed(1));
        assert_eq!(gate.claim(at(7), &mut dice), at(7));
        (0..20).for_each(|_| gate.lost());
        assert_eq!(gate.crowd_milli(), FLEET_CROWD_MOST * ALONE_MILLI);
        let longest = latest(&gate, &mut dice);
        assert!((FLEET_GATE_MOST / 2..=FLEET_GATE_MOST).contains(&longest), "{longest:?}");
        (0..300).for_each(|_| gate.won());
        assert_eq!(gate.claim(at(7), &mut dice), at(7));
        assert!(gate.crowd_milli() < ALONE_MILLI + 32);
    }

    #[test]
    fn whatever_happens_the_window_the_crowd_and_the_choices_stay_in_their_bounds() {
        for seed in 0..200 {
            let (mut gate, mut dice) = (Gate::default(), Dice::of_seed(seed));
            for step in 0..300 {
                if dice.below(2 + seed % 7) == 0 {
                    gate.lost();
                } else {
                    gate.won();
                }
                let held = gate.claim(at(step), &mut dice).saturating_since(at(step));
                assert!(held <= FLEET_GATE_MOST, "seed {seed}, step {step}: {held:?}");
                let crowd = gate.crowd_milli();
                assert!((ALONE_MILLI..=FLEET_CROWD_MOST * ALONE_MILLI).contains(&crowd), "seed {seed}, step {step}");
                for alone in [1, 2, 4, 1_024] {
                    assert!((1..=alone).contains(&gate.choices(alone)), "seed {seed}, step {step}");
                }
            }
        }
    }
}
