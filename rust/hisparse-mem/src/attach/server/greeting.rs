//! One greeting: who comes, whether it may, and the pool's files handed to it, or taken back from it.
//!
//! ```text
//!  peer     Hello ──────►                  ◄── Welcome, Layout …, Descriptors …     Ready ──►   ◄── Lock
//!  one that goes on      ◄── HandBack      HandBack … ──►    (where the pool is still wanted)
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::shared::Shared;
use super::terms::Session;
use crate::attach::channel::{Channel, ChannelError};
use crate::attach::frame::{Frame, LAYOUT_PIECE_BYTES, PROTOCOL, Reason, Resume, Role, Token, Welcome};
use crate::attach::{MAX_DESCRIPTORS, peer};
use crate::pool::{AdoptError, HostPool};
use crate::rows::PoolMemory;
use crate::segment::Segment;

/// How long a peer may take over each message of its greeting.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);

/// How long it may take to map everything.
const MAPPING_PATIENCE: Duration = Duration::from_secs(60);

/// Why a greeting came to nothing.
pub(super) enum Greeting {
    /// The peer is told.
    Refused(Reason),
    /// There is nobody to tell: it left, was silent, or broke the protocol.
    Failed,
}

impl<E: Into<ChannelError>> From<E> for Greeting {
    fn from(_: E) -> Self {
        Self::Failed
    }
}

/// A peer's greeting, to its end: who it is, and that it has mapped the pool.
///
/// # Errors
/// It is refused, or gone.
pub(super) fn greet(shared: &Shared, number: u64, channel: &Channel) -> Result<Session, Greeting> {
    let peer = peer::of(channel)?;
    let uid = peer.uid;
    if uid != shared.own_uid && !shared.terms.uids.contains(&uid) {
        return Err(Greeting::Refused(Reason::Forbidden));
    }
    channel.set_patience(Some(GREETING_PATIENCE))?;
    let Frame::Hello(hello) = channel.receive(0)?.0 else {
        return Err(ChannelError::Broken("something else than a greeting".into()).into());
    };
    if hello.resume.is_some_and(|resume| !shared.watcher.knows(&hello, &resume)) {
        return Err(Greeting::Refused(Reason::UnknownSession));
    }
    shared.admit(number, &hello).map_err(Greeting::Refused)?;
    let (number, token) = if let Some(Resume { session, token }) = hello.resume {
        shared.take_back(channel)?;
        let epoch = shared.terms.epoch;
        let welcome = Welcome { protocol: PROTOCOL, epoch, session, token, segments: 0, layout_bytes: 0 };
        channel.send(&Frame::Welcome(welcome), &[])?;
        (session, token)
    } else {
        let pool = shared.pool.get().ok_or(Greeting::Refused(Reason::Recovering))?;
        let token = shared.watcher.token();
        send_pool(pool, (shared.terms.epoch, number, token), channel, hello.role)?;
        (number, token)
    };
    channel.set_patience(Some(MAPPING_PATIENCE))?;
    match channel.receive(0)?.0 {
        Frame::Ready => {}
        other => return Err(ChannelError::Broken(format!("{other:?} in place of Ready")).into()),
    }
    if let Some(lock) = &shared.terms.lock {
        let held = lock.hold().map_err(|_| Greeting::Refused(Reason::Unavailable))?;
        channel.send(&Frame::Lock, &[held.as_fd()])?;
    }
    Ok(Session { number, hello, uid, pid: peer.pid, token })
}

impl Shared {
    /// Makes sure that there is a pool, with the files of a process that has it.
    fn take_back(&self, channel: &Channel) -> Result<(), Greeting> {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(asked) = wanted.as_ref() else { return Ok(()) };
        channel.send(&Frame::HandBack, &[])?;
        let mut files = Vec::new();
        while files.len() < asked.segments.len() {
            match channel.receive(MAX_DESCRIPTORS)? {
                (Frame::HandBack, batch) if !batch.is_empty() => files.extend(batch),
                (other, _) => return Err(ChannelError::Broken(format!("{other:?} in place of a pool")).into()),
            }
        }
        let pool = HostPool::adopt(asked.layout.clone(), &asked.segments, &files, asked.lock);
        let pool = pool.map_err(|error| match error {
            AdoptError::Segment(error) => {
                self.watcher.not_adopted(&error);
                Greeting::Refused(Reason::NotMapped)
            }
            AdoptError::Count { .. } | AdoptError::Other { .. } => Greeting::Refused(Reason::OtherPool),
        })?;
        *wanted = None;
        // Set by whoever holds what is wanted, and so once.
        let _set_before = self.pool.set(Arc::new(pool));
        self.book(|book| book.pooled = true);
        self.stopping.notify_all();
        Ok(())
    }
}

fn send_pool(
    pool: &HostPool,
    (epoch, number, token): (u64, u64, Token),
    channel: &Channel,
    role: Role,
) -> Result<(), Greeting> {
    let unavailable = || Greeting::Refused(Reason::Unavailable);
    let layout = serde_json::to_vec(pool.layout()).map_err(|_| unavailable())?;
    let segments = pool.segments();
    let readers: Vec<OwnedFd> = if role.maps_writable() {
        Vec::new()
    } else {
        segments.iter().map(Segment::reader).collect::<Result<_, _>>().map_err(|_| unavailable())?
    };
    let files: Vec<BorrowedFd<'_>> = if role.maps_writable() {
        segments.iter().map(Segment::writer).collect::<Option<_>>().ok_or_else(unavailable)?
    } else {
        readers.iter().map(AsFd::as_fd).collect()
    };
    let count = |n: usize| u32::try_from(n).map_err(|_| unavailable());
    let welcome = Welcome {
        protocol: PROTOCOL,
        epoch,
        session: number,
        token,
        segments: count(files.len())?,
        layout_bytes: count(layout.len())?,
    };
    channel.send(&Frame::Welcome(welcome), &[])?;
    for piece in layout.chunks(LAYOUT_PIECE_BYTES) {
        channel.send(&Frame::Layout(piece.to_vec()), &[])?;
    }
    for batch in files.chunks(MAX_DESCRIPTORS) {
        channel.send(&Frame::Descriptors, batch)?;
    }
    Ok(())
}
