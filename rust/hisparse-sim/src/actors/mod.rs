//! Callers: each a small machine that is told what happened and says what it does next. None sees the world.
//!
//! ```text
//!  wake, answer ──► actor ──► Out { calls, wakes, hand-overs, transfers } ──► world
//! ```

pub(crate) mod engine;
pub(crate) mod router;

use std::sync::Arc;
use std::time::Duration;

use hisparse_core::ledger::{Lease, LeaseId, SessionId};
use hisparse_core::pages::PageHash;

use crate::call::{Ask, Call, CallId, Named};
use crate::dice::Dice;
use crate::faults::Faults;
use crate::setup::Setup;

/// What a router asks an engine to decode.
#[derive(Clone, Debug)]
pub(crate) struct Handover {
    pub(crate) lease: Named,
    pub(crate) tokens: u64,
    pub(crate) hashes: Vec<PageHash>,
}

/// Why an actor wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// This call has taken too long.
    Timeout(CallId),
    /// Something an actor told itself to do.
    Own(Own),
}

/// What actors tell themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    NewJob,
    Look,
    Job(u64, JobStep),
    Work(LeaseId, WorkStep),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobStep {
    AskAgain,
    Renew,
    Extend,
    End,
    ReleaseAgain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkStep {
    Publish,
    Extend,
    Release,
}

/// What an actor does.
#[derive(Debug)]
pub(crate) struct Out<'a> {
    pub(crate) dice: &'a mut Dice,
    pub(crate) faults: &'a Faults,
    pub(crate) setup: &'a Setup,
    pub(crate) now_us: u64,
    pub(crate) next_call: &'a mut u64,
    pub(crate) calls: Vec<Call>,
    pub(crate) wakes: Vec<(u64, Wake)>,
    pub(crate) handovers: Vec<(usize, Handover)>,
    /// A lease whose pages are read and written for so many µs.
    pub(crate) transfers: Vec<(Lease, u64)>,
}

impl Out<'_> {
    pub(crate) fn call(&mut self, ask: Ask, session: Option<SessionId>) -> CallId {
        *self.next_call += 1;
        let id = CallId(*self.next_call);
        let wait = if let Ask::Admit { wait, .. } = &ask { *wait } else { Duration::ZERO };
        let patience_us = self.dice.within(100_000..=2_000_000);
        let timeout = Duration::from_micros(patience_us).saturating_add(wait);
        let timeout_us = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
        self.calls.push(Call { id, ask, timeout, session });
        self.wakes.push((timeout_us, Wake::Timeout(id)));
        id
    }

    pub(crate) fn wake(&mut self, after_us: u64, own: Own) {
        self.wakes.push((after_us, Wake::Own(own)));
    }

    /// The lease as this caller names it: at times with the epoch before, or with another tenant's name.
    pub(crate) fn name(&mut self, lease: &Named) -> Named {
        let mut named = lease.clone();
        if self.dice.chance(self.faults.stale_epoch_per_mille) {
            named.epoch = hisparse_core::ledger::Epoch::new(lease.epoch.get() - 1).unwrap_or(lease.epoch);
        }
        named.tenant = self.tenant(&lease.tenant);
        named
    }

    pub(crate) fn tenant(&mut self, own: &Arc<str>) -> Arc<str> {
        if self.dice.chance(self.faults.wrong_tenant_per_mille) {
            return self.dice.pick(&self.setup.tenants).unwrap_or(own).clone();
        }
        own.clone()
    }
}
