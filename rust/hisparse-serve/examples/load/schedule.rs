//! When calls are due, and a thread's wait for them.
//!
//! ```text
//!  begin ──┬────┬────┬────┬──►      due: begin + n / rate, whatever happened to the calls before
//!          n=0  1    2    3
//! ```
//! A thread that sleeps wakes within some 50 µs. Tokio's timers count whole milliseconds and round up twice: calls would
//! leave up to 2 ms late, and the generator would measure itself.

use std::time::{Duration, Instant};

/// The due times of calls at a steady rate.
#[derive(Debug)]
pub(crate) struct Schedule {
    begin: Instant,
    per_second: u64,
    next: u64,
}

impl Schedule {
    /// So many calls per second, from now on.
    pub(crate) fn new(per_second: u64) -> Self {
        Self { begin: Instant::now(), per_second, next: 0 }
    }

    /// Blocks until the next call is due; when that was. Returns at once while it is behind.
    pub(crate) fn next(&mut self) -> Instant {
        let due = self.begin + Duration::from_nanos(self.next * 1_000_000_000 / self.per_second);
        self.next += 1;
        while let Some(rest) = due.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
            std::thread::sleep(rest);
        }
        due
    }
}
