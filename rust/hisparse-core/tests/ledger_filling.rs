//! Pages that a process fills beside their lease's holder are nobody else's until it has stopped.

#![allow(clippy::unwrap_used)] // helpers of tests: a panic is how they say no

mod node;

use hisparse_core::ledger::{
    AdmitRequest, CommitBy, Epoch, LeaseId, LeaseState, Ledger, Pool, Refusal, Released, SessionId,
};
use node::{Seed, at, first_epoch, ledger};

const FILLER: SessionId = SessionId(7);
const OTHER: SessionId = SessionId(8);
const ENGINE: SessionId = SessionId(1);

/// A node of ten pages, and a reservation of all of them that `FILLER` fills.
fn filled_node() -> (Ledger, LeaseId) {
    let mut node = ledger(10, 3);
    let id = node.admit(&AdmitRequest::new("r", 640, 0), at(0)).unwrap().lease.id.unwrap();
    node.fill(id, FILLER, at(1)).unwrap();
    node.fill(id, FILLER, at(1)).unwrap();
    (node, id)
}

fn free(node: &Ledger) -> u64 {
    let capacity = node.capacity(None, &[]).unwrap();
    capacity.pools.iter().find(|state| state.name == Pool::HostPages).unwrap().free
}

#[test]
fn a_release_of_a_lease_that_is_filled_frees_it_when_the_last_filler_is_done() {
    let (mut node, id) = filled_node();
    node.fill(id, OTHER, at(1)).unwrap();
    for _ in 0..2 {
        assert_eq!(node.release(id, None, None, at(2)), Ok(Released::Quarantined), "also when it is repeated");
    }
    assert_eq!((node.get(id, None).unwrap().state, free(&node)), (LeaseState::Quarantined, 0));
    node.filled(id, FILLER, at(3));
    assert_eq!(free(&node), 0, "another one still writes");
    assert!(matches!(node.fill(id, FILLER, at(3)), Err(Refusal::WrongState { .. })), "nobody begins anew");
    node.filler_lost(OTHER, at(4));
    assert_eq!(free(&node), 10);
    node.filled(id, OTHER, at(5));
    node.audit().unwrap();
}

#[test]
fn a_filler_that_says_nothing_keeps_the_pages_until_the_quarantine_bound() {
    let (mut node, id) = filled_node();
    node.release(id, None, None, at(2)).unwrap();
    node.advance(at(121));
    assert_eq!(free(&node), 0);
    node.advance(at(122));
    assert_eq!(free(&node), 10);
}

#[test]
fn a_reservation_that_ends_while_it_is_filled_is_free_when_its_filler_is_done() {
    let (mut node, id) = filled_node();
    node.advance(at(30));
    assert_eq!(node.release(id, None, None, at(31)), Ok(Released::Quarantined));
    node.filled(id, FILLER, at(32));
    assert_eq!(free(&node), 10);
}

#[test]
fn a_filler_that_is_done_keeps_nothing() {
    let (mut node, id) = filled_node();
    node.filled(id, FILLER, at(2));
    assert_eq!(node.get(id, None).unwrap().state, LeaseState::Reserved);
    assert_eq!(node.release(id, None, None, at(3)), Ok(Released::Freed));
}

#[test]
fn an_engine_and_a_filler_must_both_be_done_in_either_order() {
    for engine_first in [false, true] {
        let (mut node, id) = filled_node();
        node.commit(id, None, first_epoch(), CommitBy::Session(ENGINE), at(2)).unwrap();
        assert_eq!(node.release(id, None, None, at(3)), Ok(Released::Quarantined), "a router's word");
        if engine_first {
            assert_eq!(node.release(id, None, Some(ENGINE), at(4)), Ok(Released::Quarantined));
            assert_eq!(free(&node), 0);
            node.filled(id, FILLER, at(5));
        } else {
            node.filled(id, FILLER, at(4));
            assert_eq!(free(&node), 0);
            assert_eq!(node.release(id, None, Some(ENGINE), at(5)), Ok(Released::Freed));
        }
        assert_eq!(free(&node), 10, "engine first: {engine_first}");
        node.audit().unwrap();
    }
}

/// The node as the next process of its service has it.
fn restarted(node: &Ledger) -> Ledger {
    let epoch = Epoch::new(node.epoch().get() + 1).unwrap();
    Ledger::restore(*node.config(), &node.image(), epoch, at(2), &mut Seed::new(1)).unwrap()
}

#[test]
fn a_restart_remembers_who_fills() {
    let (node, id) = filled_node();
    let mut node = restarted(&node);
    assert_eq!(node.release(id, None, None, at(3)), Ok(Released::Quarantined), "before the filler has come back");
    node.fill(id, FILLER, at(4)).unwrap_err();
    node.filled(id, FILLER, at(5));
    assert_eq!(free(&node), 10);
    let (mut node, id) = filled_node();
    node.filled(id, FILLER, at(2));
    assert_eq!(restarted(&node).release(id, None, None, at(3)), Ok(Released::Freed));
}

#[test]
fn a_filler_that_a_restart_has_ended_keeps_the_pages_no_longer_than_the_quarantine_bound() {
    let (node, id) = filled_node();
    let mut node = restarted(&node);
    node.release(id, None, None, at(3)).unwrap();
    node.advance(at(122));
    assert_eq!(free(&node), 0);
    node.advance(at(123));
    assert_eq!(free(&node), 10);
}

#[test]
fn an_engine_that_fills_its_own_lease_frees_it_at_once() {
    let (mut node, id) = filled_node();
    assert_eq!(node.release(id, None, Some(FILLER), at(2)), Ok(Released::Freed));
    assert_eq!(free(&node), 10);
}
