//! Admit, with its bounded wait.
//!
//! ```text
//!  offer ─► granted / refused for good / busy and no wait ────────────► answer
//!    └────► waiting ─┬─ served ───────────────────────────────────────► answer
//!                    ├─ wait over: busy, with the node as it is ──────► answer
//!                    ├─ the call's deadline before that: DEADLINE ────► answer
//!                    └─ caller gone ─► out of the queue; a lease that nobody has seen is given back
//! ```
//! What becomes of a granted lease on its way to the caller is [`handover`](crate::handover)'s.
//! Who waits and who is served next is decided by [`WaitQueue`](hisparse_core::ledger::WaitQueue); here is only who is told.

use std::sync::Arc;
use std::time::Duration;

use hisparse_core::env::{Clock, Moment};
use hisparse_core::ledger::{AdmitRequest, Granted, Offer, Ticket};
use hisparse_core::limits::{MAX_WAITERS, SCRUB_PATIENCE};
use tokio::sync::oneshot;

use crate::error::Refusal;
use crate::handover::Handover;
use crate::layers::deadline::CallTime;
use crate::meeting;
use crate::metrics::Admitted;
use crate::node::{Answer, Node, State};
use crate::proto;

/// Between two tries of a call that has no place in the line and lacks nothing but zeroes.
const ZEROING_REST: Duration = Duration::from_millis(2);

/// What several requests come to.
pub(crate) struct Several {
    pub(crate) answers: Vec<Result<Granted, Refusal>>,
    /// The node after the last grant.
    pub(crate) capacity: proto::Capacity,
    /// Guards of what was granted.
    pub(crate) handovers: Vec<Handover>,
}

/// What a first try comes to.
#[allow(clippy::large_enum_variant)] // moved once; a box would be an allocation in every Admit
enum Tried {
    Answered(Answer),
    Waiting(Ticket, oneshot::Receiver<Answer>),
}

impl Node {
    /// Grants, now or within `wait`; or says why not.
    ///
    /// # Errors
    /// Any refusal.
    pub(crate) async fn admit(self: &Arc<Self>, request: AdmitRequest, wait: Duration, call: CallTime) -> Answer {
        let answer = self.admit_or_wait(request, wait, call).await;
        self.count(answer.as_ref().map(|(granted, _)| granted), call);
        answer
    }

    /// Guards what was just granted until its caller has it.
    pub(crate) fn hand_over<'a>(self: &Arc<Self>, granted: impl IntoIterator<Item = &'a Granted>) -> Option<Handover> {
        let fresh = granted.into_iter().filter(|granted| !granted.repeated);
        let leases: Vec<_> = fresh.filter_map(|granted| granted.lease.id).collect();
        (!leases.is_empty()).then(|| Handover::new(self, leases))
    }

    async fn admit_or_wait(self: &Arc<Self>, request: AdmitRequest, wait: Duration, call: CallTime) -> Answer {
        let deadline = call.deadline(wait);
        let (tried, until) = self.decide(Some(deadline), |state, now| {
            let left = deadline.saturating_since(now);
            let tried = state.try_admit(request, wait.min(left), SCRUB_PATIENCE.min(left), now, self);
            // One that does not wait and yet is in line waits for zeroes.
            let wait = if wait.is_zero() { SCRUB_PATIENCE } else { wait };
            (tried, now.saturating_add(wait).min(deadline))
        })?;
        match tried {
            Tried::Answered(answer) => answer,
            Tried::Waiting(ticket, answer) => {
                Waiting::new(self, ticket, answer, call).outcome(until, until == deadline).await
            }
        }
    }

    /// Grants all of several requests, in one step, or none. None waits, but for zeroes.
    ///
    /// # Errors
    /// Those that stop the whole call, and [`Refusal::OfBatch`].
    pub(crate) async fn admit_all(
        &self,
        requests: &[AdmitRequest],
        call: CallTime,
    ) -> Result<(Vec<Granted>, proto::Capacity), Refusal> {
        let decided = self.decide_for_zeroes(call.deadline(Duration::ZERO), |state, now| {
            if let Err(refusal) = state.grants_at_all() {
                return (Err(refusal), false);
            }
            match state.queue.admit_all(&mut state.ledger, requests, now) {
                Ok(granted) => {
                    for (id, repeated) in
                        granted.iter().filter_map(|granted| granted.lease.id.zip(Some(granted.repeated)))
                    {
                        state.note_taker(id, repeated);
                    }
                    (Ok((granted, state.capacity(now, &self.clock))), false)
                }
                Err((place, refusal)) => {
                    let zeroes_will_do = state.ledger.lacks_only_zeroes(requests[place].tenant_name(), &refusal);
                    let cause = Box::new(state.refused(refusal, now, &self.clock));
                    (Err(Refusal::OfBatch { place, cause }), zeroes_will_do)
                }
            }
        });
        let answer = decided.await.flatten();
        match &answer {
            Ok((granted, _)) => granted.iter().for_each(|granted| self.count(Ok(granted), call)),
            Err(refusal) => requests.iter().for_each(|_| self.count(Err(refusal), call)),
        }
        answer
    }

    /// Decides, and again while nothing is missing but zeroes, which the decision says beside its answer: for as long as
    /// an Admit has patience for them.
    ///
    /// # Errors
    /// [`Refusal::Deadline`], [`Refusal::Poisoned`].
    pub(crate) async fn decide_for_zeroes<T>(
        &self,
        deadline: Moment,
        mut decision: impl FnMut(&mut State, Moment) -> (T, bool),
    ) -> Result<T, Refusal> {
        let mut until = None;
        loop {
            let (answer, zeroes_will_do, now) = self.decide(Some(deadline), |state, now| {
                let (answer, zeroes_will_do) = decision(state, now);
                (answer, zeroes_will_do, now)
            })?;
            if !zeroes_will_do || now >= *until.get_or_insert(now.saturating_add(SCRUB_PATIENCE)) {
                return Ok(answer);
            }
            meeting::rest(ZEROING_REST).await;
        }
    }

    /// Decides on several requests in their order, each by itself, with nothing in between. None waits, but for zeroes.
    ///
    /// # Errors
    /// Those that stop the whole call; each request's own refusal is in its place.
    pub(crate) async fn admit_each(
        self: &Arc<Self>,
        requests: Vec<AdmitRequest>,
        call: CallTime,
    ) -> Result<Several, Refusal> {
        let deadline = call.deadline(Duration::ZERO);
        let (tried, mut capacity, until) = self.decide(Some(deadline), |state, now| {
            let patience = SCRUB_PATIENCE.min(deadline.saturating_since(now));
            let tried =
                requests.into_iter().map(|request| state.try_admit(request, Duration::ZERO, patience, now, self));
            let tried: Vec<_> = tried.collect();
            (tried, state.capacity(now, &self.clock), now.saturating_add(patience))
        })?;
        // Every grant has its guard before anything is awaited: the call may be cancelled there.
        let mut handovers = Vec::new();
        let mut begun = Vec::with_capacity(tried.len());
        for tried in tried {
            begun.push(match tried {
                Tried::Answered(answer) => {
                    handovers.extend(answer.as_ref().ok().and_then(|(granted, _)| self.hand_over([granted])));
                    Ok(answer.map(|(granted, _)| granted))
                }
                Tried::Waiting(ticket, answer) => Err(Waiting::new(self, ticket, answer, call)),
            });
        }
        let mut answers = Vec::with_capacity(begun.len());
        for begun in begun {
            let answer = match begun {
                Ok(answer) => answer,
                Err(waiting) => waiting.outcome(until, until == deadline).await.map(|(granted, seen)| {
                    handovers.extend(self.hand_over([&granted]));
                    capacity = seen;
                    granted
                }),
            };
            self.count(answer.as_ref(), call);
            answers.push(answer);
        }
        Ok(Several { answers, capacity, handovers })
    }

    /// What [`Node::admit`] would answer now, without waiting and without reserving anything.
    ///
    /// # Errors
    /// Any refusal.
    pub(crate) fn validate(&self, request: &AdmitRequest, call: CallTime) -> Answer {
        let decided = self.decide(Some(call.deadline(Duration::ZERO)), |state, now| {
            state.grants_at_all()?;
            match state.queue.validate(&mut state.ledger, request, now) {
                Ok(granted) => Ok((granted, state.capacity(now, &self.clock))),
                Err(refusal) => Err(state.refused(refusal, now, &self.clock)),
            }
        });
        let answer = decided.flatten();
        self.count(answer.as_ref().map(|(granted, _)| granted), call);
        answer
    }

    /// Counts a request that could not even be read.
    pub(crate) fn refuse_unread(&self, refusal: Refusal, call: CallTime) -> Answer {
        self.count(Err(&refusal), call);
        Err(refusal)
    }

    fn count(&self, answer: Result<&Granted, &Refusal>, call: CallTime) {
        let how = match answer {
            Ok(granted) if granted.repeated => Admitted::Repeated,
            Ok(granted) if granted.lease.id.is_none() => Admitted::Validated,
            Ok(_) => Admitted::Granted,
            Err(refusal) => Admitted::Refused(refusal),
        };
        self.counters().admitted(how, self.clock.now().saturating_since(call.arrived), call.trace);
    }
}

impl State {
    fn try_admit(
        &mut self,
        request: AdmitRequest,
        wait: Duration,
        for_zeroes: Duration,
        now: Moment,
        node: &Node,
    ) -> Tried {
        if let Err(refusal) = self.grants_at_all() {
            return Tried::Answered(Err(refusal));
        }
        let full = !self.queue.has_place(request.tenant_name());
        match self.queue.offer_for_zeroes(&mut self.ledger, request, wait, for_zeroes, now) {
            Ok(Offer::Granted(granted)) => {
                if let Some(id) = granted.lease.id {
                    self.note_taker(id, granted.repeated);
                }
                Tried::Answered(Ok((granted, self.capacity(now, &node.clock))))
            }
            Ok(Offer::Waiting(ticket)) => {
                let (sender, receiver) = oneshot::channel();
                self.waiting.insert(ticket, sender);
                Tried::Waiting(ticket, receiver)
            }
            Err(refusal) if refusal.passes_with_time() && full && !wait.is_zero() => {
                let what = if self.queue.len() as u64 >= MAX_WAITERS {
                    "waiting requests"
                } else {
                    "waiting requests, of one tenant as many as places are free,"
                };
                Tried::Answered(Err(Refusal::Overloaded { what, limit: MAX_WAITERS }))
            }
            Err(refusal) => Tried::Answered(Err(self.refused(refusal, now, &node.clock))),
        }
    }
}

/// A caller that waits. However it ends, dropped half-way included, nothing stays behind.
struct Waiting {
    node: Arc<Node>,
    ticket: Ticket,
    answer: oneshot::Receiver<Answer>,
    call: CallTime,
    done: bool,
}

impl Waiting {
    fn new(node: &Arc<Node>, ticket: Ticket, answer: oneshot::Receiver<Answer>, call: CallTime) -> Self {
        Self { node: Arc::clone(node), ticket, answer, call, done: false }
    }

    async fn outcome(mut self, until: Moment, until_deadline: bool) -> Answer {
        let answered = tokio::select! {
            biased;
            answered = &mut self.answer => answered,
            () = meeting::rest_until(self.node.clock.instant(until)) => {
                // A decision of any kind ends the waits that are over. Usually this one is the first to come.
                self.node.decide(None, |_, _| ())?;
                (&mut self.answer).await
            }
        };
        self.node.settled();
        // A sender that is gone without an answer went down with a decision.
        let answer = answered.unwrap_or(Err(Refusal::Poisoned));
        self.done = true;
        match answer {
            Err(Refusal::Busy { .. }) if until_deadline => Err(Refusal::Deadline),
            answer => answer,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let (ticket, node, answer) = (self.ticket, &self.node, &mut self.answer);
        // A poisoned node has no queue to leave.
        let _ = node.decide(None, |state, now| {
            state.queue.cancel(ticket);
            state.waiting.remove(&ticket);
            // Looked at under the lock: from here on nobody can answer any more.
            if let Ok(Ok((granted, _))) = answer.try_recv()
                && let Some(id) = granted.lease.id
            {
                state.take_back(id, now);
            }
        });
        let took = node.clock.now().saturating_since(self.call.arrived);
        node.counters().admitted(Admitted::Cancelled, took, self.call.trace);
    }
}
