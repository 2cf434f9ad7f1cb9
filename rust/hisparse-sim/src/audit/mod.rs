//! The auditor: watches every step of the node from outside, keeps its own books, and says which rule was broken.
//!
//! ```text
//!  step = what came in, what was answered, what the node showed before and after
//!           │
//!           ├─► leases    every change of a lease has a cause that allows it
//!           ├─► pages     one owner per page, no bytes to another tenant, no grant under a transfer
//!           ├─► pools     the conservation law, against sums of its own
//!           ├─► answers   what was accepted had to be, and what was refused too
//!           ├─► turns     who waits longest is served first
//!           └─► sequence  equal numbers mean equal states
//! ```
//! It uses the ledger's messages and none of its bookkeeping.

mod answers;
mod demand;
mod leases;
mod page_books;
mod pages;
mod pools;
mod turns;
mod waiter;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hisparse_core::env::Moment;
use hisparse_core::ledger::{
    AdmitRequest, CommitBy, Epoch, Granted, Lease, LeaseId, LedgerConfig, SessionId, TenantPolicy,
};
use hisparse_core::pages::Isolation;
use serde::Serialize;

use self::page_books::PageBooks;
use self::waiter::Waiter;
use crate::call::{Answer, Ask, Call, CallId, Input};
use crate::linear::check::digest;
use crate::node::{Decided, Seen};

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its name.
    pub rule: &'static str,
    /// What was seen.
    pub detail: String,
}

pub(crate) type Checked = Result<(), Finding>;

pub(crate) fn ensure(holds: bool, rule: &'static str, detail: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Finding { rule, detail: detail() }) }
}

/// What the node was told to be.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) config: LedgerConfig,
    pub(crate) policies: BTreeMap<Arc<str>, TenantPolicy>,
    pub(crate) tenants: usize,
}

/// One step of the node, seen from outside.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    pub(crate) input: &'a Input,
    pub(crate) decided: &'a Decided,
    pub(crate) after: &'a Seen,
    /// By the node's clock.
    pub(crate) now: Moment,
    /// By everyone's.
    pub(crate) at_us: u64,
    /// Calls that wait after it.
    pub(crate) waiting: &'a [CallId],
}

impl Step<'_> {
    /// Every call that was answered in this step.
    fn answered(&self) -> impl Iterator<Item = (&Call, &Answer)> {
        let direct = match self.input {
            Input::Call { call, .. } => self.decided.answer.as_ref().map(|answer| (call, answer)),
            _ => None,
        };
        direct.into_iter().chain(self.decided.served.iter().map(|(call, answer)| (call, answer)))
    }

    /// Every grant, with its request.
    fn grants(&self) -> Vec<(&AdmitRequest, &Granted)> {
        let mut grants = Vec::new();
        for (call, answer) in self.answered() {
            match (&call.ask, answer) {
                (Ask::Admit { request, .. }, Answer::Granted(granted)) => grants.push((request, granted)),
                (Ask::AdmitAll(requests), Answer::AllGranted(all)) => grants.extend(requests.iter().zip(all)),
                _ => {}
            }
        }
        grants
    }
}

/// Who keeps a lease, by the auditor's own record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeper {
    Nobody,
    Router,
    Session(SessionId),
}

#[derive(Debug)]
pub(crate) struct Auditor {
    terms: Terms,
    before: Seen,
    leases: BTreeMap<LeaseId, Lease>,
    keepers: BTreeMap<LeaseId, Keeper>,
    requests: BTreeMap<LeaseId, AdmitRequest>,
    /// Leases that are gone. None comes back.
    ended: BTreeSet<LeaseId>,
    last_id: Option<LeaseId>,
    attached: BTreeSet<SessionId>,
    /// Calls that waited before this step, in order of arrival.
    line: Vec<Waiter>,
    arrivals: u64,
    pages: PageBooks,
    /// What the node showed at each number.
    shown: BTreeMap<(Epoch, u64), u64>,
    /// How often each thing that can go right or wrong has happened.
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

impl Auditor {
    pub(crate) fn new(terms: Terms, first: Seen) -> Self {
        let pages = PageBooks::new(terms.config.capacity.host_pages.get());
        Self {
            terms,
            before: first,
            leases: BTreeMap::new(),
            keepers: BTreeMap::new(),
            requests: BTreeMap::new(),
            ended: BTreeSet::new(),
            last_id: None,
            attached: BTreeSet::new(),
            line: Vec::new(),
            arrivals: 0,
            pages,
            shown: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// The node died and stands up empty. Its pool is new: nothing that was in it is there.
    pub(crate) fn restarted(&mut self, first: Seen) -> Checked {
        let (old, new) = (self.before.capacity.epoch, first.capacity.epoch);
        ensure(new > old, "epoch grows", || format!("epoch {new} after {old}"))?;
        ensure(first.leases.is_empty(), "restart is empty", || format!("{:?}", first.leases))?;
        self.ended.extend(self.leases.keys());
        self.leases.clear();
        self.keepers.clear();
        self.requests.clear();
        self.attached.clear();
        self.line.clear();
        self.pages = PageBooks::new(self.terms.config.capacity.host_pages.get());
        self.before = first;
        self.count("node restarts");
        Ok(())
    }

    /// An engine begins to move a lease's pages.
    pub(crate) fn transfer_begins(&mut self, lease: &Lease, until_us: u64) {
        if let Some(id) = lease.id {
            self.pages.transfer(id, lease.extents.page_numbers().collect(), until_us);
            self.count("transfers");
        }
    }

    /// The process behind these transfers died: nothing it does lasts beyond this.
    pub(crate) fn transfers_end(&mut self, leases: &[LeaseId], by_us: u64) {
        self.pages.transfers_end(leases, by_us);
    }

    pub(crate) fn witness(&mut self, step: &Step<'_>) -> Checked {
        ensure(step.after.fault.is_none(), "no fault", || format!("{:?}", step.after.fault))?;
        match step.input {
            Input::Attached(session) => {
                self.attached.insert(*session);
            }
            Input::SessionLost(session) => {
                self.attached.remove(session);
            }
            _ => {}
        }
        let is: BTreeMap<LeaseId, &Lease> =
            step.after.leases.iter().filter_map(|lease| Some((lease.id?, lease))).collect();
        ensure(is.len() == step.after.leases.len(), "lease ids are unique", || format!("{:?}", step.after.leases))?;

        self.check_answers(step, &is)?;
        self.check_leases(step, &is)?;
        self.note_keepers(step);
        self.check_pages(step, &is)?;
        self.check_pools(step)?;
        self.check_sequence(step)?;
        self.check_turns(step)?;

        self.ended.extend(self.leases.keys().filter(|id| !is.contains_key(id)));
        self.last_id = self.last_id.max(is.keys().next_back().copied());
        self.leases = is.into_iter().map(|(id, lease)| (id, lease.clone())).collect();
        self.keepers.retain(|id, _| self.leases.contains_key(id));
        self.requests.retain(|id, _| self.leases.contains_key(id));
        self.before = step.after.clone();
        Ok(())
    }

    /// Nobody holds anything any more.
    pub(crate) fn check_empty(&self) -> Checked {
        ensure(self.leases.is_empty(), "nothing leaks", || format!("left at the end: {:?}", self.leases))?;
        for pool in &self.before.capacity.pools {
            let unheld = pool.free + pool.evictable + pool.scrubbing;
            ensure(unheld == pool.total, "nothing leaks", || format!("at the end {pool:?}"))?;
        }
        Ok(())
    }

    fn note_keepers(&mut self, step: &Step<'_>) {
        for (request, granted) in step.grants() {
            if let Some(id) = granted.lease.id.filter(|_| !granted.repeated) {
                self.keepers.insert(id, Keeper::Nobody);
                self.requests.insert(id, request.clone());
            }
        }
        let Input::Call { call, .. } = step.input else { return };
        match (&call.ask, &step.decided.answer) {
            (Ask::Commit { lease, by }, Some(Answer::Lease(_))) => {
                let keeper = self.keepers.entry(lease.id).or_insert(Keeper::Nobody);
                match by {
                    CommitBy::Session(session) => *keeper = Keeper::Session(*session),
                    CommitBy::Router { .. } if *keeper == Keeper::Nobody => *keeper = Keeper::Router,
                    CommitBy::Router { .. } => {}
                }
            }
            (Ask::Reclaim { .. }, Some(Answer::Reclaimed(leases))) => {
                let session = call.session;
                for id in leases.iter().filter_map(|lease| lease.id) {
                    self.keepers.insert(id, session.map_or(Keeper::Nobody, Keeper::Session));
                }
            }
            _ => {}
        }
    }

    /// Two equal numbers mean equal states: what watchers rely on when they skip.
    fn check_sequence(&mut self, step: &Step<'_>) -> Checked {
        let seen = step.after;
        let key = (seen.capacity.epoch, seen.capacity.sequence);
        let last = self.before.capacity.sequence;
        ensure(key.1 >= last, "sequence grows", || format!("sequence {} after {last}", key.1))?;
        let pools: Vec<_> = seen
            .capacity
            .pools
            .iter()
            .map(|pool| {
                [pool.total, pool.free, pool.reserved, pool.committed, pool.evictable, pool.scrubbing, pool.quarantined]
            })
            .collect();
        let state = digest(&(pools, seen.capacity.largest_grant_tokens, seen.capacity.draining, seen.leases.len()));
        let known = *self.shown.entry(key).or_insert(state);
        // Only the newest number can be met again.
        self.shown.retain(|shown, _| *shown >= key);
        ensure(known == state, "equal sequence, equal state", || {
            format!("two states at {key:?}: before {:?}, after {:?}", self.before.capacity, seen.capacity)
        })
    }

    fn isolated(&self) -> bool {
        self.terms.config.isolation == Isolation::Scrub
    }
}
