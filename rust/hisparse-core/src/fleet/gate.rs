//! How one router goes for room that others see too. Routers share nothing, and every one of them sees a lease end, and
//! a burst of requests arrive, at the same moment.
//!
//! ```text
//!   room is seen ─► a claim at a random moment of the window ─► still there? ─► go      not there ─► no call was made
//!   lost  ─► twice the window, half a router more in the crowd   ┐ both settle where few calls are lost
//!   won   ─► a tenth less of the window, a little less crowd     ┘
//! ```
//! The crowd is how many routers seem to ask for what this one asks for: so many times its own calls are taken off a
//! node's room. Only requests for which room would be tight then, and those that wait already, go through the gate.

use std::time::Duration;

use super::dice::Dice;
use crate::env::Moment;
use crate::limits::{FLEET_CROWD_MOST, FLEET_GATE_FIRST, FLEET_GATE_MOST};

/// A crowd of one: this router alone.
const ALONE_MILLI: u64 = 1_000;

/// One router's window, claim and crowd.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    window: Duration,
    claim: Option<Moment>,
    crowd_milli: u64,
}

impl Default for Gate {
    fn default() -> Self {
        Self { window: Duration::ZERO, claim: None, crowd_milli: ALONE_MILLI }
    }
}

impl Gate {
    /// A request sees room: how long it waits before it looks again and goes; `None` where it goes now.
    pub fn hold(&mut self, now: Moment, dice: &mut Dice) -> Option<Duration> {
        let at = self.claim.unwrap_or_else(|| {
            let micros = u64::try_from(self.window.as_micros()).unwrap_or(u64::MAX);
            now.saturating_add(Duration::from_micros(dice.below(micros.saturating_add(1))))
        });
        let left = at.saturating_since(now);
        self.claim = (!left.is_zero()).then_some(at);
        self.claim.map(|_| left)
    }

    /// The room is gone before anyone went for it.
    pub fn missed(&mut self, now: Moment) {
        self.claim = self.claim.filter(|at| *at > now);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    #[test]
    fn it_is_open_until_a_call_is_lost_and_opens_again_as_calls_are_won() {
        let (mut gate, mut dice) = (Gate::default(), Dice::of_seed(1));
        assert_eq!(gate.hold(at(0), &mut dice), None);
        (0..20).for_each(|_| gate.lost());
        assert_eq!(gate.crowd_milli(), FLEET_CROWD_MOST * ALONE_MILLI);
        let mut longest = Duration::ZERO;
        for round in 0..100 {
            let held = gate.hold(at(round * 1_000), &mut dice).unwrap_or_default();
            longest = longest.max(held);
            gate.missed(at(round * 1_000 + 999));
        }
        assert!((FLEET_GATE_MOST / 2..=FLEET_GATE_MOST).contains(&longest), "{longest:?}");
        (0..300).for_each(|_| gate.won());
        assert_eq!(gate.hold(at(500_000), &mut dice), None);
        assert!(gate.crowd_milli() < ALONE_MILLI + 32);
    }

    #[test]
    fn one_claim_is_held_until_its_moment_and_the_next_one_is_drawn_anew() {
        let (mut gate, mut dice) = (Gate::default(), Dice::of_seed(2));
        (0..20).for_each(|_| gate.lost());
        let held = gate.hold(at(0), &mut dice).unwrap();
        assert_eq!(gate.hold(at(0), &mut dice), Some(held), "another request of this router waits for the same moment");
        let then = at(0).saturating_add(held);
        assert_eq!(gate.hold(then, &mut dice), None);
        assert!(gate.hold(then, &mut dice).is_some());
    }
}
