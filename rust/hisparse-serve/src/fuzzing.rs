//! The service without a network, for fuzzers. Only built with the feature `fuzzing`.

use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use hisparse_core::ledger::{Epoch, NodeCapacity};
use hisparse_core::limits::MAX_ERROR_DETAIL_BYTES;
use http::Request;
use http_body_util::{BodyExt, Full};
use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower_service::Service as _;

use crate::env::MachineClock;
use crate::layers::shed::Shed;
use crate::layers::{ServeLimits, Shared};
use crate::node::{Node, NodeConfig};
use crate::notices::{Notices, Sink};
use crate::{peer, proto, services};

/// A small node and everything above it up to the connection.
pub struct Service {
    node: Arc<Node>,
    shared: Shared,
    routes: Routes,
    runtime: Runtime,
    paths: Vec<String>,
    _stopping: watch::Sender<bool>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl Default for Service {
    fn default() -> Self {
        Self::new()
    }
}

impl Service {
    /// A node of 64 pages.
    ///
    /// # Panics
    /// The machine has no thread left.
    pub fn new() -> Self {
        let config = NodeConfig::of_capacity("fuzz", NodeCapacity::of_host_pages(64, 8));
        let node = Node::new(config, MachineClock::start(), Epoch::FIRST, Vec::new(), None);
        let node = Arc::new(node.expect("a node of these figures"));
        let (stopped, stopping) = watch::channel(false);
        let routes = services::routes(&node, &stopping).everywhere;
        let shed = Shed::new(Arc::clone(&node), Arc::new(Notices::new(Sink::Nowhere)));
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime on this thread");
        let all = prost_types::FileDescriptorSet::decode(proto::DESCRIPTORS).expect("compiled with this crate");
        let services = all.file.iter().flat_map(|file| &file.service);
        let paths = services.flat_map(|service| {
            // A watch has no end.
            let methods = service.method.iter().filter(|method| method.name() != "WatchCapacity");
            methods.map(|method| format!("http://node/hisparse.v1.{}/{}", service.name(), method.name()))
        });
        let paths = paths.collect();
        Self {
            node,
            shared: Shared::new(shed, ServeLimits::default(), None),
            routes,
            runtime,
            paths,
            _stopping: stopped,
        }
    }

    /// Makes one of the calls with these bytes as its message, and takes its answer to the end.
    ///
    /// # Panics
    /// What must hold of every answer does not.
    pub fn call(&self, which: usize, message: &[u8]) {
        let path = &self.paths[which % self.paths.len()];
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
        frame.put_slice(message);
        // A wait for room is as short as can be.
        let request = Request::post(path).header("content-type", "application/grpc").header("grpc-timeout", "1m");
        let request = request.body(Body::new(Full::new(frame.freeze()))).expect("a request of fixed parts");
        let mut stack = self.shared.stack(&peer::somebody(), self.routes.clone());
        self.runtime.block_on(async {
            let answer = stack.call(request).await.unwrap_or_else(|never| match never {});
            let headers = answer.headers().clone();
            let body: Result<_, Status> = answer.into_body().collect().await;
            let trailers = body.expect("an answer that is whole").trailers().cloned().unwrap_or(headers);
            let status = Status::from_header_map(&trailers).expect("an answer with a status");
            assert!(status.details().len() <= MAX_ERROR_DETAIL_BYTES, "{path}: {status:?}");
        });
        // A fuzzer that drains the node sees nothing more of it; and what it was granted makes room for the next.
        let tidy = self.node.decide(None, |state, now| {
            state.ledger.set_draining(false);
            for lease in state.ledger.list(None, None, usize::MAX) {
                if let Some(id) = lease.id.filter(|_| state.ledger.lease_counts().reserved > 4) {
                    let _ = state.ledger.release(id, None, None, now); // it is there: it was just listed
                }
            }
            state.ledger.audit()
        });
        tidy.expect("no decision panicked").expect("books that add up");
    }
}
