//! From bound sockets to an end in order: what the server's own thread does.
//!
//! ```text
//!  Bound ─► serve: a task per listener, the clock, the history, health, the log ─► Serving
//!  asked to stop ─► nothing more is granted ─► word, socket gone ─► calls end, within the grace ─► runtime ends
//! ```

use std::io;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use hisparse_core::error::Problems;
use serde_json::json;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::config::Config;
use crate::accept::{Tcp, serve_all};
use crate::door::Door;
use crate::listen::{self, UnixSocket};
use crate::log::{Level, Log};
use crate::node::{Node, Standing};
use crate::serving_file::ServingFile;
use crate::shutdown::{Ask, Signals, StopSwitch};
use crate::tls::Tls;
use crate::{history_keeper, http, services};

/// How long threads have to notice that the runtime ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// Sockets that are bound, and not yet served.
pub(super) struct Bound {
    /// Goes before the socket does: whoever binds that next finds it settled.
    pub(super) word: Option<ServingFile>,
    unix: Option<UnixSocket>,
    tcp: Option<std::net::TcpListener>,
    tls: Option<Arc<Tls>>,
    http: Option<std::net::TcpListener>,
    pub(super) addresses: Vec<String>,
}

impl Bound {
    /// Binds everything, or nothing.
    ///
    /// # Errors
    /// The first address that cannot be had.
    pub(super) fn new(config: &Config, tls: Option<Arc<Tls>>) -> Result<Self, Problems> {
        let unix = config.socket.as_deref().map(UnixSocket::bind).transpose()?;
        let tcp = config.listen.as_deref().map(|address| listen::bind_grpc(address, tls.is_some())).transpose()?;
        let http = config.http.as_deref().map(listen::bind_http).transpose()?;
        let mut addresses = Vec::new();
        addresses.extend(unix.as_ref().map(|socket| format!("unix:{}", socket.path().display())));
        for (scheme, listener) in [("", &tcp), ("http://", &http)] {
            let local = listener.as_ref().and_then(|listener| listener.local_addr().ok());
            addresses.extend(local.map(|address| format!("{scheme}{address}")));
        }
        Ok(Self { word: None, unix, tcp, tls, http, addresses })
    }

    /// Starts to answer.
    async fn serve(self, door: Arc<Door>) -> io::Result<Serving> {
        let node = Arc::clone(&door.node);
        let (stopped, stopping) = watch::channel(false);
        let services::Served { everywhere, unix: on_unix, probes, mut health } = services::routes(&node, &stopping);
        health.begin().await;
        let mut calls = JoinSet::new();
        let mut unix = self.unix;
        if let Some(listener) = unix.as_mut().and_then(UnixSocket::take_listener) {
            calls.spawn(serve_all(UnixListener::from_std(listener)?, Arc::clone(&door), on_unix, stopping.clone()));
        }
        if let Some(listener) = self.tcp {
            let tcp = Tcp { listener: TcpListener::from_std(listener)?, tls: self.tls };
            calls.spawn(serve_all(tcp, Arc::clone(&door), everywhere, stopping));
        }
        if let Some(listener) = self.http {
            tokio::spawn(http::serve(TcpListener::from_std(listener)?, Arc::clone(&door), probes));
        }
        tokio::spawn(history_keeper::keep(Arc::clone(&node)));
        tokio::spawn(node.keep_time());
        tokio::spawn(health.follow());
        if let Some(log) = &door.shared.log {
            tokio::spawn(log_standing(Arc::clone(log), Arc::clone(&door.node)));
        }
        Ok(Serving { word: self.word, unix, calls, stopped })
    }
}

/// What runs.
struct Serving {
    word: Option<ServingFile>,
    unix: Option<UnixSocket>,
    calls: JoinSet<()>,
    stopped: watch::Sender<bool>,
}

/// The server's own thread: brings everything up, says so, waits for the end and brings it about.
pub(super) fn run(
    runtime: Runtime,
    bound: Bound,
    node: &Arc<Node>,
    door: Arc<Door>,
    signals: Option<(Arc<StopSwitch>, Duration)>,
    mut asked: watch::Receiver<Ask>,
    begun: &SyncSender<io::Result<()>>,
) {
    runtime.block_on(async {
        let up = async {
            if let Some((switch, grace)) = signals {
                let signals = Signals::take_over()?;
                tokio::spawn(async move { signals.forward(&switch, grace).await });
            }
            bound.serve(door).await
        };
        // The starter waits for this word and is there to hear it.
        let mut serving = match up.await {
            Ok(serving) => begun.send(Ok(())).map(|()| serving).ok(),
            Err(error) => begun.send(Err(error)).ok().and(None),
        };
        if let Some(serving) = serving.as_mut() {
            end_when_asked(serving, node, &mut asked).await;
        }
    });
    // Whatever still runs has had its time. Nothing of ours blocks a thread, so this ends at once.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
}

async fn end_when_asked(serving: &mut Serving, node: &Node, asked: &mut watch::Receiver<Ask>) {
    // The switch lives as long as the handle, and the handle waits for this thread: no error can end the wait.
    let ask = asked.wait_for(|ask| *ask > Ask::Run).await.map_or(Ask::Now, |ask| *ask);
    node.stop();
    if node.holds_nothing()
        && let Some(word) = &serving.word
    {
        word.remove();
    }
    drop(serving.unix.take());
    serving.stopped.send_replace(true);
    let Ask::Gently(grace) = ask else { return };
    tokio::select! {
        () = async { while serving.calls.join_next().await.is_some() {} } => {}
        () = tokio::time::sleep(grace) => {}
        _ = asked.wait_for(|ask| *ask == Ask::Now) => {}
    }
}

/// Writes down how the node stands, now and whenever that changes, as long as the runtime lives.
async fn log_standing(log: Arc<Log>, node: Arc<Node>) {
    let mut standing = node.standing();
    loop {
        let now = *standing.borrow_and_update();
        let level = if matches!(now, Standing::Failed | Standing::Faulted | Standing::Broken) {
            Level::Error
        } else {
            Level::Info
        };
        // The reason says what to do, where there is something.
        log.write(level, "standing", json!({"standing": now.word(), "reason": node.not_ready()}));
        if standing.changed().await.is_err() {
            return;
        }
    }
}
