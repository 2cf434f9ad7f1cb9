//! What a replay found, in the fields of `replay --json`.

use serde::Serialize;

/// Median, 99th percentile and largest of some times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Largest.
    pub max: u64,
}

impl Percentiles {
    /// Those of `values`, by nearest rank; zeroes of nothing.
    pub fn of(values: Vec<u64>) -> Self {
        Tally(values).percentiles()
    }
}

impl PerRequest {
    /// Those of `values`, by nearest rank; zeroes of nothing.
    pub fn of(values: Vec<u64>) -> Self {
        Tally(values).per_request()
    }
}

/// Mean and 99th percentile of a count per request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PerRequest {
    /// Mean.
    pub mean: f64,
    /// 99th percentile.
    pub p99: u64,
}

/// One node's half of a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Requests of the trace.
    pub requests: u64,
    /// Those granted a lease, at once or after waiting.
    pub admitted: u64,
    /// Those of the admitted that waited.
    pub waited: u64,
    /// Refused for ever.
    pub refused_never_fits: u64,
    /// Refused after the longest wait.
    pub refused_busy: u64,
    /// Most pages in leases' hands at one time.
    pub peak_pages: u64,
    /// Pages of the pool.
    pub total_pages: u64,
    /// Units handed out twice, or beyond a pool's total, by the replay's own count.
    pub overcommit: u64,
    /// Pages that admitted requests found in the prefix index.
    pub prefix_hit_pages: u64,
    /// Time the admitted waited, in trace time.
    pub wait_ms: Percentiles,
    /// Extents newly allocated.
    pub new_extents_per_request: PerRequest,
    /// Extents of shared prefix pages.
    pub shared_extents_per_request: PerRequest,
    /// Most requests running at one time.
    pub peak_running: u64,
    /// Used pages over all pages at the first refusal or wait for host pages; `None` if there was none.
    pub used_at_first_busy: Option<f64>,
}

/// The node's state at one moment of trace time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Trace time in milliseconds.
    pub at_ms: u64,
    /// Pages in leases' hands.
    pub used_pages: u64,
    /// Pages of cached prefixes that nobody uses.
    pub evictable_pages: u64,
    /// Requests running.
    pub seats: u64,
    /// Requests waiting.
    pub waiting: u64,
}

/// Numbers of one kind, summed up at the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally(Vec<u64>);

impl Tally {
    pub(super) fn add(&mut self, value: u64) {
        self.0.push(value);
    }

    pub(super) fn percentiles(mut self) -> Percentiles {
        self.0.sort_unstable();
        Percentiles { p50: self.quantile(1, 2), p99: self.quantile(99, 100), max: self.quantile(1, 1) }
    }

    #[allow(clippy::cast_precision_loss)] // a mean of counts far below 2^52
    pub(super) fn per_request(mut self) -> PerRequest {
        self.0.sort_unstable();
        let mean = if self.0.is_empty() { 0.0 } else { self.0.iter().sum::<u64>() as f64 / self.0.len() as f64 };
        PerRequest { mean, p99: self.quantile(99, 100) }
    }

    /// The value at rank `ceil(n × top / bottom)`; 0 of nothing.
    fn quantile(&self, top: usize, bottom: usize) -> u64 {
        let rank = (self.0.len() * top).div_ceil(bottom).max(1);
        self.0.get(rank - 1).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let tally = Tally((1..=200).rev().collect());
        assert_eq!(tally.clone().percentiles(), Percentiles { p50: 100, p99: 198, max: 200 });
        assert_eq!(tally.per_request(), PerRequest { mean: 100.5, p99: 198 });
        assert_eq!(Tally::default().percentiles(), Percentiles::default());
    }
}
