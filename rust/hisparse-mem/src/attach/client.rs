//! An engine's end: attach, map every segment, keep the connection for as long as the pool is used.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use hisparse_core::layout::pool::PoolLayout;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::MAX_DESCRIPTORS;
pub use super::channel::ChannelError;
use super::channel::{Channel, end};
use super::frame::{Frame, Hello, PROTOCOL, Reason, Role, Token, Welcome};
use crate::map::{Access, Mapping};
use crate::memfd::Identity;
use crate::rows::PoolMemory;

/// Longest wait for one message of the service.
const PATIENCE: Duration = Duration::from_secs(30);

/// Largest layout accepted, in bytes of its text.
const MAX_LAYOUT_BYTES: u32 = 16 << 20;

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
    #[error("the service refused to share its pool ({0:?}): {remedy}", remedy = .0.remedy())]
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
}

/// A pool of another process, mapped here. Dropping it ends the session.
#[derive(Debug)]
pub struct AttachedPool {
    welcome: Welcome,
    role: Role,
    layout: PoolLayout,
    mappings: Vec<Mapping>,
    _files: Vec<OwnedFd>,
    session: Channel,
}

impl AttachedPool {
    /// Attaches to the service at `path` as `rank` of `engine_id`.
    ///
    /// # Errors
    /// See [`AttachError`]; nothing stays mapped.
    pub fn attach(path: &Path, engine_id: &str, rank: u32, role: Role) -> Result<Self, AttachError> {
        let channel =
            reach(path).map_err(|source| AttachError::Unreachable { path: path.display().to_string(), source })?;
        channel.set_patience(Some(PATIENCE)).map_err(ChannelError::from)?;
        let hello = Hello { protocols: vec![PROTOCOL], role, engine_id: engine_id.to_owned(), rank };
        channel.send(&Frame::Hello(hello), &[])?;
        let welcome = match channel.receive(0)?.0 {
            Frame::Welcome(welcome) if welcome.protocol == PROTOCOL => welcome,
            Frame::Refused(reason) => return Err(AttachError::Refused(reason)),
            other => return Err(AttachError::Unexpected(format!("{other:?} in answer to a greeting"))),
        };
        let layout = receive_layout(&channel, welcome.layout_bytes)?;
        let files = receive_files(&channel, &layout, welcome.segments)?;
        let access = if role.maps_writable() { Access::ReadWrite } else { Access::Read };
        let mappings = files
            .iter()
            .zip(layout.segment_bytes())
            .enumerate()
            .map(|(segment, (file, bytes))| map(file, *bytes, access, segment))
            .collect::<Result<Vec<_>, _>>()?;
        channel.send(&Frame::Ready, &[])?;
        // From here on the node takes this process's calls for the session's.
        match channel.receive(0)?.0 {
            Frame::Open => {}
            other => return Err(AttachError::Unexpected(format!("{other:?} in place of Open"))),
        }
        Ok(Self { welcome, role, layout, mappings, _files: files, session: channel })
    }

    /// Ends the session now. What is mapped stays mapped until the pool is dropped, and must not be touched any more:
    /// its pages may soon be another's.
    pub fn end_session(&self) {
        end(self.session.as_fd());
    }

    /// Generation of the pool.
    pub const fn epoch(&self) -> u64 {
        self.welcome.epoch
    }

    /// This session's number.
    pub const fn session(&self) -> u64 {
        self.welcome.session
    }

    /// This session's secret: what a successor of this engine hands to `Reclaim`.
    pub const fn token(&self) -> Token {
        self.welcome.token
    }

    /// What this rank may do.
    pub const fn role(&self) -> Role {
        self.role
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

fn reach(path: &Path) -> Result<Channel, Errno> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(Channel::new(socket))
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
