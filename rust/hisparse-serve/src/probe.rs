//! gRPC health on the plain HTTP port, for probes that speak it: an orchestrator's do, in plaintext and from outside the pod,
//! where the gRPC port proper is loopback or asks for a certificate.
//!
//! ```text
//!  connection ─ first bytes? ─┬─ "PRI" ─► HTTP/2: grpc.health.v1 Check and Watch, nothing else
//!                             └─ else  ─► HTTP/1: /healthz, /readyz, /metrics
//! ```
//! It is as bounded as the rest of that port: one connection counts as any other, and ends with its time.

use std::time::Duration;

use hisparse_core::limits::MAX_HEADER_LIST_BYTES;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::service::Routes;
use tower_service::Service as _;

/// What every HTTP/2 client sends first, and no HTTP/1 client does.
const PREFACE: &[u8] = b"PRI";
/// Between two looks at a connection that has not said enough.
const LOOK: Duration = Duration::from_millis(10);
/// Calls at a time on one connection: a probe makes one.
const MAX_CALLS: u32 = 8;

/// Whether the peer speaks HTTP/2. Reads nothing; returns when that is known or the peer has gone.
pub(crate) async fn speaks_http2(stream: &TcpStream) -> bool {
    let mut start = [0; PREFACE.len()];
    loop {
        let Ok(seen @ 1..) = stream.peek(&mut start).await else { return false };
        if start[..seen] != PREFACE[..seen] {
            return false;
        }
        if seen == PREFACE.len() {
            return true;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Answers health checks until the peer goes.
pub(crate) async fn serve(stream: TcpStream, health: Routes) {
    let service = service_fn(move |request: Request<Incoming>| {
        let mut health = health.clone();
        async move { health.call(request.map(Body::new)).await }
    });
    let mut server = http2::Builder::new(TokioExecutor::new());
    server.timer(TokioTimer::new()).max_concurrent_streams(MAX_CALLS).max_header_list_size(MAX_HEADER_LIST_BYTES);
    // A client that breaks off is its own affair.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}
