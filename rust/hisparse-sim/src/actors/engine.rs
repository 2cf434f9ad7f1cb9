//! An engine process: commits what routers hand it, moves its pages, publishes prefixes, gives leases back. When it
//! dies, a successor takes its leases over, or confirms that nothing touches them.
//!
//! ```text
//!  handed over ─► commit ─► transfer ─► publish ─► release
//!  successor: reclaim ─► release            or: confirm each
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hisparse_core::ledger::{CommitBy, LeaseId, SessionId};
use hisparse_core::pages::PageHash;

use super::{Handover, Out, Own, Wake, WorkStep};
use crate::call::{Answer, Ask, CallId, Named};
use crate::faults::LONGEST_TRANSFER_MS;

/// Tries before an engine leaves a lease to the end of its session.
const TRIES: u32 = 10;

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) session: SessionId,
    predecessor: Option<SessionId>,
    /// Leases of the process before, by its own record.
    inherited: Vec<LeaseId>,
    work: BTreeMap<LeaseId, Work>,
    open: BTreeMap<CallId, (LeaseId, Purpose)>,
    reclaim: Option<CallId>,
}

#[derive(Debug)]
struct Work {
    lease: Named,
    tokens: u64,
    hashes: Vec<PageHash>,
    asked_us: u64,
    tries: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Commit,
    Other,
    Release,
}

impl Engine {
    pub(crate) fn new(session: SessionId, predecessor: Option<&Self>) -> Self {
        Self {
            session,
            predecessor: predecessor.map(|engine| engine.session),
            inherited: predecessor.map(|engine| engine.work.keys().copied().collect()).unwrap_or_default(),
            work: BTreeMap::new(),
            open: BTreeMap::new(),
            reclaim: None,
        }
    }

    /// Just attached.
    pub(crate) fn begin(&mut self, out: &mut Out<'_>) {
        let Some(dead) = self.predecessor else { return };
        if out.dice.chance(700) {
            self.reclaim = Some(out.call(Ask::Reclaim { dead }, Some(self.session)));
        } else {
            for id in std::mem::take(&mut self.inherited) {
                out.call(Ask::Confirm(id), Some(self.session));
            }
        }
    }

    pub(crate) fn handed(&mut self, handover: Handover, out: &mut Out<'_>) {
        let Handover { lease, tokens, hashes } = handover;
        let id = lease.id;
        if self.work.contains_key(&id) {
            return;
        }
        self.work.insert(id, Work { lease, tokens, hashes, asked_us: 0, tries: 0 });
        self.commit(id, out);
    }

    fn commit(&mut self, id: LeaseId, out: &mut Out<'_>) {
        let Some(work) = self.work.get_mut(&id) else { return };
        (work.asked_us, work.tries) = (out.now_us, work.tries + 1);
        let lease = out.name(&work.lease);
        self.call(id, Purpose::Commit, Ask::Commit { lease, by: CommitBy::Session(self.session) }, out);
    }

    fn call(&mut self, id: LeaseId, purpose: Purpose, ask: Ask, out: &mut Out<'_>) {
        let call = out.call(ask, Some(self.session));
        self.open.insert(call, (id, purpose));
    }

    fn release(&mut self, id: LeaseId, out: &mut Out<'_>) {
        let Some(work) = self.work.get_mut(&id) else { return };
        work.tries += 1;
        let tenant = Arc::clone(&work.lease.tenant);
        self.call(id, Purpose::Release, Ask::Release { id, tenant }, out);
    }

    pub(crate) fn wake(&mut self, wake: Wake, out: &mut Out<'_>) {
        match wake {
            Wake::Timeout(call) => {
                let Some((id, purpose)) = self.open.remove(&call) else { return };
                let tired = self.work.get(&id).is_none_or(|work| work.tries > TRIES);
                match purpose {
                    Purpose::Commit if !tired => self.commit(id, out),
                    // Whether it was committed is unknown: giving it back is right either way.
                    Purpose::Commit => self.step(id, WorkStep::Release, out),
                    Purpose::Release if !tired => self.release(id, out),
                    Purpose::Release => {
                        self.work.remove(&id);
                    }
                    Purpose::Other => {}
                }
            }
            Wake::Own(Own::Work(id, step)) => self.step(id, step, out),
            Wake::Own(_) => {}
        }
    }

    fn step(&mut self, id: LeaseId, step: WorkStep, out: &mut Out<'_>) {
        let Some(work) = self.work.get_mut(&id) else { return };
        match step {
            WorkStep::Publish => {
                let full = work.tokens / out.setup.config.capacity.page_tokens;
                let most = usize::try_from(full).unwrap_or(0).min(work.hashes.len());
                let hashes = work.hashes[..most].to_vec();
                let lease = out.name(&work.lease);
                if !hashes.is_empty() {
                    self.call(id, Purpose::Other, Ask::Publish { lease, first: 0, hashes }, out);
                }
            }
            WorkStep::Extend => {
                let tokens = work.tokens + out.dice.within(1..=256);
                let tokens = tokens.min(out.setup.config.capacity.max_request_tokens.get());
                let lease = out.name(&work.lease);
                self.call(id, Purpose::Other, Ask::Extend { lease, tokens }, out);
            }
            WorkStep::Release => {
                work.tries = 0;
                self.release(id, out);
            }
        }
    }

    pub(crate) fn answered(&mut self, call: CallId, answer: &Answer, out: &mut Out<'_>) {
        if self.reclaim == Some(call) {
            self.reclaim = None;
            if let Answer::Reclaimed(leases) = answer {
                for lease in leases {
                    let Some(id) = lease.id else { continue };
                    let named = Named { id, tenant: Arc::clone(&lease.tenant), epoch: lease.epoch };
                    let work = Work { lease: named, tokens: 0, hashes: Vec::new(), asked_us: 0, tries: 0 };
                    self.work.insert(id, work);
                    let after = out.dice.around(out.setup.decode_us);
                    out.wake(after, Own::Work(id, WorkStep::Release));
                }
            }
            return;
        }
        let Some((id, purpose)) = self.open.remove(&call) else { return };
        match (purpose, answer) {
            (Purpose::Commit, Answer::Lease(lease)) => {
                let Some(work) = self.work.get(&id) else { return };
                let longest_us = LONGEST_TRANSFER_MS * 1_000;
                // An answer this old may be about a lease that is gone: its pages are not touched any more.
                if out.now_us - work.asked_us > longest_us {
                    self.step(id, WorkStep::Release, out);
                    return;
                }
                let transfer_us = out.dice.within(1..=longest_us);
                out.transfers.push((lease.clone(), transfer_us));
                out.wake(transfer_us, Own::Work(id, WorkStep::Publish));
                let decode_us = out.dice.around(out.setup.decode_us);
                if out.dice.chance(300) {
                    out.wake(transfer_us + decode_us / 2, Own::Work(id, WorkStep::Extend));
                }
                out.wake(transfer_us + decode_us, Own::Work(id, WorkStep::Release));
            }
            // A name that was wrong once may be right the next time.
            (Purpose::Commit, Answer::Refused(_)) => {
                if out.dice.chance(700) && self.work.get(&id).is_some_and(|work| work.tries < 3) {
                    self.commit(id, out);
                } else {
                    self.work.remove(&id);
                }
            }
            (Purpose::Release, _) => {
                self.work.remove(&id);
            }
            _ => {}
        }
    }

    /// What it works on.
    pub(crate) fn leases(&self) -> Vec<LeaseId> {
        self.work.keys().copied().collect()
    }

    /// How long a transfer may go on after its process died.
    pub(crate) const fn last_breath() -> Duration {
        Duration::from_millis(20)
    }
}
