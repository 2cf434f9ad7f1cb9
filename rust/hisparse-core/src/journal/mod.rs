//! What a node must remember to go on after it was killed, as records in a file that only grows.
//!
//! ```text
//!  Ledger ── every change ──► Entry ── encode ──► frame ──► the journal's file        (written by the service)
//!                                                             │
//!  Ledger::restore ◄── Image ◄── apply, entry by entry ◄── decode ◄── unframe ◄── after a restart
//!                        └── entries ──► the same state in few records: what a long journal is compacted to
//! ```
//! Entries say what became of something, never why: replaying them needs no allocator and no clock, and cannot come to
//! another decision than the one that was told to a caller. Pure, as everything in this crate: bytes in, bytes out.

mod bytes;
mod entry;
mod frame;
mod hashed;
mod image;
mod seals;

pub use bytes::Unreadable;
pub(crate) use entry::put_sealed;
pub use entry::{Entry, KeptLease, NodeKey};
pub use frame::{Damage, Frames, Tail, frame};
pub(crate) use hashed::HashedPart;
pub use hashed::HashedRun;
pub(crate) use image::KeptTenant;
pub use image::{Image, Inconsistent};
pub(crate) use seals::{KeptSeal, Seals};
