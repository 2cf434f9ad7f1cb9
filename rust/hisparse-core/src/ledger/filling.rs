//! Processes that fill a lease's pages beside its holder, as a prefill process does.
//!
//! ```text
//!   fill ──► filled by a session ── its word, or its end ──► by nobody
//!                 │
//!                 └─ released, or over ──► quarantined ── the last one's word or end, the holder's too ──► free
//! ```
//! They keep no lease alive: they only keep its pages from everyone else until they have stopped writing, or until the
//! quarantine bound. The journal remembers them: a session that outlives its service may come back later than a release.

use super::core::Ledger;
use super::lease::{LeaseId, LeaseState, SessionId};
use super::refusal::Refusal;
use crate::env::Moment;

impl Ledger {
    /// This session is about to write to the lease's pages. Repeating it changes nothing.
    ///
    /// # Errors
    /// [`Refusal::LeaseNotFound`]; [`Refusal::WrongState`] after its end, when nothing may be written any more.
    pub fn fill(&mut self, id: LeaseId, session: SessionId, now: Moment) -> Result<(), Refusal> {
        let slot = self.living(id, None, self.epoch, now)?;
        let fillers = &mut self.record_mut(slot).fillers;
        if !fillers.contains(&session) {
            fillers.push(session);
            self.note_fillers(slot);
        }
        Ok(())
    }

    /// This session writes to the lease's pages no more. Never fails: a lease that is gone is filled by nobody.
    pub fn filled(&mut self, id: LeaseId, session: SessionId, now: Moment) {
        if let Ok(slot) = self.find_now(id, None, now) {
            self.fills_no_more(slot, session);
            self.settle();
        }
    }

    /// The session closed: it writes nowhere any more.
    pub fn filler_lost(&mut self, session: SessionId, now: Moment) {
        self.advance(now);
        let slots: Vec<u32> = self.live_slots().filter(|slot| self.record(*slot).fillers.contains(&session)).collect();
        for slot in slots {
            self.fills_no_more(slot, session);
        }
        self.settle();
    }

    /// Frees a quarantined lease that nobody holds once its last filler is done.
    fn fills_no_more(&mut self, slot: u32, session: SessionId) {
        let record = self.record_mut(slot);
        let before = record.fillers.len();
        record.fillers.retain(|filler| *filler != session);
        if record.fillers.len() == before {
            return;
        }
        let last = record.fillers.is_empty();
        if last && record.state == LeaseState::Quarantined && record.holder.is_none() {
            self.remove(slot);
        } else {
            self.note_fillers(slot);
        }
    }
}
