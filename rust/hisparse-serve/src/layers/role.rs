//! Roles: a call that its peer's rights do not cover goes no further.

use std::sync::Arc;

use http::Request;
use tonic::body::Body;

use crate::error::Refusal;
use crate::layers::class;
use crate::layers::gate::{Answer, Calls, Layer};
use crate::layers::refused::refused;
use crate::layers::shed::Shed;
use crate::metrics::Gate;
use crate::peer::Peer;

/// Lets a peer make the calls of its roles, and tells handlers who it is.
#[derive(Clone, Debug)]
pub(crate) struct Roles {
    peer: Arc<Peer>,
    shed: Arc<Shed>,
}

impl Roles {
    pub(crate) const fn new(peer: Arc<Peer>, shed: Arc<Shed>) -> Self {
        Self { peer, shed }
    }
}

impl Layer for Roles {
    fn pass(&self, mut request: Request<Body>, next: &mut impl Calls) -> Answer {
        let Roles { peer, shed } = self;
        let class = class::of(request.uri().path());
        if !peer.rights.has_any(class.roles) {
            let refusal = Refusal::WrongRole { needed: class.roles };
            return refused(shed.turn_away(Gate::Role, class.kind, &peer.user, refusal), request.into_body());
        }
        request.extensions_mut().insert(Arc::clone(peer));
        next.call(request)
    }
}
