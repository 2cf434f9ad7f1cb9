//! Handing a pool's segments to the processes of one engine, over a Unix socket of their own.
//!
//! ```text
//!  engine                                   service
//!    │── Hello {protocols, role, engine} ────►│  peer's uid allowed? same engine? only one writer?
//!    │◄─ Welcome {epoch, session, token} ─────│        no ──► Refused {reason, remedy}
//!    │◄─ Layout, in pieces ───────────────────│
//!    │◄─ Descriptors, ≤ 250 a message ────────│  read-write for writer and importers, reopened read-only for readers
//!    │── Ready ──────────────────────────────►│  the node is told
//!    │◄─ Open ────────────────────────────────│  session open
//!    ⋮                                        ⋮
//!    │── end of the connection ──────────────►│  session closed, however the engine ended
//! ```
//! The connection is the session: the kernel closes it with the process, so nothing has to time out. Descriptors cannot
//! travel inside gRPC, hence a socket beside it; its messages keep their boundaries (`SOCK_SEQPACKET`).

mod channel;
pub mod client;
pub mod frame;
mod peer;
pub mod server;

/// Most descriptors in one message; the kernel takes 253 and closes what is beyond.
pub const MAX_DESCRIPTORS: usize = 250;
