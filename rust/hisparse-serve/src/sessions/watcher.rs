//! Tells the node of its sessions: which have begun, what they fill, and which are over.

use std::sync::Arc;

use hisparse_core::env::Entropy;
use hisparse_core::ledger::SessionId;
use hisparse_core::limits::MAX_ENDINGS_PER_CALL;
use hisparse_mem::attach::frame::{Hello, Resume, Role, TOKEN_BYTES, Token};
use hisparse_mem::attach::server::{Session, Watcher};
use hisparse_mem::segment::SegmentError;

use crate::env::MachineEntropy;
use crate::node::Node;
use crate::remembered::{KeptSession, Note};

/// The node, as the attach server tells it.
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

    fn knows(&self, hello: &Hello, resume: &Resume) -> bool {
        self.0.sessions.knows(hello, resume)
    }

    fn not_adopted(&self, error: &SegmentError) {
        if !self.0.sessions.book(|book| std::mem::replace(&mut book.told_of_adoption, true)) {
            self.0.notices.of_service(format!(
                "the engine has handed its pool back, and it cannot be taken: {error}; the engine keeps it and tries again. \
                 Start the service anew after that"
            ));
        }
    }

    fn opened(&self, session: &Session) {
        self.0.remember(&Note::Opened(KeptSession::of(session)));
        self.0.sessions.opened(session);
        if session.hello.resume.is_some() && session.hello.role == Role::Writer {
            let number = SessionId(session.number);
            // A poisoned node decides nothing any more: the engine is told when it calls.
            let _ = self.0.decide(None, |state, now| state.ledger.reclaim(number, number, now));
        }
    }

    fn fills(&self, session: &Session, lease_id: &str) -> bool {
        let Ok(id) = lease_id.parse() else { return false };
        let filler = SessionId(session.number);
        self.0.decide(None, |state, now| state.ledger.fill(id, filler, now)).is_ok_and(|filled| filled.is_ok())
    }

    fn filled(&self, session: &Session, lease_id: &str) {
        if let Ok(id) = lease_id.parse() {
            // A poisoned node hands no page out.
            let _ = self.0.decide(None, |state, now| state.ledger.filled(id, SessionId(session.number), now));
        }
    }

    fn closed(&self, session: &Session) {
        self.0.remember(&Note::Closed { session: session.number });
        let lost = SessionId(session.number);
        let writes = session.hello.role == Role::Writer;
        // In slices, so that no call in between waits for all of them. A poisoned node hands no page out.
        let slice =
            || self.0.decide(None, |state, now| state.ledger.session_lost_in_part(lost, MAX_ENDINGS_PER_CALL, now));
        while writes && slice().is_ok_and(|ended| ended == MAX_ENDINGS_PER_CALL) {}
        if session.hello.role.may_write() {
            let _ = self.0.decide(None, |state, now| state.ledger.filler_lost(lost, now));
        }
        // Only now may a successor come, which gets all of them; then what the dead one committed meanwhile.
        self.0.sessions.closed(session);
        if writes {
            let _ = self.0.decide(None, |state, now| state.ledger.session_lost(lost, now));
        }
    }
}
