//! The real ledger under every fault there is, for as many seeds as a test may take.

use hisparse_sim::{Judges, Summary, run};

/// Enough for every kind of event to happen; ten thousand run in `make check-deep`.
const SEEDS: u64 = 200;

#[test]
fn no_seed_breaks_a_rule_and_every_kind_of_event_happens() {
    let mut summary = Summary::default();
    for seed in 0..SEEDS {
        let run = run(seed, None, Judges::All);
        assert!(run.finding.is_none(), "seed {seed} (again: make sim SEED={seed}): {:?}", run.finding);
        summary.add(run);
    }
    assert_eq!(summary.undecided, 0, "every history was searched to its end");
    assert!(summary.histories > SEEDS / 4 && summary.history_calls > SEEDS * 100, "too little traffic: {summary:?}");
    for (event, at_least) in [
        ("granted", 5_000),
        ("committed", 3_000),
        ("renewed", 1_000),
        ("extended", 300),
        ("released", 3_000),
        ("taken over", 20),
        ("expired", 500),
        ("quarantined", 100),
        ("freed after quarantine", 500),
        ("confirmed", 1),
        ("reclaimed", 5),
        ("transfers", 500),
        ("waited", 500),
        ("node restarts", 20),
        ("POOL_BUSY", 5_000),
        ("NEVER_FITS", 500),
        ("QUOTA", 100),
        ("STALE_EPOCH", 100),
        ("LEASE_NOT_FOUND", 100),
        ("DRAINING", 100),
    ] {
        let times = summary.counts.get(event).copied().unwrap_or(0);
        assert!(times >= at_least, "too little traffic: {event} happened {times} times in {:?}", summary.counts);
    }
}

#[test]
fn the_same_seed_is_the_same_run_to_the_last_step() {
    let traces: Vec<u64> = (0..20)
        .map(|seed| {
            let first = run(seed, None, Judges::All);
            assert_eq!(first, run(seed, None, Judges::All), "seed {seed}");
            first.trace
        })
        .collect();
    let different: std::collections::BTreeSet<_> = traces.iter().collect();
    assert_eq!(different.len(), traces.len(), "other seeds are other runs");
}
