//! The last step of a grant: into its caller's hands, or back.
//!
//! ```text
//!  decision ─► Handover ─► answer ─► body ─► taken to its end by the connection ─► the caller has it
//!                 └─ dropped anywhere on this way (call cancelled, stream reset, deadline over) ─► lease given back
//! ```
//! Nobody has ever seen a lease that is dropped here, so it is free at once rather than at the end of its ttl. A lease
//! that somebody else was given meanwhile, who asked under the same request id, stays. What remains to the ttl, or to a
//! release by request id, is an answer that the network lost after the connection took it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hisparse_core::ledger::LeaseId;
use http::{HeaderMap, Request, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower_service::Service;

use crate::meeting;
use crate::node::Node;

/// Leases on their way to a caller. The last copy to go gives them back, unless one was told that they arrived.
#[derive(Clone, Debug)]
pub(crate) struct Handover(Arc<OnTheWay>);

#[derive(Debug)]
struct OnTheWay {
    node: Arc<Node>,
    leases: Vec<LeaseId>,
    arrived: AtomicBool,
}

impl Handover {
    /// These leases, which the node counts as undelivered.
    pub(crate) fn new(node: &Arc<Node>, leases: Vec<LeaseId>) -> Self {
        Self(Arc::new(OnTheWay { node: Arc::clone(node), leases, arrived: AtomicBool::new(false) }))
    }

    /// They are the caller's.
    pub(crate) fn arrived(&self) {
        meeting::point();
        if !self.0.arrived.swap(true, Ordering::Relaxed) {
            self.0.node.delivered(&self.0.leases);
        }
    }
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        if !*self.arrived.get_mut() {
            self.node.take_back(&self.leases);
        }
    }
}

/// What an answer of `Admit` carries beside its message; handlers leave it in the response's extensions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parting {
    pub(crate) handovers: Vec<Handover>,
    /// Metadata behind the message.
    pub(crate) trailers: HeaderMap,
}

/// A service whose answers are handed over.
#[derive(Clone, Debug)]
pub(crate) struct HandingOver<S>(pub(crate) S);

impl<S: NamedService> NamedService for HandingOver<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for HandingOver<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = self.0.call(request);
        Box::pin(async move {
            let mut answer = answer.await?;
            Ok(match answer.extensions_mut().remove::<Parting>() {
                Some(parting) => answer.map(|inner| Body::new(Leaving { inner, parting })),
                None => answer,
            })
        })
    }
}

/// An answer's body that tells when it is out of our hands.
struct Leaving {
    inner: Body,
    parting: Parting,
}

impl HttpBody for Leaving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        let last = match &mut frame {
            Some(Ok(frame)) => frame.trailers_mut().is_some_and(|trailers| {
                trailers.extend(std::mem::take(&mut self.parting.trailers));
                true
            }),
            Some(Err(_)) => false,
            None => true,
        };
        if last {
            self.parting.handovers.drain(..).for_each(|handover| handover.arrived());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hisparse_core::env::Clock;
    use hisparse_core::ledger::{Epoch, NodeCapacity};
    use http_body_util::BodyExt;
    use prost::Message;

    use super::*;
    use crate::admission::Admission;
    use crate::env::MachineClock;
    use crate::layers::deadline::Deadlines;
    use crate::layers::gate::Layer;
    use crate::node::NodeConfig;
    use crate::proto;
    use crate::proto::admission_service_server::AdmissionServiceServer;

    fn node(pages: u64) -> Arc<Node> {
        let config = NodeConfig::of_capacity("test", NodeCapacity::of_host_pages(pages, 16));
        Arc::new(Node::new(config, MachineClock::start(), Epoch::FIRST, Vec::new(), None).unwrap())
    }

    /// Calls the service as the connection does, and gives back what the connection would send.
    async fn call(node: &Arc<Node>, method: &str, message: &impl Message) -> Response<Body> {
        let inner = AdmissionServiceServer::new(Admission::new(Arc::clone(node)));
        let mut service = Deadlines::new(node.clock).before(HandingOver(inner));
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(message.encoded_len()).unwrap().to_be_bytes());
        bytes.extend(message.encode_to_vec());
        let request = Request::post(format!("http://node/hisparse.v1.AdmissionService/{method}"))
            .header("content-type", "application/grpc")
            .extension(crate::peer::somebody())
            .body(Body::new(http_body_util::Full::new(Bytes::from(bytes))))
            .unwrap();
        service.call(request).await.unwrap()
    }

    fn admit(request_id: &str, wait: Duration) -> proto::AdmitRequest {
        let wait = Some(crate::wire::duration_to_proto(wait));
        proto::AdmitRequest { request_id: request_id.into(), pages: 10, wait, ..Default::default() }
    }

    fn held(node: &Node) -> u64 {
        node.decide(None, |state, _| state.ledger.lease_counts().reserved).unwrap()
    }

    #[tokio::test]
    async fn an_answer_that_is_taken_to_its_end_keeps_its_lease_and_carries_the_load() {
        let node = node(10);
        let answer = call(&node, "Admit", &admit("r", Duration::ZERO)).await;
        let taken = answer.into_body().collect().await.unwrap();
        let trailers = taken.trailers().unwrap();
        assert!(trailers.contains_key("endpoint-load-metrics-bin"), "{trailers:?}");
        assert_eq!(trailers["grpc-status"], "0");
        assert_eq!(held(&node), 1);
    }

    #[tokio::test]
    async fn an_answer_that_is_dropped_on_its_way_gives_its_lease_back() {
        let node = node(10);
        drop(call(&node, "Admit", &admit("r", Duration::ZERO)).await);
        assert_eq!(held(&node), 0, "dropped before the first byte");
        let mut body = call(&node, "Admit", &admit("r", Duration::ZERO)).await.into_body();
        body.frame().await.unwrap().unwrap();
        assert_eq!(held(&node), 1);
        drop(body);
        assert_eq!(held(&node), 0, "dropped after the message, before the status");
        let batch = proto::BatchAdmitRequest {
            requests: vec![proto::AdmitRequest { pages: 1, ..Default::default() }; 5],
            partial: false,
        };
        drop(call(&node, "BatchAdmit", &batch).await);
        assert_eq!(held(&node), 0, "a batch");
    }

    #[tokio::test]
    async fn a_lease_that_somebody_else_has_by_now_is_not_given_back() {
        let node = node(10);
        let lost = call(&node, "Admit", &admit("r", Duration::ZERO)).await;
        let again = call(&node, "Admit", &admit("r", Duration::ZERO)).await;
        again.into_body().collect().await.unwrap();
        drop(lost);
        assert_eq!(held(&node), 1);
        drop(call(&node, "Admit", &admit("r", Duration::ZERO)).await);
        assert_eq!(held(&node), 1, "an answer about a lease that was somebody's before");
    }

    #[tokio::test]
    async fn a_call_dropped_at_any_of_its_polls_leaves_nothing_behind() {
        for polls in 0..6 {
            let node = node(10);
            let holder = call(&node, "Admit", &admit("holder", Duration::ZERO)).await;
            holder.into_body().collect().await.unwrap();
            let waiting = admit("waiter", Duration::from_secs(9));
            let mut waiter = Box::pin(async {
                let body = call(&node, "Admit", &waiting).await.into_body();
                // The message is out, the status is not: as late as a cancellation can be noticed.
                let mut body = std::pin::pin!(body);
                body.frame().await.unwrap().unwrap();
                std::future::pending::<()>().await;
            });
            for _ in 0..polls {
                assert!(futures_poll(waiter.as_mut()).is_pending());
            }
            let now = node.clock.now();
            node.decide(None, |state, _| state.ledger.release_request(&"holder".into(), "", None, now)).unwrap();
            for _ in 0..polls {
                assert!(futures_poll(waiter.as_mut()).is_pending());
            }
            drop(waiter);
            let left =
                node.decide(None, |state, _| (state.ledger.lease_counts(), state.queue.len(), state.waiting.len()));
            assert_eq!(left.unwrap(), (hisparse_core::ledger::LeaseCounts::default(), 0, 0), "after {polls} polls");
        }
    }

    fn futures_poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(std::task::Waker::noop()))
    }
}
