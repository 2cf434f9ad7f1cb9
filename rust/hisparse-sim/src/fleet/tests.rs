use std::time::Duration;

use hisparse_core::fleet::Policy;
use hisparse_core::limits::FLEET_CHOICES;
use hisparse_core::replay::{TraceRequest, parse};

use super::job::Job;
use super::{Kind, Report, Rule, Setup, check, simulate};

const DEFAULT: Rule = Rule { policy: Policy::MostLeft, choices: FLEET_CHOICES };

fn trace() -> Vec<TraceRequest> {
    parse(include_str!("../../../../python/hisparse_svc/data/conversation_200.jsonl")).unwrap()
}

/// A fleet small enough for a test, with every fault.
fn small(seed: u64, staleness_ms: u64, rule: Rule) -> Setup {
    let staleness = Duration::from_millis(staleness_ms);
    Setup {
        warm: Duration::from_secs(5),
        measured: Duration::from_secs(15),
        deaths_milli: 100,
        slow_milli: 100,
        ..Setup::new(seed, 20, 6, staleness, rule)
    }
}

fn play(setup: &Setup) -> Report {
    simulate(setup, &trace(), &mut |_| true).unwrap().unwrap()
}

fn refused(report: &Report) -> u64 {
    report.refused.values().sum()
}

#[test]
fn a_seed_is_one_run_and_another_seed_another() {
    let [first, again, other] = [3, 3, 4].map(|seed| play(&small(seed, 500, DEFAULT)));
    assert_eq!(first, again);
    assert_ne!(first.trace, other.trace);
}

#[test]
fn no_node_gives_more_than_it_has_and_no_request_holds_two_leases() {
    let mut unknown = 0;
    for rule in Rule::COMPARED {
        for staleness_ms in [0, 2_000] {
            let setup = small(staleness_ms + 1, staleness_ms, rule);
            let report = play(&setup);
            assert_eq!((report.overcommit, report.two_leases), (0, 0), "{setup:?}");
            assert_eq!(report.admitted + refused(&report), report.offered, "{setup:?}: {report:?}");
            unknown += report.unknown;
        }
    }
    assert!(unknown > 0, "no attempt's outcome was unknown: nothing was settled");
}

#[test]
fn without_delays_and_faults_one_attempt_is_one_lease() {
    for rule in Rule::COMPARED {
        let setup = Setup { deaths_milli: 0, slow_milli: 0, call: Duration::ZERO, ..small(7, 0, rule) };
        let report = play(&setup);
        assert!(report.admitted > 50, "{report:?}");
        assert_eq!(report.attempts, report.admitted, "{setup:?}: {report:?}");
    }
}

#[test]
fn requests_of_a_dead_node_are_placed_again_or_refused_with_a_reason() {
    let mut lost = 0;
    for seed in 0..4 {
        let setup = small(seed, 500, DEFAULT);
        let report = play(&setup);
        let not_replaced: u64 = report.not_replaced.values().sum();
        assert!(report.replaced + not_replaced >= report.lost, "{setup:?}: {report:?}");
        lost += report.lost;
    }
    assert!(lost > 0, "nobody lost anything");
}

#[test]
fn the_count_and_the_ledger_give_the_same_run() {
    for seed in 0..3 {
        let setup = small(seed, 500, DEFAULT);
        let real = Setup { memory: Kind::Ledger, ..setup };
        assert_eq!(play(&setup), play(&real), "{setup:?}");
    }
}

#[test]
fn a_setup_out_of_range_names_every_field() {
    let setup = Setup { routers: 0, deaths_milli: 1_001, ..Setup::new(1, 0, 1, Duration::ZERO, DEFAULT) };
    let problems = simulate(&setup, &trace(), &mut |_| true).unwrap_err();
    let fields: Vec<_> = problems.iter().map(|problem| problem.field.clone()).collect();
    assert_eq!(fields, ["nodes", "routers", "deaths_milli"]);
}

#[test]
fn a_run_without_requests_or_with_too_many_says_so() {
    let one = small(1, 0, DEFAULT);
    let hour = Duration::from_secs(3_600);
    for (setup, trace) in [(one, Vec::new()), (Setup { nodes: 10_000, measured: hour, ..one }, trace())] {
        let problems = check(&setup, &trace).unwrap_err();
        assert_eq!(problems.iter().next().unwrap().field, "requests", "{problems}");
    }
}

#[test]
fn a_run_ends_when_it_is_told_to() {
    let mut seen = Vec::new();
    let mut until_8 = |now: Duration| {
        seen.push(now);
        now < Duration::from_secs(8)
    };
    assert_eq!(simulate(&small(1, 0, DEFAULT), &trace(), &mut until_8).unwrap(), None);
    assert!(seen.is_sorted() && seen.len() > 2, "{seen:?}");
}

#[test]
fn a_picture_of_a_node_and_a_request_take_what_the_limits_say() {
    let picture = size_of::<hisparse_core::fleet::Node>();
    assert!(picture <= 1_024 / 3, "{picture} bytes: see MAX_SIMULATED_NODES");
    let request = size_of::<Job>();
    assert!(request < 512, "{request} bytes: see MAX_SIMULATED_REQUESTS");
}
