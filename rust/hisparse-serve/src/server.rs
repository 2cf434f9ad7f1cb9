//! The server as a library: start it, ask where it is, stop it, wait for it.
//!
//! ```text
//!  Server::start ─► sockets bound ─► runtime, threads ─► Running ── stop(grace) ─► join()
//!                       └─ Problems: nothing was started, nothing is left behind
//!
//!        unix ─┐                    ┌─ Capacity, Admission, Budget, Admin; Engine on unix, beside the attach socket
//!         tcp ─┼─► access, layers ──┤
//!              │                    └─ health, reflection
//!        http ─┴─► /healthz /readyz /metrics, gRPC health for probes, and the page
//! ```
//! A handle is its owner's: threads do not survive a fork, so in a forked child it is an empty shell, and dropping it
//! there leaves the parent's sockets and threads alone.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::Duration;

use hisparse_core::env::Clock;
use hisparse_core::error::{Problem, Problems};
use hisparse_core::ledger::Epoch;
use hisparse_core::limits::{MAX_SERVE_THREADS, RECLAIM_WINDOW, SERVE_THREADS, STOP_GRACE};
use hisparse_mem::pool::Progress;
use hisparse_mem::report::PoolReport;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::accept::{Door, Tcp, serve_all};
use crate::access::Access;
use crate::beginning::{Keeping, Past, PoolFrom};
use crate::env::MachineClock;
use crate::layers::shed::Shed;
use crate::layers::{ServeLimits, Shared};
use crate::listen::{self, UnixSocket};
use crate::log::{self, Log, LogTo};
use crate::memory::{Host, Hosting, MemoryConfig, Prepared};
use crate::node::{Node, NodeConfig, Standing};
use crate::notices::{Notices, Sink};
use crate::serving_file::{ServingFile, Unsure};
use crate::shutdown::{Ask, Ended, Signals, StopSwitch};
use crate::tls::{Tls, TlsFiles};
use crate::{epoch, history, http, services};

/// How long threads have to notice that the runtime ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node behind the interface.
    pub node: NodeConfig,
    /// Path of the Unix socket; `None` for no such socket.
    pub socket: Option<PathBuf>,
    /// TCP address for gRPC, as `127.0.0.1:7411`; `None` for none. Without `tls` it must be loopback.
    pub listen: Option<String>,
    /// Certificates for `listen`; with them every peer there must show one that `access` names.
    pub tls: Option<TlsFiles>,
    /// Who may do what.
    pub access: Access,
    /// Bounds.
    pub limits: ServeLimits,
    /// Where notices of peers that misbehave go, and what becomes of calls; notices are kept in any case.
    pub log: LogTo,
    /// Address of the HTTP port, as `127.0.0.1:7412`; `None` for none.
    pub http: Option<String>,
    /// Threads that answer calls.
    pub threads: usize,
    /// Stop on SIGTERM and SIGINT. The handlers stay for the life of the process.
    pub handle_signals: bool,
    /// How long a signal lets calls finish.
    pub stop_grace: Duration,
    /// The bytes of the pool; `None` where an engine owns them and the node counts pages alone.
    pub memory: Option<MemoryConfig>,
    /// Memory-backed folder in which the pool and the journal outlive the service; `None` keeps the journal beside the
    /// socket, and the pool in anonymous memory.
    pub state_dir: Option<PathBuf>,
    /// How long a dead engine's leases wait for its successor.
    pub reclaim_window: Duration,
}

impl Config {
    /// This node, reachable nowhere yet, with the default of everything else.
    pub fn new(node: NodeConfig) -> Self {
        Self {
            node,
            socket: None,
            listen: None,
            tls: None,
            access: Access::default(),
            limits: ServeLimits::default(),
            log: LogTo::Nowhere,
            http: None,
            threads: SERVE_THREADS,
            handle_signals: false,
            stop_grace: STOP_GRACE,
            memory: None,
            state_dir: None,
            reclaim_window: RECLAIM_WINDOW,
        }
    }

    /// What can be judged before anything is bound; [`Server::start`] judges it first.
    ///
    /// # Errors
    /// Everything wrong with it.
    pub fn check(&self) -> Result<(), Problems> {
        let mut problems = Problems::new();
        if self.socket.is_none() && self.listen.is_none() {
            let remedy = "give a Unix socket or a loopback address";
            problems.push(Problem::new("socket", "missing", "a server needs an address for gRPC", remedy));
        }
        if !(1..=MAX_SERVE_THREADS).contains(&self.threads) {
            let remedy = format!("give a number from 1 to {MAX_SERVE_THREADS}");
            problems.push(Problem::new("threads", self.threads, "must be in range", remedy));
        }
        if let Some(tls) = &self.tls {
            if self.listen.is_none() {
                let remedy = "give an address to listen at, or leave the certificates out";
                problems.push(Problem::new(
                    "tls_cert",
                    tls.certificate.display(),
                    "is for TCP, and there is none",
                    remedy,
                ));
            }
            if !self.access.names_certificates() {
                let rule = "names no certificate, so nobody could connect over TLS";
                problems.push(Problem::new(
                    "access",
                    "missing",
                    rule,
                    "add cert:NAME=router, NAME being in the certificate",
                ));
            }
        }
        if let Err(found) = self.limits.check() {
            problems.extend(found);
        }
        problems.into_result(())
    }
}

/// Starts servers.
#[derive(Clone, Copy, Debug)]
pub struct Server;

impl Server {
    /// Binds every address and starts answering on threads of its own. When it returns the server is ready, or makes
    /// its pool's pages and is ready when they are there: see [`Running::made`].
    ///
    /// Call it after any fork: threads do not survive one.
    ///
    /// # Errors
    /// Everything wrong with the configuration, or the first address that cannot be had. Nothing is left running.
    pub fn start(mut config: Config) -> Result<Running, Problems> {
        config.check()?;
        let clock = MachineClock::start();
        let memory = config.memory.take();
        let settings = config.node.ledger(memory.is_some(), config.reclaim_window);
        let keeping = Keeping::open(config.socket.as_deref(), config.state_dir.as_deref())?;
        let mut past = Past::of(&keeping, &settings, memory.as_ref().map(|memory| &memory.layout))?;
        let from = std::mem::replace(&mut past.pool, PoolFrom::Nothing);
        let journal = keeping.journal.clone();
        // Who makes the pool keeps the folder's lock; without one the server does.
        let (memory, keeping) = match memory {
            Some(memory) => (Some(Prepared::beginning(memory, config.socket.as_deref(), keeping, from)?), None),
            None => (None, Some(keeping)),
        };
        let (mut prepared, hosting) = memory.unzip();
        let tls = config.tls.take().map(|files| Tls::new(files, clock)).transpose()?.map(Arc::new);
        let mut bound = Bound::new(&config, tls)?;
        let epoch_file = config.socket.as_deref().map(epoch::file_beside);
        let (epoch, warning) = epoch::next(epoch_file.as_deref(), past.last_epoch, clock.wall_at_origin())?;
        bound.word = word_of(&config, journal.as_deref().filter(|_| hosting.is_none()), epoch);
        let since_boot = clock.since_boot(clock.now());
        let unsure = bound.word.as_ref().and_then(|word| word.judge(past.last_epoch, config.node.learning, since_boot));
        let (wait, unsure) = unsure.map(|Unsure { wait, warning }| (wait, warning)).unzip();
        let warnings = warning.into_iter().chain(unsure).chain(past.warning.take()).collect();
        let beginning = past.begin(journal, settings, epoch, wait, clock.now())?;
        if let Some(prepared) = &mut prepared {
            prepared.remember(&beginning.remembered);
        }
        let mut leave_word = || bound.word.as_mut().map_or(Ok(()), |word| word.leave(wait, since_boot));
        // Our journal does not tell of what we do not know: then that is said before there is one.
        if wait.is_some() {
            leave_word()?;
        }
        let node = Arc::new(Node::begun(config.node, clock, beginning, bound.addresses.clone(), hosting)?);
        if wait.is_none() {
            leave_word()?;
        }
        let failed = |error: io::Error| {
            Problems::one(Problem::new("threads", config.threads, error.to_string(), "raise the limit of processes"))
        };
        let log = (config.log == LogTo::Json).then(|| Log::to_stderr(clock)).transpose().map_err(failed)?.map(Arc::new);
        let sink = match (config.log, &log) {
            (_, Some(log)) => Sink::Log(Arc::clone(log)),
            (LogTo::Text, None) => Sink::Stderr,
            _ => Sink::Nowhere,
        };
        let notices = Arc::new(Notices::new(sink));
        let shed = Shed::new(Arc::clone(&node), Arc::clone(&notices));
        let door = Arc::new(Door {
            node: Arc::clone(&node),
            access: config.access,
            shared: Shared::new(shed, config.limits, log),
            peers: Arc::default(),
            notices: Arc::clone(&notices),
            places: Arc::new(Semaphore::new(config.limits.connections)),
        });

        let runtime = Builder::new_multi_thread()
            .worker_threads(config.threads)
            .thread_name("hisparse-serve")
            .enable_all()
            .build()
            .map_err(failed)?;
        let host = prepared.map(|prepared| Host::start(Arc::clone(&node), prepared)).transpose().map_err(failed)?;
        let (switch, asked) = StopSwitch::new();
        let (switch, ended) = (Arc::new(switch), Arc::new(Ended::default()));
        let addresses = bound.addresses.clone();
        let signals = config.handle_signals.then(|| (Arc::clone(&switch), config.stop_grace));
        // The caller may be on a runtime of its own, so ours is entered on a thread of ours.
        let (begun, has_begun) = std::sync::mpsc::sync_channel(1);
        let thread = {
            let (node, ended) = (Arc::clone(&node), Arc::clone(&ended));
            let mut keeping = keeping;
            let work = move || {
                if let Some(word) = &mut bound.word {
                    word.keep();
                }
                if let Some(keeping) = &mut keeping {
                    keeping.keep();
                }
                run(runtime, bound, &node, door, signals, asked, &begun);
                drop((host, keeping));
                ended.set();
            };
            std::thread::Builder::new().name("hisparse-main".into()).spawn(work).map_err(failed)?
        };
        let running = Running {
            owner: std::process::id(),
            addresses,
            warnings,
            notices,
            node,
            switch,
            ended,
            thread: Some(thread),
        };
        match has_begun.recv() {
            Ok(Ok(())) => Ok(running),
            Ok(Err(error)) => Err(failed(error)),
            Err(gone) => Err(failed(io::Error::other(gone))),
        }
    }
}

/// The word that this start is to leave: a server of counts alone that has a socket and this journal leaves one.
fn word_of(config: &Config, journal: Option<&Path>, epoch: Epoch) -> Option<ServingFile> {
    let (socket, journal) = config.socket.as_deref().zip(journal)?;
    Some(ServingFile::beside(socket, journal, config.state_dir.as_deref(), epoch))
}

/// A server that answers. In a forked child none does: there it counts as stopped, and asking or waiting does nothing.
#[derive(Debug)]
pub struct Running {
    /// The process that its threads run in.
    owner: u32,
    addresses: Vec<String>,
    warnings: Vec<String>,
    notices: Arc<Notices>,
    node: Arc<Node>,
    switch: Arc<StopSwitch>,
    ended: Arc<Ended>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Where it listens: `unix:/run/h.sock`, `127.0.0.1:7411`, `http://127.0.0.1:7412`, with the ports it got.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// What was amiss at the start and is mended; for the operator to read.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What peers did that they should not, each once: for the operator to read.
    pub fn notices(&self) -> Vec<String> {
        if self.is_ours() { self.notices.lines() } else { Vec::new() }
    }

    /// Whether it grants.
    pub fn ready(&self) -> bool {
        self.is_ours() && self.node.not_ready().is_none()
    }

    /// Waits until the pool's pages are made, at most so long: `None` while they still are being made, and why there
    /// is no pool where they could not be had. Where the node owns no bytes there is nothing to wait for.
    pub fn made(&self, longest: Duration) -> Option<Result<(), Problems>> {
        if !self.is_ours() {
            let remedy = "start a server after the fork";
            let problem = Problem::new("server", self.owner, "runs in the process that started it", remedy);
            return Some(Err(Problems::one(problem)));
        }
        self.node.hosting().map_or(Some(Ok(())), |hosting| hosting.outcome(longest))
    }

    /// How far making them is; `None` where the node owns no bytes.
    pub fn progress(&self) -> Option<Progress> {
        self.node.hosting().filter(|_| self.is_ours()).map(Hosting::progress)
    }

    /// What the pool became; `None` where the node owns no bytes, and until they are made.
    pub fn pool(&self) -> Option<&PoolReport> {
        self.node.hosting().filter(|_| self.is_ours()).and_then(Hosting::made)
    }

    /// Whether it was told to stop.
    pub fn stopping(&self) -> bool {
        !self.is_ours() || *self.node.standing().borrow() == Standing::Stopping
    }

    /// Asks it to stop; calls may finish for `grace`. Asked again, it stops at once. Returns immediately.
    pub fn stop(&self, grace: Duration) {
        if self.is_ours() {
            self.switch.ask(grace);
        }
    }

    /// Waits for its end, at most so long (`None`: for ever); whether it has ended.
    pub fn wait(&self, longest: Option<Duration>) -> bool {
        !self.is_ours() || self.ended.wait(longest)
    }

    /// Waits for its end.
    pub fn join(mut self) {
        self.finish();
    }

    /// Whether this is the process that it runs in. Its locks are not to be touched in another one: a thread that no
    /// longer exists may hold them.
    fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }

    fn finish(&mut self) {
        if !self.is_ours() {
            // Never the last reference: what these drop is the parent's to drop.
            std::mem::forget((Arc::clone(&self.node), Arc::clone(&self.switch), Arc::clone(&self.ended)));
            std::mem::forget(Arc::clone(&self.notices));
            std::mem::forget(self.thread.take());
            return;
        }
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed by its own thread, and the sockets are gone with it.
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    /// Stops at once and waits for it: no thread outlives the handle.
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop(Duration::ZERO);
            self.finish();
        }
    }
}

/// Sockets that are bound, and not yet served.
struct Bound {
    /// Goes before the socket does: whoever binds that next finds it settled.
    word: Option<ServingFile>,
    unix: Option<UnixSocket>,
    tcp: Option<std::net::TcpListener>,
    tls: Option<Arc<Tls>>,
    http: Option<std::net::TcpListener>,
    addresses: Vec<String>,
}

impl Bound {
    fn new(config: &Config, tls: Option<Arc<Tls>>) -> Result<Self, Problems> {
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
        tokio::spawn(history::keep(Arc::clone(&node)));
        tokio::spawn(node.keep_time());
        tokio::spawn(health.follow());
        if let Some(log) = &door.shared.log {
            tokio::spawn(log::follow(Arc::clone(log), Arc::clone(&door.node)));
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
fn run(
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use hisparse_core::ledger::NodeCapacity;

    use super::*;

    #[test]
    fn a_handle_in_another_process_neither_stops_the_server_nor_waits_for_it() {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("h.sock");
        let node = NodeConfig::of_capacity("test", NodeCapacity::of_host_pages(10, 4));
        let mut running = Server::start(Config { socket: Some(socket.clone()), ..Config::new(node) }).unwrap();
        assert!(running.ready() && !running.stopping());
        let (owner, ended) = (running.owner, Arc::clone(&running.ended));
        running.owner = owner.wrapping_add(1); // as a forked child sees it
        assert!(!running.ready() && running.stopping() && running.wait(None));
        assert!(running.made(Duration::ZERO).unwrap().unwrap_err().to_string().contains("after the fork"));
        running.stop(Duration::ZERO);
        drop(running);
        assert!(!ended.wait(Some(Duration::from_millis(200))), "it ended");
        UnixStream::connect(&socket).unwrap();
    }
}
