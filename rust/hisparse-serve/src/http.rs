//! The plain HTTP port: for probes, scrapers and people. It reads; it never changes anything.
//!
//! ```text
//!  /healthz   200; 503 where only a new start helps          liveness: restart it if not
//!  /readyz    200 while it grants, 503 with the reason else  readiness: send it no new work
//!  /metrics   Prometheus text; OpenMetrics for who asks for it, where there are exemplars
//!  /          the node, live, for people at this machine: see [`page`](crate::page)
//! ```
//! gRPC health too, over HTTP/2: see [`probe`]. One request per HTTP/1 connection, and no connection is waited for: where
//! all places are taken, the oldest makes room. So clients that connect and say nothing cannot silence a probe.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hisparse_core::limits::MAX_HTTP_CONNECTIONS;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tonic::service::Routes;

use crate::door::Door;
use crate::metrics::{self, Dialect};
use crate::page::{Events, Page, Pulse, text};
use crate::probe;

/// Time a client has to send its request's head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time a connection has in all, its answer read included.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// What one connection buffers of what its client has not taken yet: here, …
const BUFFER_BYTES: usize = 64 << 10;
/// … and in the kernel, where it would else be megabytes.
const KERNEL_BUFFER_BYTES: usize = 128 << 10;
/// Rest after a failed accept: out of descriptors, most likely.
const ACCEPT_REST: Duration = Duration::from_millis(100);
const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text";
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// What every connection of the port is served from.
struct Port {
    door: Arc<Door>,
    page: Page,
    health: Routes,
}

/// Serves as long as the runtime lives, through a drain and a stop.
pub(crate) async fn serve(listener: TcpListener, door: Arc<Door>, health: Routes) {
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::with_capacity(MAX_HTTP_CONNECTIONS);
    let port = Arc::new(Port { page: Page::new(&door), door, health });
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                oldest_first.retain(|connection| !connection.is_finished());
                if oldest_first.len() >= MAX_HTTP_CONNECTIONS
                    && let Some(oldest) = oldest_first.pop_front()
                {
                    oldest.abort();
                }
                let served = serve_connection(stream, peer, Arc::clone(&port));
                oldest_first.push_back(tokio::spawn(served).abort_handle());
            }
            Err(_) => tokio::time::sleep(ACCEPT_REST).await,
        }
    }
}

/// Until the client has what it asked for, breaks off, or its time is over.
async fn serve_connection(stream: TcpStream, peer: SocketAddr, port: Arc<Port>) {
    // A system that does not want to bound it bounds it otherwise.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, KERNEL_BUFFER_BYTES);
    let pulse = Arc::new(Pulse::new(CONNECTION_TIMEOUT));
    tokio::select! {
        () = speak(stream, peer, port, Arc::clone(&pulse)) => {}
        () = pulse.stops() => {}
    }
}

async fn speak(stream: TcpStream, peer: SocketAddr, port: Arc<Port>, pulse: Arc<Pulse>) {
    if let Ok(true) = tokio::time::timeout(HEADER_TIMEOUT, probe::speaks_http2(&stream)).await {
        return probe::serve(stream, port.health.clone()).await;
    }
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(&request, peer, &port, &pulse);
        async move { Ok::<_, Infallible>(answer) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(false).max_buf_size(BUFFER_BYTES);
    // A client that breaks off is its own affair.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

fn answer(
    request: &Request<Incoming>,
    peer: SocketAddr,
    port: &Port,
    pulse: &Arc<Pulse>,
) -> Response<Either<Full<Bytes>, Events>> {
    let door = &port.door;
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match request.uri().path() {
        "/healthz" => well(door.node.not_alive()),
        "/readyz" => well(door.node.not_ready()),
        "/metrics" => {
            let dialect = dialect(request, door);
            let mut page = text(StatusCode::OK, metrics::page(door, dialect));
            let kind = if dialect == Dialect::OpenMetrics { OPEN_METRICS } else { PROMETHEUS };
            page.headers_mut().insert(CONTENT_TYPE, kind);
            page
        }
        path => port.page.answer(path, peer, request.headers(), door, pulse).unwrap_or_else(|| {
            text(StatusCode::NOT_FOUND, "there is /healthz, /readyz, /metrics, and a page for people at /\n")
        }),
    }
}

/// The answer of a probe: all is well, or why not.
fn well(not: Option<Cow<'static, str>>) -> Response<Either<Full<Bytes>, Events>> {
    match not {
        None => text(StatusCode::OK, "ok\n"),
        Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

/// How the scraper gets its page: plainly, unless there are exemplars and it can read them.
fn dialect(request: &Request<Incoming>, door: &Door) -> Dialect {
    let accepts = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let reads = accepts.flat_map(|value| value.split(',')).any(|kind| kind.trim().starts_with(OPEN_METRICS_TYPE));
    if reads && door.node.counters().has_exemplars() { Dialect::OpenMetrics } else { Dialect::Prometheus }
}
