//! Roles: a call that its peer's rights do not cover goes no further.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::error::Refusal;
use crate::layers::shed::Shed;
use crate::layers::{Answer, Calls, class, refused};
use crate::metrics::Gate;
use crate::peer::Peer;

/// Lets a peer make the calls of its roles, and tells handlers who it is.
#[derive(Clone, Debug)]
pub(crate) struct RoleLayer {
    peer: Arc<Peer>,
    shed: Arc<Shed>,
}

impl RoleLayer {
    pub(crate) const fn new(peer: Arc<Peer>, shed: Arc<Shed>) -> Self {
        Self { peer, shed }
    }
}

impl<S> Layer<S> for RoleLayer {
    type Service = Allowed<S>;

    fn layer(&self, inner: S) -> Allowed<S> {
        Allowed { inner, layer: self.clone() }
    }
}

/// A service that only those may call who have a role for it.
#[derive(Clone, Debug)]
pub(crate) struct Allowed<S> {
    inner: S,
    layer: RoleLayer,
}

impl<S: Calls> Service<Request<Body>> for Allowed<S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Answer {
        let RoleLayer { peer, shed } = &self.layer;
        let class = class::of(request.uri().path());
        if !peer.rights.has_any(class.roles) {
            let refusal = Refusal::WrongRole { needed: class.roles };
            return refused(shed.turn_away(Gate::Role, class.kind, &peer.user, refusal), request.into_body());
        }
        request.extensions_mut().insert(Arc::clone(peer));
        self.inner.call(request)
    }
}
