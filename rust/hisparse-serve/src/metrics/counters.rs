//! What is counted as it happens: how Admits end, how long they take, and what is turned away.
//!
//! ```text
//!  Admit ──count──► hisparse_admit_total{result, reason}, hisparse_admit_seconds ─ one trace of each bucket (exemplar)
//!  gates ──count──► hisparse_turned_away_total{gate}        connections and calls that came no further than that
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hisparse_core::env::Clock;

use crate::env::MachineClock;
use crate::error::Refusal;
use crate::metrics::exposition::{Kind, Page, seconds};
use crate::metrics::swap_in::SwapIn;
use crate::trace::TraceContext;

/// Upper bounds of the histogram's buckets, in microseconds. Decisions take a few; waits take as long as they may.
const BUCKETS_US: [u64; 14] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000, 5_000_000, 30_000_000, 120_000_000];

/// How an Admit ended: every pair of the labels `result` and `reason`.
pub(crate) const OUTCOMES: [(&str, &str); 17] = [
    ("granted", ""),
    ("repeated", ""),
    ("validated", ""),
    ("refused", "NEVER_FITS"),
    ("refused", "POOL_BUSY"),
    ("refused", "QUOTA"),
    ("refused", "STALE_EPOCH"),
    ("refused", "DRAINING"),
    ("refused", "RECOVERING"),
    ("refused", "OVERLOADED"),
    ("refused", "REQUEST_ID_REUSED"),
    ("refused", "DEADLINE"),
    ("refused", "WRONG_ROLE"),
    ("refused", "WRONG_TENANT"),
    ("invalid", ""),
    ("cancelled", ""),
    ("failed", ""),
];

/// Where a connection or a call is turned away before it is decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Access,
    Connections,
    Tls,
    Silent,
    SlowReader,
    Protocol,
    Role,
    Rate,
    PeerCalls,
    AllCalls,
    FailFast,
}

/// All of them by label, in the order of their numbers.
const GATES: [(Gate, &str); 11] = [
    (Gate::Access, "access"),
    (Gate::Connections, "connections"),
    (Gate::Tls, "tls"),
    (Gate::Silent, "silent"),
    (Gate::SlowReader, "slow_reader"),
    (Gate::Protocol, "protocol"),
    (Gate::Role, "role"),
    (Gate::Rate, "rate"),
    (Gate::PeerCalls, "peer_calls"),
    (Gate::AllCalls, "all_calls"),
    (Gate::FailFast, "fail_fast"),
];

/// How an Admit ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Admitted<'a> {
    Granted,
    Repeated,
    Validated,
    Refused(&'a Refusal),
    /// The caller went away while it waited.
    Cancelled,
}

impl Admitted<'_> {
    fn labels(&self) -> (&'static str, &'static str) {
        match self {
            Self::Granted => ("granted", ""),
            Self::Repeated => ("repeated", ""),
            Self::Validated => ("validated", ""),
            Self::Cancelled => ("cancelled", ""),
            Self::Refused(refusal) if refusal.code() == tonic::Code::InvalidArgument => ("invalid", ""),
            Self::Refused(refusal) => match refusal.reason() {
                "" => ("failed", ""),
                reason => ("refused", reason),
            },
        }
    }
}

/// What is counted.
#[derive(Debug)]
pub(crate) struct Counters {
    outcomes: [AtomicU64; OUTCOMES.len()],
    buckets: [AtomicU64; BUCKETS_US.len() + 1],
    sum_us: AtomicU64,
    turned_away: [AtomicU64; GATES.len()],
    exemplars: Option<Exemplars>,
    swap_in: SwapIn,
}

impl Counters {
    /// Nothing counted yet.
    pub(crate) fn new(swap_in: SwapIn, exemplars: Option<Exemplars>) -> Self {
        Self {
            outcomes: Default::default(),
            buckets: Default::default(),
            sum_us: AtomicU64::new(0),
            turned_away: Default::default(),
            exemplars,
            swap_in,
        }
    }

    /// Admits so far, by how they ended, in the order of [`OUTCOMES`].
    pub(crate) fn outcomes(&self) -> [u64; OUTCOMES.len()] {
        self.outcomes.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// What engines say of their swap-in.
    pub(crate) const fn swap_in(&self) -> &SwapIn {
        &self.swap_in
    }

    /// Whether calls leave exemplars, which only `OpenMetrics` can show.
    pub(crate) const fn has_exemplars(&self) -> bool {
        self.exemplars.is_some()
    }

    /// Counts one Admit and the time from its arrival to its answer.
    pub(crate) fn admitted(&self, how: Admitted<'_>, took: Duration, trace: Option<TraceContext>) {
        let labels = how.labels();
        if let Some(place) = OUTCOMES.iter().position(|outcome| *outcome == labels) {
            self.outcomes[place].fetch_add(1, Ordering::Relaxed);
        }
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKETS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
        if let (Some(exemplars), Some(trace)) = (&self.exemplars, trace) {
            exemplars.left(bucket, trace, us);
        }
    }

    /// Counts what is turned away.
    pub(crate) fn turned_away(&self, gate: Gate) {
        if let Some(place) = GATES.iter().position(|(known, _)| *known == gate) {
            self.turned_away[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn write(&self, out: &mut Page) {
        out.head("hisparse_admit_total", Kind::Counter, "Admit calls by how they ended, and the reason of a refusal");
        for ((result, reason), count) in OUTCOMES.iter().zip(&self.outcomes) {
            let series = format!("hisparse_admit_total{{result=\"{result}\",reason=\"{reason}\"}}");
            out.line(&series, count.load(Ordering::Relaxed));
        }
        out.head(
            "hisparse_admit_seconds",
            Kind::Histogram,
            "time from the arrival of an Admit to its answer, waits included",
        );
        let mut total = 0;
        for (place, count) in self.buckets.iter().enumerate() {
            total += count.load(Ordering::Relaxed);
            let bound = BUCKETS_US.get(place).map_or("+Inf".to_owned(), |us| seconds(*us));
            let exemplar = self.exemplars.as_ref().and_then(|exemplars| exemplars.shown(place));
            out.line_with(&format!("hisparse_admit_seconds_bucket{{le=\"{bound}\"}}"), total, exemplar);
        }
        out.line("hisparse_admit_seconds_sum", seconds(self.sum_us.load(Ordering::Relaxed)));
        out.line("hisparse_admit_seconds_count", total);
        out.head(
            "hisparse_turned_away_total",
            Kind::Counter,
            "connections and calls that came no further than this gate",
        );
        for ((_, gate), count) in GATES.iter().zip(&self.turned_away) {
            out.line(&format!("hisparse_turned_away_total{{gate=\"{gate}\"}}"), count.load(Ordering::Relaxed));
        }
        self.swap_in.write(out);
    }
}

/// The last sampled trace of each bucket. It tells who asked, so it is kept only where an operator wants it.
#[derive(Debug)]
pub(crate) struct Exemplars {
    clock: MachineClock,
    buckets: [Mutex<Option<Exemplar>>; BUCKETS_US.len() + 1],
}

#[derive(Clone, Copy, Debug)]
struct Exemplar {
    trace: TraceContext,
    took_us: u64,
    since_unix_epoch: Duration,
}

impl Exemplars {
    /// None yet.
    pub(crate) fn new(clock: MachineClock) -> Self {
        Self { clock, buckets: Default::default() }
    }

    fn left(&self, bucket: usize, trace: TraceContext, took_us: u64) {
        if !trace.sampled() {
            return;
        }
        let since_unix_epoch = self.clock.wall(self.clock.now());
        let exemplar = Exemplar { trace, took_us, since_unix_epoch };
        *self.buckets[bucket].lock().unwrap_or_else(PoisonError::into_inner) = Some(exemplar);
    }

    fn shown(&self, bucket: usize) -> Option<String> {
        let Exemplar { trace, took_us, since_unix_epoch } =
            (*self.buckets.get(bucket)?.lock().unwrap_or_else(PoisonError::into_inner))?;
        let at = u64::try_from(since_unix_epoch.as_micros()).unwrap_or(u64::MAX);
        Some(format!("{{trace_id=\"{}\"}} {} {}", trace.trace_id(), seconds(took_us), seconds(at)))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::metrics::exposition::Dialect;
    use crate::pool_bytes::PoolBytes;

    fn page(counters: &Counters, dialect: Dialect) -> String {
        let mut out = Page::new(dialect);
        counters.write(&mut out);
        out.finish()
    }

    #[test]
    fn a_histogram_is_cumulative_and_ends_at_its_count() {
        let counters = Counters::new(SwapIn::new(0), None);
        for us in [10, 50, 51, 999_999, 500_000_000] {
            counters.admitted(Admitted::Granted, Duration::from_micros(us), None);
        }
        let page = page(&counters, Dialect::Prometheus);
        for line in [
            "hisparse_admit_seconds_bucket{le=\"0.000050\"} 2",
            "hisparse_admit_seconds_bucket{le=\"0.000100\"} 3",
            "hisparse_admit_seconds_bucket{le=\"1.000000\"} 4",
            "hisparse_admit_seconds_bucket{le=\"+Inf\"} 5",
            "hisparse_admit_seconds_count 5",
            "hisparse_admit_seconds_sum 501.000110",
            "hisparse_admit_total{result=\"granted\",reason=\"\"} 5",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn every_reason_of_an_admit_has_a_series() {
        for refusal in [
            Refusal::Deadline,
            Refusal::Stopping,
            Refusal::NoPool(PoolBytes::Making),
            Refusal::Overloaded { what: "waiters", limit: 1 },
        ] {
            assert!(OUTCOMES.contains(&Admitted::Refused(&refusal).labels()), "{refusal:?}");
        }
        assert_eq!(Admitted::Refused(&Refusal::Poisoned).labels(), ("failed", ""));
    }

    #[test]
    fn exemplars_are_left_by_sampled_traces_where_they_are_wanted_and_shown_where_there_is_room() {
        let trace = |flags: &str| {
            let mut headers = HeaderMap::new();
            let parent = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
            headers.insert("traceparent", parent.parse().unwrap());
            TraceContext::of(&headers)
        };
        let took = Duration::from_micros(70);
        let wanted = Counters::new(SwapIn::new(0), Some(Exemplars::new(MachineClock::start())));
        wanted.admitted(Admitted::Granted, took, trace("00"));
        assert!(!page(&wanted, Dialect::OpenMetrics).contains("trace_id"), "not sampled");
        wanted.admitted(Admitted::Granted, took, trace("01"));
        let shown = "hisparse_admit_seconds_bucket{le=\"0.000100\"} 2 # \
                     {trace_id=\"0af7651916cd43dd8448eb211c80319c\"} 0.000070 ";
        assert!(page(&wanted, Dialect::OpenMetrics).contains(shown));
        assert!(!page(&wanted, Dialect::Prometheus).contains("trace_id"));
        let unwanted = Counters::new(SwapIn::new(0), None);
        unwanted.admitted(Admitted::Granted, took, trace("01"));
        assert!(!page(&unwanted, Dialect::OpenMetrics).contains("trace_id"));
    }
}
