use super::*;
use crate::fleet::{Dice, Gate, Settings, View};
use crate::ledger::Pool;
use crate::limits::{FLEET_FAILURES, FLEET_RETRY_SAVINGS};

const fn at(millis: u64) -> Moment {
    Moment::from_origin(Duration::from_millis(millis))
}

fn view(pages: u64) -> View {
    let mut view = View { largest_grant_tokens: pages * 64, max_request_tokens: 6_400, ..View::default() };
    view.add(Pool::HostPages, pages, 100);
    view.add(Pool::Seats, 10, 10);
    view
}

fn fleet(views: &[View]) -> (Router, Vec<NodeId>) {
    let mut router = Router::new(Settings::default(), at(0), &mut Dice::of_seed(5)).unwrap();
    let ids = views.iter().map(|view| {
        let id = router.add(at(0)).unwrap();
        router.watched(id, *view, false, at(0));
        id
    });
    let ids = ids.collect();
    (router, ids)
}

fn placing(router: &mut Router, tokens: u64, patience_ms: u64) -> Placing {
    let patience = Duration::from_millis(patience_ms);
    Placing::new(router, Demand::of_tokens(tokens), patience, Duration::from_secs(10), at(0))
}

#[test]
fn a_refused_request_asks_each_node_once_and_then_gives_up() {
    let (mut router, _) = fleet(&[view(100), view(90), view(80)]);
    let mut placing = placing(&mut router, 640, 0);
    let mut asked = Vec::new();
    let why = loop {
        match placing.next(&mut router, at(0)) {
            Step::Ask(node) => {
                asked.push(node.get());
                placing.answered(&mut router, Answer::Full(Duration::from_secs(1)), at(0));
            }
            Step::Refuse(why) => break why,
            step => panic!("{step:?}"),
        }
    };
    asked.sort_unstable();
    assert_eq!((asked, why, placing.attempts()), (vec![0, 1, 2], Why::Busy, 3));
}

#[test]
fn a_waiting_request_makes_no_call_until_a_view_has_room() {
    let (mut router, ids) = fleet(&[view(1)]);
    let mut placing = placing(&mut router, 640, 5_000);
    let mut now = 0;
    while now < 4_000 {
        let Step::Rest(rest) = placing.next(&mut router, at(now)) else { panic!("at {now} ms") };
        assert!((10..=250).contains(&rest.as_millis()), "{rest:?}");
        now += u64::try_from(rest.as_millis()).unwrap();
    }
    router.watched(ids[0], View { sequence: 1, ..view(50) }, false, at(now));
    assert_eq!(placing.next(&mut router, at(now)), Step::Ask(ids[0]));
    placing.answered(&mut router, Answer::Granted { shared_pages: 0 }, at(now));
    assert_eq!(placing.attempts(), 1);
}

#[test]
fn patience_ends_with_the_reason() {
    let (mut router, _) = fleet(&[view(1)]);
    let mut placing = placing(&mut router, 640, 100);
    assert!(matches!(placing.next(&mut router, at(99)), Step::Rest(rest) if rest <= Duration::from_millis(1)));
    assert_eq!(placing.next(&mut router, at(100)), Step::Refuse(Why::Busy));
}

#[test]
fn a_request_that_has_waited_makes_one_last_call_and_gives_up() {
    let (mut router, ids) = fleet(&[view(1), view(1), view(1)]);
    let mut placing = placing(&mut router, 640, 1_000);
    let full = Answer::Full(Duration::from_secs(1));
    assert!(matches!(placing.next(&mut router, at(0)), Step::Rest(_)));
    router.watched(ids[0], View { sequence: 1, ..view(100) }, false, at(500));
    assert_eq!(placing.next(&mut router, at(500)), Step::Ask(ids[0]));
    placing.answered(&mut router, full, at(500));
    for id in &ids[1..] {
        router.watched(*id, View { sequence: 1, ..view(100) }, false, at(1_000));
    }
    assert!(matches!(placing.next(&mut router, at(1_000)), Step::Ask(_)));
    placing.answered(&mut router, full, at(1_000));
    assert_eq!(placing.next(&mut router, at(1_000)), Step::Refuse(Why::Busy));
    assert_eq!(placing.attempts(), 2);
}

#[test]
fn a_request_that_is_refused_against_a_view_looks_again_after_rests_that_double_within_its_patience() {
    for seed in 0..50 {
        let (mut router, _) = fleet(&[view(100); 12]);
        router.dice = Dice::of_seed(seed);
        let (mut placing, mut now, mut rests) = (placing(&mut router, 64, 3_000), 0, Vec::new());
        for _ in 0..8 {
            let Step::Ask(_) = placing.next(&mut router, at(now)) else { panic!("seed {seed}, {now} ms: no call") };
            placing.answered(&mut router, Answer::Full(Duration::from_secs(60)), at(now));
            router.gate = Gate::default(); // its window is another reason to rest
            let Step::Rest(rest) = placing.next(&mut router, at(now)) else { panic!("seed {seed}, {now} ms: no rest") };
            rests.push(rest);
            now += u64::try_from(rest.as_micros().div_ceil(1_000)).unwrap();
        }
        assert!(rests[0] <= FLEET_LOOK_FIRST * 6 / 5 && rests[7] >= FLEET_LOOK_MOST * 4 / 5, "seed {seed}: {rests:?}");
        assert!(rests.iter().all(|rest| *rest <= FLEET_LOOK_MOST * 6 / 5), "seed {seed}: {rests:?}");
        let last = placing.next(&mut router, at(2_999));
        assert!(!matches!(last, Step::Rest(rest) if rest > Duration::from_millis(1)), "seed {seed}: {last:?}");
    }
}

#[test]
fn requests_of_one_router_that_wait_do_not_wait_for_each_other() {
    let (mut router, ids) = fleet(&[view(1)]);
    (0..20).for_each(|_| router.gate.lost());
    let mut all: Vec<_> = (0..50).map(|_| placing(&mut router, 64, 9_000)).collect();
    let mut claims: Vec<_> = (all.iter_mut())
        .map(|placing| match placing.next(&mut router, at(0)) {
            Step::Rest(rest) => rest.as_millis(),
            step => panic!("{step:?}"),
        })
        .collect();
    claims.sort_unstable();
    claims.dedup();
    assert!(claims.len() > 30, "each draws a moment of its own: {claims:?}");
    assert_eq!(router.node(ids[0]).unwrap().view, Some(view(1)));
}

#[test]
fn what_no_node_can_ever_hold_is_refused_at_once() {
    let (mut router, ids) = fleet(&[view(100), View { max_request_tokens: 9_999, ..view(100) }]);
    router.broken(ids[0]); // its shape is known
    let mut placing = placing(&mut router, 10_000, 60_000);
    assert_eq!(placing.next(&mut router, at(0)), Step::Refuse(Why::NeverFits));
    assert_eq!((placing.attempts(), placing.tally().most_tokens), (0, 9_999));
}

#[test]
fn a_limit_that_the_view_does_not_show_bars_the_node_for_good() {
    let (mut router, ids) = fleet(&[view(100)]);
    let mut placing = placing(&mut router, 640, 60_000);
    assert_eq!(placing.next(&mut router, at(0)), Step::Ask(ids[0]));
    placing.answered(&mut router, Answer::NeverFits, at(0));
    assert_eq!(placing.next(&mut router, at(0)), Step::Refuse(Why::NeverFits));
}

#[test]
fn no_other_node_is_asked_before_an_unknown_attempt_is_settled() {
    let (mut router, ids) = fleet(&[view(100), view(50)]);
    let mut placing = placing(&mut router, 640, 0);
    assert_eq!(placing.next(&mut router, at(0)), Step::Ask(ids[0]));
    placing.answered(&mut router, Answer::Unknown, at(1_000));
    for now in [1_000, 5_000, 9_999] {
        assert_eq!(placing.next(&mut router, at(now)), Step::Settle(ids[0]));
    }
    let mut late = placing.clone();
    assert_eq!(late.next(&mut router, at(10_000)), Step::Refuse(Why::Unsettled(ids[0])));
    placing.settled();
    assert_eq!(placing.next(&mut router, at(9_999)), Step::Ask(ids[1]));
}

#[test]
fn a_dead_node_is_left_alone_by_later_requests() {
    let (mut router, ids) = fleet(&[view(100), view(50)]);
    for _ in 0..FLEET_FAILURES {
        let mut placing = placing(&mut router, 640, 0);
        assert_eq!(placing.next(&mut router, at(0)), Step::Ask(ids[0]));
        placing.answered(&mut router, Answer::Unsent, at(0));
        assert_eq!(placing.next(&mut router, at(0)), Step::Ask(ids[1]));
        placing.answered(&mut router, Answer::Granted { shared_pages: 0 }, at(0));
    }
    let mut placing = placing(&mut router, 640, 0);
    assert_eq!(placing.next(&mut router, at(0)), Step::Ask(ids[1]));
    placing.answered(&mut router, Answer::Granted { shared_pages: 0 }, at(0));
    // Its rest is over: one request is the trial, and the next goes elsewhere.
    let (mut trial, mut other) = (self::placing(&mut router, 640, 0), self::placing(&mut router, 640, 0));
    assert_eq!(trial.next(&mut router, at(400)), Step::Ask(ids[0]));
    assert_eq!(other.next(&mut router, at(400)), Step::Ask(ids[1]));
    trial.answered(&mut router, Answer::Abandoned, at(400));
    assert_eq!(self::placing(&mut router, 640, 0).next(&mut router, at(400)), Step::Ask(ids[0]));
}

#[test]
fn further_attempts_end_with_the_budget() {
    let (mut router, _) = fleet(&[view(100), view(90)]);
    let mut attempts = 0_u64;
    let requests = 5_000;
    let mut spent = 0;
    for _ in 0..requests {
        let mut placing = placing(&mut router, 640, 0);
        loop {
            match placing.next(&mut router, at(0)) {
                Step::Ask(_) => placing.answered(&mut router, Answer::Full(Duration::ZERO), at(0)),
                Step::Refuse(why) => {
                    spent += u64::from(why == Why::NoRetries);
                    break;
                }
                step => panic!("{step:?}"),
            }
        }
        attempts += u64::from(placing.attempts());
    }
    assert!(spent > 0);
    assert!(attempts <= requests * 6 / 5 + FLEET_RETRY_SAVINGS, "{attempts} attempts of {requests} requests");
}

#[test]
fn an_empty_and_a_draining_and_a_silent_fleet_say_so() {
    let (mut router, _) = fleet(&[]);
    assert_eq!(placing(&mut router, 640, 0).next(&mut router, at(0)), Step::Refuse(Why::Empty));
    let (mut router, ids) = fleet(&[View { draining: true, ..view(100) }, view(100)]);
    router.broken(ids[1]);
    assert_eq!(placing(&mut router, 640, 0).next(&mut router, at(0)), Step::Refuse(Why::Draining));
    let (mut router, ids) = fleet(&[view(100)]);
    router.broken(ids[0]);
    assert_eq!(placing(&mut router, 640, 0).next(&mut router, at(0)), Step::Refuse(Why::Unreachable));
}

#[test]
fn a_first_word_on_its_way_is_waited_for_without_patience_for_room() {
    let (mut router, _) = fleet(&[]);
    let id = router.add(at(0)).unwrap();
    let mut placing = placing(&mut router, 640, 0);
    assert!(matches!(placing.next(&mut router, at(0)), Step::Rest(_)));
    router.watched(id, view(100), false, at(30));
    assert_eq!(placing.next(&mut router, at(30)), Step::Ask(id));
}

#[test]
fn a_request_that_left_a_node_does_not_go_back_to_it() {
    let (mut router, ids) = fleet(&[view(100), view(10)]);
    let mut placing = placing(&mut router, 640, 0).avoiding(ids[0]);
    assert_eq!(placing.next(&mut router, at(0)), Step::Ask(ids[1]));
}

#[test]
fn waiting_requests_that_come_too_late_go_less_often() {
    let (mut router, ids) = fleet(&[view(1)]);
    let (mut sequence, mut now, mut asked) = (0, 0, Vec::new());
    for _ in 0..10 {
        let mut placing =
            Placing::new(&mut router, Demand::of_tokens(640), Duration::from_secs(9), Duration::from_secs(9), at(now));
        assert!(matches!(placing.next(&mut router, at(now)), Step::Rest(_)));
        sequence += 1;
        router.watched(ids[0], View { sequence, ..view(50) }, false, at(now));
        let begun = now;
        while let Step::Rest(rest) = placing.next(&mut router, at(now)) {
            now += u64::try_from(rest.as_micros().div_ceil(1_000)).unwrap();
        }
        asked.push(now - begun);
        sequence += 1;
        router.told(ids[0], View { sequence, ..view(1) }, at(now));
        placing.answered(&mut router, Answer::Full(Duration::from_secs(1)), at(now));
    }
    assert_eq!(asked[0], 0, "the first goes at once");
    assert!(asked[5..].iter().any(|millis| *millis > 50), "{asked:?}");
    assert!(asked.iter().all(|millis| *millis <= 501), "{asked:?}");
}
