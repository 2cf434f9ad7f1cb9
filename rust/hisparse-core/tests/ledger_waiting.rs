//! One behaviour of the wait queue per test.

mod node;

use std::time::Duration;

use hisparse_core::ledger::{AdmitRequest, Amounts, Ledger, Offer, Pool, Refusal, TenantPolicy, Ticket, WaitQueue};
use hisparse_core::limits::{MAX_WAIT, MAX_WAITERS};
use node::{at, ledger};

const MINUTE: Duration = Duration::from_secs(60);

fn request(id: &str, tokens: u64, priority: i32) -> AdmitRequest {
    AdmitRequest { priority, ..AdmitRequest::new(id, tokens, 0) }
}

fn wait(queue: &mut WaitQueue, node: &mut Ledger, request: AdmitRequest) -> Ticket {
    match queue.offer(node, request, MINUTE, at(0)) {
        Ok(Offer::Waiting(ticket)) => ticket,
        other => panic!("expected a wait, got {other:?}"),
    }
}

fn granted(queue: &mut WaitQueue, node: &mut Ledger, seconds: u64) -> Vec<String> {
    let served = queue.serve(node, at(seconds)).into_iter();
    served.filter_map(|served| Some(served.outcome.ok()?.lease.request_id.to_string())).collect()
}

#[test]
fn the_head_holds_up_those_behind_it_and_nobody_overtakes() {
    let (mut node, mut queue) = (ledger(10, 9), WaitQueue::new());
    queue.offer(&mut node, request("first", 512, 0), MINUTE, at(0)).unwrap();
    wait(&mut queue, &mut node, request("long", 384, 0));
    wait(&mut queue, &mut node, request("short", 64, 0));
    let newcomer = queue.offer(&mut node, request("impatient", 64, 0), Duration::ZERO, at(0)).unwrap_err();
    assert_eq!(newcomer.binding(), Some("host_pages"));
    assert_eq!(granted(&mut queue, &mut node, 1), [""; 0]);
    node.release_request(&"first".into(), "", None, at(2));
    assert_eq!(granted(&mut queue, &mut node, 2), ["long", "short"]);
}

#[test]
fn a_higher_priority_goes_first_and_may_overtake() {
    let (mut node, mut queue) = (ledger(10, 9), WaitQueue::new());
    queue.offer(&mut node, request("first", 512, 0), MINUTE, at(0)).unwrap();
    wait(&mut queue, &mut node, request("low", 384, 0));
    wait(&mut queue, &mut node, request("high", 640, 5));
    assert!(matches!(queue.offer(&mut node, request("top", 64, 9), MINUTE, at(0)), Ok(Offer::Granted(_))));
    node.release_request(&"first".into(), "", None, at(1));
    assert_eq!(granted(&mut queue, &mut node, 1), [""; 0], "high needs all pages and holds up low");
    node.release_request(&"top".into(), "", None, at(2));
    assert_eq!(granted(&mut queue, &mut node, 2), ["high"]);
}

#[test]
fn a_wait_ends_with_the_refusal_that_stood() {
    let (mut node, mut queue) = (ledger(10, 9), WaitQueue::new());
    let lease = node.admit(&request("first", 640, 0), at(0)).unwrap().lease;
    node.renew(lease.id.unwrap(), None, node.epoch(), Some(Duration::from_secs(600)), at(0)).unwrap();
    let ticket = wait(&mut queue, &mut node, request("late", 64, 0));
    assert_eq!(queue.next_deadline(), Some(at(60)));
    assert!(queue.serve(&mut node, at(59)).is_empty());
    let served = queue.serve(&mut node, at(60));
    let busy = Refusal::PoolBusy { pool: Pool::HostPages, asked: 1, available: 0 };
    assert_eq!((served[0].ticket, &served[0].outcome), (ticket, &Err(busy)));
    assert!(queue.is_empty() && queue.next_deadline().is_none());
}

#[test]
fn one_at_its_own_quota_is_passed_over() {
    let (mut node, mut queue) = (ledger(10, 9), WaitQueue::new());
    let mut ceiling = Amounts::UNBOUNDED;
    ceiling[Pool::Seats] = 1;
    node.set_tenant_policy("one", TenantPolicy { ceiling, ..TenantPolicy::default() }).unwrap();
    let of_one = |id| AdmitRequest { tenant: "one".into(), ..request(id, 64, 0) };
    node.admit(&of_one("a"), at(0)).unwrap();
    wait(&mut queue, &mut node, of_one("b"));
    assert!(matches!(queue.offer(&mut node, request("other", 64, 0), MINUTE, at(0)), Ok(Offer::Granted(_))));
    node.release_request(&"a".into(), "one", None, at(1));
    assert_eq!(granted(&mut queue, &mut node, 1), ["b"]);
}

#[test]
fn what_time_does_not_mend_is_refused_at_once() {
    let (mut node, mut queue) = (ledger(10, 9), WaitQueue::new());
    node.admit(&request("first", 640, 0), at(0)).unwrap();
    wait(&mut queue, &mut node, request("waiter", 64, 0));
    let never = queue.offer(&mut node, request("huge", 641, 0), MINUTE, at(0)).unwrap_err();
    assert_eq!(never.reason(), Some("NEVER_FITS"));
    let long = queue.offer(&mut node, request("r", 64, 0), MAX_WAIT + MINUTE, at(0)).unwrap_err();
    assert!(matches!(long, Refusal::Malformed(_)));
    node.set_draining(true);
    let served = queue.serve(&mut node, at(1));
    assert_eq!(served[0].outcome, Err(Refusal::Draining));
}

#[test]
fn a_cancelled_wait_holds_nobody_up() {
    let (mut node, mut queue) = (ledger(10, 9), WaitQueue::new());
    node.admit(&request("first", 512, 0), at(0)).unwrap();
    let ticket = wait(&mut queue, &mut node, request("long", 384, 0));
    wait(&mut queue, &mut node, request("short", 64, 0));
    assert!(granted(&mut queue, &mut node, 1).is_empty());
    assert!(queue.cancel(ticket) && !queue.cancel(ticket));
    assert_eq!(granted(&mut queue, &mut node, 1), ["short"]);
}

#[test]
fn the_queue_is_bounded() {
    let (mut node, mut queue) = (ledger(1, 9), WaitQueue::new());
    node.admit(&request("first", 64, 0), at(0)).unwrap();
    let (mut taken, mut tenant) = (Vec::new(), 0);
    loop {
        let of = |n| AdmitRequest { tenant: format!("t{tenant}").into(), ..request(&format!("w{n}"), 64, 0) };
        let mut places = 0;
        while queue.has_place(&format!("t{tenant}")) {
            wait(&mut queue, &mut node, of(places));
            places += 1;
        }
        assert_eq!(queue.offer(&mut node, of(places), MINUTE, at(0)).unwrap_err().reason(), Some("POOL_BUSY"));
        if places == 0 {
            break;
        }
        (taken, tenant) = ([taken, vec![places]].concat(), tenant + 1);
    }
    assert_eq!(taken[..3], [MAX_WAITERS / 2, MAX_WAITERS / 4, MAX_WAITERS / 8], "half of what is free to each");
    assert_eq!((taken.iter().sum::<u64>(), queue.len() as u64), (MAX_WAITERS, MAX_WAITERS));
    assert!(!queue.has_place("t0") && !queue.has_place(""));
}

#[test]
fn a_request_that_lacks_nothing_but_zeroes_waits_for_them_and_no_other_does() {
    let soon = Duration::from_millis(100);
    let mut queue = WaitQueue::new();
    let mut node = ledger(10, 9);
    let of = |tenant: &str, id: &str, pages: u64| AdmitRequest { tenant: tenant.into(), ..request(id, pages * 64, 0) };
    let id = node.admit(&of("a", "r", 8), at(0)).unwrap().lease.id.unwrap();
    let taken = queue.offer_for_zeroes(&mut node, of("b", "s", 6), Duration::ZERO, soon, at(0));
    assert_eq!(taken.unwrap_err().reason(), Some("POOL_BUSY"), "another has the pages");
    node.release(id, None, None, at(0)).unwrap();
    let refused = queue.offer(&mut node, of("b", "s", 6), Duration::ZERO, at(0));
    assert_eq!(refused.unwrap_err().reason(), Some("POOL_BUSY"), "who does not wait");
    let waits = queue.offer_for_zeroes(&mut node, of("b", "s", 6), Duration::ZERO, soon, at(0));
    assert!(matches!(waits, Ok(Offer::Waiting(_))), "{waits:?}");
    while let Some(job) = node.next_scrub(2) {
        node.scrubbed(job);
    }
    assert_eq!(granted(&mut queue, &mut node, 0), ["s"]);
}

/// A tenant that asks for all there is, again and again, and one that has a floor and asks now and then.
#[test]
fn a_greedy_tenant_never_takes_what_is_kept_for_another() {
    let (mut node, mut queue) = (ledger(100, 20), WaitQueue::new());
    let mut floor = Amounts::ZERO;
    (floor[Pool::HostPages], floor[Pool::Seats]) = (30, 3);
    keep(&mut node, floor);
    let mut waited = 0;
    for round in 0..300_u64 {
        let now = at(round / 10);
        let greedy = of("greedy", request(&format!("g{round}"), 64 * (1 + round % 40), 0));
        waited += u64::from(matches!(queue.offer(&mut node, greedy, MINUTE, now), Ok(Offer::Waiting(_))));
        if round % 7 == 0 {
            // The line is the greedy tenant's, and what is kept for the quiet one is there for it all the same.
            let quiet = of("quiet", request(&format!("q{round}"), 640, 0));
            match queue.offer(&mut node, quiet, Duration::ZERO, now) {
                Ok(Offer::Granted(granted)) => node.release(granted.lease.id.unwrap(), None, None, now).unwrap(),
                other => panic!("round {round}: {other:?}"),
            };
        }
        queue.serve(&mut node, now);
        node.audit().unwrap();
    }
    assert!(waited > 200, "{waited}");
}

#[test]
fn who_waits_for_its_own_floor_is_served_while_the_head_of_another_tenant_waits_on() {
    let (mut node, mut queue) = (ledger(100, 20), WaitQueue::new());
    let mut floor = Amounts::ZERO;
    floor[Pool::HostPages] = 30;
    keep(&mut node, floor);
    node.admit(&of("quiet", request("own", 64 * 30, 0)), at(0)).unwrap();
    node.admit(&of("greedy", request("first", 64 * 60, 0)), at(0)).unwrap();
    wait(&mut queue, &mut node, of("greedy", request("head", 64 * 20, 0)));
    wait(&mut queue, &mut node, of("quiet", request("next", 64 * 30, 0)));
    wait(&mut queue, &mut node, of("greedy", request("short", 64, 0)));
    node.release_request(&"own".into(), "quiet", None, at(1));
    assert_eq!(granted(&mut queue, &mut node, 1), ["next"], "what it waited for was never the head's");
    node.release_request(&"first".into(), "greedy", None, at(2));
    assert_eq!(granted(&mut queue, &mut node, 2), ["head", "short"]);
    node.audit().unwrap();
}

fn of(tenant: &str, request: AdmitRequest) -> AdmitRequest {
    AdmitRequest { tenant: tenant.into(), ..request }
}

/// Keeps so much for the quiet tenant, and what it needs of the other pools to use it.
fn keep(node: &mut Ledger, floor: Amounts) {
    let policy = TenantPolicy { floor, ceiling: Amounts::UNBOUNDED }.usable_on(&node.config().capacity);
    node.set_tenant_policy("quiet", policy).expect("the floor fits the node");
}
