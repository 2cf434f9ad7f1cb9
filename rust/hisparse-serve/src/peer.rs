//! Who is connected, and how much of the service each of them takes.
//!
//! ```text
//!  user (uid, certificate, address) ── connections, at most 1,024
//!    └─ peer (process of that user) ── calls, at most 1,024 … and as many with head-room, and 4 long ones
//! ```
//! A user's connections are counted together, because processes are cheap to start; calls are counted per process, so
//! that one router that misbehaves does not stop another of the same user.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tonic::Request;

use crate::access::Rights;
use crate::error::Refusal;

/// Whose connections are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum User {
    Uid(u32),
    Address(IpAddr),
    Certificate(String),
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => write!(f, "uid {uid}"),
            Self::Address(address) => write!(f, "{address}"),
            Self::Certificate(name) => {
                let name: String = name.chars().take(120).collect();
                write!(f, "certificate {name:?}")
            }
        }
    }
}

/// Calls of one peer that are being answered, by kind of limit.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) calls: AtomicUsize,
    pub(crate) head_room: AtomicUsize,
    pub(crate) bulk: AtomicUsize,
}

/// One end of a connection. Handlers find it in the request's extensions.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) user: User,
    /// Its process, where the kernel knows it.
    pub(crate) pid: Option<i32>,
    pub(crate) rights: Rights,
    pub(crate) tally: Arc<Tally>,
    peers: Arc<Peers>,
}

impl Peer {
    /// Its user id, on the Unix socket.
    pub(crate) const fn uid(&self) -> Option<u32> {
        match self.user {
            User::Uid(uid) => Some(uid),
            _ => None,
        }
    }

    fn key(&self) -> (User, Option<i32>) {
        (self.user.clone(), self.pid)
    }
}

/// Whose call this is.
pub(crate) fn of<T>(request: &Request<T>) -> Option<&Arc<Peer>> {
    request.extensions().get()
}

/// What the caller may do.
///
/// # Errors
/// The call came past no connection of ours; it may do nothing.
pub(crate) fn rights<T>(request: &Request<T>) -> Result<Rights, Refusal> {
    of(request).map(|peer| peer.rights.clone()).ok_or(Refusal::Failed("the connection"))
}

/// Everybody who is connected.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    connections: BTreeMap<User, usize>,
    tallies: BTreeMap<(User, Option<i32>), Arc<Tally>>,
}

impl Peers {
    fn book<T>(&self, work: impl FnOnce(&mut Book) -> T) -> T {
        // Whole between any two statements, so a panic elsewhere leaves it usable.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One connection more, unless its user has `most`. It counts until the peer is dropped.
    pub(crate) fn connected(
        self: &Arc<Self>,
        user: User,
        pid: Option<i32>,
        rights: Rights,
        most: usize,
    ) -> Option<Peer> {
        self.book(|book| {
            let open = book.connections.entry(user.clone()).or_default();
            if *open >= most {
                return None;
            }
            *open += 1;
            let tally = Arc::clone(book.tallies.entry((user.clone(), pid)).or_default());
            Some(Peer { user, pid, rights, tally, peers: Arc::clone(self) })
        })
    }

    /// Connections of all.
    pub(crate) fn connections(&self) -> usize {
        self.book(|book| book.connections.values().sum())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let (key, peers) = (self.key(), Arc::clone(&self.peers));
        peers.book(|book| {
            if let Some(open) = book.connections.get_mut(&key.0) {
                *open -= 1;
                if *open == 0 {
                    book.connections.remove(&key.0);
                }
            }
            // The book's and our own: no other connection of this peer is left.
            if Arc::strong_count(&self.tally) <= 2 {
                book.tallies.remove(&key);
            }
        });
    }
}

/// A peer that may do everything, for tests and fuzzers of what lies beneath the layers.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn somebody() -> Arc<Peer> {
    use crate::access::{Access, Credentials};
    let rights = Access::default().rights(&Credentials::Unix { uid: 1, gid: 1 });
    let peer = rights.and_then(|rights| Arc::new(Peers::default()).connected(User::Uid(1), Some(1), rights, 1));
    Arc::new(peer.expect("without a list everybody here is let in"))
}

/// One more, unless there are `most`. Given back by [`leave`].
pub(crate) fn enter(count: &AtomicUsize, most: usize) -> bool {
    let more = |taken| (taken < most).then_some(taken + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

/// One less.
pub(crate) fn leave(count: &AtomicUsize) {
    count.fetch_sub(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Access, Credentials};

    #[test]
    fn connections_count_per_user_and_calls_per_process_and_nothing_stays_behind() {
        let peers = Arc::new(Peers::default());
        let rights = Access::default().rights(&Credentials::Loopback).unwrap();
        let connect = |uid, pid| peers.connected(User::Uid(uid), Some(pid), rights.clone(), 2);
        let (first, second) = (connect(1, 10).unwrap(), connect(1, 11).unwrap());
        assert!(connect(1, 12).is_none(), "a third connection of the same user");
        assert!(!Arc::ptr_eq(&first.tally, &second.tally));
        let other = connect(2, 10).unwrap();
        assert_eq!(peers.connections(), 3);
        drop(first);
        let again = connect(1, 11).unwrap();
        assert!(Arc::ptr_eq(&again.tally, &second.tally));
        drop((second, again, other));
        peers.book(|book| assert!(book.connections.is_empty() && book.tallies.is_empty(), "{book:?}"));
    }
}
