//! An engine that dies while a call of its is decided on.

use std::sync::Arc;

use hisparse_core::ledger::{CommitBy, Epoch, LeaseCounts, LeaseId, SessionId, Walk};
use hisparse_mem::attach::frame::{Hello, Role, Token};
use hisparse_mem::attach::server::{Session, Watcher};
use shuttle::thread;

use super::{asking, assert_settled, check, fails, node};
use crate::node::Node;
use crate::sessions::SessionWatcher;

fn session(number: u64) -> Session {
    let hello = Hello { protocols: vec![1], role: Role::Writer, engine_id: "engine".into(), rank: 0, resume: None };
    Session { number, hello, uid: 0, pid: Some(1), token: Token([0; 16]) }
}

/// A node with a session and a lease that nobody has committed.
fn attached(number: u64) -> (Arc<Node>, Session, LeaseId) {
    let (node, session) = (node(4), session(number));
    SessionWatcher(Arc::clone(&node)).opened(&session);
    let admitted = node.decide(None, |state, now| state.ledger.admit(&asking("r", 2), now));
    (node, session, admitted.unwrap().unwrap().lease.id.unwrap())
}

fn dies(node: &Arc<Node>, session: &Session) -> thread::JoinHandle<()> {
    let (node, session) = (Arc::clone(node), session.clone());
    thread::spawn(move || SessionWatcher(node).closed(&session))
}

fn assert_holds_nothing(node: &Node, session: &Session) {
    let held = node.decide(None, |state, _| state.ledger.held_by(SessionId(session.number))).unwrap();
    assert!(held.is_empty(), "a dead session keeps {held:?} for ever");
}

fn dies_while_it_commits(commit: fn(&Node, &Session, LeaseId)) {
    let (node, session, lease) = attached(1);
    let dying = dies(&node, &session);
    commit(&node, &session, lease);
    dying.join().unwrap();
    assert_holds_nothing(&node, &session);
}

#[test]
fn a_dead_session_keeps_no_lease_whenever_it_commits() {
    check(|| {
        dies_while_it_commits(|node, session, lease| {
            let committed = node.decide(None, |state, now| {
                let by = node.sessions.commit_by(SessionId(session.number)).ok()?;
                state.ledger.commit(lease, None, Epoch::FIRST, by, now).ok()
            });
            drop(committed.unwrap());
        });
    });
}

#[test]
fn a_planted_commit_that_asks_for_the_session_before_it_decides_is_found() {
    assert!(fails(|| {
        dies_while_it_commits(|node, session, lease| {
            if let Ok(by @ CommitBy::Session(_)) = node.sessions.commit_by(SessionId(session.number)) {
                node.decide(None, |state, now| state.ledger.commit(lease, None, Epoch::FIRST, by, now).ok()).unwrap();
            }
        });
    }));
}

#[test]
fn a_successor_that_dies_while_it_reclaims_keeps_nothing_and_loses_nothing() {
    check(|| {
        let (node, dead, lease) = attached(1);
        let by = CommitBy::Session(SessionId(1));
        node.decide(None, |state, now| state.ledger.commit(lease, None, Epoch::FIRST, by, now)).unwrap().unwrap();
        SessionWatcher(Arc::clone(&node)).closed(&dead);
        let successor = session(2);
        SessionWatcher(Arc::clone(&node)).opened(&successor);
        let dying = dies(&node, &successor);
        let mut walk = Walk::default();
        while let Ok(Some(_)) = node.reclaim_in_part(SessionId(1), SessionId(2), &mut walk, None) {}
        dying.join().unwrap();
        assert_holds_nothing(&node, &successor);
        assert_settled(&node, LeaseCounts { quarantined: 1, ..LeaseCounts::default() });
    });
}
