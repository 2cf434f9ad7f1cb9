//! Turning a call away: each one counted, each reason noticed once per user, each told when to come back.
//!
//! ```text
//!  layer ── turn_away(gate, refusal) ─► hisparse_turned_away_total{gate}, and hisparse_admit_total of an Admit
//!                                   ├─► notice, once per user, where it is the user's own doing
//!                                   └─► status
//!  line: at most 256 calls that wait for a place, each at most 50 ms
//! ```

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use hisparse_core::env::{Clock, Moment};
use hisparse_core::limits::MAX_QUEUED_CALLS;

use crate::env::MachineClock;
use crate::error::Refusal;
use crate::layers::class::Kind;
use crate::metrics::{Admitted, Gate};
use crate::node::Node;
use crate::notices::{self, Notices};
use crate::peer::{self, User};

/// Turns calls away.
#[derive(Debug)]
pub(crate) struct Shed {
    node: Arc<Node>,
    notices: Arc<Notices>,
    queued: AtomicUsize,
}

impl Shed {
    pub(crate) fn new(node: Arc<Node>, notices: Arc<Notices>) -> Self {
        Self { node, notices, queued: AtomicUsize::new(0) }
    }

    pub(crate) fn clock(&self) -> MachineClock {
        self.node.clock
    }

    pub(crate) fn now(&self) -> Moment {
        self.node.clock.now()
    }

    /// Counts a call that is not let in, and says so where its user should know.
    pub(crate) fn turn_away(&self, gate: Gate, kind: Kind, user: &User, refusal: Refusal) -> Refusal {
        self.node.counters().turned_away(gate);
        if kind == Kind::Admit {
            self.node.counters().admitted(Admitted::Refused(&refusal), std::time::Duration::ZERO, None);
        }
        let noticed = match gate {
            Gate::Role => Some(notices::Kind::Role),
            Gate::Rate => Some(notices::Kind::Rate),
            Gate::PeerCalls => Some(notices::Kind::Calls),
            _ => None,
        };
        if let Some(noticed) = noticed {
            self.notices.once(noticed, user, || format!("a call was refused: {}", refusal.message()));
        }
        refusal
    }

    /// A place in the line of calls that wait, while there is one.
    pub(crate) fn queue(self: &Arc<Self>) -> Option<Queued> {
        peer::enter(&self.queued, MAX_QUEUED_CALLS).then(|| Queued(Arc::clone(self)))
    }
}

/// A place in the line; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Queued(Arc<Shed>);

impl Drop for Queued {
    fn drop(&mut self) {
        peer::leave(&self.0.queued);
    }
}
