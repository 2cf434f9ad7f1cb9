//! The rate of Admits, where one is configured: what comes faster is shed at once, so that what is let in is fast.
//!
//! ```text
//!          ◄─ 50 ms of burst ─►
//!  ──now──────────────────────┼──► time        each Admit moves `due` by 1/rate; one that would move it past the burst
//!            due ───►                          is refused. One number is the whole state, so a flood costs no memory.
//! ```
//! This is the generic cell rate algorithm of ATM traffic policing (ITU-T I.371). The requests of a batch count each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hisparse_core::env::Moment;
use http::Request;
use tonic::body::Body;

use crate::error::Refusal;
use crate::layers::class::{self, Kind};
use crate::layers::gate::{Answer, Calls, Layer};
use crate::layers::refused::refused;
use crate::layers::shed::Shed;
use crate::metrics::Gate;
use crate::peer::Peer;

/// How far Admits may run ahead of the rate.
const BURST: Duration = Duration::from_millis(50);

/// A rate, and how far it is used.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: u32,
    interval_ns: u64,
    /// When the next one is due, in nanoseconds from the origin.
    due_ns: AtomicU64,
}

impl Rate {
    pub(crate) fn new(per_second: u32) -> Self {
        Self { per_second, interval_ns: 1_000_000_000 / u64::from(per_second.max(1)), due_ns: AtomicU64::new(0) }
    }

    /// One more; whether the rate allows it.
    pub(crate) fn take(&self, now: Moment) -> bool {
        let now = nanos(now.since_origin());
        let next =
            |due: u64| (due <= now.saturating_add(nanos(BURST))).then(|| due.max(now).saturating_add(self.interval_ns));
        self.due_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    /// So many more that were let in with one: those after them make up for it.
    pub(crate) fn charge(&self, more: u64) {
        let later = |due: u64| Some(due.saturating_add(self.interval_ns.saturating_mul(more)));
        // The closure never refuses.
        let _ = self.due_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Keeps Admits to a rate.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    rate: Option<Arc<Rate>>,
    shed: Arc<Shed>,
    peer: Arc<Peer>,
}

impl Rates {
    pub(crate) const fn new(rate: Option<Arc<Rate>>, shed: Arc<Shed>, peer: Arc<Peer>) -> Self {
        Self { rate, shed, peer }
    }
}

impl Layer for Rates {
    fn pass(&self, mut request: Request<Body>, next: &mut impl Calls) -> Answer {
        let Rates { rate, shed, peer } = self;
        if let Some(rate) = rate
            && class::of(request.uri().path()).kind == Kind::Admit
        {
            if !rate.take(shed.now()) {
                let refusal = Refusal::Overloaded { what: "Admits per second", limit: rate.per_second.into() };
                return refused(shed.turn_away(Gate::Rate, Kind::Admit, &peer.user, refusal), request.into_body());
            }
            // For a batch, whose size only its handler knows.
            request.extensions_mut().insert(Arc::clone(rate));
        }
        next.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(9) + Duration::from_micros(us))
    }

    #[test]
    fn ten_times_the_rate_gets_the_rate() {
        let rate = Rate::new(2_000);
        let granted = (0..60 * 20_000).filter(|call| rate.take(at(call * 50))).count();
        assert!((120_000..=120_101).contains(&granted), "{granted} in 60 s at 2,000/s");
    }

    #[test]
    fn a_slow_rate_lets_one_at_a_time_through_and_a_batch_is_paid_for_afterwards() {
        let rate = Rate::new(1);
        assert!(rate.take(at(0)));
        assert!(!rate.take(at(900_000)));
        assert!(rate.take(at(950_000)));
        rate.charge(9);
        assert!(!rate.take(at(10_900_000)));
        assert!(rate.take(at(11_000_000)));
    }
}
