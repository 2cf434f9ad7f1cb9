//! What an operator should know: of peers that misbehave, each thing once per user, and of the service itself.
//!
//! ```text
//!  (kind, user) ── seen before? ─ yes ─► counted in metrics alone
//!                       └─ no ─► one line, kept and written down;  after 1,024 lines: one last line, then silence
//!  of the service itself ──────► one line, in any case
//! ```
//! A line of a peer names the user and the bound, never what was sent. Lines go where the service's log goes, in its form.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use hisparse_core::limits::MAX_NOTICES;
use hisparse_core::printable::printable;
use serde_json::json;

use crate::log::{Level, Log};
use crate::peer::User;

/// What was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The access list does not name the peer.
    Stranger,
    /// More connections than one user may have.
    Connections,
    /// The TLS handshake failed.
    Tls,
    /// Nothing came over a connection.
    Silent,
    /// What was sent to it was not taken.
    SlowReader,
    /// HTTP/2 was broken, or its limits were.
    Protocol,
    /// A call without the role for it.
    Role,
    /// More calls than one peer may have at a time.
    Calls,
    /// More Admits than the configured rate.
    Rate,
}

/// The notices of one server.
#[derive(Debug)]
pub(crate) struct Notices {
    book: Mutex<Book>,
    sink: Sink,
}

/// Where notices go beside the book.
#[derive(Debug)]
pub(crate) enum Sink {
    Nowhere,
    Stderr,
    Log(Arc<Log>),
}

#[derive(Debug, Default)]
struct Book {
    seen: BTreeSet<(Kind, User)>,
    lines: Vec<String>,
}

impl Notices {
    pub(crate) fn new(sink: Sink) -> Self {
        Self { book: Mutex::default(), sink }
    }

    /// Notices something, once per user.
    pub(crate) fn once(&self, kind: Kind, user: &User, what: impl FnOnce() -> String) {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        if book.lines.len() > MAX_NOTICES || book.seen.contains(&(kind, user.clone())) {
            return;
        }
        book.seen.insert((kind, user.clone()));
        let line = if book.lines.len() == MAX_NOTICES {
            format!("{MAX_NOTICES} notices are enough: what follows is in the metrics alone")
        } else {
            format!("{user}: {}", what())
        };
        book.lines.push(line.clone());
        drop(book);
        self.write(Level::Warning, &line);
    }

    /// Tells what is wrong with the service itself and what to do; who says it says it once.
    pub(crate) fn of_service(&self, line: String) {
        self.write(Level::Error, &line);
        self.book.lock().unwrap_or_else(PoisonError::into_inner).lines.push(line);
    }

    fn write(&self, level: Level, line: &str) {
        match &self.sink {
            Sink::Nowhere => {}
            Sink::Stderr => {
                // Nobody reads stderr: then nobody is told.
                let _ = writeln!(std::io::stderr(), "hisparse-svc: {}", printable(line));
            }
            Sink::Log(log) => log.write(level, "notice", json!({ "message": line })),
        }
    }

    /// All so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner).lines.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_said_once_per_user_and_not_for_ever() {
        let notices = Notices::new(Sink::Nowhere);
        for _ in 0..3 {
            notices.once(Kind::Silent, &User::Uid(1), || "said nothing".into());
            notices.once(Kind::Tls, &User::Uid(1), || "no handshake".into());
        }
        assert_eq!(notices.lines(), ["uid 1: said nothing", "uid 1: no handshake"]);
        for uid in 0..5_000 {
            notices.once(Kind::Stranger, &User::Uid(uid), || "not on the list".into());
        }
        notices.of_service("the journal is lost".into());
        let mut lines = notices.lines();
        assert_eq!(lines.pop().as_deref(), Some("the journal is lost"), "however much is said of peers");
        assert_eq!(lines.len(), MAX_NOTICES + 1);
        assert!(lines[MAX_NOTICES].contains("are enough"), "{}", lines[MAX_NOTICES]);
    }
}
