//! Messages of the attach socket, and reading them from bytes that anyone may have sent.
//!
//! ```text
//!  "HSP1" │ kind │ body: JSON, or for `Layout` a piece of the layout's text
//! ```

use serde::{Deserialize, Serialize};

mod error;
mod greeting;

pub use error::FrameError;
pub use greeting::{Hello, MAX_ENGINE_ID_BYTES, Reason, Resume, Role, TOKEN_BYTES, Token, Welcome};

/// The protocol spoken here.
pub const PROTOCOL: u32 = 1;

/// Longest message, in bytes.
pub const MAX_FRAME_BYTES: usize = 32 << 10;

const MAGIC: &[u8; 4] = b"HSP1";
const HEAD_BYTES: usize = MAGIC.len() + 1;

/// Bytes of a layout's text that one message carries.
pub const LAYOUT_PIECE_BYTES: usize = MAX_FRAME_BYTES - HEAD_BYTES;

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
            1 => parse(body).and_then(Hello::checked).map(Self::Hello),
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
