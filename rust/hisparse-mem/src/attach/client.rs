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
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hisparse_core::layout::pool::PoolLayout;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::MAX_DESCRIPTORS;
pub use super::channel::ChannelError;
use super::channel::{Channel, end};
use super::frame::{Filled, Filling, Frame, Hello, Notice, PROTOCOL, Reason, Resume, Role, Token, Welcome};
use crate::map::{Access, Mapping};
use crate::memfd::Identity;
use crate::rows::PoolMemory;

/// Longest wait for one message of the service.
const PATIENCE: Duration = Duration::from_secs(30);

/// Largest layout accepted, in bytes of its text.
const MAX_LAYOUT_BYTES: u32 = 16 << 20;

/// Time between two attempts to reach a service that is gone: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Attempts after which "I know no such session" is believed: a service may not have noticed yet that it lost us.
const STRANGER_ATTEMPTS: u32 = 8;

/// Notices kept for an engine that does not ask for them; the oldest are dropped beyond it.
const MAX_NOTICES: usize = 1 << 16;

/// Why attaching failed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Nobody listens there.
    #[error("cannot reach the service at {path}: {source}; is it running, with --backing memory?")]
    Unreachable {
        /// The socket.
        path: String,
        /// The kernel's answer.
        source: Errno,
    },
    /// The service said no.
    #[error("the service refused to share its pool ({0}): {remedy}", remedy = .0.remedy())]
    Refused(Reason),
    /// The connection failed half way.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The service sent something else than was agreed.
    #[error("the service sent {0}")]
    Unexpected(String),
    /// A segment cannot be mapped.
    #[error("cannot map segment {segment}: {source}; raise the limit on address space (ulimit -v)")]
    Map {
        /// Which.
        segment: usize,
        /// The kernel's answer.
        source: Errno,
    },
    /// The service did not say whether a lease may be filled.
    #[error("the service did not answer whether lease {0} may be filled; try again once it is back")]
    Unanswered(String),
    /// No thread can be started.
    #[error("cannot start a thread: {0}; raise the limit of processes")]
    Thread(#[from] std::io::Error),
}

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

/// The session as this process keeps it.
#[derive(Debug)]
struct SessionEnd {
    path: PathBuf,
    hello: Hello,
    number: u64,
    token: Token,
    epoch: AtomicU64,
    files: Vec<OwnedFd>,
    book: Mutex<Book>,
    news: Condvar,
}

#[derive(Debug)]
struct Book {
    standing: Standing,
    /// The connection, while there is one.
    channel: Option<Arc<Channel>>,
    /// Says to every later service that the pool is in use.
    lock: Option<OwnedFd>,
    notices: VecDeque<Notice>,
    /// Leases that this process fills, and what the service said of each; `None` until it has answered.
    fills: BTreeMap<String, Option<bool>>,
    /// Whether the engine is done with it.
    leaving: bool,
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

impl SessionEnd {
    fn book<T>(&self, work: impl FnOnce(&mut Book) -> T) -> T {
        // Whole between any two statements, so a panic elsewhere leaves it usable.
        work(&mut self.book.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn leave(&self) {
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

    fn fill(&self, lease_id: &str, longest: Duration) -> Result<bool, AttachError> {
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

    fn filled(&self, lease_id: &str) {
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
    fn listen(&self, mut channel: Arc<Channel>) {
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

/// A connection on which the first word is said.
fn greet(path: &Path, hello: &Hello) -> Result<Channel, AttachError> {
    let channel =
        reach(path).map_err(|source| AttachError::Unreachable { path: path.display().to_string(), source })?;
    channel.set_patience(Some(PATIENCE)).map_err(ChannelError::from)?;
    match channel.send(&Frame::Hello(hello.clone()), &[]) {
        // A service that has refused already takes no greeting, and why it did is there to be read.
        Ok(()) | Err(ChannelError::Closed) => Ok(channel),
        Err(failed) => Err(failed.into()),
    }
}

fn reach(path: &Path) -> Result<Channel, Errno> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(Channel::new(socket))
}

fn welcomed(channel: &Channel) -> Result<Welcome, AttachError> {
    read_welcome(channel.receive(0)?.0)
}

fn read_welcome(answer: Frame) -> Result<Welcome, AttachError> {
    match answer {
        Frame::Welcome(welcome) if welcome.protocol == PROTOCOL => Ok(welcome),
        Frame::Refused(reason) => Err(AttachError::Refused(reason)),
        other => Err(AttachError::Unexpected(format!("{other:?} in answer to a greeting"))),
    }
}

/// Says that all is mapped, and waits until the node takes this process's calls for the session's. What it is to hold
/// comes with the answer.
fn opened(channel: &Channel) -> Result<Option<OwnedFd>, AttachError> {
    channel.send(&Frame::Ready, &[])?;
    let (mut frame, mut locks) = channel.receive(1)?;
    let lock = locks.pop();
    if frame == Frame::Lock {
        frame = channel.receive(0)?.0;
    }
    match frame {
        Frame::Open => Ok(lock),
        other => Err(AttachError::Unexpected(format!("{other:?} in place of Open"))),
    }
}

fn receive_layout(channel: &Channel, bytes: u32) -> Result<PoolLayout, AttachError> {
    if bytes > MAX_LAYOUT_BYTES {
        return Err(AttachError::Unexpected(format!("a layout of {bytes} bytes")));
    }
    let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut text = Vec::new();
    while text.len() < wanted {
        match channel.receive(0)?.0 {
            Frame::Layout(piece) if !piece.is_empty() => text.extend_from_slice(&piece),
            other => return Err(AttachError::Unexpected(format!("{other:?} within its layout"))),
        }
    }
    serde_json::from_slice(&text).map_err(|e| AttachError::Unexpected(format!("a layout that does not read: {e}")))
}

fn receive_files(channel: &Channel, layout: &PoolLayout, segments: u32) -> Result<Vec<OwnedFd>, AttachError> {
    let wanted = layout.segment_bytes().len();
    if usize::try_from(segments) != Ok(wanted) {
        return Err(AttachError::Unexpected(format!("{segments} segments for a layout of {wanted}")));
    }
    let mut files = Vec::new();
    while files.len() < wanted {
        match channel.receive(MAX_DESCRIPTORS)? {
            (Frame::Descriptors, batch) if !batch.is_empty() => files.extend(batch),
            (other, _) => return Err(AttachError::Unexpected(format!("{other:?} in place of descriptors"))),
        }
    }
    files.truncate(wanted);
    Ok(files)
}

/// Maps a segment after making sure that it is as long as the layout says: a shorter file kills at first touch.
fn map(file: &OwnedFd, bytes: u64, access: Access, segment: usize) -> Result<Mapping, AttachError> {
    let failed = |source| AttachError::Map { segment, source };
    let identity = Identity::of(file.as_fd()).map_err(failed)?;
    if identity.size_bytes < bytes {
        return Err(AttachError::Unexpected(format!(
            "segment {segment} of {} bytes, not {bytes}",
            identity.size_bytes
        )));
    }
    // The whole file: a segment of huge pages is longer than its layout, and can only be unmapped by whole pages.
    let len = usize::try_from(identity.size_bytes).map_err(|_| failed(Errno::FBIG))?;
    Mapping::of_file(file.as_fd(), len, access).map_err(failed)
}
