//! The plain HTTP port: for probes, scrapers and people. It reads; it never changes anything.
//!
//! ```text
//!  /healthz   200; 503 where only a new start helps          liveness: restart it if not
//!  /readyz    200 while it grants, 503 with the reason else  readiness: send it no new work
//!  /metrics   Prometheus text; OpenMetrics for who asks for it, where there are exemplars
//! ```
//! gRPC health too, over HTTP/2: see [`probe`]. One request per HTTP/1 connection, and no connection is waited for: where all places are taken, the oldest makes room. So
//! clients that connect and say nothing cannot silence a probe.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hisparse_core::limits::MAX_HTTP_CONNECTIONS;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tonic::service::Routes;

use crate::accept::Door;
use crate::metrics::{self, Dialect};
use crate::probe;

/// Time a client has to send its request's head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time a connection has in all, its answer read included.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Rest after a failed accept: out of descriptors, most likely.
const ACCEPT_REST: Duration = Duration::from_millis(100);
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text";
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Serves as long as the runtime lives, through a drain and a stop.
pub(crate) async fn serve(listener: TcpListener, door: Arc<Door>, health: Routes) {
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::with_capacity(MAX_HTTP_CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                oldest_first.retain(|connection| !connection.is_finished());
                if oldest_first.len() >= MAX_HTTP_CONNECTIONS
                    && let Some(oldest) = oldest_first.pop_front()
                {
                    oldest.abort();
                }
                let served = tokio::time::timeout(
                    CONNECTION_TIMEOUT,
                    serve_connection(stream, Arc::clone(&door), health.clone()),
                );
                oldest_first.push_back(tokio::spawn(served).abort_handle());
            }
            Err(_) => tokio::time::sleep(ACCEPT_REST).await,
        }
    }
}

async fn serve_connection(stream: TcpStream, door: Arc<Door>, health: Routes) {
    if let Ok(true) = tokio::time::timeout(HEADER_TIMEOUT, probe::speaks_http2(&stream)).await {
        return probe::serve(stream, health).await;
    }
    let service = service_fn(move |request| {
        let answer = answer(&request, &door);
        async move { Ok::<_, Infallible>(answer) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(false);
    // A client that breaks off is its own affair.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

fn answer(request: &Request<Incoming>, door: &Door) -> Response<Full<Bytes>> {
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
        _ => text(StatusCode::NOT_FOUND, "there is /healthz, /readyz and /metrics\n"),
    }
}

/// The answer of a probe: all is well, or why not.
fn well(not: Option<Cow<'static, str>>) -> Response<Full<Bytes>> {
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

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}
