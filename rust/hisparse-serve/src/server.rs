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

use std::io;
use std::path::Path;
use std::sync::Arc;

use hisparse_core::env::Clock;
use hisparse_core::error::{Problem, Problems};
use hisparse_core::ledger::Epoch;
use tokio::runtime::Builder;
use tokio::sync::Semaphore;

use crate::beginning::{Keeping, Past, PoolFrom};
use crate::door::Door;
use crate::env::MachineClock;
use crate::epoch;
use crate::layers::Shared;
use crate::layers::shed::Shed;
use crate::log::{Log, LogTo};
use crate::memory::{Host, Prepared};
use crate::node::Node;
use crate::notices::{Notices, Sink};
use crate::serving_file::ServingFile;
use crate::shutdown::{Ended, StopSwitch};
use crate::tls::Tls;

mod bound;
mod config;
mod running;

use bound::{Bound, run};
pub use config::Config;
pub use running::Running;

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
        let wait = unsure.as_ref().map(|unsure| unsure.wait);
        let untold = unsure.as_ref().map(|unsure| unsure.warning.clone());
        let warnings = warning.into_iter().chain(untold).chain(past.warning.take()).collect();
        let beginning = past.begin(journal, settings, epoch, wait, clock.now())?;
        if let Some(prepared) = &mut prepared {
            prepared.remember(&beginning.remembered);
        }
        let mut leave_word = || bound.word.as_mut().map_or(Ok(()), |word| word.leave(unsure.as_ref(), since_boot));
        // Our journal does not tell of what we do not know: then that is said before there is one.
        if wait.is_some() {
            leave_word()?;
        }
        let failed = |error: io::Error| no_threads(config.threads, &error);
        let (log, notices) = logged(config.log, clock).map_err(failed)?;
        let node = Arc::new(Node::begun(
            config.node,
            clock,
            beginning,
            bound.addresses.clone(),
            hosting,
            Arc::clone(&notices),
        )?);
        if wait.is_none() {
            leave_word()?;
        }
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

/// The log, and where notices go.
fn logged(to: LogTo, clock: MachineClock) -> io::Result<(Option<Arc<Log>>, Arc<Notices>)> {
    let log = (to == LogTo::Json).then(|| Log::to_stderr(clock)).transpose()?.map(Arc::new);
    let sink = match (to, &log) {
        (_, Some(log)) => Sink::Log(Arc::clone(log)),
        (LogTo::Text, None) => Sink::Stderr,
        _ => Sink::Nowhere,
    };
    Ok((log, Arc::new(Notices::new(sink))))
}

fn no_threads(threads: usize, error: &io::Error) -> Problems {
    Problems::one(Problem::new("threads", threads, error.to_string(), "raise the limit of processes"))
}

/// The word that this start is to leave: a server of counts alone that has a socket and this journal leaves one.
fn word_of(config: &Config, journal: Option<&Path>, epoch: Epoch) -> Option<ServingFile> {
    let (socket, journal) = config.socket.as_deref().zip(journal)?;
    Some(ServingFile::beside(socket, journal, config.state_dir.as_deref(), epoch))
}
