//! The service's end: one thread accepts, one per connection greets and then waits for it to end.
//!
//! ```text
//!  accept ─► uid listed? ─► Hello within 5 s ─► same engine, writer free? ─► opened ─► … end of connection ─► closed
//!                                                  │ goes on with a session that the watcher knows
//!                                                  └─► is the pool still wanted? ─► HandBack ─► the very files? ─► pool
//! ```
//! A service that was restarted beside living engines begins without a pool, *wanting* one: the first engine that goes
//! on with its session hands the files back.
//!
//! The lock guards the list of sessions alone; what is sent while it is held is sent without waiting.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::channel::{Channel, end};
use super::frame::{Filled, Filling, Frame, Notice, Reason};
use crate::pool::HostPool;

mod greeting;
mod shared;
mod socket;
mod terms;

pub use self::socket::ListenError;
pub use self::terms::{Session, Share, Terms, Wanted, Watcher};
use greeting::{Greeting, greet};
use shared::{Book, Connection, Shared};
use socket::listen_at;

/// Connections at one time, greeted or not.
pub const MAX_CONNECTIONS: usize = 256;

/// A listening socket and its sessions. Dropping it ends them all and removes the socket.
pub struct AttachServer {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
    path: PathBuf,
}

impl std::fmt::Debug for AttachServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttachServer").field("path", &self.path).finish_non_exhaustive()
    }
}

impl AttachServer {
    /// Listens at `path` and shares `pool` on these terms.
    ///
    /// # Errors
    /// See [`ListenError`]. A socket that a dead service left is replaced.
    pub fn start(path: &Path, share: Share, terms: Terms, watcher: Arc<dyn Watcher>) -> Result<Self, ListenError> {
        let only_own = terms.uids.is_empty();
        let (pool, wanted) = match share {
            Share::Pool(pool) => (OnceLock::from(pool), None),
            Share::Wanted(wanted) => (OnceLock::new(), Some(wanted)),
        };
        let listener = listen_at(path, only_own)?;
        let own_uid = rustix::process::geteuid().as_raw();
        let (next, engine_id) = (terms.last_session, terms.engine_id.clone());
        let book = Book { next, engine_id, pooled: pool.get().is_some(), ..Book::default() };
        let (book, wanted) = (Mutex::new(book), Mutex::new(wanted));
        let shared = Shared { listener, pool, wanted, terms, own_uid, watcher, book, stopping: Condvar::new() };
        let shared = Arc::new(shared);
        let accepting = Arc::clone(&shared);
        let acceptor =
            std::thread::Builder::new().name("hisparse-attach".into()).spawn(move || accept_all(&accepting))?;
        Ok(Self { shared, acceptor: Some(acceptor), path: path.to_path_buf() })
    }

    /// The pool, waiting at most so long for an engine to hand it back.
    pub fn pool(&self, longest: Duration) -> Option<Arc<HostPool>> {
        let book = self.shared.book.lock().unwrap_or_else(PoisonError::into_inner);
        let _waited = self.shared.stopping.wait_timeout_while(book, longest, |book| !book.pooled && !book.stopping);
        self.shared.pool.get().cloned()
    }

    /// By which the sessions are told what they must know.
    pub fn herald(&self) -> Herald {
        Herald(Arc::clone(&self.shared))
    }

    /// Sessions that are attached now.
    pub fn sessions(&self) -> usize {
        self.shared.book(|book| book.connections.values().filter(|connection| connection.hello.is_some()).count())
    }
}

/// Tells attached processes what they must know.
#[derive(Clone)]
pub struct Herald(Arc<Shared>);

impl std::fmt::Debug for Herald {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Herald")
    }
}

impl Herald {
    /// Tells every attached process, without waiting. One that does not read what it is told is treated as dead: it
    /// could go on writing to pages that are another's.
    pub fn tell(&self, notice: &Notice) {
        let frame = Frame::Notice(notice.clone());
        self.0.book(|book| {
            for connection in book.connections.values().filter(|connection| connection.open) {
                if Channel::send_at_once(connection.socket.as_fd(), &frame).is_err() {
                    end(connection.socket.as_fd());
                }
            }
        });
    }
}

impl Drop for AttachServer {
    fn drop(&mut self) {
        end(self.shared.listener.as_fd());
        let threads = self.shared.book(|book| {
            book.stopping = true;
            for connection in book.connections.values() {
                end(connection.socket.as_fd());
            }
            book.connections.values_mut().filter_map(|c| c.thread.take()).collect::<Vec<_>>()
        });
        self.shared.stopping.notify_all();
        for thread in threads.into_iter().chain(self.acceptor.take()) {
            // A panic was reported where it happened.
            let _panicked = thread.join();
        }
        let _gone = std::fs::remove_file(&self.path);
    }
}

fn accept_all(shared: &Arc<Shared>) {
    loop {
        let socket = match accept_with(&shared.listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::CONNABORTED | Errno::INTR) => continue,
            // Descriptors ran out for a moment; the peer stays in the queue.
            Err(Errno::MFILE | Errno::NFILE) if shared.pause() => continue,
            Err(_) => return,
        };
        let Ok(kept) = socket.try_clone() else { continue };
        let number = shared.book(|book| {
            if book.stopping || book.connections.len() >= MAX_CONNECTIONS {
                return None;
            }
            book.next += 1;
            book.connections.insert(book.next, Connection { socket: kept, hello: None, open: false, thread: None });
            Some(book.next)
        });
        let channel = Channel::new(socket);
        let Some(number) = number else {
            channel.refuse(Reason::TooMany);
            continue;
        };
        let serving = Arc::clone(shared);
        let spawned = std::thread::Builder::new().name(format!("hisparse-attach-{number}")).spawn(move || {
            serve(&serving, number, &channel);
            serving.book(|book| book.connections.remove(&number));
        });
        shared.book(|book| match (spawned, book.connections.get_mut(&number)) {
            (Ok(thread), Some(connection)) => connection.thread = Some(thread),
            // Ended already, or never begun.
            (Ok(_), None) => {}
            (Err(_), _) => drop(book.connections.remove(&number)),
        });
    }
}

/// One connection from its first message to its end.
fn serve(shared: &Shared, number: u64, channel: &Channel) {
    let session = match greet(shared, number, channel) {
        Ok(session) => session,
        Err(Greeting::Refused(reason)) => return channel.refuse(reason),
        Err(Greeting::Failed) => return,
    };
    shared.watcher.opened(&session);
    // Within the lock, so that no notice comes before it and none after it is missed.
    shared.book(|book| {
        // A peer that is gone by now is found gone below.
        let _gone = Channel::send_at_once(channel.as_fd(), &Frame::Open);
        if let Some(connection) = book.connections.get_mut(&number) {
            connection.open = true;
        }
    });
    hear(shared, &session, channel);
    // Told first: a successor that is let in finds its predecessor's end in the books.
    shared.watcher.closed(&session);
    shared.book(|book| {
        if let Some(connection) = book.connections.get_mut(&number) {
            (connection.hello, connection.open) = (None, false);
        }
    });
}

/// Hears which leases the process fills, until the session is over: whatever else comes ends it.
fn hear(shared: &Shared, session: &Session, channel: &Channel) {
    if channel.set_patience(None).is_err() {
        return;
    }
    loop {
        match channel.receive(0) {
            Ok((Frame::Fill(Filled { lease_id }), _)) if session.hello.role.may_write() => {
                let granted = shared.watcher.fills(session, &lease_id);
                if Channel::send_at_once(channel.as_fd(), &Frame::Filling(Filling { lease_id, granted })).is_err() {
                    return;
                }
            }
            Ok((Frame::Filled(Filled { lease_id }), _)) => shared.watcher.filled(session, &lease_id),
            _ => return,
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
