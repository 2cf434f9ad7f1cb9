//! The greeting as the engine speaks it: each message that is sent, and what may come back.
//!
//! ```text
//!  greet ─► Hello          welcomed ◄─ Welcome          receive_layout, receive_files ◄─ …          opened ─► Ready, ◄─ Open
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use hisparse_core::layout::pool::PoolLayout;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::error::AttachError;
use crate::attach::MAX_DESCRIPTORS;
use crate::attach::channel::{Channel, ChannelError};
use crate::attach::frame::{Frame, Hello, PROTOCOL, Welcome};
use crate::map::{Access, Mapping};
use crate::memfd::Identity;

/// Longest wait for one message of the service.
const PATIENCE: Duration = Duration::from_secs(30);

/// Largest layout accepted, in bytes of its text.
const MAX_LAYOUT_BYTES: u32 = 16 << 20;

/// A connection on which the first word is said.
pub(super) fn greet(path: &Path, hello: &Hello) -> Result<Channel, AttachError> {
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

pub(super) fn welcomed(channel: &Channel) -> Result<Welcome, AttachError> {
    read_welcome(channel.receive(0)?.0)
}

pub(super) fn read_welcome(answer: Frame) -> Result<Welcome, AttachError> {
    match answer {
        Frame::Welcome(welcome) if welcome.protocol == PROTOCOL => Ok(welcome),
        Frame::Refused(reason) => Err(AttachError::Refused(reason)),
        other => Err(AttachError::Unexpected(format!("{other:?} in answer to a greeting"))),
    }
}

/// Says that all is mapped, and waits until the node takes this process's calls for the session's. What it is to hold
/// comes with the answer.
pub(super) fn opened(channel: &Channel) -> Result<Option<OwnedFd>, AttachError> {
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

pub(super) fn receive_layout(channel: &Channel, bytes: u32) -> Result<PoolLayout, AttachError> {
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

pub(super) fn receive_files(
    channel: &Channel,
    layout: &PoolLayout,
    segments: u32,
) -> Result<Vec<OwnedFd>, AttachError> {
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
pub(super) fn map(file: &OwnedFd, bytes: u64, access: Access, segment: usize) -> Result<Mapping, AttachError> {
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
