//! Who is attached: which process writes for the engine, and what its successor must know.
//!
//! ```text
//!  attach ──► live ── connection ends ──► dead, with its secret ── Reclaim by its successor ──► the leases live on
//!               ▲                           └─ nobody within the reclaim window: the leases are freed
//!  gRPC call ───┘ from the writer's process, by the kernel's word: it speaks for the session
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use hisparse_core::env::Entropy;
use hisparse_core::ledger::SessionId;
use hisparse_mem::attach::frame::{Role, TOKEN_BYTES, Token};
use hisparse_mem::attach::server::{Session, Watcher};
use tonic::Request;

use crate::env::MachineEntropy;
use crate::node::Node;
use crate::peer;

/// Dead writers remembered: an engine that fails so often within a reclaim window has nothing to take back.
const MOST_DEAD: usize = 64;

/// The sessions of this node.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    live: Vec<Session>,
    dead: VecDeque<Session>,
}

impl Sessions {
    fn book<T>(&self, work: impl FnOnce(&mut Book) -> T) -> T {
        // Whole between any two statements, so a panic elsewhere leaves it usable.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn opened(&self, session: &Session) {
        self.book(|book| book.live.push(session.clone()));
    }

    fn closed(&self, session: &Session) {
        self.book(|book| {
            book.live.retain(|live| live.number != session.number);
            if session.hello.role == Role::Writer {
                book.dead.truncate(MOST_DEAD - 1);
                book.dead.push_front(session.clone());
            }
        });
    }

    /// The session whose writer's process made this call, as the kernel says.
    pub(crate) fn caller<T>(&self, request: &Request<T>) -> Option<Session> {
        let peer = peer::of(request)?;
        // A process of another namespace has no number here, and so no session.
        let (uid, pid) = (peer.uid()?, peer.pid?);
        let writes =
            |session: &&Session| session.hello.role == Role::Writer && session.pid == pid && session.uid == uid;
        self.book(|book| book.live.iter().find(writes).cloned())
    }

    /// The dead session of this engine whose secret this is.
    pub(crate) fn predecessor(&self, engine_id: &str, token: &[u8]) -> Option<SessionId> {
        let matches = |dead: &&Session| dead.hello.engine_id == engine_id && dead.token.is(token);
        self.book(|book| book.dead.iter().find(matches).map(|dead| SessionId(dead.number)))
    }

    /// How many processes are attached.
    pub(crate) fn attached(&self) -> usize {
        self.book(|book| book.live.len())
    }
}

/// Tells the node of its sessions.
#[derive(Debug)]
pub(crate) struct SessionWatcher(pub(crate) Arc<Node>);

impl Watcher for SessionWatcher {
    fn token(&self) -> Token {
        let mut token = [0; TOKEN_BYTES];
        for word in token.chunks_exact_mut(8) {
            word.copy_from_slice(&MachineEntropy.next_u64().to_ne_bytes());
        }
        Token(token)
    }

    fn opened(&self, session: &Session) {
        self.0.sessions.opened(session);
    }

    fn closed(&self, session: &Session) {
        self.0.sessions.closed(session);
        if session.hello.role == Role::Writer {
            // A poisoned node decides nothing any more, and hands no page out.
            let _ = self.0.decide(None, |state, now| state.ledger.session_lost(SessionId(session.number), now));
        }
    }
}
