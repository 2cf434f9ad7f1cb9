//! Why attaching failed, and what to do.

use rustix::io::Errno;

use crate::attach::channel::ChannelError;
use crate::attach::frame::Reason;

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
