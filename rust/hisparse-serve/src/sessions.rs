//! Who is attached: which process writes for the engine, and what its successor must know.
//!
//! ```text
//!  attach ──► live ── connection ends ──► dead, with its secret ── Reclaim by its successor ──► the leases live on
//!               ▲                           └─ nobody within the reclaim window: the leases are freed
//!               │                  │ the service was restarted, and the process goes on: it is live again
//!               ├──────────────────┘
//!  gRPC call ───┘ from the writer's process, by the kernel's word, or with the session's token: it speaks for it
//! ```

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use hisparse_core::ledger::{CommitBy, Loss, SessionId};
use hisparse_mem::attach::frame::{Hello, Notice, Resume, Role, TOKEN_BYTES};
use hisparse_mem::attach::server::{Herald, Session};
use tonic::Request;

use crate::error::Refusal;
use crate::meeting;
use crate::peer;
use crate::remembered::{KeptSession, MOST_DEAD, Remembered};

mod watcher;

pub(crate) use self::watcher::SessionWatcher;

/// Metadata of a call that an engine makes from another process than the attached writer: the session's token, in
/// hexadecimal digits.
pub(crate) const SESSION_METADATA: &str = "hisparse-session";

/// The sessions of this node.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    live: Vec<Session>,
    /// The newest first.
    dead: VecDeque<KeptSession>,
    herald: Option<Herald>,
    /// Whether somebody was told why a pool cannot be taken back.
    told_of_adoption: bool,
}

impl Sessions {
    fn book<T>(&self, work: impl FnOnce(&mut Book) -> T) -> T {
        // Whole between any two statements, so a panic elsewhere leaves it usable.
        work(&mut meeting::lock(&self.0).unwrap_or_else(PoisonError::into_inner))
    }

    /// Those that a restart found: their processes may come back, and their successors may come.
    pub(crate) fn of_the_past(remembered: &Remembered) -> Self {
        let dead = remembered.dead.values().rev().cloned().collect();
        Self(Mutex::new(Book { dead, ..Book::default() }))
    }

    /// None of the past can come back: the pool that they had is gone.
    pub(crate) fn forget(&self) {
        self.book(|book| book.dead.clear());
    }

    /// By whom sessions are told things from now on, or no longer.
    pub(crate) fn set_herald(&self, herald: Option<Herald>) {
        self.book(|book| book.herald = herald);
    }

    /// Tells the engine which leases it has lost.
    pub(crate) fn tell(&self, losses: &[Loss]) {
        let Some(herald) = self.book(|book| book.herald.clone().filter(|_| !book.live.is_empty())) else { return };
        for Loss { lease, freed } in losses {
            let lease_id = lease.to_string();
            herald.tell(&if *freed { Notice::Released { lease_id } } else { Notice::Quarantined { lease_id } });
        }
    }

    fn opened(&self, session: &Session) {
        self.book(|book| {
            book.dead.retain(|dead| dead.number != session.number);
            book.live.push(session.clone());
        });
    }

    fn knows(&self, hello: &Hello, resume: &Resume) -> bool {
        let same = |dead: &KeptSession| {
            dead.number == resume.session
                && dead.token.is(&resume.token.0)
                && (&dead.hello.engine_id, dead.hello.role) == (&hello.engine_id, hello.role)
        };
        self.book(|book| book.dead.iter().any(same))
    }

    fn closed(&self, session: &Session) {
        self.book(|book| {
            book.live.retain(|live| live.number != session.number);
            book.dead.truncate(MOST_DEAD - 1);
            book.dead.push_front(KeptSession::of(session));
        });
    }

    /// The session that this call is made for: the one whose token comes with it, or else the one whose writer's
    /// process made it, as the kernel says. On the Unix socket alone.
    pub(crate) fn caller<T>(&self, request: &Request<T>) -> Option<Session> {
        let peer = peer::of(request)?;
        peer.uid()?;
        if let Some(token) = request.metadata().get(SESSION_METADATA) {
            let token = token_of(token.as_bytes())?;
            let is_its = |session: &&Session| session.hello.role == Role::Writer && session.token.is(&token);
            return self.book(|book| book.live.iter().find(is_its).cloned());
        }
        // A process of another namespace has no number here, and so no session.
        let (uid, pid) = (peer.uid()?, peer.pid?);
        let writes =
            |session: &&Session| session.hello.role == Role::Writer && session.pid == Some(pid) && session.uid == uid;
        self.book(|book| book.live.iter().find(writes).cloned())
    }

    /// The dead session of this engine whose secret this is.
    pub(crate) fn predecessor(&self, engine_id: &str, token: &[u8]) -> Option<SessionId> {
        let matches = |dead: &&KeptSession| {
            dead.hello.role == Role::Writer && dead.hello.engine_id == engine_id && dead.token.is(token)
        };
        self.book(|book| book.dead.iter().find(matches).map(|dead| SessionId(dead.number)))
    }

    /// What a commit for this session says. Asked within the decision: the last look at a session's leases comes after
    /// its name is off the list, so what a session of the list is given is found by that look, and what one that has
    /// gone would be given would be kept for ever.
    ///
    /// # Errors
    /// [`Refusal::NotAttached`]: it has gone meanwhile.
    pub(crate) fn commit_by(&self, session: SessionId) -> Result<CommitBy, Refusal> {
        let lives = self.book(|book| book.live.iter().any(|live| live.number == session.0));
        lives.then_some(CommitBy::Session(session)).ok_or(Refusal::NotAttached)
    }

    /// How many processes are attached.
    pub(crate) fn attached(&self) -> usize {
        self.book(|book| book.live.len())
    }
}

fn token_of(digits: &[u8]) -> Option<[u8; TOKEN_BYTES]> {
    let mut token = [0; TOKEN_BYTES];
    let text = str::from_utf8(digits).ok().filter(|text| text.is_ascii() && text.len() == 2 * TOKEN_BYTES)?;
    for (place, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(token)
}
