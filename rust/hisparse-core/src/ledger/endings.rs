//! Ends that nobody asks for: time runs out, an engine dies, a transfer may still be under way.
//!
//! ```text
//!   ttl over ──► quarantined ── bound over, or confirmed ──► free
//!   session lost ──► quarantined ── reclaimed by its successor ──► committed
//! ```

use super::core::Ledger;
use super::lease::{Holder, Lease, LeaseId, LeaseState, SessionId};
use super::refusal::Refusal;
use crate::env::Moment;
use crate::journal::Entry;
use crate::limits::MAX_ENDINGS_PER_CALL;
use crate::pages::ScrubJob;

impl Ledger {
    /// Ends what has ended by `now`, at most [`MAX_ENDINGS_PER_CALL`] leases, the longest overdue first. Every other call
    /// does this first; call it when [`Ledger::next_deadline`] comes and nobody calls. A lease that a call names is ended
    /// in time whatever is overdue before it.
    pub fn advance(&mut self, now: Moment) {
        for _ in 0..MAX_ENDINGS_PER_CALL {
            let Some((_, slot)) = self.deadlines.first().filter(|(end, _)| *end <= now) else { return };
            self.end(slot, now);
        }
    }

    /// Ends a lease if its time is over, in whatever order.
    pub(super) fn end_if_over(&mut self, slot: u32, now: Moment) {
        if self.record(slot).ends.is_some_and(|ends| ends <= now) {
            self.end(slot, now);
        }
    }

    fn end(&mut self, slot: u32, now: Moment) {
        match self.record(slot).state {
            LeaseState::Quarantined => self.remove(slot),
            _ => self.quarantine(slot, now),
        }
        self.settle();
    }

    /// The engine's session closed: its leases are kept for its successor, or until the reclaim window is over. Returns how
    /// many.
    pub fn session_lost(&mut self, session: SessionId, now: Moment) -> usize {
        self.session_lost_in_part(session, usize::MAX, now)
    }

    /// As [`Ledger::session_lost`], for at most so many of its leases. Until the last one is done nobody gets a page of
    /// any of them, so other calls may come in between.
    pub fn session_lost_in_part(&mut self, session: SessionId, most: usize, now: Moment) -> usize {
        self.advance(now);
        let mut slots = self.slots_of(session, LeaseState::Committed);
        slots.truncate(most);
        for slot in &slots {
            self.quarantine_for(*slot, self.config.reclaim_window, now);
        }
        if !slots.is_empty() {
            self.settle();
        }
        slots.len()
    }

    /// The successor of a dead engine takes its leases over.
    pub fn reclaim(&mut self, dead: SessionId, successor: SessionId, now: Moment) -> Vec<Lease> {
        self.advance(now);
        let slots = self.slots_of(dead, LeaseState::Quarantined);
        self.hand_on(&slots, successor);
        slots.into_iter().map(|slot| self.view(self.record(slot))).collect()
    }

    /// These quarantined leases are the successor's.
    pub(super) fn hand_on(&mut self, slots: &[u32], successor: SessionId) {
        for slot in slots {
            self.record_mut(*slot).holder = Some(Holder::Session(successor));
            self.enter_state(*slot, LeaseState::Committed, None);
            self.remember_request(*slot);
        }
        if !slots.is_empty() {
            self.settle();
        }
    }

    /// Leases that this session keeps alive, in order of grant.
    pub fn held_by(&self, session: SessionId) -> Vec<Lease> {
        let slots = self.slots_of(session, LeaseState::Committed);
        slots.into_iter().map(|slot| self.view(self.record(slot))).collect()
    }

    /// Whether this session keeps the lease alive.
    ///
    /// # Errors
    /// [`Refusal::LeaseNotFound`]; [`Refusal::WrongState`] where another holds it, or nobody yet.
    pub fn check_held(&self, id: LeaseId, session: SessionId) -> Result<(), Refusal> {
        let record = self.record(self.find(id, None)?);
        if record.state == LeaseState::Committed && record.holder == Some(Holder::Session(session)) {
            return Ok(());
        }
        Err(Refusal::WrongState { id, state: record.state, remedy: "the engine that holds it commits it first" })
    }

    /// No transfer touches this quarantined lease's pages any more: they are free.
    ///
    /// # Errors
    /// [`Refusal::LeaseNotFound`]; [`Refusal::WrongState`] when it is not quarantined.
    pub fn confirm(&mut self, id: LeaseId, now: Moment) -> Result<(), Refusal> {
        let slot = self.find_now(id, None, now)?;
        match self.record(slot).state {
            LeaseState::Quarantined => {
                self.remove(slot);
                self.settle();
                Ok(())
            }
            state => {
                Err(Refusal::WrongState { id, state, remedy: "only a quarantined lease is confirmed; release it" })
            }
        }
    }

    /// The next pages to zero, at most `most`. Hand the job back to [`Ledger::scrubbed`].
    pub fn next_scrub(&mut self, most: u32) -> Option<ScrubJob> {
        self.pages.next_scrub(most)
    }

    /// Begins to zero up to `most` free pages that hold some tenant's bytes, before another asks for them; cached prefixes
    /// stay. Returns how many: 0 where there are none, or none among those that one call looks at.
    pub fn scrub_ahead(&mut self, most: u32) -> u32 {
        let Some(run) = self.pages.start_scrub_ahead(most) else { return 0 };
        self.note_scrubbing(&[run]);
        self.settle();
        run.pages
    }

    /// These pages are zeroed now and anyone's.
    pub fn scrubbed(&mut self, job: ScrubJob) {
        let run = job.extent();
        self.log.note(|| Entry::Scrubbed(run));
        self.pages.scrubbed(job);
        self.settle();
    }

    pub(super) fn quarantine(&mut self, slot: u32, now: Moment) {
        self.quarantine_for(slot, self.config.quarantine_bound, now);
    }

    fn quarantine_for(&mut self, slot: u32, bound: std::time::Duration, now: Moment) {
        self.forget_request(slot);
        let ends = now.saturating_add(bound);
        self.note_loss(self.record(slot).id, false);
        self.enter_state(slot, LeaseState::Quarantined, Some(ends));
    }

    fn slots_of(&self, session: SessionId, state: LeaseState) -> Vec<u32> {
        let held = |slot: &u32| {
            let record = self.record(*slot);
            record.state == state && record.holder == Some(Holder::Session(session))
        };
        let mut slots: Vec<u32> = self.live_slots().filter(held).collect();
        slots.sort_unstable_by_key(|slot| self.record(*slot).id);
        slots
    }
}
