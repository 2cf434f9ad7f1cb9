//! The real ledger behind the service's rules.
//!
//! ```text
//!  past its deadline? ─► its session attached? ─► of this epoch? ─► ledger ─► serve those who wait
//! ```
//! The service's own node is bound to its runtime and to the machine's clock; these are its rules without them, said a
//! second time on purpose. One source for both would be a node generic over clock, waiters, sessions and journal, made so
//! for the simulator alone; and a simulator that ran the service's very lines could not be what they are held against.
//! What keeps the two together is judged, not shared: histories of the running service, killed and started again, pass
//! the same checker of linearizability as those of this node (`tests/service`), and a rule that one of them alone
//! follows shows there. Left out here is patience for zeroes: it decides nothing, and is a wait in the same queue.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hisparse_core::env::{Entropy, Moment};
use hisparse_core::error::Problems;
use hisparse_core::ledger::{Epoch, Ledger, LedgerConfig, Offer, Refusal, SessionId, TenantPolicy, Ticket, WaitQueue};
use hisparse_core::pages::ScrubJob;

use super::{Decided, Node, Seen};
use crate::call::{Answer, Ask, Call, CallId, Input, Named, Refused};

/// Pages zeroed in one go.
const SCRUB_PAGES: u32 = 4;

#[derive(Debug)]
pub(crate) struct Honest {
    pub(crate) ledger: Ledger,
    queue: WaitQueue,
    waiting: BTreeMap<Ticket, Call>,
    sessions: BTreeSet<SessionId>,
    scrubbing: Vec<ScrubJob>,
}

impl Honest {
    pub(crate) fn new(
        config: LedgerConfig,
        epoch: Epoch,
        tenants: &[(Arc<str>, TenantPolicy)],
        entropy: &mut dyn Entropy,
    ) -> Result<Self, Problems> {
        let mut ledger = Ledger::new(config, epoch, entropy)?;
        for (tenant, policy) in tenants {
            ledger.set_tenant_policy(tenant, *policy)?;
        }
        Ok(Self {
            ledger,
            queue: WaitQueue::new(),
            waiting: BTreeMap::new(),
            sessions: BTreeSet::new(),
            scrubbing: Vec::new(),
        })
    }

    /// `None`: the call waits.
    fn answer(&mut self, call: &Call, arrived: Moment, now: Moment) -> Option<Answer> {
        let deadline = arrived.saturating_add(call.timeout);
        if now > deadline {
            return Some(Answer::Refused(Refused::Deadline));
        }
        if call.session.is_some_and(|session| !self.sessions.contains(&session)) {
            return Some(Answer::Refused(Refused::NoSession));
        }
        match &call.ask {
            Ask::Admit { request, wait } => {
                let until = now.saturating_add(*wait).min(deadline);
                match self.queue.offer(&mut self.ledger, request.clone(), until.saturating_since(now), now) {
                    Ok(Offer::Granted(granted)) => Some(Answer::Granted(granted)),
                    Ok(Offer::Waiting(ticket)) => {
                        self.waiting.insert(ticket, call.clone());
                        None
                    }
                    Err(refusal) => Some(Answer::Refused(Refused::Ledger(refusal))),
                }
            }
            ask => Some(
                self.decide_at_once(ask, call.session, now).unwrap_or_else(|no| Answer::Refused(Refused::Ledger(no))),
            ),
        }
    }

    fn decide_at_once(&mut self, ask: &Ask, session: Option<SessionId>, now: Moment) -> Result<Answer, Refusal> {
        let ledger = &mut self.ledger;
        Ok(match ask {
            Ask::Admit { .. } => unreachable!("an Admit may wait and is answered by its caller"),
            Ask::AdmitAll(requests) => {
                Answer::AllGranted(self.queue.admit_all(ledger, requests, now).map_err(|(_, refusal)| refusal)?)
            }
            Ask::Validate(request) => ledger.validate(request, now).map(|_| Answer::WouldGrant)?,
            Ask::Commit { lease, by } => {
                of_this_epoch(ledger, lease)?;
                Answer::Lease(ledger.commit(lease.id, Some(&lease.tenant), lease.epoch, *by, now)?)
            }
            Ask::Renew { lease, ttl } => {
                of_this_epoch(ledger, lease)?;
                Answer::Lease(ledger.renew(lease.id, Some(&lease.tenant), lease.epoch, *ttl, now)?)
            }
            Ask::Extend { lease, tokens } => {
                of_this_epoch(ledger, lease)?;
                Answer::Lease(ledger.extend(lease.id, Some(&lease.tenant), lease.epoch, *tokens, now)?)
            }
            Ask::Publish { lease, first, hashes } => {
                of_this_epoch(ledger, lease)?;
                Answer::Published(ledger.publish(lease.id, lease.epoch, *first, hashes, now)?)
            }
            Ask::Release { id, tenant } => Answer::Released(ledger.release(*id, Some(tenant), session, now)?),
            Ask::ReleaseRequest { request_id, tenant } => {
                Answer::Released(ledger.release_request(request_id, tenant, session, now))
            }
            Ask::Confirm(id) => ledger.confirm(*id, now).map(|()| Answer::Confirmed)?,
            // Only an attached successor asks, and never for one that lives.
            Ask::Reclaim { dead } => match session.filter(|_| !self.sessions.contains(dead)) {
                Some(successor) => Answer::Reclaimed(ledger.reclaim(*dead, successor, now)),
                None => Answer::Reclaimed(Vec::new()),
            },
            Ask::GetCapacity => Answer::Capacity(ledger.capacity(None, &[]).map_err(Refusal::Malformed)?),
            Ask::Drain { resume } => {
                ledger.set_draining(!resume);
                Answer::Draining(!resume)
            }
        })
    }

    fn serve(&mut self, now: Moment) -> Vec<(Call, Answer)> {
        let served = self.queue.serve(&mut self.ledger, now).into_iter();
        served
            .filter_map(|served| {
                let call = self.waiting.remove(&served.ticket)?;
                Some((call, served.outcome.map_or_else(|no| Answer::Refused(Refused::Ledger(no)), Answer::Granted)))
            })
            .collect()
    }
}

/// Before the look-up: a lease of an older pool is unknown here, and its holder should learn why.
fn of_this_epoch(ledger: &Ledger, lease: &Named) -> Result<(), Refusal> {
    let (given, current) = (lease.epoch, ledger.epoch());
    if given == current { Ok(()) } else { Err(Refusal::StaleEpoch { given, current }) }
}

impl Node for Honest {
    fn decide(&mut self, input: &Input, now: Moment) -> Decided {
        self.ledger.advance(now);
        let mut decided = Decided::default();
        match input {
            Input::Call { call, arrived } => decided.answer = self.answer(call, *arrived, now),
            Input::Cancel(id) => {
                let ticket = self.waiting.iter().find(|(_, call)| call.id == *id).map(|(ticket, _)| *ticket);
                if let Some(ticket) = ticket {
                    self.queue.cancel(ticket);
                    self.waiting.remove(&ticket);
                }
            }
            Input::Attached(session) => {
                self.sessions.insert(*session);
            }
            Input::SessionLost(session) => {
                self.sessions.remove(session);
                self.ledger.session_lost(*session, now);
            }
            Input::StartScrub => self.scrubbing.extend(self.ledger.next_scrub(SCRUB_PAGES)),
            Input::EndScrub => {
                if let Some(job) = self.scrubbing.pop() {
                    decided.scrubbed = Some(job.extent());
                    self.ledger.scrubbed(job);
                }
            }
            Input::Time => {}
        }
        decided.served = self.serve(now);
        decided
    }

    fn seen(&self) -> Seen {
        Seen {
            capacity: self.ledger.capacity(None, &[]).expect("no lengths were asked about"),
            leases: self.ledger.list(None, None, usize::MAX),
            fault: self.ledger.fault().map(ToString::to_string),
        }
    }

    fn waiting(&self) -> Vec<CallId> {
        self.waiting.values().map(|call| call.id).collect()
    }

    fn scrub_jobs(&self) -> usize {
        self.scrubbing.len()
    }
}
