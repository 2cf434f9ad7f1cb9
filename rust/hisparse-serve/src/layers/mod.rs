//! What every call passes on its way in, one file per layer.
//!
//! ```text
//!  connection ─► logging ─► deadline ─► role ─► rate ─► peer_calls ─► all_calls ─────────────► routes
//!                a line     10 s or     router  Admits   1,024 of one   8,192 of all;            │
//!                per call   its own     engine  per      peer           256 wait ≤ 50 ms (shed)  │
//!                                       admin   second                  none while stuck (fail_fast)
//!                   ◄──────────────── answer: held by sending until the peer has taken it
//! ```
//! `class` says what a call is to all of them. Release, Renew, Commit and health have head-room: they are counted apart,
//! never rated, and wait for a place as long as their deadline lets them, so that what frees memory is answered while what
//! takes it is shed. What is shed is `UNAVAILABLE`, reason `OVERLOADED`, with a time to come back.

pub(crate) mod all_calls;
pub(crate) mod class;
pub(crate) mod deadline;
pub(crate) mod fail_fast;
pub(crate) mod gate;
pub(crate) mod logging;
pub(crate) mod peer_calls;
pub(crate) mod rate;
mod refused;
pub(crate) mod role;
pub(crate) mod sending;
pub(crate) mod shed;

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use hisparse_core::error::{Problem, Problems};
use hisparse_core::limits;
use http::{Request, Response};
use tonic::body::Body;
use tonic::service::Routes;
use tower_service::Service;

use crate::log::Log;
use crate::peer::Peer;
use all_calls::{AllCalls, Places};
use deadline::Deadlines;
use gate::{Answer, Calls, Layer};
use logging::Logging;
use peer_calls::PeerCalls;
use rate::{Rate, Rates};
use role::Roles;
use shed::Shed;

/// Bounds of a server that its operator may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeLimits {
    /// Most connections of all listeners of gRPC together.
    pub connections: usize,
    /// Most connections of one user: a uid, a certificate, an address.
    pub connections_per_user: usize,
    /// Most calls of one peer at a time: a process, a certificate, an address.
    pub calls_per_peer: usize,
    /// Most calls of all peers at a time.
    pub calls: usize,
    /// Most Admits per second; `None`: as many as come.
    pub admits_per_second: Option<u32>,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            connections: limits::MAX_CONNECTIONS,
            connections_per_user: limits::MAX_CONNECTIONS_PER_USER,
            calls_per_peer: limits::MAX_CALLS_PER_PEER,
            calls: limits::MAX_CALLS,
            admits_per_second: None,
        }
    }
}

impl ServeLimits {
    /// Largest of each: an event of the kernel's is one file descriptor, a call some kilobytes.
    const MOST: usize = 1 << 20;

    pub(crate) fn check(&self) -> Result<(), Problems> {
        let mut problems = Problems::new();
        for (field, value) in [
            ("max_connections", self.connections),
            ("max_connections_per_user", self.connections_per_user),
            ("max_calls_per_peer", self.calls_per_peer),
            ("max_calls", self.calls),
        ] {
            if !(1..=Self::MOST).contains(&value) {
                problems.push(Problem::new(field, value, "must be in range", format!("give 1 to {}", Self::MOST)));
            }
        }
        let most = limits::MAX_ADMITS_PER_SECOND;
        if let Some(rate) = self.admits_per_second.filter(|rate| !(1..=most).contains(rate)) {
            let remedy = format!("give 1 to {most}, or leave it out");
            problems.push(Problem::new("admits_per_second", rate, "must be in range", remedy));
        }
        problems.into_result(())
    }
}

/// What the layers of all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) shed: Arc<Shed>,
    pub(crate) places: Arc<Places>,
    pub(crate) rate: Option<Arc<Rate>>,
    pub(crate) limits: ServeLimits,
    pub(crate) log: Option<Arc<Log>>,
}

impl Shared {
    pub(crate) fn new(shed: Shed, limits: ServeLimits, log: Option<Arc<Log>>) -> Self {
        Self {
            shed: Arc::new(shed),
            places: Arc::new(Places::new(limits.calls)),
            rate: limits.admits_per_second.map(|rate| Arc::new(Rate::new(rate))),
            limits,
            log,
        }
    }

    /// The layers of one connection, over these routes.
    pub(crate) fn stack(&self, peer: &Arc<Peer>, routes: Routes) -> impl Calls + use<> {
        let shed = || Arc::clone(&self.shed);
        let who = || Arc::clone(peer);
        let all = AllCalls::new(Arc::clone(&self.places), shed(), who()).before(Bottom(routes));
        let ours = PeerCalls::new(who(), self.limits.calls_per_peer, shed()).before(all);
        let rated = Rates::new(self.rate.clone(), shed(), who()).before(ours);
        let allowed = Roles::new(who(), shed()).before(rated);
        Logging::new(self.log.clone(), who()).before(Deadlines::new(self.shed.clock()).before(allowed))
    }
}

/// What lies beneath all layers.
#[derive(Clone, Debug)]
struct Bottom(Routes);

impl Service<Request<Body>> for Bottom {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Body>>::poll_ready(&mut self.0, cx)
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        Box::pin(self.0.call(request))
    }
}
