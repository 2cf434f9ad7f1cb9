//! What a server is started with, and what of it can be judged before anything is bound.

use std::path::PathBuf;
use std::time::Duration;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::limits::{MAX_SERVE_THREADS, RECLAIM_WINDOW, SERVE_THREADS, STOP_GRACE};

use crate::access::Access;
use crate::layers::ServeLimits;
use crate::log::LogTo;
use crate::memory::MemoryConfig;
use crate::node::NodeConfig;
use crate::tls::TlsFiles;

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

    /// What can be judged before anything is bound; [`Server::start`](super::Server::start) judges it first.
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
