//! What services and the pool's keeper have the node do beside granting.
//!
//! ```text
//!  admin ─► drain, stop, overview     engine ─► reclaim      pool ─► scrub      lists, watches
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hisparse_core::env::Moment;
use hisparse_core::ledger::{Lease, Listing, SessionId, Walk};
use hisparse_core::pages::ScrubJob;

use super::Node;
use crate::error::Refusal;
use crate::proto;

/// Everything a scrape or an operator wants at a glance.
#[derive(Debug)]
pub(crate) struct Overview {
    pub(crate) capacity: proto::Capacity,
    pub(crate) leases: [(&'static str, u64); 3],
    pub(crate) waiters: usize,
}

impl Node {
    /// Pages to zero, at most so many, where there are some.
    pub(crate) fn next_scrub(&self, most: u32) -> Option<ScrubJob> {
        // Not a decision: it changes no count, and must not wake itself.
        self.lock().ok()?.ledger.next_scrub(most)
    }

    /// Begins to scrub up to `most` pages that nobody has asked for, unless some are being scrubbed.
    pub(crate) fn scrub_ahead(&self, most: u32) {
        // Looked at first, so that a node without stale pages decides nothing over and over.
        let wanted = self.lock().is_ok_and(|state| {
            let pages = state.ledger.pages();
            pages.counts().scrubbing == 0 && pages.stale() > 0
        });
        if wanted {
            // A poisoned node has no use for clean pages.
            let _ = self.decide(None, |state, _| state.ledger.scrub_ahead(most));
        }
    }

    /// Starts or ends draining; the leases still held.
    pub(crate) fn drain(&self, resume: bool, deadline: Moment) -> Result<(u64, proto::Capacity), Refusal> {
        self.decide(Some(deadline), |state, now| {
            state.ledger.set_draining(!resume);
            let counts = state.ledger.lease_counts();
            (counts.reserved + counts.committed + counts.quarantined, state.capacity(now, &self.clock))
        })
    }

    /// Whether no lease is out, as far as can be known; a node that stops grants no other.
    pub(crate) fn holds_nothing(&self) -> bool {
        let known = self.decide(None, |state, _| {
            let counts = state.ledger.lease_counts();
            state.learning_until.is_none() && counts.reserved + counts.committed + counts.quarantined == 0
        });
        // A poisoned node may hold anything.
        known.unwrap_or(false)
    }

    /// Grants nothing from now on and sends everyone away who waits: the server is stopping.
    pub(crate) fn stop(&self) {
        if let Some(hosting) = &self.hosting {
            hosting.stop();
        }
        // A poisoned node has nothing left to stop.
        let _ = self.decide(None, |state, _| {
            state.stopping = true;
            for (ticket, answer) in std::mem::take(&mut state.waiting) {
                state.queue.cancel(ticket);
                // A waiter that is gone needs no answer.
                let _ = answer.send(Err(Refusal::Stopping));
            }
        });
    }

    /// The node at a glance.
    pub(crate) fn overview(&self) -> Result<Overview, Refusal> {
        self.decide(None, |state, now| {
            let counts = state.ledger.lease_counts();
            Overview {
                capacity: state.capacity(now, &self.clock),
                leases: [
                    ("reserved", counts.reserved),
                    ("committed", counts.committed),
                    ("quarantined", counts.quarantined),
                ],
                waiters: state.queue.len(),
            }
        })
    }

    /// Hands the next slice of what `dead` left on to `successor`, while it lives, and gives what that one holds of the
    /// slice; `None` at the end.
    ///
    /// # Errors
    /// [`Refusal::NotAttached`]: the successor has gone too; [`Refusal::Deadline`], [`Refusal::Poisoned`].
    pub(crate) fn reclaim_in_part(
        &self,
        dead: SessionId,
        successor: SessionId,
        walk: &mut Walk,
        deadline: Option<Moment>,
    ) -> Result<Option<Vec<Lease>>, Refusal> {
        self.decide(deadline, |state, now| {
            self.sessions.commit_by(successor)?;
            Ok(state.ledger.reclaim_in_part(dead, successor, walk, now))
        })?
    }

    /// What a listing finds. Others decide between its looks.
    ///
    /// # Errors
    /// [`Refusal::Deadline`], [`Refusal::Poisoned`].
    pub(crate) async fn list(&self, mut listing: Listing, deadline: Moment) -> Result<Vec<Lease>, Refusal> {
        while self.decide(Some(deadline), |state, _| listing.look(&state.ledger))? {
            listing.sift();
            tokio::task::yield_now().await;
        }
        Ok(listing.leases())
    }

    /// One more watch, if there is room.
    pub(crate) fn enter_watch(self: &Arc<Self>, most: usize) -> Option<WatchPlace> {
        let entered = self
            .watches
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |watches| (watches < most).then_some(watches + 1));
        entered.is_ok().then(|| WatchPlace(Arc::clone(self)))
    }
}

/// A place among the watches; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct WatchPlace(Arc<Node>);

impl Drop for WatchPlace {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}
