//! One connection: HTTP/2 with its bounds, the peer's own stack of layers, and an end that always comes.
//!
//! ```text
//!  accepted ── 24 bytes within 5 s ──► HTTP/2 ──┬─ the peer closes, or breaks the protocol
//!      └─ else closed, noticed once             ├─ no sign of life for 30 s + 10 s        (keepalive)
//!                                               ├─ an answer untaken for 20 s             (slow reader)
//!                                               ├─ TLS and 30 min old: calls finish, 30 s
//!                                               └─ the server stops: calls finish, within its grace
//! ```

use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hisparse_core::limits::{
    AGED_CONNECTION_GRACE, CONNECTION_WINDOW_BYTES, HANDSHAKE_TIMEOUT, KEEPALIVE, KEEPALIVE_TIMEOUT,
    MAX_CALLS_PER_CONNECTION, MAX_HEADER_LIST_BYTES, MAX_PENDING_RESETS, MAX_TLS_CONNECTION_AGE, SEND_TIMEOUT,
    STREAM_WINDOW_BYTES,
};
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::service::Routes;
use tower_service::Service;

use crate::door::Door;
use crate::layers::sending::Sendings;
use crate::metrics::Gate;
use crate::notices::Kind;
use crate::peer::Peer;

/// Bytes that every HTTP/2 client sends first.
const PREFACE_BYTES: usize = 24;
/// Between two looks at whether a peer takes its answers.
const LOOK: Duration = Duration::from_secs(5);

/// How long a connection may live.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Life {
    Unlimited,
    /// As long as its certificate is believed.
    OfTls,
}

/// Why a connection is ended by us.
enum Verdict {
    Silent,
    SlowReader,
}

/// A stream of bytes, whatever carries it.
pub(crate) trait Bytes: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Bytes for S {}

/// Serves one connection until its end.
pub(crate) async fn serve<S: Bytes>(
    stream: S,
    peer: Arc<Peer>,
    door: Arc<Door>,
    routes: Routes,
    life: Life,
    mut stopping: watch::Receiver<bool>,
) {
    let read = Arc::new(AtomicUsize::new(0));
    let sendings = Arc::new(Sendings::new(door.node.clock));
    let service = {
        let (stack, sendings) = (door.shared.stack(&peer, routes), Arc::clone(&sendings));
        service_fn(move |request: Request<Incoming>| {
            let (mut stack, sendings) = (stack.clone(), Arc::clone(&sendings));
            async move {
                std::future::poll_fn(|cx| stack.poll_ready(cx)).await?;
                Ok::<_, std::convert::Infallible>(
                    stack.call(request.map(Body::new)).await?.map(|body| sendings.watch(body)),
                )
            }
        })
    };
    let stream = TokioIo::new(Counting { stream, read: Arc::clone(&read) });
    let mut connection = pin!(http().serve_connection(stream, service));
    let mut aged = pin!(tokio::time::sleep(age(life, &sendings)));
    let mut verdict = pin!(watch_over(&read, &sendings));
    let (mut finishing, mut grace_over) = (false, false);
    let ended = loop {
        tokio::select! {
            ended = &mut connection => break ended,
            found = &mut verdict => {
                let (gate, kind, what) = match found {
                    Verdict::Silent => (Gate::Silent, Kind::Silent, "a connection said nothing and was closed"),
                    Verdict::SlowReader => {
                        (Gate::SlowReader, Kind::SlowReader, "a connection took no answers and was closed")
                    }
                };
                door.node.counters().turned_away(gate);
                return door.notices.once(kind, &peer.user, || what.to_owned());
            }
            () = &mut aged, if matches!(life, Life::OfTls) && !grace_over => {
                if finishing {
                    return;
                }
                finishing = true;
                aged.as_mut().reset(tokio::time::Instant::now() + AGED_CONNECTION_GRACE);
                connection.as_mut().graceful_shutdown();
            }
            _ = stopping.wait_for(|stopping| *stopping), if !grace_over => {
                // From here on the server's own grace counts.
                grace_over = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(error) = ended
        && let Some(what) = misdeed(&error)
    {
        door.node.counters().turned_away(Gate::Protocol);
        door.notices.once(Kind::Protocol, &peer.user, || format!("a connection broke HTTP/2: {what}"));
    }
}

fn http() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CALLS_PER_CONNECTION)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS);
    builder
}

/// A twentieth more or less, by where the connection's own record happens to lie: enough to spread those that were
/// opened together.
fn age(life: Life, record: &Arc<Sendings>) -> Duration {
    match life {
        Life::Unlimited => Duration::from_secs(u32::MAX.into()),
        Life::OfTls => {
            let tenth = MAX_TLS_CONNECTION_AGE / 10;
            let place = u32::try_from((Arc::as_ptr(record) as usize >> 6) % 1_000).unwrap_or_default();
            MAX_TLS_CONNECTION_AGE.saturating_sub(tenth / 2) + tenth * place / 1_000
        }
    }
}

/// Comes to an end when the peer is found to be silent or slow.
async fn watch_over(read: &AtomicUsize, sendings: &Sendings) -> Verdict {
    tokio::time::sleep(HANDSHAKE_TIMEOUT).await;
    if read.load(Ordering::Relaxed) < PREFACE_BYTES {
        return Verdict::Silent;
    }
    loop {
        tokio::time::sleep(LOOK).await;
        if sendings.stalled(SEND_TIMEOUT) {
            return Verdict::SlowReader;
        }
    }
}

/// What the peer did, where the end of its connection is its own doing and no mere hanging up.
fn misdeed(error: &hyper::Error) -> Option<String> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(next) = cause {
        if next.is::<std::io::Error>() {
            return None;
        }
        cause = next.source();
    }
    (!error.is_incomplete_message() && !error.is_closed() && !error.is_canceled()).then(|| {
        let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        format!("{error}{source}")
    })
}

/// A stream that counts what was read of it.
struct Counting<S> {
    stream: S,
    read: Arc<AtomicUsize>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counting<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.read.fetch_add(buf.filled().len() - before, Ordering::Relaxed);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counting<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
