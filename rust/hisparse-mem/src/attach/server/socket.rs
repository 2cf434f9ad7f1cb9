//! The socket that engines attach at: made, taken over from a dead service, and never from a live one.
//!
//! ```text
//!  bind ─► free ─► listen          taken ─► does anybody answer? ─ no ─► removed, bound anew      yes ─► InUse
//! ```

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};

/// Why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A service listens there.
    #[error("another service listens on {0}; stop it, or name another socket")]
    InUse(String),
    /// The path does not fit a socket's address.
    #[error("the socket path {0} is too long; Linux takes 107 bytes")]
    TooLong(String),
    /// The kernel refused.
    #[error("cannot listen on {path}: {source}")]
    Failed {
        /// The socket.
        path: String,
        /// The kernel's answer.
        source: Errno,
    },
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Listens at `path`; others than the owner may connect unless `only_own`.
///
/// # Errors
/// See [`ListenError`]. A socket that a dead service left is replaced.
pub(super) fn listen_at(path: &Path, only_own: bool) -> Result<OwnedFd, ListenError> {
    let shown = path.display().to_string();
    let failed = |source| ListenError::Failed { path: shown.clone(), source };
    let address = SocketAddrUnix::new(path).map_err(|_| ListenError::TooLong(shown.clone()))?;
    let new_socket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let socket = new_socket().map_err(failed)?;
    match bind(&socket, &address) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => {
            let probe = new_socket().map_err(failed)?;
            match connect(&probe, &address) {
                Err(Errno::CONNREFUSED) => {}
                Ok(()) | Err(_) => return Err(ListenError::InUse(shown)),
            }
            rustix::fs::unlink(path).map_err(failed)?;
            bind(&socket, &address).map_err(failed)?;
        }
        Err(source) => return Err(failed(source)),
    }
    let owner = Mode::RUSR | Mode::WUSR;
    let everyone = owner | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
    // Where other users are listed the peer's credential decides, not the mode.
    rustix::fs::chmod(path, if only_own { owner } else { everyone }).map_err(failed)?;
    listen(&socket, 64).map_err(failed)?;
    Ok(socket)
}
