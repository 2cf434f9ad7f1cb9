//! Requests that wait for room: first come, first served, within a priority.
//!
//! ```text
//!   offer ──► nobody ahead and it fits? ──► lease
//!                     │ no, and it may wait
//!                     ▼
//!   priority 5:  a  b          a is the head: while it waits for a busy pool, nobody behind it is served,
//!   priority 0:  c  d  e       or a long request would starve behind short ones.
//! ```
//! One waiter is passed over without holding up the rest: one whose *own tenant* is at its quota. A newcomer overtakes
//! only waiters of lower priority, and those that it takes nothing from: what is kept for its own tenant is not what they
//! wait for, so a full line of one tenant never keeps another from its floor. Who may not wait and may not overtake is
//! told what the head waits for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::admit::Granted;
use super::ahead::Head;
use super::capacity::Capacity;
use super::core::Ledger;
use super::refusal::Refusal;
use super::request::{AdmitRequest, tenant_or_default};
use crate::env::Moment;
use crate::error::{Problem, Problems};
use crate::limits::{MAX_WAIT, MAX_WAITERS};

/// Names one waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    place: Place,
}

/// Order of service: higher priority first, then order of arrival.
type Place = (Reverse<i32>, u64);

/// What an offer came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It was granted at once.
    Granted(Granted),
    /// It waits; [`WaitQueue::serve`] or [`WaitQueue::cancel`] ends that.
    Waiting(Ticket),
}

/// The end of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Who waited.
    pub ticket: Ticket,
    /// What it got: a lease, or the refusal that stood when its time was over.
    pub outcome: Result<Granted, Refusal>,
}

#[derive(Debug)]
struct Waiter {
    request: AdmitRequest,
    until: Moment,
    last: Refusal,
}

/// The requests that wait, at most [`MAX_WAITERS`] of them, and of one tenant at most as many as places are free.
#[derive(Debug, Default)]
pub struct WaitQueue {
    waiters: BTreeMap<Place, Waiter>,
    deadlines: BTreeSet<(Moment, Place)>,
    by_tenant: BTreeMap<Arc<str>, BTreeSet<Place>>,
    arrivals: u64,
    /// The ledger's sequence at which every waiter was refused: until it changes, asking again is idle.
    refused_at: Option<u64>,
}

impl WaitQueue {
    /// Nobody waits.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// When the next waiter's time is over.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|(until, _)| *until)
    }

    /// Whether one more request of this tenant may wait: it has fewer places than are free, so that a tenant that fills
    /// the line leaves places for the next one.
    pub fn has_place(&self, tenant: &str) -> bool {
        let free = MAX_WAITERS.saturating_sub(self.waiters.len() as u64);
        let tenant = tenant_or_default(tenant);
        (self.by_tenant.get(tenant).map_or(0, BTreeSet::len) as u64) < free
    }

    /// Grants a request if nobody of its priority or a higher one waits and it fits; else lets it wait up to `wait`.
    ///
    /// # Errors
    /// Any refusal that time does not mend; with no time to wait, or no place ([`WaitQueue::has_place`]), any refusal.
    pub fn offer(
        &mut self,
        ledger: &mut Ledger,
        request: AdmitRequest,
        wait: Duration,
        now: Moment,
    ) -> Result<Offer, Refusal> {
        self.offer_for_zeroes(ledger, request, wait, Duration::ZERO, now)
    }

    /// As [`WaitQueue::offer`]; a request that would not wait, and lacks nothing but zeroes, waits up to `for_zeroes`.
    ///
    /// # Errors
    /// As [`WaitQueue::offer`].
    pub fn offer_for_zeroes(
        &mut self,
        ledger: &mut Ledger,
        request: AdmitRequest,
        wait: Duration,
        for_zeroes: Duration,
        now: Moment,
    ) -> Result<Offer, Refusal> {
        if wait > MAX_WAIT {
            let problem =
                Problem::new("wait", format!("{wait:?}"), "must be in range", format!("give at most {MAX_WAIT:?}"));
            return Err(Refusal::Malformed(Problems::one(problem)));
        }
        let tried = if self.blocking_ahead_of(ledger, &request).is_some() {
            // Whoever is ahead waits for a busy pool. What the newcomer may still be told is what needs no room.
            self.validate(ledger, &request, now)
        } else {
            ledger.admit(&request, now)
        };
        let refusal = match tried {
            Ok(granted) => return Ok(Offer::Granted(granted)),
            Err(refusal) if !refusal.passes_with_time() => return Err(refusal),
            Err(refusal) => refusal,
        };
        let zeroes_will_do = wait.is_zero() && ledger.lacks_only_zeroes(request.tenant_name(), &refusal);
        let wait = if zeroes_will_do { for_zeroes } else { wait };
        if wait.is_zero() || !self.has_place(request.tenant_name()) {
            return Err(refusal);
        }
        self.arrivals += 1;
        let place = (Reverse(request.priority), self.arrivals);
        let until = now.saturating_add(wait);
        self.deadlines.insert((until, place));
        self.by_tenant.entry(request.tenant_name().into()).or_default().insert(place);
        self.waiters.insert(place, Waiter { request, until, last: refusal });
        Ok(Offer::Waiting(Ticket { place }))
    }

    /// What [`WaitQueue::offer`] would answer a request that does not wait. Reserves nothing.
    ///
    /// # Errors
    /// As [`WaitQueue::offer`].
    pub fn validate(&self, ledger: &mut Ledger, request: &AdmitRequest, now: Moment) -> Result<Granted, Refusal> {
        let granted = ledger.validate(request, now)?;
        match self.blocking_ahead_of(ledger, request) {
            Some(pending) if !granted.repeated => Err(pending),
            _ => Ok(granted),
        }
    }

    /// Grants all of several requests or none, as [`Ledger::admit_all`], but to nobody who would overtake a waiter.
    ///
    /// # Errors
    /// The place of the first request that does not fit with those before it, or may not go first, and why.
    pub fn admit_all(
        &mut self,
        ledger: &mut Ledger,
        requests: &[AdmitRequest],
        now: Moment,
    ) -> Result<Vec<Granted>, (usize, Refusal)> {
        for (place, request) in requests.iter().enumerate() {
            if self.blocking_ahead_of(ledger, request).is_some() {
                self.validate(ledger, request, now).map_err(|refusal| (place, refusal))?;
            }
        }
        ledger.admit_all(requests, now)
    }

    /// Ends the waits that are over, and serves those behind them that fit now, in order. Call it after anything
    /// that frees capacity, and when [`WaitQueue::next_deadline`] comes.
    pub fn serve(&mut self, ledger: &mut Ledger, now: Moment) -> Vec<Served> {
        let mut served = Vec::new();
        while let Some((_, place)) = self.deadlines.first().copied().filter(|(until, _)| *until <= now) {
            if let Some(waiter) = self.take(place) {
                served.push(Served { ticket: Ticket { place }, outcome: Err(waiter.last) });
                self.refused_at = None;
            }
        }
        ledger.advance(now);
        if self.refused_at == Some(ledger.sequence()) {
            return served;
        }
        let mut from = None;
        while let Some((place, waiter)) = self.next_after(from) {
            from = Some(place);
            match ledger.admit(&waiter.request, now) {
                Err(refusal) if refusal.passes_with_time() => {
                    let blocks = matches!(refusal, Refusal::PoolBusy { .. });
                    waiter.last = refusal;
                    if blocks {
                        if let Some(head) = ledger.as_head(&waiter.request, &waiter.last) {
                            self.serve_from_floors(ledger, &head, now, &mut served);
                        }
                        break;
                    }
                }
                outcome => {
                    self.take(place);
                    served.push(Served { ticket: Ticket { place }, outcome });
                }
            }
        }
        self.refused_at = Some(ledger.sequence());
        served
    }

    /// While the head waits, serves those whose tenants have room of their own: each tenant's in their order.
    fn serve_from_floors(&mut self, ledger: &mut Ledger, head: &Head, now: Moment, served: &mut Vec<Served>) {
        for tenant in ledger.tenants_with_unused_floors() {
            while let Some(place) = self.by_tenant.get(&tenant).and_then(|places| places.first()).copied() {
                let Some(waiter) = self.waiters.get_mut(&place) else { break };
                if !ledger.takes_nothing_from(&waiter.request, head) {
                    break;
                }
                match ledger.admit(&waiter.request, now) {
                    Err(refusal) if refusal.passes_with_time() => {
                        waiter.last = refusal;
                        break;
                    }
                    outcome => {
                        self.take(place);
                        served.push(Served { ticket: Ticket { place }, outcome });
                    }
                }
            }
        }
    }

    /// Ends a wait whose caller has gone. `false` if it was over already.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        self.refused_at = None;
        self.take(ticket.place).is_some()
    }

    /// What the first waiter ahead of such a newcomer waits for, passing over those at their quota; `None` where the
    /// newcomer takes nothing from it.
    fn blocking_ahead_of(&self, ledger: &Ledger, newcomer: &AdmitRequest) -> Option<Refusal> {
        let (_, head) = self.head_before(newcomer.priority)?;
        let passes =
            ledger.as_head(&head.request, &head.last).is_some_and(|it| ledger.takes_nothing_from(newcomer, &it));
        (!passes).then(|| head.last.clone())
    }

    /// The first waiter that a newcomer of this priority would be behind, passing over those at their quota.
    fn head_before(&self, priority: i32) -> Option<(Ticket, &Waiter)> {
        let mut ahead = self.waiters.range(..=(Reverse(priority), u64::MAX));
        let found = ahead.find(|(_, waiter)| matches!(waiter.last, Refusal::PoolBusy { .. }));
        found.map(|(place, waiter)| (Ticket { place: *place }, waiter))
    }

    /// Whom a newcomer of priority 0 finds ahead of it.
    pub fn head(&self) -> Option<Ticket> {
        self.head_before(0).map(|(ticket, _)| ticket)
    }

    /// The node as a newcomer of priority 0 finds it: as [`Ledger::capacity`], less what is kept for those who wait.
    /// Exact, but for the moment in which several wait for zeroes alone: of these the first is counted.
    ///
    /// # Errors
    /// As [`Ledger::capacity`].
    pub fn capacity(&self, ledger: &Ledger, tenant: Option<&str>, lengths: &[u64]) -> Result<Capacity, Problems> {
        let head = self.head_before(0).and_then(|(_, head)| ledger.as_head(&head.request, &head.last));
        ledger.capacity_behind(head.as_ref(), tenant, lengths)
    }

    fn next_after(&mut self, from: Option<Place>) -> Option<(Place, &mut Waiter)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let start = from.map_or(Unbounded, Excluded);
        self.waiters.range_mut((start, Unbounded)).next().map(|(place, waiter)| (*place, waiter))
    }

    fn take(&mut self, place: Place) -> Option<Waiter> {
        let waiter = self.waiters.remove(&place)?;
        self.deadlines.remove(&(waiter.until, place));
        let tenant = waiter.request.tenant_name();
        if let Some(places) = self.by_tenant.get_mut(tenant) {
            places.remove(&place);
            if places.is_empty() {
                self.by_tenant.remove(tenant);
            }
        }
        Some(waiter)
    }
}
