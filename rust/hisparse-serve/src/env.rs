//! The only place that reads the machine's clock. Everything else is handed a [`Moment`].
//!
//! ```text
//!  Instant (monotonic) ──► Moment ──► every decision
//!                             └──► wall time at start + elapsed ──► expire_time, observed_at
//! ```
//! Decisions never follow the wall clock, so stepping it expires nothing. Wall times are shown, not compared. What one
//! process leaves for the next in the same boot is told by the time that the machine has been up, which both read alike.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hisparse_core::env::{Clock, Entropy, Moment};
use rustix::time::{ClockId, clock_gettime};

/// The machine's monotonic clock, and the wall time at its origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineClock {
    origin: Instant,
    origin_since_unix_epoch: Duration,
    origin_since_boot: Duration,
}

impl MachineClock {
    /// A clock whose origin is now.
    #[allow(clippy::disallowed_methods)] // this is the door
    pub(crate) fn start() -> Self {
        Self {
            origin: Instant::now(),
            origin_since_unix_epoch: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            // The clock of `Instant`, whose own figure the standard library keeps to itself.
            origin_since_boot: clock_gettime(ClockId::Monotonic).try_into().unwrap_or_default(),
        }
    }

    /// The wall time of a moment, as time since 1970-01-01 UTC.
    pub(crate) fn wall(&self, moment: Moment) -> Duration {
        self.origin_since_unix_epoch.saturating_add(moment.since_origin())
    }

    /// The wall time of the origin, as time since 1970-01-01 UTC.
    pub(crate) const fn wall_at_origin(&self) -> Duration {
        self.origin_since_unix_epoch
    }

    /// How long the machine had been up at a moment, sleep not counted: what every process of this boot reads alike.
    pub(crate) fn since_boot(&self, moment: Moment) -> Duration {
        self.origin_since_boot.saturating_add(moment.since_origin())
    }

    /// The same moment on the runtime's timers.
    pub(crate) fn instant(&self, moment: Moment) -> Option<tokio::time::Instant> {
        self.origin.checked_add(moment.since_origin()).map(tokio::time::Instant::from_std)
    }
}

impl Clock for MachineClock {
    #[allow(clippy::disallowed_methods)] // this is the door
    fn now(&self) -> Moment {
        Moment::from_origin(self.origin.elapsed())
    }
}

/// The machine's randomness.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineEntropy;

impl Entropy for MachineEntropy {
    fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let read = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        // At boot it waits rather than fail, and it never gives less than it is asked for below 256 bytes.
        assert_eq!(read, Ok(bytes.len()), "getrandom(2) has no reason to fail for 8 bytes");
        u64::from_ne_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back_and_wall_time_follows_it() {
        let clock = MachineClock::start();
        let (first, second) = (clock.now(), clock.now());
        assert!(first <= second);
        assert!(clock.wall(first) <= clock.wall(second));
        assert!(clock.wall_at_origin() > Duration::from_secs(1_600_000_000));
    }

    #[test]
    fn two_clocks_of_one_boot_tell_its_time_alike() {
        let before = MachineClock::start();
        let (first, second) = (before.since_boot(before.now()), {
            let after = MachineClock::start();
            after.since_boot(after.now())
        });
        // To what passes between two readings of a start: a busy machine may stop it there.
        assert!(first > Duration::ZERO && first.abs_diff(second) < Duration::from_secs(60), "{first:?} {second:?}");
    }
}
