//! Callers that wait for room, among others that release, leave and come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use hisparse_core::ledger::{LeaseCounts, Offer};
use hisparse_core::limits::MAX_WAIT;
use shuttle::{future, thread};
use tokio::sync::oneshot;

use super::{all_end, asking, assert_settled, check, choice, fails, node, now, release};
use crate::node::Node;

const PAGES: u64 = 4;

/// Waits for its pages, has them for a while, gives them back.
fn caller(node: &Arc<Node>, held: &Arc<AtomicU64>, name: &'static str, pages: u64) -> thread::JoinHandle<()> {
    let (node, held) = (Arc::clone(node), Arc::clone(held));
    thread::spawn(move || {
        let (granted, _) = future::block_on(node.admit(asking(name, pages), MAX_WAIT, now())).unwrap();
        let all = held.fetch_add(pages, Ordering::SeqCst) + pages;
        assert!(all <= PAGES, "{all} pages of {PAGES} are held");
        node.hand_over([&granted]).unwrap().arrived();
        held.fetch_sub(pages, Ordering::SeqCst);
        release(&node, granted.lease.id.unwrap());
    })
}

#[test]
fn everyone_who_waits_is_served_and_no_page_is_granted_twice() {
    check(|| {
        let (node, held) = (node(PAGES), Arc::new(AtomicU64::new(0)));
        let callers = [("a", 3), ("b", 4), ("c", 1), ("d", 2)].map(|(name, pages)| caller(&node, &held, name, pages));
        all_end(callers);
        assert_settled(&node, LeaseCounts::default());
    });
}

#[test]
fn a_caller_that_leaves_while_it_is_served_takes_nothing_with_it() {
    check(|| {
        let (node, held) = (node(PAGES), Arc::new(AtomicU64::new(0)));
        let staying = [caller(&node, &held, "a", 4), caller(&node, &held, "b", 3)];
        let leaving = {
            let node = Arc::clone(&node);
            thread::spawn(move || {
                let mut waiting = Box::pin(node.admit(asking("leaver", 2), Duration::from_secs(9), now()));
                let answer = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                choice();
                drop(waiting);
                // As the handler does: what it was given goes to nobody.
                if let std::task::Poll::Ready(Ok((granted, _))) = answer {
                    drop(node.hand_over([&granted]));
                }
            })
        };
        all_end(staying.into_iter().chain([leaving]));
        assert_settled(&node, LeaseCounts::default());
    });
}

#[test]
fn a_planted_caller_that_leaves_without_a_last_look_is_found() {
    assert!(fails(|| {
        let (node, held) = (node(PAGES), Arc::new(AtomicU64::new(0)));
        let staying = caller(&node, &held, "a", 4);
        let leaving = {
            let node = Arc::clone(&node);
            thread::spawn(move || {
                let offered = node.decide(None, |state, now| {
                    let offer = state.queue.offer(&mut state.ledger, asking("leaver", 2), MAX_WAIT, now).unwrap();
                    let (answer, heard) = oneshot::channel();
                    match offer {
                        Offer::Granted(granted) => Err(granted.lease.id.unwrap()),
                        Offer::Waiting(ticket) => {
                            state.waiting.insert(ticket, answer);
                            Ok((ticket, heard))
                        }
                    }
                });
                match offered.unwrap() {
                    Err(lease) => release(&node, lease),
                    // Whether it was answered meanwhile, it does not ask.
                    Ok((ticket, _heard)) => drop(node.decide(None, |state, _| {
                        state.queue.cancel(ticket);
                        state.waiting.remove(&ticket);
                    })),
                }
            })
        };
        all_end([staying, leaving]);
        assert_settled(&node, LeaseCounts::default());
    }));
}
