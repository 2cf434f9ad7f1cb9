//! Calls of one peer at a time: one that opens more than its share is refused, and the others do not notice.
//!
//! ```text
//!  admit, plain ── calls     ≤ 1,024 ┐
//!  head-room    ── head_room ≤ 1,024 ├─ each until its answer is taken
//!  bulk         ── bulk      ≤     4 ┘
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};

use hisparse_core::limits::MAX_BULK_CALLS_PER_PEER;
use http::{Request, Response};
use tonic::body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::error::Refusal;
use crate::layers::class::{self, Kind};
use crate::layers::sending::Held;
use crate::layers::shed::Shed;
use crate::layers::{Answer, Calls, refused};
use crate::metrics::Gate;
use crate::peer::{self, Peer, Tally};

/// Bounds the calls of one peer.
#[derive(Clone, Debug)]
pub(crate) struct PeerCallsLayer {
    peer: Arc<Peer>,
    most: usize,
    shed: Arc<Shed>,
}

impl PeerCallsLayer {
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

impl<S> Layer<S> for PeerCallsLayer {
    type Service = PeerCalls<S>;

    fn layer(&self, inner: S) -> PeerCalls<S> {
        PeerCalls { inner, layer: self.clone() }
    }
}

/// A service that one peer calls so often at a time, and no oftener.
#[derive(Clone, Debug)]
pub(crate) struct PeerCalls<S> {
    inner: S,
    layer: PeerCallsLayer,
}

impl<S: Calls> Service<Request<Body>> for PeerCalls<S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        match self.layer.enter(class::of(request.uri().path()).kind) {
            Err(refusal) => refused(refusal, request.into_body()),
            Ok(counted) => {
                let answer = self.inner.call(request);
                Box::pin(async move { Ok(answer.await?.map(|body| Body::new(Held::new(body, counted)))) })
            }
        }
    }
}
