//! The one door by which time and randomness enter. Production hands in the machine's, tests and the simulator
//! their own; `clippy.toml` bans every other way.

use std::time::Duration;

/// A monotonic point in time, counted from an origin that only its [`Clock`] knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The clock's origin.
    pub const ORIGIN: Self = Self(Duration::ZERO);

    /// The point `elapsed` after the origin.
    pub const fn from_origin(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// Time since the origin.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// This point, later; stays at the far end rather than wrap.
    #[must_use]
    pub const fn saturating_add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }

    /// Time from `earlier` to this point; zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Where time comes from.
pub trait Clock {
    /// Now; never earlier than an answer it gave before.
    fn now(&self) -> Moment;
}

/// Where randomness comes from.
pub trait Entropy {
    /// The next 64 random bits.
    fn next_u64(&mut self) -> u64;
}
