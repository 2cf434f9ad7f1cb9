//! The node's clock, which is not the simulation's: it drifts, and it is stepped.
//!
//! ```text
//!  true time ──× (1 ± drift) + steps──► raw ──never back──► Moment
//! ```
//! The last arrow is the promise of [`Clock`](hisparse_core::env::Clock), and what a monotonic clock keeps.

use std::time::Duration;

use hisparse_core::env::Moment;

#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeClock {
    started_us: u64,
    drift_ppm: i64,
    stepped_us: i64,
    last: Moment,
}

impl NodeClock {
    pub(crate) const fn start(at_us: u64, drift_ppm: i64) -> Self {
        Self { started_us: at_us, drift_ppm, stepped_us: 0, last: Moment::ORIGIN }
    }

    pub(crate) const fn step(&mut self, by_us: i64) {
        self.stepped_us = self.stepped_us.saturating_add(by_us);
    }

    pub(crate) fn now(&mut self, at_us: u64) -> Moment {
        let elapsed = i64::try_from(at_us.saturating_sub(self.started_us)).unwrap_or(i64::MAX);
        let drifted = elapsed.saturating_add(elapsed.saturating_mul(self.drift_ppm) / 1_000_000);
        let raw = u64::try_from(drifted.saturating_add(self.stepped_us)).unwrap_or(0);
        self.last = self.last.max(Moment::from_origin(Duration::from_micros(raw)));
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_back_stops_the_clock_and_a_step_forward_is_taken() {
        let mut clock = NodeClock::start(1_000, 0);
        let us = |us| Moment::from_origin(Duration::from_micros(us));
        assert_eq!(clock.now(6_000), us(5_000));
        clock.step(-2_000);
        assert_eq!(clock.now(7_000), us(5_000));
        assert_eq!(clock.now(9_000), us(6_000));
        clock.step(10_000);
        assert_eq!(clock.now(9_000), us(16_000));
    }

    #[test]
    fn a_fast_clock_gains() {
        assert_eq!(NodeClock::start(0, 10_000).now(1_000_000), Moment::from_origin(Duration::from_millis(1_010)));
    }
}
