//! An engine's end: attach, map every segment, keep the session for as long as the pool is used.
//!
//! ```text
//!  attach ─► mapped ─► open ── the service dies ──► reconnecting ── it is back, and knows us ──► open, in a new epoch
//!                       │ notices                        │ descriptors are handed back if it asks
//!                       ▼                                └── it knows us no more ──► ended: nothing may be written
//!                    the engine
//! ```
//! What is mapped stays mapped all the while, and decoding goes on. A thread of its own waits for the service's word;
//! it holds no lock while it waits.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hisparse_core::layout::pool::PoolLayout;

pub use super::channel::ChannelError;
use super::frame::{Hello, Notice, PROTOCOL, Role, Token};
use crate::map::{Access, Mapping};
use crate::rows::PoolMemory;

mod error;
mod greeting;
mod session;

use greeting::{greet, map, opened, receive_files, receive_layout, welcomed};
use session::{Book, SessionEnd};

pub use error::AttachError;
pub use session::Standing;

/// A pool of another process, mapped here. Dropping it ends the session.
#[derive(Debug)]
pub struct AttachedPool {
    session: Arc<SessionEnd>,
    layout: PoolLayout,
    mappings: Vec<Mapping>,
    listener: Option<JoinHandle<()>>,
    /// The process that the listener runs in: threads do not survive a fork.
    owner: u32,
}

impl AttachedPool {
    /// Attaches to the service at `path` as `rank` of `engine_id`.
    ///
    /// # Errors
    /// See [`AttachError`]; nothing stays mapped.
    pub fn attach(path: &Path, engine_id: &str, rank: u32, role: Role) -> Result<Self, AttachError> {
        let hello = Hello { protocols: vec![PROTOCOL], role, engine_id: engine_id.to_owned(), rank, resume: None };
        let channel = greet(path, &hello)?;
        let welcome = welcomed(&channel)?;
        let layout = receive_layout(&channel, welcome.layout_bytes)?;
        let files = receive_files(&channel, &layout, welcome.segments)?;
        let access = if role.maps_writable() { Access::ReadWrite } else { Access::Read };
        let mappings = files
            .iter()
            .zip(layout.segment_bytes())
            .enumerate()
            .map(|(segment, (file, bytes))| map(file, *bytes, access, segment))
            .collect::<Result<Vec<_>, _>>()?;
        let lock = opened(&channel)?;
        let channel = Arc::new(channel);
        let book = Book {
            standing: Standing::Open,
            channel: Some(Arc::clone(&channel)),
            lock,
            notices: VecDeque::new(),
            fills: BTreeMap::new(),
            leaving: false,
        };
        let session = Arc::new(SessionEnd {
            path: path.to_path_buf(),
            hello,
            number: welcome.session,
            token: welcome.token,
            epoch: AtomicU64::new(welcome.epoch),
            files,
            book: Mutex::new(book),
            news: Condvar::new(),
        });
        let listening = Arc::clone(&session);
        let listener =
            std::thread::Builder::new().name("hisparse-session".into()).spawn(move || listening.listen(channel))?;
        Ok(Self { session, layout, mappings, listener: Some(listener), owner: std::process::id() })
    }

    /// Ends the session now. What is mapped stays mapped until the pool is dropped, and must not be touched any more:
    /// its pages may soon be another's.
    pub fn end_session(&self) {
        self.session.leave();
    }

    /// Generation of the pool: it grows when the service is restarted.
    pub fn epoch(&self) -> u64 {
        self.session.epoch.load(Ordering::Acquire)
    }

    /// This session's number; a restarted service knows it by the same.
    pub fn session(&self) -> u64 {
        self.session.number
    }

    /// This session's secret: what a successor of this engine hands to `Reclaim`, and what a process of this engine
    /// other than this one calls with.
    pub fn token(&self) -> Token {
        self.session.token
    }

    /// What this rank may do.
    pub fn role(&self) -> Role {
        self.session.hello.role
    }

    /// Where the session stands now.
    pub fn standing(&self) -> Standing {
        self.session.book(|book| book.standing)
    }

    /// Says that this process is about to write to the pages of a lease: until it says [`AttachedPool::filled`], or its
    /// session ends, they become nobody else's before the quarantine bound. A notice says when the lease has ended, and
    /// writing must stop. Returns whether the lease lives.
    ///
    /// # Errors
    /// [`AttachError::Unanswered`] where the service is gone, or does not answer in time: nothing may be written.
    pub fn fill(&self, lease_id: &str, longest: Duration) -> Result<bool, AttachError> {
        self.session.fill(lease_id, longest)
    }

    /// Says that this process writes to the pages of that lease no more.
    pub fn filled(&self, lease_id: &str) {
        self.session.filled(lease_id);
    }

    /// The next thing that the engine must know, waiting for one at most so long.
    pub fn next_notice(&self, longest: Duration) -> Option<Notice> {
        let book = self.session.book.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .session
            .news
            .wait_timeout_while(book, longest, |book| book.notices.is_empty() && book.standing != Standing::Ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.notices.pop_front()
    }
}

impl Drop for AttachedPool {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            // A forked child: the session is its parent's, and the listener does not exist here.
            std::mem::forget(self.listener.take());
            return;
        }
        self.session.leave();
        if let Some(listener) = self.listener.take() {
            // A panic was reported where it happened.
            let _panicked = listener.join();
        }
    }
}

impl PoolMemory for AttachedPool {
    fn layout(&self) -> &PoolLayout {
        &self.layout
    }

    fn mapping(&self, segment: usize) -> Option<&Mapping> {
        self.mappings.get(segment)
    }
}
