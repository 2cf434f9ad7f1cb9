//! A watch, among callers who change what it watches.

use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;
use shuttle::{future, thread};
use tokio::sync::watch;

use super::{all_end, check, fails, node};
use crate::look::look;
use crate::node::Node;
use crate::watch::{Asked, Start, Watch};

const WRITERS: usize = 2;
const CHANGES: u64 = 2;
/// The writers, and the ledger's sequence when they are done: each change is one.
fn writers(node: &Arc<Node>) -> ([thread::JoinHandle<()>; WRITERS], u64) {
    let last = node.overview().unwrap().capacity.sequence + WRITERS as u64 * CHANGES;
    let writers = [(); WRITERS].map(|()| {
        let node = Arc::clone(node);
        thread::spawn(move || {
            for round in 0..CHANGES {
                node.decide(None, |state, _| state.ledger.set_draining(round == 0)).unwrap();
            }
        })
    });
    (writers, last)
}

#[test]
fn a_reader_comes_to_the_newest_state_in_order_and_without_a_backlog() {
    check(|| {
        let node = node(4);
        let (writers, last) = writers(&node);
        let (_stop, stopping) = watch::channel(false);
        let place = node.enter_watch(1).unwrap();
        let mut told = Watch::begin(&node, Start::Fresh, Asked::default(), place, stopping).unwrap();
        let (mut sequence, mut messages) = (0, 0);
        future::block_on(async {
            while sequence < last || messages < 2 {
                let message = std::future::poll_fn(|cx| Pin::new(&mut told).poll_next(cx)).await.unwrap().unwrap();
                assert!(message.sequence >= sequence, "{} after {sequence}", message.sequence);
                (sequence, messages) = (message.sequence, messages + 1);
            }
        });
        assert!(messages <= 2 + WRITERS as u64 * CHANGES, "{messages} messages, the last of state {last}");
        all_end(writers);
        assert_eq!(node.overview().unwrap().capacity.sequence, last);
    });
}

#[test]
fn a_reader_that_goes_gives_its_place_back_whatever_the_watch_is_doing() {
    check(|| {
        let node = node(4);
        let (writers, _) = writers(&node);
        let (_stop, stopping) = watch::channel(false);
        let told = Watch::begin(&node, Start::Fresh, Asked::default(), node.enter_watch(1).unwrap(), stopping).unwrap();
        drop(told);
        all_end(writers);
        while node.enter_watch(1).is_none() {
            thread::yield_now();
        }
    });
}

#[test]
fn a_planted_watch_that_looks_before_it_listens_is_found() {
    assert!(fails(|| {
        let node = node(4);
        let (writers, last) = writers(&node);
        let (mut seen, _) = look(&node, "", &[], None).unwrap();
        let mut changes = node.changes();
        future::block_on(async {
            while seen.sequence < last {
                changes.changed().await.unwrap();
                seen = look(&node, "", &[], None).unwrap().0;
            }
        });
        all_end(writers);
    }));
}
