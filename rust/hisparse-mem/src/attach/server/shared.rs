//! What the threads of one server share: its terms, its pool, and which connections there are.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::terms::{Terms, Wanted, Watcher};
use crate::attach::frame::{Hello, PROTOCOL, Reason, Role};
use crate::pool::HostPool;

pub(super) struct Shared {
    pub(super) listener: OwnedFd,
    pub(super) pool: OnceLock<Arc<HostPool>>,
    /// The pool to come; taken by who makes it.
    pub(super) wanted: Mutex<Option<Wanted>>,
    pub(super) terms: Terms,
    pub(super) own_uid: u32,
    pub(super) watcher: Arc<dyn Watcher>,
    pub(super) book: Mutex<Book>,
    pub(super) stopping: Condvar,
}

/// Which connections there are.
#[derive(Default)]
pub(super) struct Book {
    pub(super) stopping: bool,
    /// Whose pool it is: the engine that was let in first, for as long as the pool lives. What it leaves behind is for
    /// its successor alone.
    pub(super) engine_id: Option<String>,
    /// Whether there is a pool.
    pub(super) pooled: bool,
    pub(super) next: u64,
    pub(super) connections: BTreeMap<u64, Connection>,
}

pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) hello: Option<Hello>,
    /// Whether its greeting is over.
    pub(super) open: bool,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Shared {
    pub(super) fn book<T>(&self, work: impl FnOnce(&mut Book) -> T) -> T {
        // The book is whole between any two statements, so a panic elsewhere leaves it usable.
        work(&mut self.book.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits a moment, or until the server stops; whether it goes on.
    pub(super) fn pause(&self) -> bool {
        const MOMENT: Duration = Duration::from_millis(50);
        let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.stopping.wait_timeout_while(book, MOMENT, |book| !book.stopping);
        !waited.unwrap_or_else(PoisonError::into_inner).0.stopping
    }

    /// Notes a rank's session, unless the pool is another's or written by another.
    pub(super) fn admit(&self, number: u64, hello: &Hello) -> Result<(), Reason> {
        if !hello.protocols.contains(&PROTOCOL) {
            return Err(Reason::Protocol);
        }
        self.book(|book| {
            if book.engine_id.as_ref().is_some_and(|owner| *owner != hello.engine_id) {
                return Err(Reason::OtherEngine);
            }
            let mut others = book.connections.values().filter_map(|connection| connection.hello.as_ref());
            if hello.role == Role::Writer && others.any(|other| other.role == Role::Writer) {
                return Err(Reason::WriterTaken);
            }
            let connection = book.connections.get_mut(&number).ok_or(Reason::Unavailable)?;
            connection.hello = Some(hello.clone());
            book.engine_id.get_or_insert_with(|| hello.engine_id.clone());
            Ok(())
        })
    }
}
