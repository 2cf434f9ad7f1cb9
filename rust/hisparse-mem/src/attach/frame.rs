//! Messages of the attach socket, and reading them from bytes that anyone may have sent.
//!
//! ```text
//!  "HSP1" │ kind │ body: JSON, or for `Layout` a piece of the layout's text
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

/// The protocol spoken here.
pub const PROTOCOL: u32 = 1;

/// Longest message, in bytes.
pub const MAX_FRAME_BYTES: usize = 32 << 10;

/// Longest engine id, in bytes.
pub const MAX_ENGINE_ID_BYTES: usize = 256;

/// Bytes of a session's secret.
pub const TOKEN_BYTES: usize = 16;

const MAGIC: &[u8; 4] = b"HSP1";
const HEAD_BYTES: usize = MAGIC.len() + 1;

/// Bytes of a layout's text that one message carries.
pub const LAYOUT_PIECE_BYTES: usize = MAX_FRAME_BYTES - HEAD_BYTES;

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

/// Proof of a session that outlived its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// Its number.
    pub session: u64,
    /// Its secret.
    pub token: Token,
}

/// What an engine must know while it is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "notice", deny_unknown_fields)]
pub enum Notice {
    /// A lease is no longer the engine's: it stops writing to its pages now, and says so by releasing it; who fills it
    /// stops too, and says that it is filled.
    Quarantined {
        /// Which.
        lease_id: String,
    },
    /// A lease was given back by somebody else, and its pages may be another's already.
    Released {
        /// Which.
        lease_id: String,
    },
    /// The service came back: leases carry this epoch now. Said by the client library, not by the service.
    Resumed {
        /// The new epoch.
        epoch: u64,
    },
    /// The session is over, and with it the claim on the pool: nothing may be written any more. Said by the client
    /// library, not by the service.
    Ended {
        /// Why, and what to do.
        reason: String,
    },
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

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Engine: may I?
    Hello(Hello),
    /// Service: you may.
    Welcome(Welcome),
    /// Service: you may not.
    Refused(Reason),
    /// Service: a piece of the layout's JSON text.
    Layout(Vec<u8>),
    /// Service: descriptors of the next segments come with this message.
    Descriptors,
    /// Engine: all is mapped.
    Ready,
    /// Service: the session is open, and the node knows of it.
    Open,
    /// Service: hand the pool's descriptors back, that I may go on. Engine: here they are, with this message.
    HandBack,
    /// Service: hold the lock that comes with this message for as long as the pool is mapped.
    Lock,
    /// Service: something an engine must know.
    Notice(Notice),
    /// Engine: I am about to write to the pages of this lease.
    Fill(Filled),
    /// Service: whether you may; if not, the lease has ended.
    Filling(Filling),
    /// Engine: I have written to them, and do so no more.
    Filled(Filled),
}

/// Which lease is filled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filled {
    /// Its id.
    pub lease_id: String,
}

/// Whether a lease may be filled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filling {
    /// Its id.
    pub lease_id: String,
    /// Whether it lives, and is kept from everyone else until it is said to be filled.
    pub granted: bool,
}

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

impl Frame {
    /// The message's bytes.
    ///
    /// # Errors
    /// Where it would be too long.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        let text = |body: Result<Vec<u8>, serde_json::Error>| body.map_err(|e| FrameError::Body(e.to_string()));
        let (kind, body) = match self {
            Self::Hello(hello) => (1, text(serde_json::to_vec(hello))?),
            Self::Welcome(welcome) => (2, text(serde_json::to_vec(welcome))?),
            Self::Refused(reason) => (3, text(serde_json::to_vec(reason))?),
            Self::Layout(piece) => (4, piece.clone()),
            Self::Descriptors => (5, Vec::new()),
            Self::Ready => (6, Vec::new()),
            Self::Open => (7, Vec::new()),
            Self::HandBack => (8, Vec::new()),
            Self::Lock => (9, Vec::new()),
            Self::Notice(notice) => (10, text(serde_json::to_vec(notice))?),
            Self::Fill(lease) => (11, text(serde_json::to_vec(lease))?),
            Self::Filling(answer) => (12, text(serde_json::to_vec(answer))?),
            Self::Filled(lease) => (13, text(serde_json::to_vec(lease))?),
        };
        let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
        bytes.extend_from_slice(MAGIC);
        bytes.push(kind);
        bytes.extend_from_slice(&body);
        if bytes.len() > MAX_FRAME_BYTES { Err(FrameError::TooLong(bytes.len())) } else { Ok(bytes) }
    }

    /// Reads a message from bytes that anyone may have sent.
    ///
    /// # Errors
    /// Whatever is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        if bytes.len() > MAX_FRAME_BYTES {
            return Err(FrameError::TooLong(bytes.len()));
        }
        let (kind, body) = bytes.strip_prefix(MAGIC).and_then(<[u8]>::split_first).ok_or(FrameError::NotOurs)?;
        match kind {
            1 => parse(body).and_then(checked_hello).map(Self::Hello),
            2 => parse(body).map(Self::Welcome),
            3 => parse(body).map(Self::Refused),
            4 => Ok(Self::Layout(body.to_vec())),
            5..=9 if !body.is_empty() => Err(FrameError::Body("a body where there is none".into())),
            5 => Ok(Self::Descriptors),
            6 => Ok(Self::Ready),
            7 => Ok(Self::Open),
            8 => Ok(Self::HandBack),
            9 => Ok(Self::Lock),
            10 => parse(body).map(Self::Notice),
            11 => parse(body).map(Self::Fill),
            12 => parse(body).map(Self::Filling),
            13 => parse(body).map(Self::Filled),
            other => Err(FrameError::Kind(*other)),
        }
    }
}

fn parse<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, FrameError> {
    serde_json::from_slice(body).map_err(|e| FrameError::Body(e.to_string()))
}

fn checked_hello(hello: Hello) -> Result<Hello, FrameError> {
    if hello.engine_id.is_empty() || hello.engine_id.len() > MAX_ENGINE_ID_BYTES {
        return Err(FrameError::Body(format!("engine_id must have 1 to {MAX_ENGINE_ID_BYTES} bytes")));
    }
    Ok(hello)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> Hello {
        Hello { protocols: vec![PROTOCOL], role: Role::Reader, engine_id: "engine-0".into(), rank: 3, resume: None }
    }

    #[test]
    fn every_message_reads_back() {
        let welcome =
            Welcome { protocol: 1, epoch: 7, session: 1, token: Token([7; 16]), segments: 2, layout_bytes: 9 };
        for frame in [
            Frame::Hello(hello()),
            Frame::Welcome(welcome),
            Frame::Refused(Reason::WriterTaken),
            Frame::Layout(vec![0; LAYOUT_PIECE_BYTES]),
            Frame::Descriptors,
            Frame::Ready,
            Frame::Open,
            Frame::HandBack,
            Frame::Lock,
            Frame::Notice(Notice::Quarantined { lease_id: "7".into() }),
            Frame::Fill(Filled { lease_id: "7".into() }),
            Frame::Filling(Filling { lease_id: "7".into(), granted: true }),
            Frame::Filled(Filled { lease_id: "7".into() }),
            Frame::Hello(Hello { resume: Some(Resume { session: 3, token: Token([1; 16]) }), ..hello() }),
        ] {
            assert_eq!(Frame::decode(&frame.encode().unwrap()), Ok(frame));
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [&b""[..], b"HSP", b"HSP1", b"HTTP/1.1", b"HSP1\x00", b"HSP1\x01{}", b"HSP1\x06x", b"HSP1\x63"] {
            assert!(Frame::decode(bytes).is_err(), "{bytes:?}");
        }
        let unknown = br#"HSP1{"protocols":[1],"role":"reader","engine_id":"e","rank":0,"extra":1}"#;
        let mut bytes = unknown.to_vec();
        bytes.insert(4, 1);
        assert!(matches!(Frame::decode(&bytes), Err(FrameError::Body(_))));
        let nameless = Frame::Hello(Hello { engine_id: String::new(), ..hello() }).encode().unwrap();
        assert!(Frame::decode(&nameless).is_err());
        assert!(Frame::decode(&vec![0; MAX_FRAME_BYTES + 1]).is_err());
        assert!(Frame::Layout(vec![0; LAYOUT_PIECE_BYTES + 1]).encode().is_err());
    }

    #[test]
    fn a_token_is_its_own_bytes_alone_and_shows_none_of_them() {
        let token = Token([7; TOKEN_BYTES]);
        assert!(token.is(&[7; TOKEN_BYTES]));
        let mut near = [7; TOKEN_BYTES];
        near[15] = 6;
        assert!(!token.is(&near) && !token.is(&[7; 15]) && !token.is(&[]));
        assert!(!format!("{token:?}").contains('7'));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 2_000 }, ..ProptestConfig::default() })]
        #[test]
        fn any_bytes_are_a_message_or_an_error(kind: u8, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = b"HSP1".to_vec();
            bytes.push(kind % 12);
            bytes.extend_from_slice(&body);
            if let Ok(frame) = Frame::decode(&bytes) {
                prop_assert_eq!(Frame::decode(&frame.encode().unwrap()), Ok(frame));
            }
        }
    }
}
