//! The judges bite: each planted bug is found within a few seeds, and by the rule that it breaks.

use hisparse_sim::{Bug, Judges, run};

/// Seeds in which a bug has to show.
const SEEDS: u64 = 60;

fn rules_broken(bug: Bug, judges: Judges) -> Vec<&'static str> {
    let mut rules: Vec<_> =
        (0..SEEDS).filter_map(|seed| run(seed, Some(bug), judges).finding.map(|finding| finding.rule)).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

#[test]
fn every_planted_bug_is_found_by_the_rule_it_breaks() {
    for bug in Bug::ALL {
        let rule = match bug {
            Bug::DoubleReleaseFreesTwice => "freed for a reason",
            Bug::DoubleReleaseCountsTwice => "conservation",
            Bug::ExpiryFreesWithoutQuarantine => "expiry quarantines",
            Bug::StaleEpochAccepted => "no stale epoch is accepted",
            Bug::CommitAfterExpiry => "only living leases are used",
            Bug::RepeatedRequestGrantsTwice => "one lease per request id",
            Bug::ReleaseIsForgotten => "a release says what it did",
            Bug::NoScrubBetweenTenants => "no bytes go to another tenant",
            Bug::TenantIsNotChecked => "a lease is its tenant's alone",
            Bug::StaleCapacity => "capacity is fresh",
            Bug::BusyWithRoom => "busy is true",
            Bug::RouterFreesUnderEngine => "only its engine frees at once",
            Bug::HalfABatchStays => "a refusal changes nothing",
            Bug::ExpiryForgotten => "a lease ends at its end",
            Bug::NewcomersOvertake => "first come, first served",
            Bug::EngineTakesFromEngine => "one engine per lease",
        };
        let found = rules_broken(bug, Judges::All);
        assert!(found.contains(&rule), "{bug:?} in {SEEDS} seeds: {found:?}");
    }
}

#[test]
fn histories_alone_give_away_what_callers_can_see() {
    for bug in [
        Bug::DoubleReleaseFreesTwice,
        Bug::ExpiryFreesWithoutQuarantine,
        Bug::StaleEpochAccepted,
        Bug::CommitAfterExpiry,
        Bug::RepeatedRequestGrantsTwice,
        Bug::ReleaseIsForgotten,
        Bug::StaleCapacity,
        Bug::BusyWithRoom,
        Bug::RouterFreesUnderEngine,
    ] {
        let found = rules_broken(bug, Judges::HistoriesAlone);
        assert!(found.contains(&"linearizable"), "{bug:?} in {SEEDS} seeds: {found:?}");
    }
}

#[test]
fn the_real_ledger_passes_the_seeds_in_which_bugs_are_found() {
    for seed in 0..SEEDS {
        assert_eq!(run(seed, None, Judges::HistoriesAlone).finding, None, "seed {seed}");
    }
}
