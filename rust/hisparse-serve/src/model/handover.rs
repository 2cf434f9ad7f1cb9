//! A lease on its way to one caller, while another asks for it under the same request id.

use std::sync::Arc;
use std::time::Duration;

use hisparse_core::ledger::{Granted, LeaseCounts, LeaseId};
use shuttle::{future, thread};

use super::{asking, assert_settled, check, fails, node, now, release};
use crate::node::Node;

fn admit(node: &Arc<Node>) -> Granted {
    future::block_on(node.admit(asking("r", 2), Duration::ZERO, now())).unwrap().0
}

const ONE: LeaseCounts = LeaseCounts { reserved: 1, committed: 0, quarantined: 0 };

/// One caller's answer is lost, by `lose`; another's arrives. What the second was told has to be so.
fn one_answer_is_lost(lose: fn(&Arc<Node>, &Granted)) {
    let node = node(4);
    let other = {
        let node = Arc::clone(&node);
        thread::spawn(move || lose(&node, &admit(&node)))
    };
    let granted = admit(&node);
    if let Some(handover) = node.hand_over([&granted]) {
        handover.arrived();
    }
    other.join().unwrap();
    let lease: LeaseId = granted.lease.id.unwrap();
    let held = node.decide(None, |state, _| state.ledger.get(lease, None)).unwrap();
    assert!(held.is_ok(), "{lease} was given to a caller and taken back: {held:?}");
    assert_settled(&node, ONE);
}

#[test]
fn a_lost_answer_takes_back_its_lease_and_nobody_elses() {
    check(|| one_answer_is_lost(|node, granted| drop(node.hand_over([granted]))));
}

#[test]
fn a_planted_guard_that_takes_back_what_another_has_is_found() {
    assert!(fails(|| one_answer_is_lost(|node, granted| release(node, granted.lease.id.unwrap()))));
}

#[test]
fn an_answer_that_arrives_by_one_copy_is_not_taken_back_by_another() {
    check(|| {
        let node = node(4);
        let granted = admit(&node);
        let here = node.hand_over([&granted]).unwrap();
        let there = here.clone();
        let other = thread::spawn(move || drop(there));
        here.arrived();
        drop(here);
        other.join().unwrap();
        assert_settled(&node, ONE);
    });
}
