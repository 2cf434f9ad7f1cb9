//! The ledger's changes as journal records, for whoever keeps them: see [`crate::journal`].
//!
//! ```text
//!  transition ──► note(entry) ──► bytes in frames ──► take_log (by the owner, within the same decision)
//! ```
//! Off until asked for: a ledger that nobody keeps writes nothing down.

use super::lease::LeaseId;
use crate::journal::{Entry, frame, put_sealed};
use crate::pages::{Extents, PagePool};

/// Records that wait to be taken.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) records: Option<Vec<u8>>,
    /// Leases that were taken from who may be writing to their pages.
    pub(super) lost: Vec<Loss>,
}

/// What an engine must be told of a lease that it did not end itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Which.
    pub lease: LeaseId,
    /// Whether its pages are free already, rather than kept from everyone for a while.
    pub freed: bool,
}

impl Log {
    /// Notes one change, where somebody keeps them.
    pub(super) fn note(&mut self, entry: impl FnOnce() -> Entry) {
        if let Some(bytes) = &mut self.records {
            frame(bytes, |out| entry().encode(out));
        }
    }

    /// Notes that pages of a lease were sealed.
    pub(super) fn note_sealed(&mut self, id: LeaseId, pages: &PagePool, sealed: &Extents) {
        if let Some(bytes) = &mut self.records {
            frame(bytes, |out| put_sealed(out, id, pages.hashed(sealed).into_iter()));
        }
    }
}
