//! What a record says.
//!
//! ```text
//!  Node, Tenant ─► Granted ─► Extended, Stands, Filled, Sealed, Durable … ─► Ended      Left, Cached, Scrubbing, Scrubbed: pages
//! ```
//! Times are lengths of time: a clock that counts from its process's start means nothing to the next one.

use std::time::Duration;

use super::hashed::HashedRun;
use crate::ledger::{Holder, LeaseId, LeaseState, NodeCapacity, SessionId, TenantSalt};
use crate::pages::{Extent, Extents, Isolation};
use crate::units::Tokens;

mod coding;

pub(crate) use self::coding::put_sealed;

/// What a ledger draws once and must not draw anew: it knows repeated requests and tenants' salts by them.
pub type NodeKey = [u64; 4];

/// A lease with everything that is remembered of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptLease {
    /// Its name.
    pub id: LeaseId,
    /// Number of its tenant.
    pub tenant: u16,
    /// What the caller called the request.
    pub request_id: String,
    /// Digest of the request's parameters.
    pub digest: u64,
    /// Priority of its request.
    pub priority: i32,
    /// Where it stands.
    pub state: LeaseState,
    /// Who keeps it.
    pub holder: Option<Holder>,
    /// Its life without a word from the holder.
    pub ttl: Duration,
    /// Its whole length.
    pub tokens: Tokens,
    /// Pages from its first on that are durable.
    pub durable: u32,
    /// Whether any of its own pages is sealed, or was.
    pub published: bool,
    /// Pages that it shares.
    pub shared: Extents,
    /// Pages that it has for itself.
    pub own: Extents,
    /// Sessions that write to its pages beside the holder.
    pub fillers: Vec<SessionId>,
}

/// One change, or one part of a whole state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// What everything after it is about. The first entry of a journal.
    Node {
        /// What the node holds.
        capacity: NodeCapacity,
        /// Whether pages are zeroed between tenants.
        isolation: Isolation,
        /// What was drawn once.
        key: NodeKey,
    },
    /// A tenant has this number from now on.
    Tenant {
        /// Its number.
        index: u16,
        /// Its name.
        name: String,
        /// What its pages are hashed with.
        salt: TenantSalt,
    },
    /// Pages were left by a tenant (its number + 1), or are clean (0). In a whole state only.
    Left {
        /// Which.
        run: Extent,
        /// By whom.
        kind: u16,
    },
    /// Pages are sealed, by nobody's lease so far; of those that nobody holds the oldest come first, and of a run the last
    /// page is the oldest. In a whole state only.
    Cached {
        /// Whose prefix it is.
        tenant: u16,
        /// Which pages, under which hashes.
        run: HashedRun,
    },
    /// A lease was granted.
    Granted(Box<KeptLease>),
    /// A lease grew.
    Extended {
        /// Which.
        id: LeaseId,
        /// To this length.
        tokens: Tokens,
        /// By these pages.
        added: Extents,
    },
    /// A lease is in another state, in other hands, or lives longer.
    Stands {
        /// Which.
        id: LeaseId,
        /// Its state.
        state: LeaseState,
        /// Who keeps it.
        holder: Option<Holder>,
        /// Its life without a word from the holder.
        ttl: Duration,
    },
    /// These sessions, and no others, write to a lease's pages beside its holder.
    Filled {
        /// Which lease.
        id: LeaseId,
        /// By whom.
        fillers: Vec<SessionId>,
    },
    /// Own pages of a lease were sealed.
    Sealed {
        /// Which lease.
        id: LeaseId,
        /// Which pages, under which hashes.
        runs: Vec<HashedRun>,
    },
    /// So many pages of a lease are durable.
    Durable {
        /// Which lease.
        id: LeaseId,
        /// Pages from its first on.
        pages: u32,
    },
    /// A lease ended and its pages are free.
    Ended {
        /// Which.
        id: LeaseId,
    },
    /// Free pages began to be zeroed.
    Scrubbing(Extent),
    /// They are clean.
    Scrubbed(Extent),
    /// Something of the service's, in its own words.
    Note(Vec<u8>),
}
