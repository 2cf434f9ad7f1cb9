//! Accepting connections: bounded in number, known by who makes them, patient with a machine out of descriptors.
//!
//! ```text
//!  a place among all ─► accept ─► who? ─┬─ not on the access list ──────────► closed, noticed once
//!     │                                 ├─ its user has 1,024 already ──────► closed, noticed once
//!     └─ none: the kernel's queue       └─ served until it ends, by itself or with the server
//! ```
//! Over TLS who it is comes out of the handshake, so that comes first, within its time.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hisparse_core::limits::HANDSHAKE_TIMEOUT;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tonic::service::Routes;

use crate::access::Credentials;
use crate::connection::{Life, serve};
use crate::door::Door;
use crate::metrics::Gate;
use crate::notices::Kind;
use crate::peer::User;
use crate::tls::Tls;

/// Rest after a failed accept: out of descriptors, most likely.
const REST: Duration = Duration::from_millis(100);

/// What a listener of any kind does.
pub(crate) trait Listen: Send + Sync + 'static {
    /// What it accepts.
    type Stream: Send + 'static;

    /// The next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Serves one connection until its end.
    fn serve(
        &self,
        stream: Self::Stream,
        door: Arc<Door>,
        routes: Routes,
        stopping: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static;
}

impl Listen for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }

    fn serve(
        &self,
        stream: UnixStream,
        door: Arc<Door>,
        routes: Routes,
        stopping: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let credentials = stream.peer_cred();
        async move {
            // Without the kernel's word on who it is it is nobody.
            let Ok(peer) = credentials else { return };
            let who = Credentials::Unix { uid: peer.uid(), gid: peer.gid() };
            if let Some(peer) = door.let_in(&who, &User::Uid(peer.uid()), peer.pid().filter(|pid| *pid > 0)) {
                serve(stream, peer, door, routes, Life::Unlimited, stopping).await;
            }
        }
    }
}

/// TCP, on this machine in plain and anywhere with TLS.
#[derive(Debug)]
pub(crate) struct Tcp {
    pub(crate) listener: TcpListener,
    pub(crate) tls: Option<Arc<Tls>>,
}

impl Listen for Tcp {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let stream = self.listener.accept().await?.0;
        // Without it a reply and its trailers are two segments and wait 40 ms for each other.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn serve(
        &self,
        stream: TcpStream,
        door: Arc<Door>,
        routes: Routes,
        stopping: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let tls = self.tls.clone();
        async move {
            let Ok(address) = stream.peer_addr().map(|address| address.ip()) else { return };
            let Some(tls) = tls else {
                if let Some(peer) = door.let_in(&Credentials::Loopback, &User::Address(address), None) {
                    serve(stream, peer, door, routes, Life::Unlimited, stopping).await;
                }
                return;
            };
            let failed = |why: String| {
                door.node.counters().turned_away(Gate::Tls);
                door.notices.once(Kind::Tls, &User::Address(address), || format!("no TLS handshake: {why}"));
            };
            let (stream, names) = match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.handshake(stream)).await {
                Ok(Ok(done)) => done,
                Ok(Err(error)) => return failed(error.to_string()),
                Err(_) => return failed(format!("none within {} s", HANDSHAKE_TIMEOUT.as_secs())),
            };
            let user = names.first().map_or(User::Address(address), |name| User::Certificate(name.clone()));
            if let Some(peer) = door.let_in(&Credentials::Certificate(names), &user, None) {
                serve(stream, peer, door, routes, Life::OfTls, stopping).await;
            }
        }
    }
}

/// Serves a listener's connections until the server stops, and then until they are done.
pub(crate) async fn serve_all<L: Listen>(
    listener: L,
    door: Arc<Door>,
    routes: Routes,
    mut stopping: watch::Receiver<bool>,
) {
    let mut open = JoinSet::new();
    let end = stopping.clone();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => break,
            Some(_) = open.join_next() => continue,
            accepted = next(&listener, &door.places) => accepted,
        };
        match accepted {
            Ok((stream, permit)) => {
                let served = listener.serve(stream, Arc::clone(&door), routes.clone(), end.clone());
                open.spawn(async move {
                    served.await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(REST).await,
        }
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

async fn next<L: Listen>(listener: &L, places: &Arc<Semaphore>) -> io::Result<(L::Stream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    Ok((listener.accept().await?, permit))
}
