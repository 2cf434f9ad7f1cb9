//! What the node's lock guards, and what is asked of it while it is held.
//!
//! ```text
//!  ledger ── grants ─► undelivered ─► the caller has it, or it is taken back
//!    ▲ ─ served when room comes ─ queue, and waiting: who is told
//!  pace: how soon to ask again      pool, stopping, learning: whether anything is granted at all
//! ```

use std::collections::{BTreeMap, BTreeSet};

use hisparse_core::env::Moment;
use hisparse_core::error::Problems;
use hisparse_core::ledger::{self, Granted, LeaseId, Ledger, Ticket, WaitQueue};
use tokio::sync::oneshot;

use crate::beginning::Start;
use crate::env::MachineClock;
use crate::error::Refusal;
use crate::pace::Pace;
use crate::pool_bytes::PoolBytes;
use crate::{proto, wire};

/// What a waiter is told: a grant with the node as it was right after, or why not.
pub(crate) type Answer = Result<(Granted, proto::Capacity), Refusal>;

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    pub(crate) queue: WaitQueue,
    /// Who is told what comes of a wait.
    pub(crate) waiting: BTreeMap<Ticket, oneshot::Sender<Answer>>,
    pub(crate) pace: Pace,
    /// Leases that are on their way to the caller they were granted to: see [`handover`](crate::handover).
    pub(crate) undelivered: BTreeSet<LeaseId>,
    pub(crate) stopping: bool,
    pub(crate) pool: PoolBytes,
    /// Where all of its bytes lie, where that is one node.
    pub(crate) numa_node: Option<u32>,
    /// How much it knew of the past when it began.
    pub(crate) start: Start,
    /// Until then leases may be in use that this node does not know: it grants nothing, and takes renewals and releases.
    pub(crate) learning_until: Option<Moment>,
    /// Room for the journal's records of one decision.
    pub(super) records: Vec<u8>,
}

impl State {
    /// The node now, as the wire shows it.
    pub(crate) fn capacity(&self, now: Moment, clock: &MachineClock) -> proto::Capacity {
        self.seen(None, &[]).map(|seen| wire::capacity(&seen, self.numa_node, clock.wall(now))).unwrap_or_default()
    }

    /// The node now, as a tenant finds it that asks for something: who waits is ahead of it, and where nothing is granted
    /// nothing fits.
    ///
    /// # Errors
    /// Lengths that no node could hold.
    pub(crate) fn seen(&self, tenant: Option<&str>, lengths: &[u64]) -> Result<ledger::Capacity, Problems> {
        let mut seen = self.queue.capacity(&self.ledger, tenant, lengths)?;
        if let Err(closed) = self.grants_at_all() {
            seen.largest_grant_tokens = 0;
            for fit in &mut seen.fits {
                (fit.count, fit.reason) = (0, closed.reason());
            }
        }
        Ok(seen)
    }

    /// What decides over a newcomer beside the books: whether anything is granted, and who waits ahead of it. A stop is
    /// not in it: watches end with it and need no last message.
    pub(super) fn outlook(&self) -> (PoolBytes, bool, Option<Ticket>) {
        (self.pool, self.learning_until.is_some(), self.queue.head())
    }

    /// A refusal of the ledger as callers are told it: what time may mend comes with a delay and the node as it is.
    pub(crate) fn refused(&self, refusal: ledger::Refusal, now: Moment, clock: &MachineClock) -> Refusal {
        if !refusal.passes_with_time() {
            return Refusal::Ledger(refusal);
        }
        let waiting = self.queue.len();
        let capacity = Box::new(self.capacity(now, clock));
        Refusal::Busy { refusal, waiting, retry: self.pace.retry_delay(waiting), capacity }
    }

    /// Nothing is granted while the server stops, nor before the pool's bytes are there.
    pub(crate) fn grants_at_all(&self) -> Result<(), Refusal> {
        match self.pool {
            _ if self.stopping => Err(Refusal::Stopping),
            _ if self.learning_until.is_some() => Err(Refusal::Learning),
            PoolBytes::Ready => Ok(()),
            missing => Err(Refusal::NoPool(missing)),
        }
    }

    /// Grants to those who wait what there is for them, and tells them.
    pub(super) fn serve_queue(&mut self, now: Moment, clock: &MachineClock) {
        if self.queue.is_empty() {
            return;
        }
        for served in self.queue.serve(&mut self.ledger, now) {
            let Some(waiter) = self.waiting.remove(&served.ticket) else { continue };
            let (answer, id) = match served.outcome {
                Ok(granted) => {
                    let id = granted.lease.id.inspect(|id| self.note_taker(*id, granted.repeated));
                    (Ok((granted, self.capacity(now, clock))), id)
                }
                Err(refusal) => (Err(self.refused(refusal, now, clock)), None),
            };
            if waiter.send(answer).is_err()
                && let Some(id) = id
            {
                self.take_back(id, now);
            }
        }
    }

    /// A lease got a taker: one that it is on its way to, or (`repeated`) another that asked for it again, after which
    /// it is no longer the first one's to give back.
    pub(crate) fn note_taker(&mut self, id: LeaseId, repeated: bool) {
        if repeated {
            self.undelivered.remove(&id);
        } else {
            self.undelivered.insert(id);
        }
    }

    /// The caller went away without its lease: nobody has ever seen it, so it is free at once.
    pub(crate) fn take_back(&mut self, id: LeaseId, now: Moment) {
        if self.undelivered.remove(&id) {
            // The only refusal there is names another tenant, and no tenant is named here.
            let _ = self.ledger.release(id, None, None, now);
        }
    }
}
