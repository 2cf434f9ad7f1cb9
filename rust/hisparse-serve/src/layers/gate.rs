//! What every layer is: a gate before the services beneath it, and nothing else.
//!
//! ```text
//!  call ─► Gated ─► layer.pass(call, next) ─┬─ next.call(…) ─► answer, perhaps with something held until it is sent
//!                                           └─ an answer of its own
//! ```

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::body::Body;
use tower_service::Service;

/// What a call comes to, some time.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// A service that answers calls, as every layer has one beneath it and makes one with it.
pub(crate) trait Calls:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future = Answer> + Clone + Send + 'static
{
}

impl<S> Calls for S where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future = Answer> + Clone + Send + 'static
{
}

/// What a layer does with a call.
pub(crate) trait Layer: Clone + Send + 'static {
    /// Lets a call on to `next`, which is ready for one, or answers it.
    fn pass(&self, request: Request<Body>, next: &mut impl Calls) -> Answer;

    /// The service behind it.
    fn before<S: Calls>(self, inner: S) -> Gated<Self, S> {
        Gated { layer: self, inner }
    }
}

/// A service behind a layer.
#[derive(Clone, Debug)]
pub(crate) struct Gated<L, S> {
    layer: L,
    inner: S,
}

impl<L: Layer, S: Calls> Service<Request<Body>> for Gated<L, S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        self.layer.pass(request, &mut self.inner)
    }
}
