//! What callers of a plain run saw, written down for the linearizability checker.
//!
//! ```text
//!  sent ─────────► executed at the node ─────────► answered
//!   └ invoked            └ where the answer was lost, the interval ends here
//! ```
//! A call that never reached the node had no effect and is left out; one that reached it twice is there twice. What the
//! node said counts whether or not it was heard.

use std::collections::BTreeMap;

use hisparse_core::ledger::{CommitBy, Lease, LeaseId, LeaseState, Pool, Refusal, Released};

use crate::call::{Answer, Ask, Call, CallId, Input, Refused};
use crate::linear::check::Entry;
use crate::linear::node::{Gone, Got, Op};
use crate::node::{Decided, Seen};

#[derive(Debug)]
struct Sent {
    call: Call,
    at: u64,
    /// What the node said, when it said it, and when that was heard.
    executed: Vec<(u64, Answer, Option<u64>)>,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    sent: BTreeMap<CallId, Sent>,
    at_node: Vec<Entry<Op>>,
}

impl History {
    pub(crate) fn sent(&mut self, call: &Call, at: u64) {
        self.sent.insert(call.id, Sent { call: call.clone(), at, executed: Vec::new() });
    }

    pub(crate) fn executed(&mut self, call: CallId, answer: &Answer, at: u64) {
        if let Some(sent) = self.sent.get_mut(&call) {
            sent.executed.push((at, answer.clone(), None));
        }
    }

    /// The answer that was given at `said` was heard.
    pub(crate) fn answered(&mut self, call: CallId, said: u64, at: u64) {
        if let Some(sent) = self.sent.get_mut(&call)
            && let Some((.., heard)) = sent.executed.iter_mut().find(|(executed, ..)| *executed == said)
        {
            *heard = Some(at);
        }
    }

    pub(crate) fn restarted(&mut self, epoch: u64, at: u64) {
        self.at_node.push(Entry { op: Op::Restart { keeps: false, epoch }, invoked: at, answered: Some(at) });
    }

    /// What happened at the node that no recorded call asked for.
    pub(crate) fn stepped(&mut self, before: &Seen, after: &Seen, input: &Input, decided: &Decided, at: u64) {
        for lease in &before.leases {
            let now = after.leases.iter().find(|now| now.id == lease.id);
            let (Some(id), false) = (lease.id, asked_for(lease, input, decided)) else { continue };
            let request = lease.request_id.to_string();
            let op = match (lease.state, now) {
                (was, Some(now)) if was != LeaseState::Quarantined && now.state == LeaseState::Quarantined => {
                    Op::Quarantine { id: id.get(), request }
                }
                (LeaseState::Quarantined, Some(now)) if now.state == LeaseState::Committed => {
                    let Input::Call { call, .. } = input else { continue };
                    Op::Reclaim { id: id.get(), session: call.session.map_or(0, |session| session.0) }
                }
                (LeaseState::Quarantined, None) => Op::Free { id: id.get(), request },
                _ => continue,
            };
            self.at_node.push(Entry { op, invoked: at, answered: Some(at) });
        }
    }

    pub(crate) fn into_entries(self, page_tokens: u64) -> Vec<Entry<Op>> {
        let mut entries = self.at_node;
        for Sent { call, at: invoked, executed } in self.sent.into_values() {
            for (said, answer, heard) in executed {
                if let Some(op) = op(&call, &answer, page_tokens) {
                    entries.push(Entry { op, invoked, answered: Some(heard.unwrap_or(said)) });
                }
            }
        }
        entries
    }
}

/// Whether a recorded call did this to the lease.
fn asked_for(lease: &Lease, input: &Input, decided: &Decided) -> bool {
    let Input::Call { call, .. } = input else { return false };
    let Some(Answer::Released(Released::Freed | Released::Quarantined)) = &decided.answer else { return false };
    match &call.ask {
        Ask::Release { id, .. } => lease.id == Some(*id),
        Ask::ReleaseRequest { request_id, .. } => lease.request_id == *request_id,
        _ => false,
    }
}

fn got(answer: &Answer, lease: impl Fn(&Answer) -> Option<LeaseId>) -> Option<Got> {
    Some(match answer {
        Answer::Refused(Refused::Ledger(Refusal::PoolBusy { .. })) => Got::Busy,
        Answer::Refused(Refused::Ledger(refusal)) => {
            let about_lease = matches!(
                refusal,
                Refusal::StaleEpoch { .. } | Refusal::LeaseNotFound { .. } | Refusal::WrongState { .. }
            );
            return about_lease.then_some(Got::Refused);
        }
        answer => Got::Lease(lease(answer)?.get()),
    })
}

/// The checker's words for a call; `None` for one it has no words for, or that had no effect.
fn op(call: &Call, answer: &Answer, page_tokens: u64) -> Option<Op> {
    let of_lease = |answer: &Answer| match answer {
        Answer::Granted(granted) => granted.lease.id,
        Answer::Lease(lease) => lease.id,
        _ => None,
    };
    Some(match &call.ask {
        Ask::Admit { request, .. } => {
            let hisparse_core::ledger::Length::Tokens { prompt, generated, max_new } = request.length else {
                return None;
            };
            let pages = (prompt + generated + max_new).div_ceil(page_tokens);
            Op::Admit { request: request.request_id.to_string(), pages, got: got(answer, of_lease)? }
        }
        Ask::Commit { lease, by } => {
            let session = if let CommitBy::Session(session) = by { Some(session.0) } else { None };
            let done = match got(answer, of_lease)? {
                Got::Lease(_) => Some(true),
                Got::Unknown => None,
                Got::Busy | Got::Refused => Some(false),
            };
            Op::Commit { id: lease.id.get(), epoch: lease.epoch.get(), session, done }
        }
        Ask::Extend { lease, tokens } => {
            let pages = tokens.div_ceil(page_tokens);
            Op::Extend { id: lease.id.get(), epoch: lease.epoch.get(), pages, got: got(answer, of_lease)? }
        }
        Ask::Release { id, .. } => {
            let session = call.session.map(|session| session.0);
            Op::Release { id: id.get(), session, gone: gone(answer)? }
        }
        Ask::ReleaseRequest { request_id, .. } => {
            Op::ReleaseRequest { request: request_id.to_string(), gone: gone(answer)? }
        }
        Ask::GetCapacity => {
            let Answer::Capacity(capacity) = answer else { return None };
            let left = |pool: Pool| {
                let shown = capacity.pools.iter().find(|shown| shown.name == pool);
                shown.map(|shown| shown.free + shown.evictable + shown.scrubbing)
            };
            Op::GetCapacity {
                free_pages: left(Pool::HostPages)?,
                free_requests: left(Pool::Seats)?.min(left(Pool::RequestSlots)?),
                epoch: capacity.epoch.get(),
            }
        }
        _ => return None,
    })
}

fn gone(answer: &Answer) -> Option<Gone> {
    Some(match answer {
        Answer::Released(Released::Freed) => Gone::Freed,
        Answer::Released(Released::Quarantined) => Gone::Quarantined,
        Answer::Released(Released::Already) => Gone::Already,
        _ => return None,
    })
}
