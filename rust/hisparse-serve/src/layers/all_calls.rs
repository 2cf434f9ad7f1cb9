//! Calls of all peers at a time: so many, some more that have head-room, and a short line for a place.
//!
//! ```text
//!  a call ─► a place? ─ yes ───────────────────────────────────► in
//!              ├─ head-room ─► one of 1,024 more? ─ no: waits ──► in, or its deadline
//!              └─ no ─► stuck for 1 s, or 256 wait already? ────► shed
//!                         └─ waits, at most 50 ms ──────────────► in, or shed
//! ```

use std::sync::Arc;

use hisparse_core::limits::{HEAD_ROOM_CALLS, MAX_BULK_CALLS, MAX_QUEUED_TIME};
use http::Request;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;

use crate::error::Refusal;
use crate::layers::class::{self, Kind};
use crate::layers::fail_fast::FailFast;
use crate::layers::gate::{Answer, Calls, Layer};
use crate::layers::refused::refused;
use crate::layers::sending::Held;
use crate::layers::shed::Shed;
use crate::metrics::Gate;
use crate::peer::Peer;

/// The places of all peers.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    plain: Arc<Semaphore>,
    head_room: Arc<Semaphore>,
    bulk: Arc<Semaphore>,
    fail_fast: FailFast,
}

impl Places {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            plain: Arc::new(Semaphore::new(most)),
            head_room: Arc::new(Semaphore::new(HEAD_ROOM_CALLS)),
            bulk: Arc::new(Semaphore::new(MAX_BULK_CALLS)),
            fail_fast: FailFast::default(),
        }
    }

    /// Calls that are being answered.
    pub(crate) fn taken(&self) -> usize {
        let taken = |most: usize, places: &Semaphore| most.saturating_sub(places.available_permits());
        taken(self.most, &self.plain) + taken(HEAD_ROOM_CALLS, &self.head_room) + taken(MAX_BULK_CALLS, &self.bulk)
    }

    fn place(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Place {
        self.fail_fast.ready();
        Place { places: Arc::clone(self), _permit: permit }
    }

    fn now(self: &Arc<Self>, kind: Kind) -> Option<Place> {
        let first = if kind == Kind::Bulk { &self.bulk } else { &self.plain };
        let permit = Arc::clone(first).try_acquire_owned();
        let permit = if kind == Kind::HeadRoom {
            permit.or_else(|_| Arc::clone(&self.head_room).try_acquire_owned())
        } else {
            permit
        };
        permit.ok().map(|permit| self.place(permit))
    }

    async fn later(self: Arc<Self>, kind: Kind, shed: &Arc<Shed>) -> Result<Place, (Gate, Refusal)> {
        // Nobody closes these semaphores, so only time can end a wait without a place.
        if kind == Kind::HeadRoom {
            let permit = Arc::clone(&self.head_room).acquire_owned().await;
            return permit.map(|permit| self.place(permit)).map_err(|_| (Gate::AllCalls, Refusal::Stopping));
        }
        let (places, most) = match kind {
            Kind::Bulk => (&self.bulk, MAX_BULK_CALLS),
            _ => (&self.plain, self.most),
        };
        let refusal = Refusal::Overloaded { what: "calls at a time", limit: most as u64 };
        if kind != Kind::Bulk && self.fail_fast.unready(shed.now()) {
            return Err((Gate::FailFast, refusal));
        }
        let Some(_queued) = shed.queue() else { return Err((Gate::AllCalls, refusal)) };
        match tokio::time::timeout(MAX_QUEUED_TIME, Arc::clone(places).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(self.place(permit)),
            _ => Err((Gate::AllCalls, refusal)),
        }
    }
}

/// One call's place; given back when it is dropped.
#[derive(Debug)]
struct Place {
    places: Arc<Places>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.fail_fast.ready();
    }
}

/// Bounds the calls of all peers.
#[derive(Clone, Debug)]
pub(crate) struct AllCalls {
    places: Arc<Places>,
    shed: Arc<Shed>,
    peer: Arc<Peer>,
}

impl AllCalls {
    pub(crate) const fn new(places: Arc<Places>, shed: Arc<Shed>, peer: Arc<Peer>) -> Self {
        Self { places, shed, peer }
    }
}

impl Layer for AllCalls {
    fn pass(&self, request: Request<Body>, next: &mut impl Calls) -> Answer {
        let kind = class::of(request.uri().path()).kind;
        if let Some(place) = self.places.now(kind) {
            let answer = next.call(request);
            return Box::pin(async move { Ok(answer.await?.map(|body| Body::new(Held::new(body, place)))) });
        }
        let AllCalls { places, shed, peer } = self.clone();
        // The ready one is called, and its copy takes its place here.
        let copy = next.clone();
        let mut inner = std::mem::replace(next, copy);
        Box::pin(async move {
            match places.later(kind, &shed).await {
                Ok(place) => Ok(inner.call(request).await?.map(|body| Body::new(Held::new(body, place)))),
                Err((gate, refusal)) => {
                    refused(shed.turn_away(gate, kind, &peer.user, refusal), request.into_body()).await
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_room_is_there_when_every_place_is_taken() {
        let places = Arc::new(Places::new(2));
        let taken: Vec<_> = (0..2).map(|_| places.now(Kind::Admit).unwrap()).collect();
        assert!(places.now(Kind::Plain).is_none() && places.now(Kind::Admit).is_none());
        let freeing: Vec<_> = (0..HEAD_ROOM_CALLS).map(|_| places.now(Kind::HeadRoom).unwrap()).collect();
        assert!(places.now(Kind::HeadRoom).is_none());
        assert!(places.now(Kind::Bulk).is_some(), "long answers have places of their own");
        assert_eq!(places.taken(), 2 + HEAD_ROOM_CALLS);
        drop((taken, freeing));
        assert_eq!(places.taken(), 0);
        assert!(places.now(Kind::Plain).is_some());
    }
}
