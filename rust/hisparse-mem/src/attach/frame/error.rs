//! Why bytes are no message.

/// Bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// They do not begin as one does.
    #[error("not a message of this protocol")]
    NotOurs,
    /// A kind that is not known.
    #[error("unknown kind of message {0}")]
    Kind(u8),
    /// Longer than any message may be.
    #[error("a message of {0} bytes")]
    TooLong(usize),
    /// A body that does not read.
    #[error("malformed message: {0}")]
    Body(String),
}
