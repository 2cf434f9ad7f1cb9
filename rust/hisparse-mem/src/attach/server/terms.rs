//! What the service that attaches engines decides: what is shared, with whom, and who hears of it.

use std::sync::Arc;

use hisparse_core::layout::pool::PoolLayout;

use super::super::frame::{Hello, Resume, Token};
use crate::pool::{HostPool, KeptSegment};
use crate::segment::SegmentError;
use crate::session_lock::SessionLock;

/// One attached process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its number; never used again.
    pub number: u64,
    /// What it said of itself.
    pub hello: Hello,
    /// Its user, by the kernel.
    pub uid: u32,
    /// Its process, by the kernel, when it connected; `None` for one of another process namespace.
    pub pid: Option<i32>,
    /// Its secret.
    pub token: Token,
}

/// Who hears of sessions. Called from the session's own thread, with no lock held.
pub trait Watcher: Send + Sync + 'static {
    /// A secret for a new session, that nobody can guess.
    fn token(&self) -> Token;
    /// A process has mapped the pool.
    fn opened(&self, session: &Session);
    /// It is gone, however it ended: what it was doing is over.
    fn closed(&self, session: &Session);
    /// A process is about to write to the pages of this lease; whether it may.
    fn fills(&self, _session: &Session, _lease_id: &str) -> bool {
        false
    }
    /// It writes to them no more.
    fn filled(&self, _session: &Session, _lease_id: &str) {}
    /// Whether a process may go on with a session from before a restart: it is one of ours, not attached, and this is
    /// its secret.
    fn knows(&self, _hello: &Hello, _resume: &Resume) -> bool {
        false
    }
    /// A pool was handed back, and this process cannot map or lock it: whoever runs the service must do something. The
    /// engine keeps it and tries again, so this may be heard again and again.
    fn not_adopted(&self, _error: &SegmentError) {}
}

/// Who may attach, and to what.
#[derive(Debug)]
pub struct Terms {
    /// Generation of the pool.
    pub epoch: u64,
    /// Users that may attach besides the service's own.
    pub uids: Vec<u32>,
    /// What every attached process holds; `None` where nobody ever asks.
    pub lock: Option<SessionLock>,
    /// The last number of a session so far: numbers are never used again.
    pub last_session: u64,
    /// Whose pool it is already; `None` leaves it to the first that attaches.
    pub engine_id: Option<String>,
}

/// What is shared.
#[derive(Debug)]
pub enum Share {
    /// A pool that is here.
    Pool(Arc<HostPool>),
    /// One that an engine still has.
    Wanted(Wanted),
}

/// A pool that outlived its service in the hands of an engine.
#[derive(Debug)]
pub struct Wanted {
    /// Where everything lies in it.
    pub layout: PoolLayout,
    /// What its segments are known by.
    pub segments: Vec<KeptSegment>,
    /// Whether its pages are locked.
    pub lock: bool,
}
