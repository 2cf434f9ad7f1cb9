//! What is said until a session is open: who wants to attach as what, and why it may not.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::FrameError;

/// Longest engine id, in bytes.
pub const MAX_ENGINE_ID_BYTES: usize = 256;

/// Bytes of a session's secret.
pub const TOKEN_BYTES: usize = 16;

/// What a rank does with the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Writes rows (the rank whose GPU backs them up); one at a time.
    Writer,
    /// Reads rows.
    Reader,
    /// Reads rows, through mappings that could be written: for a device that cannot register read-only memory.
    WritableReader,
    /// Fills pages of reservations, as a prefill process does. It holds no lease, so any number may be attached.
    Importer,
}

impl Role {
    /// Whether it is to write.
    pub const fn may_write(self) -> bool {
        matches!(self, Self::Writer | Self::Importer)
    }

    /// Whether its descriptors and mappings can be written through.
    pub const fn maps_writable(self) -> bool {
        !matches!(self, Self::Reader)
    }
}

/// The secret by which a successor proves that it takes over from this session. Never shown.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub [u8; TOKEN_BYTES]);

impl Token {
    /// Whether these bytes are the secret; takes as long for a near miss as for a far one.
    pub fn is(&self, given: &[u8]) -> bool {
        given.len() == TOKEN_BYTES && self.0.iter().zip(given).fold(0, |unlike, (a, b)| unlike | (a ^ b)) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// An engine's first word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// Protocols it speaks, best first.
    pub protocols: Vec<u32>,
    /// What it will do.
    pub role: Role,
    /// Which engine it belongs to; all ranks of one engine say the same.
    pub engine_id: String,
    /// Its rank within the engine.
    pub rank: u32,
    /// The session that it goes on with, where it lost the service and not the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
}

impl Hello {
    /// Itself, if its engine id is one.
    ///
    /// # Errors
    /// It is empty, or longer than [`MAX_ENGINE_ID_BYTES`].
    pub(super) fn checked(self) -> Result<Self, FrameError> {
        if self.engine_id.is_empty() || self.engine_id.len() > MAX_ENGINE_ID_BYTES {
            return Err(FrameError::Body(format!("engine_id must have 1 to {MAX_ENGINE_ID_BYTES} bytes")));
        }
        Ok(self)
    }
}

/// Proof of a session that outlived its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// Its number.
    pub session: u64,
    /// Its secret.
    pub token: Token,
}

/// The answer to a rank that may attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Welcome {
    /// The protocol from here on.
    pub protocol: u32,
    /// Generation of the pool.
    pub epoch: u64,
    /// This session's number.
    pub session: u64,
    /// Its secret, for its successor.
    pub token: Token,
    /// Segments whose descriptors follow.
    pub segments: u32,
    /// Bytes of the layout's text that follow.
    pub layout_bytes: u32,
}

/// Why a rank may not attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Its user is not on the list.
    Forbidden,
    /// No protocol in common.
    Protocol,
    /// The pool is another engine's, whether that lives or not.
    OtherEngine,
    /// Another rank writes.
    WriterTaken,
    /// Too many sessions.
    TooMany,
    /// The pool cannot be shared, or its descriptors cannot be had.
    Unavailable,
    /// The service was restarted and waits for the pool's own engine.
    Recovering,
    /// The service knows no such session.
    UnknownSession,
    /// What was handed back is not the pool that the journal describes.
    OtherPool,
    /// The service cannot map or lock what was handed back.
    NotMapped,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forbidden => "its user is not on the list",
            Self::Protocol => "no protocol in common",
            Self::OtherEngine => "the pool is another engine's",
            Self::WriterTaken => "another rank writes",
            Self::TooMany => "too many sessions",
            Self::Unavailable => "the pool cannot be shared",
            Self::Recovering => "it waits for the pool's own engine",
            Self::UnknownSession => "it knows no such session",
            Self::OtherPool => "what was handed back is another pool",
            Self::NotMapped => "it cannot map what was handed back",
        })
    }
}

impl Reason {
    /// What would change the answer.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Forbidden => "run the engine as the service's user, or allow its uid",
            Self::Protocol => "use a client library of the service's version",
            Self::OtherEngine => {
                "give the engine id that the pool was first attached under, or run one service per engine: engines never share a \
                 pool"
            }
            Self::WriterTaken => "attach the other ranks as readers",
            Self::TooMany => "close sessions that are not needed",
            Self::Unavailable => "run the service with --backing memory, and raise its limit of open files (ulimit -n)",
            Self::Recovering => "try again in a moment; if it lasts, stop the engine that still has the pool",
            Self::UnknownSession => "attach anew, and hand the old session's token to Reclaim",
            Self::OtherPool => "attach anew; the rows of the old pool are lost",
            Self::NotMapped => {
                "raise the service's limits of locked memory (ulimit -l, LimitMEMLOCK=infinity) and address space (ulimit -v), or \
                 restart it without --mlock; the engine keeps the pool and tries again"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_its_own_bytes_alone_and_shows_none_of_them() {
        let token = Token([7; TOKEN_BYTES]);
        assert!(token.is(&[7; TOKEN_BYTES]));
        let mut near = [7; TOKEN_BYTES];
        near[15] = 6;
        assert!(!token.is(&near) && !token.is(&[7; 15]) && !token.is(&[]));
        assert!(!format!("{token:?}").contains('7'));
    }
}
