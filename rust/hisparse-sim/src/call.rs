//! What callers ask and what they are told: the service's messages without their encoding.

use std::sync::Arc;
use std::time::Duration;

use hisparse_core::env::Moment;
use hisparse_core::ledger::{
    AdmitRequest, Capacity, CommitBy, Epoch, Granted, Lease, LeaseId, Refusal, Released, SessionId,
};
use hisparse_core::pages::PageHash;

/// A router, an engine or a watcher, by its place among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Who {
    Router(usize),
    Engine(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallId(pub(crate) u64);

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) id: CallId,
    pub(crate) ask: Ask,
    /// The caller's patience, counted from arrival, as `grpc-timeout` is.
    pub(crate) timeout: Duration,
    /// The session on whose connection it came.
    pub(crate) session: Option<SessionId>,
}

/// A lease, named by someone who holds it.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) id: LeaseId,
    pub(crate) tenant: Arc<str>,
    pub(crate) epoch: Epoch,
}

#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Admit { request: AdmitRequest, wait: Duration },
    AdmitAll(Vec<AdmitRequest>),
    Validate(AdmitRequest),
    Commit { lease: Named, by: CommitBy },
    Renew { lease: Named, ttl: Option<Duration> },
    Extend { lease: Named, tokens: u64 },
    Publish { lease: Named, first: u32, hashes: Vec<PageHash> },
    Release { id: LeaseId, tenant: Arc<str> },
    ReleaseRequest { request_id: Arc<str>, tenant: Arc<str> },
    Confirm(LeaseId),
    Reclaim { dead: SessionId },
    GetCapacity,
    Drain { resume: bool },
}

impl Ask {
    /// A number for the trace.
    pub(crate) const fn kind(&self) -> u64 {
        match self {
            Self::Admit { .. } => 1,
            Self::AdmitAll(_) => 2,
            Self::Validate(_) => 3,
            Self::Commit { .. } => 4,
            Self::Renew { .. } => 5,
            Self::Extend { .. } => 6,
            Self::Publish { .. } => 7,
            Self::Release { .. } => 8,
            Self::ReleaseRequest { .. } => 9,
            Self::Confirm(_) => 10,
            Self::Reclaim { .. } => 11,
            Self::GetCapacity => 12,
            Self::Drain { .. } => 13,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Granted(Granted),
    AllGranted(Vec<Granted>),
    /// A validation: it would be granted.
    WouldGrant,
    Lease(Lease),
    Published(u32),
    Released(Released),
    Confirmed,
    Reclaimed(Vec<Lease>),
    Capacity(Capacity),
    Draining(bool),
    Refused(Refused),
}

impl Answer {
    /// A number for the trace: the kind of answer, and the lease it is about.
    pub(crate) fn kind(&self) -> (u64, u64) {
        // The epochs of a run are few, so its ids fit.
        let of = |lease: &Lease| lease.id.map_or(0, |id| u64::try_from(id.get()).unwrap_or(u64::MAX));
        match self {
            Self::Granted(granted) => (1 + u64::from(granted.repeated), of(&granted.lease)),
            Self::AllGranted(all) => (3, all.len() as u64),
            Self::WouldGrant => (4, 0),
            Self::Lease(lease) => (5, of(lease)),
            Self::Published(pages) => (6, u64::from(*pages)),
            Self::Released(Released::Freed) => (7, 0),
            Self::Released(Released::Quarantined) => (8, 0),
            Self::Released(Released::Already) => (9, 0),
            Self::Confirmed => (10, 0),
            Self::Reclaimed(leases) => (11, leases.len() as u64),
            Self::Capacity(capacity) => (12, capacity.sequence),
            Self::Draining(draining) => (13, u64::from(*draining)),
            Self::Refused(Refused::Deadline) => (20, 0),
            Self::Refused(Refused::NoSession) => (21, 0),
            Self::Refused(Refused::Ledger(refusal)) => (22, refusal.reason().map_or(0, |reason| reason.len() as u64)),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Refused {
    Ledger(Refusal),
    /// Its time was over before it was looked at.
    Deadline,
    /// Its connection's session is not attached (any more).
    NoSession,
}

/// Something that reaches the node.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Call {
        call: Call,
        arrived: Moment,
    },
    /// The caller is gone, or will not wait any longer.
    Cancel(CallId),
    Attached(SessionId),
    SessionLost(SessionId),
    StartScrub,
    EndScrub,
    /// Nothing but time.
    Time,
}
