//! What a run showed.

use std::collections::BTreeMap;

use serde::Serialize;

/// A spread of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Millis {
    /// Half are at most this.
    pub p50: u64,
    /// Ninety-nine in a hundred are.
    pub p99: u64,
    /// All are.
    pub max: u64,
}

impl Millis {
    pub(super) fn of(mut all: Vec<u64>) -> Self {
        all.sort_unstable();
        let at = |hundredths: usize| {
            let place = (all.len() * hundredths).div_ceil(100).saturating_sub(1);
            all.get(place).copied().unwrap_or(0)
        };
        Self { p50: at(50), p99: at(99), max: at(100) }
    }
}

/// Counts of one run, of the requests that arrived while it was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Requests.
    pub offered: u64,
    /// Those that got a lease, at first.
    pub admitted: u64,
    /// Those that did not, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Tokens of all requests.
    pub tokens_offered: u64,
    /// Tokens of those that got a lease and whose node did not die under them for good.
    pub tokens_granted: u64,
    /// Calls of Admit, by those that got a lease or not.
    pub attempts: u64,
    /// Attempts whose outcome their router did not know.
    pub unknown: u64,
    /// Wait from arrival to lease of those that got one.
    pub wait: Millis,
    /// The fullest live node's load as thousandths of the mean, averaged over the seconds measured.
    pub imbalance_milli: u64,
    /// Requests of all times whose node died under them.
    pub lost: u64,
    /// Those that got a lease elsewhere, or there later.
    pub replaced: u64,
    /// Those that did not, by reason.
    pub not_replaced: BTreeMap<&'static str, u64>,
    /// Grants beyond a node's capacity, all times.
    pub overcommit: u64,
    /// Grants to a request that held a lease already, all times.
    pub two_leases: u64,
    /// Choices that routers made, looks of waiting requests included, all times.
    pub decisions: u64,
    /// Hash of everything that happened, in order.
    pub trace: u64,
}

impl Report {
    /// Tokens granted, as a share of those offered.
    pub fn goodput(&self) -> f64 {
        share(self.tokens_granted, self.tokens_offered)
    }

    /// Calls of Admit for each lease.
    pub fn attempts_per_admit(&self) -> f64 {
        share(self.attempts, self.admitted)
    }
}

#[allow(clippy::cast_precision_loss)] // counts of a run are far below 2^53
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
