//! Why the ledger says no: each kind tells the caller what to do next.
//!
//! ```text
//!  never fits   change the request, or go to a larger node      stale epoch   read the new one
//!  busy         come back, or go to another node                draining      go to another node
//!  quota        come back when one's own leases end             malformed     mend the call
//! ```

use std::sync::Arc;

use serde::Serialize;

use super::lease::{Epoch, LeaseId, LeaseState};
use super::pools::Pool;
use crate::error::Problems;
use crate::violation::Violation;

/// A bound that a single request can be beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Longest request of the node, in tokens.
    MaxRequestTokens,
    /// All there is of a pool, less what is set aside for other tenants.
    Total(Pool),
    /// All that the tenant may have of a pool.
    TenantCeiling(Pool),
}

impl Limit {
    /// Its name in error texts: the limit's own, or the pool's.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MaxRequestTokens => "max_request_tokens",
            Self::Total(pool) | Self::TenantCeiling(pool) => pool.name(),
        }
    }

    const fn whose(self) -> &'static str {
        match self {
            Self::MaxRequestTokens | Self::Total(_) => "the limit",
            Self::TenantCeiling(_) => "the tenant's quota",
        }
    }
}

/// A refusal. Nothing has changed hands when one is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The call itself is wrong.
    #[error("{0}")]
    Malformed(Problems),
    /// No amount of waiting helps.
    #[error("never fits: it needs {asked} of {}, and {} is {value}", limit.name(), limit.whose())]
    NeverFits {
        /// The bound it is beyond.
        limit: Limit,
        /// That bound's value.
        value: u64,
        /// What was asked of it.
        asked: u64,
    },
    /// Others hold what it needs.
    #[error("{pool} is busy: it needs {asked}, and {available} can be had now")]
    PoolBusy {
        /// The pool that binds: the first that falls short, in the order of [`Pool::ALL`].
        pool: Pool,
        /// What it needs of it.
        asked: u64,
        /// What it could have of it.
        available: u64,
    },
    /// The tenant's own leases hold what it may have.
    #[error("tenant {tenant} is at its quota of {pool}: {used} of {ceiling} in use, and it needs {asked}")]
    Quota {
        /// Whose quota it is.
        tenant: Arc<str>,
        /// The pool whose quota binds.
        pool: Pool,
        /// What it needs of it.
        asked: u64,
        /// What the tenant may have.
        ceiling: u64,
        /// What the tenant holds.
        used: u64,
    },
    /// As many tenants as a node can know hold something here.
    #[error("{limit} tenants hold something here: no room for another")]
    TooManyTenants {
        /// How many that is.
        limit: u64,
    },
    /// The caller speaks of another generation of the pool.
    #[error("epoch {given} is stale: the pool's is {current}")]
    StaleEpoch {
        /// What the caller gave.
        given: Epoch,
        /// What is current.
        current: Epoch,
    },
    /// The node takes nothing new.
    #[error("the node is draining: ask another")]
    Draining,
    /// There is no such lease, or not any more.
    #[error("no lease {id}: it was released, has expired, or never was")]
    LeaseNotFound {
        /// The name given.
        id: LeaseId,
    },
    /// The lease is another tenant's.
    #[error("lease {id} belongs to another tenant")]
    OtherTenant {
        /// The name given.
        id: LeaseId,
    },
    /// The lease exists, but its state does not allow this.
    #[error("lease {id} is {state}: {remedy}")]
    WrongState {
        /// The lease.
        id: LeaseId,
        /// Where it stands.
        state: LeaseState,
        /// What to do.
        remedy: &'static str,
    },
    /// This request id has a lease with other parameters.
    #[error("request_id is in use by lease {lease} with other parameters: release it, or use a new name")]
    RequestIdReused {
        /// The lease that has it.
        lease: LeaseId,
    },
    /// The books do not add up: nothing more is granted, and everything can still be given back.
    #[error("the ledger found a fault in itself and grants nothing more: {0}")]
    Faulted(Violation),
}

impl Refusal {
    /// `ErrorInfo.reason` of the wire; `None` where the status code says it all.
    pub const fn reason(&self) -> Option<&'static str> {
        match self {
            Self::NeverFits { .. } => Some("NEVER_FITS"),
            Self::PoolBusy { .. } => Some("POOL_BUSY"),
            Self::Quota { .. } | Self::TooManyTenants { .. } => Some("QUOTA"),
            Self::StaleEpoch { .. } => Some("STALE_EPOCH"),
            Self::Draining => Some("DRAINING"),
            Self::LeaseNotFound { .. } | Self::WrongState { .. } => Some("LEASE_NOT_FOUND"),
            Self::RequestIdReused { .. } => Some("REQUEST_ID_REUSED"),
            Self::Malformed(_) | Self::OtherTenant { .. } | Self::Faulted(_) => None,
        }
    }

    /// Whether the same call may succeed later on this node.
    pub const fn passes_with_time(&self) -> bool {
        matches!(self, Self::PoolBusy { .. } | Self::Quota { .. } | Self::TooManyTenants { .. })
    }

    /// Name of the pool or limit that binds, where one does.
    pub const fn binding(&self) -> Option<&'static str> {
        match self {
            Self::NeverFits { limit, .. } => Some(limit.name()),
            Self::PoolBusy { pool, .. } | Self::Quota { pool, .. } => Some(pool.name()),
            _ => None,
        }
    }
}
