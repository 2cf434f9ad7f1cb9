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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tonic::service::Routes;

use crate::access::{Access, Credentials};
use crate::connection::{Life, serve};
use crate::layers::Shared;
use crate::metrics::Gate;
use crate::node::Node;
use crate::notices::{Kind, Notices};
use crate::peer::{Peer, Peers, User};
use crate::tls::Tls;

/// Rest after a failed accept: out of descriptors, most likely.
const REST: Duration = Duration::from_millis(100);

/// What the listeners of one server share.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) node: Arc<Node>,
    pub(crate) access: Access,
    pub(crate) shared: Shared,
    pub(crate) peers: Arc<Peers>,
    pub(crate) notices: Arc<Notices>,
    pub(crate) places: Arc<Semaphore>,
}

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

impl Door {
    /// The peer, if the access list and the bounds let it in.
    fn let_in(&self, who: &Credentials, user: &User, pid: Option<i32>) -> Option<Arc<Peer>> {
        let turned_away = |gate, kind, user: &User, what: &str| {
            self.node.counters().turned_away(gate);
            self.notices.once(kind, user, || what.to_owned());
        };
        let Some(rights) = self.access.rights(who) else {
            turned_away(Gate::Access, Kind::Stranger, user, "a connection was refused: not on the access list");
            return None;
        };
        let most = self.shared.limits.connections_per_user;
        let peer = self.peers.connected(user.clone(), pid, rights, most);
        if peer.is_none() {
            let what = format!("a connection was refused: it has {most} already, the most of one user");
            turned_away(Gate::Connections, Kind::Connections, user, &what);
        }
        peer.map(Arc::new)
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

/// A stream of bytes, whatever carries it.
pub(crate) trait Bytes: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Bytes for S {}
