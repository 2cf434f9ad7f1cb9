//! The pool's bytes: made in the background, then shared with engines and kept clean.
//!
//! ```text
//!  start ─► room? ─► [own thread: make pages, report] ─► attach socket, scrubber ─► the node grants
//!             └─ no: refused at once       └─ failed, or told to stop: nothing is left, the node says why
//! ```
//! The thread lives as long as the server and owns the pool: when it ends, sessions end, then the pages go.

mod cleaning;
mod config;
mod host;
mod hosting;
mod making;

pub use self::config::{MemoryConfig, attach_beside};
pub(crate) use self::host::Host;
pub(crate) use self::hosting::Hosting;
pub(crate) use self::making::Prepared;
