//! A session as its process keeps it: what the service says is heard, and a service that is gone is looked for.
//!
//! ```text
//!  listen ─► notices, answers about fills          the connection ends ─► look, 20 ms … 500 ms apart
//!     ▲                                                                        │
//!     └── resumed: files handed back where it asks, fills said again ◄─────────┴─► refused for good: ended
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::error::AttachError;
use super::greeting::{greet, opened, read_welcome};
use crate::attach::MAX_DESCRIPTORS;
use crate::attach::channel::{Channel, end};
use crate::attach::frame::{Filled, Filling, Frame, Hello, Notice, Reason, Resume, Token};

/// Time between two attempts to reach a service that is gone: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Attempts after which "I know no such session" is believed: a service may not have noticed yet that it lost us.
const STRANGER_ATTEMPTS: u32 = 8;

/// Notices kept for an engine that does not ask for them; the oldest are dropped beyond it.
const MAX_NOTICES: usize = 1 << 16;

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The service knows of it.
    Open,
    /// The service is gone; it is looked for.
    Reconnecting,
    /// It is over.
    Ended,
}

/// The session as this process keeps it.
#[derive(Debug)]
pub(super) struct SessionEnd {
    pub(super) path: PathBuf,
    pub(super) hello: Hello,
    pub(super) number: u64,
    pub(super) token: Token,
    pub(super) epoch: AtomicU64,
    pub(super) files: Vec<OwnedFd>,
    pub(super) book: Mutex<Book>,
    pub(super) news: Condvar,
}

#[derive(Debug)]
pub(super) struct Book {
    pub(super) standing: Standing,
    /// The connection, while there is one.
    pub(super) channel: Option<Arc<Channel>>,
    /// Says to every later service that the pool is in use.
    pub(super) lock: Option<OwnedFd>,
    pub(super) notices: VecDeque<Notice>,
    /// Leases that this process fills, and what the service said of each; `None` until it has answered.
    pub(super) fills: BTreeMap<String, Option<bool>>,
    /// Whether the engine is done with it.
    pub(super) leaving: bool,
}

impl SessionEnd {
    pub(super) fn book<T>(&self, work: impl FnOnce(&mut Book) -> T) -> T {
        // Whole between any two statements, so a panic elsewhere leaves it usable.
        work(&mut self.book.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn leave(&self) {
        self.book(|book| {
            book.leaving = true;
            book.standing = Standing::Ended;
            book.lock = None;
            if let Some(channel) = &book.channel {
                end(channel.as_fd());
            }
        });
        self.news.notify_all();
    }

    fn tell(&self, notice: Notice) {
        self.book(|book| {
            if book.notices.len() >= MAX_NOTICES {
                book.notices.pop_front();
            }
            book.notices.push_back(notice);
        });
        self.news.notify_all();
    }

    pub(super) fn fill(&self, lease_id: &str, longest: Duration) -> Result<bool, AttachError> {
        let frame = Frame::Fill(Filled { lease_id: lease_id.to_owned() });
        let unanswered = || AttachError::Unanswered(lease_id.to_owned());
        // The lock is held from before the answer can come until it is waited for.
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = book.channel.clone().filter(|_| book.standing == Standing::Open).ok_or_else(unanswered)?;
        book.fills.insert(lease_id.to_owned(), None);
        let sent = Channel::send_at_once(channel.as_fd(), &frame);
        let waits = |book: &mut Book| book.fills.get(lease_id) == Some(&None) && book.standing != Standing::Ended;
        let longest = if sent.is_ok() { longest } else { Duration::ZERO };
        let waited = self.news.wait_timeout_while(book, longest, waits);
        book = waited.unwrap_or_else(PoisonError::into_inner).0;
        match book.fills.get(lease_id) {
            Some(Some(true)) => Ok(true),
            Some(Some(false)) => {
                book.fills.remove(lease_id);
                Ok(false)
            }
            _ => {
                drop(book);
                // The service may have heard it all the same.
                self.filled(lease_id);
                Err(unanswered())
            }
        }
    }

    pub(super) fn filled(&self, lease_id: &str) {
        let frame = Frame::Filled(Filled { lease_id: lease_id.to_owned() });
        self.book(|book| {
            book.fills.remove(lease_id);
            if let Some(channel) = &book.channel
                && Channel::send_at_once(channel.as_fd(), &frame).is_err()
            {
                // Unsaid, it would keep the pages from everyone: the end of the connection says it too.
                end(channel.as_fd());
            }
        });
    }

    fn answered(&self, answer: &Filling) {
        self.book(|book| {
            if let Some(fill) = book.fills.get_mut(&answer.lease_id) {
                *fill = Some(answer.granted);
            }
        });
        self.news.notify_all();
    }

    /// Hears what the service says, and looks for it when it is gone, until the engine leaves.
    pub(super) fn listen(&self, mut channel: Arc<Channel>) {
        loop {
            if channel.set_patience(None).is_ok() {
                loop {
                    match channel.receive(0) {
                        Ok((Frame::Notice(notice), _)) => self.tell(notice),
                        Ok((Frame::Filling(answer), _)) => self.answered(&answer),
                        _ => break,
                    }
                }
            }
            // Anything else is as good as no service.
            end(channel.as_fd());
            match self.look_for_service() {
                Ok(Some(found)) => channel = found,
                Ok(None) => return,
                Err(reason) => {
                    self.book(|book| {
                        book.standing = Standing::Ended;
                        book.lock = None;
                    });
                    return self.tell(Notice::Ended {
                        reason: format!(
                            "the service refused to go on with the session ({reason}): {}",
                            reason.remedy()
                        ),
                    });
                }
            }
        }
    }

    /// The service again; `None` where the engine leaves first.
    fn look_for_service(&self) -> Result<Option<Arc<Channel>>, Reason> {
        let mut pause = FIRST_PAUSE;
        let mut strange = 0;
        loop {
            let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
            let mut book = self
                .news
                .wait_timeout_while(book, pause, |book| !book.leaving)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if book.leaving {
                return Ok(None);
            }
            (book.standing, book.channel) = (Standing::Reconnecting, None);
            drop(book);
            match self.resume() {
                Ok((channel, epoch, lock)) => {
                    let channel = Arc::new(channel);
                    self.epoch.store(epoch, Ordering::Release);
                    let leaving = self.book(|book| {
                        (book.standing, book.channel) = (Standing::Open, Some(Arc::clone(&channel)));
                        book.lock = lock.or(book.lock.take());
                        // A service that was restarted does not know what is being filled.
                        for lease_id in book.fills.keys() {
                            let frame = Frame::Fill(Filled { lease_id: lease_id.clone() });
                            // One that is gone again is looked for again.
                            let _gone = Channel::send_at_once(channel.as_fd(), &frame);
                        }
                        book.leaving
                    });
                    if leaving {
                        return Ok(None);
                    }
                    self.tell(Notice::Resumed { epoch });
                    return Ok(Some(channel));
                }
                Err(AttachError::Refused(Reason::UnknownSession)) if strange < STRANGER_ATTEMPTS => strange += 1,
                Err(AttachError::Refused(
                    reason @ (Reason::UnknownSession
                    | Reason::OtherPool
                    | Reason::OtherEngine
                    | Reason::Forbidden
                    | Reason::Protocol),
                )) => return Err(reason),
                Err(_) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn resume(&self) -> Result<(Channel, u64, Option<OwnedFd>), AttachError> {
        let resume = Some(Resume { session: self.number, token: self.token });
        let channel = greet(&self.path, &Hello { resume, ..self.hello.clone() })?;
        let mut answer = channel.receive(0)?.0;
        if answer == Frame::HandBack {
            let files: Vec<BorrowedFd<'_>> = self.files.iter().map(AsFd::as_fd).collect();
            for batch in files.chunks(MAX_DESCRIPTORS) {
                channel.send(&Frame::HandBack, batch)?;
            }
            answer = channel.receive(0)?.0;
        }
        let welcome = read_welcome(answer)?;
        if welcome.session != self.number || welcome.segments > 0 {
            return Err(AttachError::Unexpected("another session than the one to go on with".into()));
        }
        let lock = opened(&channel)?;
        Ok((channel, welcome.epoch, lock))
    }
}
