//! Calls of one peer at a time: one that opens more than its share is refused, and the others do not notice.
//!
//! ```text
//!  admit, plain ── calls     ≤ 1,024 ┐
//!  head-room    ── head_room ≤ 1,024 ├─ each until its answer is taken
//!  bulk         ── bulk      ≤     4 ┘
//! ```

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use hisparse_core::limits::MAX_BULK_CALLS_PER_PEER;
use http::Request;
use tonic::body::Body;

use crate::error::Refusal;
use crate::layers::class::{self, Kind};
use crate::layers::gate::{Answer, Calls, Layer};
use crate::layers::refused::refused;
use crate::layers::sending::Held;
use crate::layers::shed::Shed;
use crate::metrics::Gate;
use crate::peer::{self, Peer, Tally};

/// Bounds the calls of one peer.
#[derive(Clone, Debug)]
pub(crate) struct PeerCalls {
    peer: Arc<Peer>,
    most: usize,
    shed: Arc<Shed>,
}

impl PeerCalls {
    pub(crate) const fn new(peer: Arc<Peer>, most: usize, shed: Arc<Shed>) -> Self {
        Self { peer, most, shed }
    }

    fn enter(&self, kind: Kind) -> Result<Counted, Refusal> {
        let (most, what) = match kind {
            Kind::Admit | Kind::Plain | Kind::HeadRoom => (self.most, "calls of one peer"),
            Kind::Bulk => (MAX_BULK_CALLS_PER_PEER, "calls of one peer with long answers"),
        };
        if peer::enter(of_kind(&self.peer.tally, kind), most) {
            return Ok(Counted { tally: Arc::clone(&self.peer.tally), kind });
        }
        let refusal = Refusal::Overloaded { what, limit: most as u64 };
        Err(self.shed.turn_away(Gate::PeerCalls, kind, &self.peer.user, refusal))
    }
}

fn of_kind(tally: &Tally, kind: Kind) -> &AtomicUsize {
    match kind {
        Kind::Admit | Kind::Plain => &tally.calls,
        Kind::HeadRoom => &tally.head_room,
        Kind::Bulk => &tally.bulk,
    }
}

/// A call that counts; until it is dropped.
#[derive(Debug)]
struct Counted {
    tally: Arc<Tally>,
    kind: Kind,
}

impl Drop for Counted {
    fn drop(&mut self) {
        peer::leave(of_kind(&self.tally, self.kind));
    }
}

impl Layer for PeerCalls {
    fn pass(&self, request: Request<Body>, next: &mut impl Calls) -> Answer {
        match self.enter(class::of(request.uri().path()).kind) {
            Err(refusal) => refused(refusal, request.into_body()),
            Ok(counted) => {
                let answer = next.call(request);
                Box::pin(async move { Ok(answer.await?.map(|body| Body::new(Held::new(body, counted)))) })
            }
        }
    }
}
