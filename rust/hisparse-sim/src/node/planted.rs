//! Nodes that are wrong on purpose: each has one fault that was seen in the field or that a rule forbids.
//!
//! ```text
//!  input ──► planted ──► (changed input) ──► honest node ──► (changed answer, or a deed behind its back)
//! ```
//! An auditor that lets one of them pass is worth nothing. The ledger itself has no switch for any of this.

use std::collections::BTreeMap;
use std::time::Duration;

use hisparse_core::env::Moment;
use hisparse_core::ledger::{
    CommitBy, Granted, Lease, LeaseId, LeaseState, LedgerConfig, Pool, Refusal, Released, SessionId,
};
use hisparse_core::pages::Isolation;

use super::honest::Honest;
use super::{Decided, Node, Seen};
use crate::call::{Answer, Ask, Call, CallId, Input, Refused};

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A second release of a lease frees its pages again, whoever has them by now (ray #62517).
    DoubleReleaseFreesTwice,
    /// A second release is counted again: one seat more is free than there is.
    DoubleReleaseCountsTwice,
    /// What has expired is free at once (mooncake #3076, #4239).
    ExpiryFreesWithoutQuarantine,
    /// Commit, Renew, Extend and Admit with an older epoch are accepted.
    StaleEpochAccepted,
    /// A lease that has expired can still be committed (etcd 3.4.38: renewing a revoked lease succeeds).
    CommitAfterExpiry,
    /// A request id that is sent twice gets two leases (ray #63252).
    RepeatedRequestGrantsTwice,
    /// A release is answered and forgotten (kueue #14811).
    ReleaseIsForgotten,
    /// Pages go from one tenant to the next with their bytes in them.
    NoScrubBetweenTenants,
    /// A lease may be used by whoever knows its number.
    TenantIsNotChecked,
    /// `GetCapacity` shows what was so one call earlier (llm-d-router #1474).
    StaleCapacity,
    /// Admit says busy while there is room.
    BusyWithRoom,
    /// A request id frees itself, but the lease of an engine is free at its router's word (sglang #40732).
    RouterFreesUnderEngine,
    /// A batch that does not fit keeps what did.
    HalfABatchStays,
    /// A lease outlives its end while nobody calls for it.
    ExpiryForgotten,
    /// An engine commits what another one holds, and its release frees the pages under that one.
    EngineTakesFromEngine,
    /// A newcomer that fits is granted past those who wait, so that a long request starves.
    NewcomersOvertake,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::DoubleReleaseFreesTwice,
        Self::DoubleReleaseCountsTwice,
        Self::ExpiryFreesWithoutQuarantine,
        Self::StaleEpochAccepted,
        Self::CommitAfterExpiry,
        Self::RepeatedRequestGrantsTwice,
        Self::ReleaseIsForgotten,
        Self::NoScrubBetweenTenants,
        Self::TenantIsNotChecked,
        Self::StaleCapacity,
        Self::BusyWithRoom,
        Self::RouterFreesUnderEngine,
        Self::HalfABatchStays,
        Self::ExpiryForgotten,
        Self::EngineTakesFromEngine,
        Self::NewcomersOvertake,
    ];

    /// What this fault is made with, where it is a matter of settings.
    pub(crate) fn settings(self, config: LedgerConfig) -> LedgerConfig {
        match self {
            Self::NoScrubBetweenTenants => LedgerConfig { isolation: Isolation::Shared, ..config },
            _ => config,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Planted {
    bug: Bug,
    inner: Honest,
    /// Pages of leases that were released.
    released: BTreeMap<LeaseId, Lease>,
    /// Seats that are shown free and are not.
    phantom_seats: u64,
    /// Engines by what they committed last.
    holders: BTreeMap<LeaseId, SessionId>,
    /// Engines by what they took from others.
    thieves: BTreeMap<LeaseId, SessionId>,
    last: Option<Seen>,
}

impl Planted {
    pub(crate) fn new(bug: Bug, inner: Honest) -> Self {
        let (released, holders, thieves) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { bug, inner, released, phantom_seats: 0, holders, thieves, last: None }
    }

    fn find(&self, id: LeaseId) -> Option<Lease> {
        self.inner.ledger.get(id, None).ok()
    }

    fn release(&mut self, id: LeaseId, now: Moment) {
        // It names no tenant, so it cannot be refused.
        let _ = self.inner.ledger.release(id, None, None, now);
    }

    /// The input as this node misunderstands it.
    fn misread(&self, input: &Input) -> Input {
        let mut input = input.clone();
        let Input::Call { call, .. } = &mut input else { return input };
        let current = self.inner.ledger.epoch();
        match (self.bug, &mut call.ask) {
            (
                Bug::StaleEpochAccepted,
                Ask::Commit { lease, .. }
                | Ask::Renew { lease, .. }
                | Ask::Extend { lease, .. }
                | Ask::Publish { lease, .. },
            ) => lease.epoch = current,
            (Bug::StaleEpochAccepted, Ask::Admit { request, .. }) => request.epoch = None,
            (Bug::RepeatedRequestGrantsTwice, Ask::Admit { request, .. }) => request.request_id = "".into(),
            (
                Bug::TenantIsNotChecked,
                Ask::Commit { lease, .. } | Ask::Renew { lease, .. } | Ask::Extend { lease, .. },
            ) => {
                if let Some(real) = self.find(lease.id) {
                    lease.tenant = real.tenant;
                }
            }
            (Bug::RouterFreesUnderEngine, Ask::Release { id, .. }) if call.session.is_none() => {
                // The engine's own word is what the ledger would free it for.
                call.session = self.holders.get(id).copied();
            }
            (Bug::EngineTakesFromEngine, Ask::Release { id, .. })
                if call.session.is_some() && self.thieves.get(id).copied() == call.session =>
            {
                call.session = self.holders.get(id).copied();
            }
            _ => {}
        }
        input
    }

    fn misdeeds(&mut self, input: &Input, before: &[Lease], decided: &mut Decided, now: Moment) {
        let call = match input {
            Input::Call { call, .. } => Some(call),
            _ => None,
        };
        match (self.bug, call.map(|call| &call.ask), &mut decided.answer) {
            (
                Bug::DoubleReleaseFreesTwice,
                Some(Ask::Release { id, .. }),
                Some(Answer::Released(Released::Already)),
            ) => {
                let Some(old) = self.released.get(id) else { return };
                let pages: Vec<u32> = old.extents.page_numbers().collect();
                let leases = self.inner.ledger.list(None, None, usize::MAX);
                let now_theirs = leases.iter().find(|lease| lease.extents.page_numbers().any(|p| pages.contains(&p)));
                if let Some(victim) = now_theirs.and_then(|lease| lease.id) {
                    self.release(victim, now);
                }
            }
            (
                Bug::DoubleReleaseCountsTwice,
                Some(Ask::Release { id, .. }),
                Some(Answer::Released(Released::Already)),
            ) if self.released.contains_key(id) => {
                self.phantom_seats += 1;
            }
            (Bug::ExpiryFreesWithoutQuarantine, ..) => {
                let expired = |lease: &&Lease| lease.state != LeaseState::Quarantined;
                let ended =
                    before.iter().filter(expired).filter(|lease| lease.expires_at.is_some_and(|end| end <= now));
                for id in ended.filter_map(|lease| lease.id) {
                    // Where it is gone already, there is nothing to free.
                    let _ = self.inner.ledger.confirm(id, now);
                }
            }
            (
                Bug::CommitAfterExpiry,
                Some(Ask::Commit { lease, .. }),
                Some(answer @ Answer::Refused(Refused::Ledger(Refusal::WrongState { .. }))),
            ) => {
                if let Ok(lease) = self.inner.ledger.get(lease.id, None) {
                    *answer = Answer::Lease(Lease { state: LeaseState::Committed, ..lease });
                }
            }
            (
                Bug::BusyWithRoom,
                Some(Ask::Admit { .. }),
                Some(answer @ Answer::Granted(Granted { repeated: false, .. })),
            ) => {
                if let Answer::Granted(Granted { lease, .. }) = answer
                    && let Some(id) = lease.id.filter(|id| id.get() % 7 == 0)
                {
                    let _ = self.inner.ledger.release(id, None, None, now);
                    *answer = Answer::Refused(Refused::Ledger(Refusal::PoolBusy {
                        pool: Pool::Seats,
                        asked: 1,
                        available: 0,
                    }));
                }
            }
            (
                Bug::EngineTakesFromEngine,
                Some(Ask::Commit { lease, by: CommitBy::Session(thief) }),
                Some(answer @ Answer::Refused(Refused::Ledger(Refusal::WrongState { .. }))),
            ) => {
                if let Ok(lease) = self.inner.ledger.get(lease.id, None)
                    && let (Some(id), LeaseState::Committed) = (lease.id, lease.state)
                {
                    self.thieves.insert(id, *thief);
                    *answer = Answer::Lease(lease);
                }
            }
            (Bug::HalfABatchStays, Some(Ask::AdmitAll(requests)), Some(Answer::Refused(_))) => {
                for request in requests {
                    let _ = self.inner.ledger.admit(request, now);
                }
            }
            _ => {}
        }
    }
}

impl Node for Planted {
    fn decide(&mut self, input: &Input, now: Moment) -> Decided {
        let before = self.inner.ledger.list(None, None, usize::MAX);
        let stale = self.last.replace(self.seen());
        let misread = self.misread(input);
        if let (Bug::ReleaseIsForgotten, Input::Call { call, .. }) = (self.bug, &misread)
            && let Ask::Release { id, .. } = call.ask
            && id.get() % 5 == 0
            && self.find(id).is_some()
        {
            return Decided { answer: Some(Answer::Released(Released::Freed)), ..self.inner.decide(&Input::Time, now) };
        }
        if let (Bug::NewcomersOvertake, Input::Call { call, .. }) = (self.bug, &misread)
            && let Ask::Admit { request, .. } = &call.ask
            && let Ok(granted) = self.inner.ledger.admit(request, now)
        {
            return Decided { answer: Some(Answer::Granted(granted)), ..self.inner.decide(&Input::Time, now) };
        }
        if self.bug == Bug::ExpiryForgotten {
            // Renewed behind everyone's back, so that it never ends.
            for lease in before.iter().filter(|lease| lease.state == LeaseState::Reserved) {
                if let (Some(id), Some(end)) = (lease.id, lease.expires_at)
                    && end <= now
                    && id.get() % 3 == 0
                {
                    let just_before = Moment::from_origin(end.since_origin().saturating_sub(Duration::from_nanos(1)));
                    let _ = self.inner.ledger.renew(id, None, lease.epoch, None, just_before);
                }
            }
        }
        let mut decided = self.inner.decide(&misread, now);
        if let Input::Call { call: Call { ask: Ask::Commit { lease, by: CommitBy::Session(session) }, .. }, .. } =
            &misread
            && matches!(decided.answer, Some(Answer::Lease(_)))
        {
            self.holders.insert(lease.id, *session);
        }
        self.misdeeds(&misread, &before, &mut decided, now);
        if let (Bug::StaleCapacity, Some(Answer::Capacity(capacity)), Some(stale)) =
            (self.bug, &mut decided.answer, stale)
        {
            *capacity = stale.capacity;
        }
        for lease in before {
            if let Some(id) = lease.id
                && self.find(id).is_none()
            {
                self.released.insert(id, lease);
            }
        }
        decided
    }

    fn seen(&self) -> Seen {
        let mut seen = self.inner.seen();
        for pool in &mut seen.capacity.pools {
            if pool.name == Pool::Seats {
                pool.free += self.phantom_seats;
            }
        }
        seen
    }

    fn waiting(&self) -> Vec<CallId> {
        self.inner.waiting()
    }

    fn scrub_jobs(&self) -> usize {
        self.inner.scrub_jobs()
    }
}
