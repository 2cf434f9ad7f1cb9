//! What a holder does with its lease: commit, renew, extend, publish, release.

use std::sync::Arc;
use std::time::Duration;

use super::admit::{check_pools, pages_of};
use super::core::Ledger;
use super::lease::{Epoch, Holder, Lease, LeaseId, LeaseState, SessionId};
use super::pools::{Amounts, Pool};
use super::refusal::Refusal;
use super::request::{tenant_or_default, ttl_problem};
use crate::env::Moment;
use crate::error::{Problem, Problems};
use crate::journal::Entry;
use crate::limits::MAX_CONTEXT_TOKENS;
use crate::pages::{Extent, Extents, Hits, PageHash};
use crate::units::Tokens;

/// Who commits a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitBy {
    /// An attached engine: the lease lives as long as its session.
    Session(SessionId),
    /// A router: the lease lives until it is not renewed for this long (`None`: the node's default).
    Router {
        /// Life without a renewal.
        ttl: Option<Duration>,
    },
}

/// What a release did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Everything is free again.
    Freed,
    /// Its engine, or who fills its pages, may still be writing: everything is free when they say that they are done, or
    /// after the quarantine bound.
    Quarantined,
    /// There was nothing to give back.
    Already,
}

impl Ledger {
    /// Puts a reservation to use. Repeating it changes nothing; an engine may take over what a router committed, but
    /// never what another session holds: that one may be moving the pages, and a release by the new holder would free
    /// them under it.
    ///
    /// # Errors
    /// [`Refusal::LeaseNotFound`], [`Refusal::OtherTenant`], [`Refusal::StaleEpoch`], [`Refusal::Malformed`], and
    /// [`Refusal::WrongState`] after its end or while another session holds it.
    pub fn commit(
        &mut self,
        id: LeaseId,
        tenant: Option<&str>,
        epoch: Epoch,
        by: CommitBy,
        now: Moment,
    ) -> Result<Lease, Refusal> {
        let slot = self.living(id, tenant, epoch, now)?;
        let (holder, ttl) = match by {
            CommitBy::Session(session) => (Holder::Session(session), None),
            CommitBy::Router { ttl } => (Holder::Router, Some(checked_ttl(ttl)?.unwrap_or(self.config.router_ttl))),
        };
        let record = self.record_mut(slot);
        let kept = match (record.holder, holder) {
            (Some(Holder::Session(held)), Holder::Session(asking)) if held != asking => {
                let remedy = "another session holds it: admit anew, or reclaim it once that session is gone";
                return Err(Refusal::WrongState { id, state: record.state, remedy });
            }
            (Some(held), _) => held == holder || holder == Holder::Router,
            (None, _) => false,
        };
        if !kept {
            record.holder = Some(holder);
            record.ttl = ttl.unwrap_or_default();
            self.enter_state(slot, LeaseState::Committed, ttl.map(|ttl| now.saturating_add(ttl)));
            self.settle();
        }
        Ok(self.view(self.record(slot)))
    }

    /// Puts off a lease's end: `ttl` from now, or as long as it was given before. A session's lease has no end.
    ///
    /// # Errors
    /// As [`Ledger::commit`].
    pub fn renew(
        &mut self,
        id: LeaseId,
        tenant: Option<&str>,
        epoch: Epoch,
        ttl: Option<Duration>,
        now: Moment,
    ) -> Result<Lease, Refusal> {
        let ttl = checked_ttl(ttl)?;
        let slot = self.living(id, tenant, epoch, now)?;
        let record = self.record_mut(slot);
        if record.ends.is_some() {
            let other = ttl.is_some_and(|ttl| ttl != record.ttl);
            record.ttl = ttl.unwrap_or(record.ttl);
            let ends = Some(now.saturating_add(record.ttl));
            record.ends = ends;
            self.deadlines.set(slot, ends);
            if other {
                self.note_standing(slot);
            }
            self.settle();
        }
        Ok(self.view(self.record(slot)))
    }

    /// Grows a lease to a whole length of `tokens`, in place where the pages behind it are free. A length it has
    /// already is granted at once.
    ///
    /// # Errors
    /// As [`Ledger::commit`], and as [`Ledger::admit`] for what is added. A refusal leaves the lease as it was.
    pub fn extend(
        &mut self,
        id: LeaseId,
        tenant: Option<&str>,
        epoch: Epoch,
        tokens: u64,
        now: Moment,
    ) -> Result<Lease, Refusal> {
        if !(1..=MAX_CONTEXT_TOKENS).contains(&tokens) {
            let remedy = format!("give a number from 1 to {MAX_CONTEXT_TOKENS}");
            let problem = Problem::new("tokens", tokens, "must be a possible length", remedy);
            return Err(Refusal::Malformed(Problems::one(problem)));
        }
        let slot = self.living(id, tenant, epoch, now)?;
        let tokens = Tokens::new(tokens);
        let record = self.record(slot);
        if tokens <= record.tokens {
            return Ok(self.view(record));
        }
        if let Some(fault) = &self.fault {
            return Err(Refusal::Faulted(fault.clone()));
        }
        let owner = record.tenant;
        let demand = self.config.capacity.demand(tokens);
        let mut more = Amounts::ZERO;
        for pool in Pool::ALL {
            more[pool] = demand[pool] - record.demand[pool];
        }
        self.check_limits(tokens, &demand, Some(owner))?;
        self.check_quota(&more, Some(owner))?;
        if let Err(refusal) = check_pools(&more, Hits::default(), |pool| self.available(pool, Some(owner))) {
            self.scrub_for(owner, &refusal);
            return Err(refusal);
        }

        let mut own = std::mem::take(&mut self.record_mut(slot).own);
        let before = own.pages() as usize;
        let taken = self.pages.reserve(owner, pages_of(more), 0, &mut own);
        debug_assert!(taken, "check_pools has just counted these pages");
        self.log.note(|| {
            let added = own.page_numbers().skip(before).map(|page| Extent::new(page, 1)).collect();
            Entry::Extended { id, tokens, added }
        });
        let record = self.record_mut(slot);
        record.own = own;
        record.tokens = tokens;
        record.demand = demand;
        for pool in Pool::ALL {
            record.own_amounts[pool] += more[pool];
        }
        let state = record.state;
        self.books.enter(state, &more);
        self.tenants.charge(owner, &more, 0);
        self.settle();
        Ok(self.view(self.record(slot)))
    }

    /// Pages of a committed lease, from its page `first` on, are durable in host memory under these hashes: their
    /// prefix may be shared. Returns how many are new to the index; a prefix that is known already stays where it is.
    ///
    /// # Errors
    /// As [`Ledger::commit`]; [`Refusal::Malformed`] for pages the lease does not have or tokens do not fill.
    pub fn publish(
        &mut self,
        id: LeaseId,
        epoch: Epoch,
        first: u32,
        hashes: &[PageHash],
        now: Moment,
    ) -> Result<u32, Refusal> {
        let slot = self.living(id, None, epoch, now)?;
        let record = self.record(slot);
        if record.state != LeaseState::Committed {
            return Err(Refusal::WrongState { id, state: record.state, remedy: "commit it before publishing" });
        }
        let full_pages = record.tokens.get() / self.config.capacity.page_tokens;
        if u64::from(first) + hashes.len() as u64 > full_pages {
            let rule = format!("must name full pages of the lease, which has {full_pages}");
            let value = format!("{} pages from page {first}", hashes.len());
            return Err(Refusal::Malformed(Problems::one(Problem::new("hashes", value, rule, "publish fewer"))));
        }
        let (owner, shared) = (record.tenant, record.shared.pages());
        // Pages that it shares are in the index: what is said of them is passed over.
        let (place, hashes_left) =
            (first.max(shared), &hashes[hashes.len().min(shared.saturating_sub(first) as usize)..]);
        let after = record.place_before(place);
        let count = u32::try_from(hashes_left.len()).unwrap_or(u32::MAX);
        let own = record.own.part(place - shared, count).collect::<Extents>();
        let (fresh, tip) = self.pages.publish(owner, own.iter(), (place, after), hashes_left);
        let sealed = fresh.pages();
        self.books.shared(sealed.into());
        let record = self.record_mut(slot);
        record.tip = tip;
        let before = record.durable;
        if first <= record.durable {
            let end = u64::from(first) + hashes.len() as u64;
            // At most the full pages of the lease, which are `u32`.
            record.durable = record.durable.max(u32::try_from(end).unwrap_or(u32::MAX));
        }
        let durable = record.durable;
        if sealed > 0 {
            self.log.note_sealed(id, &self.pages, &fresh);
        }
        if durable > before {
            self.log.note(|| Entry::Durable { id, pages: durable });
        }
        if sealed > 0 {
            let record = self.record_mut(slot);
            record.published = true;
            record.own_amounts[Pool::HostPages] -= u64::from(sealed);
            self.settle();
        }
        Ok(sealed)
    }

    /// Gives everything back. Never fails for its epoch, nor for a lease that is gone. A lease that an engine holds
    /// is free at once only when that engine's session releases it, and one that others fill only when they are done.
    ///
    /// # Errors
    /// [`Refusal::OtherTenant`] alone.
    pub fn release(
        &mut self,
        id: LeaseId,
        tenant: Option<&str>,
        session: Option<SessionId>,
        now: Moment,
    ) -> Result<Released, Refusal> {
        match self.find_now(id, tenant, now) {
            Ok(slot) => Ok(self.release_slot(slot, session, now)),
            Err(Refusal::LeaseNotFound { .. }) => Ok(Released::Already),
            Err(refusal) => Err(refusal),
        }
    }

    /// As [`Ledger::release`], by the name the caller gave its request.
    pub fn release_request(
        &mut self,
        request_id: &Arc<str>,
        tenant: &str,
        session: Option<SessionId>,
        now: Moment,
    ) -> Released {
        self.advance(now);
        let tenant = self.tenants.find(tenant_or_default(tenant));
        if let Some(slot) = tenant.and_then(|tenant| self.find_request(tenant, request_id)) {
            self.end_if_over(slot, now);
        }
        match tenant.and_then(|tenant| self.find_request(tenant, request_id)) {
            Some(slot) => self.release_slot(slot, session, now),
            None => Released::Already,
        }
    }

    fn release_slot(&mut self, slot: u32, session: Option<SessionId>, now: Moment) -> Released {
        let filled = self.filled_by_others(slot, session);
        let record = self.record(slot);
        let released = match (record.holder, record.state) {
            (Some(Holder::Session(holder)), state) if session != Some(holder) => {
                if state == LeaseState::Quarantined {
                    return Released::Quarantined;
                }
                self.quarantine(slot, now);
                Released::Quarantined
            }
            (_, state) if filled => {
                // The holder has let go; only those who still write keep the pages.
                self.record_mut(slot).holder = None;
                match state {
                    LeaseState::Quarantined => self.note_standing(slot),
                    _ => self.quarantine(slot, now),
                }
                Released::Quarantined
            }
            _ => {
                if session.is_none() {
                    self.note_loss(self.record(slot).id, true);
                }
                self.remove(slot);
                Released::Freed
            }
        };
        self.settle();
        released
    }

    /// Whether others than the one who releases it still write to its pages.
    fn filled_by_others(&mut self, slot: u32, session: Option<SessionId>) -> bool {
        let fillers = &mut self.record_mut(slot).fillers;
        let before = fillers.len();
        fillers.retain(|filler| session != Some(*filler));
        let (fewer, filled) = (fillers.len() < before, !fillers.is_empty());
        if fewer {
            self.note_fillers(slot);
        }
        filled
    }

    /// The slot of a lease that is this tenant's, of this epoch, and not past its end.
    pub(super) fn living(
        &mut self,
        id: LeaseId,
        tenant: Option<&str>,
        epoch: Epoch,
        now: Moment,
    ) -> Result<u32, Refusal> {
        let slot = self.find_now(id, tenant, now)?;
        if epoch != self.epoch {
            return Err(Refusal::StaleEpoch { given: epoch, current: self.epoch });
        }
        match self.record(slot).state {
            LeaseState::Reserved | LeaseState::Committed => Ok(slot),
            state => Err(Refusal::WrongState { id, state, remedy: "it is past its end: release it and admit anew" }),
        }
    }
}

fn checked_ttl(ttl: Option<Duration>) -> Result<Option<Duration>, Refusal> {
    match ttl.and_then(|ttl| ttl_problem("ttl", ttl)) {
        Some(problem) => Err(Refusal::Malformed(Problems::one(problem))),
        None => Ok(ttl),
    }
}
