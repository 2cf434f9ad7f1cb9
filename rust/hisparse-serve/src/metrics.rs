//! Prometheus text: gauges read from the ledger at scrape time, counters kept here.
//!
//! ```text
//!  ledger ──snapshot──► hisparse_pages, _seats, _leases, _epoch …      cannot drift: there is no second copy
//!  Admit  ──count─────► hisparse_admit_total{result, reason}, hisparse_admit_seconds
//!  gates  ──count─────► hisparse_turned_away_total{gate}        connections and calls that came no further than that
//! ```
//! Every label has a fixed set of values; no tenant, no request id, nothing a caller writes.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::accept::Door;
use crate::error::Refusal;
use crate::proto;

/// Upper bounds of the histogram's buckets, in microseconds. Decisions take a few; waits take as long as they may.
const BUCKETS_US: [u64; 14] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000, 5_000_000, 30_000_000, 120_000_000];

/// How an Admit ended: every pair of the labels `result` and `reason`.
const OUTCOMES: [(&str, &str); 17] = [
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
#[derive(Debug, Default)]
pub(crate) struct Counters {
    outcomes: [AtomicU64; OUTCOMES.len()],
    buckets: [AtomicU64; BUCKETS_US.len() + 1],
    sum_us: AtomicU64,
    hit_rows: AtomicU64,
    miss_rows: AtomicU64,
    turned_away: [AtomicU64; GATES.len()],
}

impl Counters {
    /// Counts one Admit and the time from its arrival to its answer.
    pub(crate) fn admitted(&self, how: Admitted<'_>, took: Duration) {
        let labels = how.labels();
        if let Some(place) = OUTCOMES.iter().position(|outcome| *outcome == labels) {
            self.outcomes[place].fetch_add(1, Ordering::Relaxed);
        }
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.buckets[BUCKETS_US.partition_point(|bound| *bound < us)].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Counts what is turned away.
    pub(crate) fn turned_away(&self, gate: Gate) {
        if let Some(place) = GATES.iter().position(|(known, _)| *known == gate) {
            self.turned_away[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds what an engine reports.
    pub(crate) fn used(&self, usage: &[proto::LeaseUsage]) {
        for entry in usage {
            self.hit_rows.fetch_add(entry.hit_rows, Ordering::Relaxed);
            self.miss_rows.fetch_add(entry.miss_rows, Ordering::Relaxed);
        }
    }

    fn write(&self, out: &mut Page) {
        out.head("hisparse_admit_total", "counter", "Admit calls by how they ended");
        for ((result, reason), count) in OUTCOMES.iter().zip(&self.outcomes) {
            let count = count.load(Ordering::Relaxed);
            out.line(&format!("hisparse_admit_total{{result=\"{result}\",reason=\"{reason}\"}}"), count);
        }
        out.head(
            "hisparse_swap_in_rows_total",
            "counter",
            "rows that the engine reports: in its hot buffers, or copied",
        );
        for (result, count) in [("hit", &self.hit_rows), ("miss", &self.miss_rows)] {
            let series = format!("hisparse_swap_in_rows_total{{layer_group=\"all\",result=\"{result}\"}}");
            out.line(&series, count.load(Ordering::Relaxed));
        }
        out.head("hisparse_turned_away_total", "counter", "connections and calls that came no further than this gate");
        for ((_, gate), count) in GATES.iter().zip(&self.turned_away) {
            out.line(&format!("hisparse_turned_away_total{{gate=\"{gate}\"}}"), count.load(Ordering::Relaxed));
        }
        out.head(
            "hisparse_admit_seconds",
            "histogram",
            "time from the arrival of an Admit to its answer, waits included",
        );
        let mut total = 0;
        for (place, count) in self.buckets.iter().enumerate() {
            total += count.load(Ordering::Relaxed);
            let bound = BUCKETS_US.get(place).map_or("+Inf".to_owned(), |us| seconds(*us));
            out.line(&format!("hisparse_admit_seconds_bucket{{le=\"{bound}\"}}"), total);
        }
        out.line("hisparse_admit_seconds_sum", seconds(self.sum_us.load(Ordering::Relaxed)));
        out.line("hisparse_admit_seconds_count", total);
    }
}

/// Microseconds as exact decimal seconds.
fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

/// The page under construction.
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, series: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{series} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, "gauge", help);
        self.line(name, value);
    }
}

/// The states of a pool with their amounts; they add up to the total.
fn states(pool: &proto::Pool) -> [(&'static str, u64); 6] {
    [
        ("free", pool.free),
        ("reserved", pool.reserved),
        ("committed", pool.committed),
        ("evictable", pool.evictable),
        ("scrubbing", pool.scrubbing),
        ("quarantined", pool.quarantined),
    ]
}

/// The whole page.
pub(crate) fn page(door: &Door) -> String {
    let node = &door.node;
    let mut out = Page(String::with_capacity(8_192));
    match node.overview() {
        Ok(seen) => {
            for pool in &seen.capacity.pools {
                // Pages carry their pool and place as labels; the other pools are metrics of their own, unit in the name.
                let (name, labels) = if pool.name == "host_pages" {
                    let numa = pool.numa_node.map(|node| node.to_string()).unwrap_or_default();
                    ("hisparse_pages".to_owned(), format!("pool=\"host_pages\",numa=\"{numa}\","))
                } else {
                    (format!("hisparse_{}", pool.name), String::new())
                };
                out.head(&name, "gauge", "what the pool holds, by state; the states add up to the pool");
                for (state, amount) in states(pool) {
                    out.line(&format!("{name}{{{labels}state=\"{state}\"}}"), amount);
                }
            }
            out.gauge(
                "hisparse_largest_grant_tokens",
                "longest request that would be granted now",
                seen.capacity.largest_grant_tokens,
            );
            out.head("hisparse_leases", "gauge", "live leases by state");
            for (state, count) in seen.leases {
                out.line(&format!("hisparse_leases{{state=\"{state}\"}}"), count);
            }
            out.gauge("hisparse_epoch", "generation of the pool", seen.capacity.epoch);
            out.gauge("hisparse_sequence", "changes of the ledger in this epoch", seen.capacity.sequence);
            out.gauge("hisparse_sessions", "processes that are attached", node.sessions.attached());
            out.gauge("hisparse_waiters", "Admit calls that wait for room", seen.waiters);
            out.gauge("hisparse_draining", "1 while nothing new is granted", u8::from(seen.capacity.draining));
            out.gauge("hisparse_up", "1 while decisions are made", 1);
        }
        Err(_) => out.gauge("hisparse_up", "0: a decision failed, restart the service", 0),
    }
    out.head(
        "hisparse_journal_failures_total",
        "counter",
        "writes of the journal that failed: GetServerInfo says more",
    );
    out.line("hisparse_journal_failures_total", node.journal_failures());
    out.gauge("hisparse_connections", "connections of all listeners of gRPC", door.peers.connections());
    out.gauge("hisparse_calls", "calls whose answers are not yet taken", door.shared.places.taken());
    node.counters().write(&mut out);
    out.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_cumulative_and_ends_at_its_count() {
        let counters = Counters::default();
        for us in [10, 50, 51, 999_999, 500_000_000] {
            counters.admitted(Admitted::Granted, Duration::from_micros(us));
        }
        let mut out = Page(String::new());
        counters.write(&mut out);
        for line in [
            "hisparse_admit_seconds_bucket{le=\"0.000050\"} 2",
            "hisparse_admit_seconds_bucket{le=\"0.000100\"} 3",
            "hisparse_admit_seconds_bucket{le=\"1.000000\"} 4",
            "hisparse_admit_seconds_bucket{le=\"+Inf\"} 5",
            "hisparse_admit_seconds_count 5",
            "hisparse_admit_seconds_sum 501.000110",
            "hisparse_admit_total{result=\"granted\",reason=\"\"} 5",
        ] {
            assert!(out.0.lines().any(|found| found == line), "{line} is not in\n{}", out.0);
        }
    }

    #[test]
    fn every_reason_of_an_admit_has_a_series() {
        for refusal in [
            Refusal::Deadline,
            Refusal::Stopping,
            Refusal::NoPoolYet,
            Refusal::Overloaded { what: "waiters", limit: 1 },
        ] {
            assert!(OUTCOMES.contains(&Admitted::Refused(&refusal).labels()), "{refusal:?}");
        }
        assert_eq!(Admitted::Refused(&Refusal::Poisoned).labels(), ("failed", ""));
    }
}
