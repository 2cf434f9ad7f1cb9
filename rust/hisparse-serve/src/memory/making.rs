//! From a plan to a pool: room looked for, pages made or taken over, engines let in.
//!
//! ```text
//!  beginning ─ no room: refused at once
//!      └─► begin ─┬─ Nothing ─► pages made, each counted
//!                 ├─ Files ───► adopted
//!                 └─ Engine ──► handed back by it; it went first: all leases end, pages are made
//! ```

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::layout::pool::PoolLayout;
use hisparse_core::limits::MAX_SOCKET_PATH_BYTES;
use hisparse_core::units::Bytes;
use hisparse_mem::attach::server::{AttachServer, Share, Terms, Wanted};
use hisparse_mem::machine::Machine;
use hisparse_mem::pool::{AdoptError, HostPool, PoolError};
use hisparse_mem::populate::Workers;
use hisparse_mem::root::Root;
use hisparse_mem::session_lock::SessionLock;
use hisparse_mem::state_dir::StateDir;

use super::config::{MemoryConfig, attach_beside};
use super::hosting::Hosting;
use crate::beginning::{Keeping, PoolFrom};
use crate::node::Node;
use crate::pool_bytes::PoolBytes;
use crate::remembered::{KeptPool, Note, Remembered};
use crate::sessions::SessionWatcher;

/// How the user names the pool.
const FIELD: &str = "--host-pool";
/// Time between two looks whether the engine that has the pool still lives.
const ENGINE_LOOK: Duration = Duration::from_millis(50);

/// A pool that fits and is not made yet.
#[derive(Debug)]
pub(crate) struct Prepared {
    config: MemoryConfig,
    machine: Machine,
    attach: PathBuf,
    pub(super) wakes: Receiver<()>,
    workers: Workers,
    pub(super) keeping: Keeping,
    from: PoolFrom,
    past: Remembered,
}

impl Prepared {
    /// Looks whether there is room, and where engines would attach.
    ///
    /// # Errors
    /// No room, with every limit that is too small; no socket to attach beside, or one with too long a name.
    #[cfg(test)]
    pub(crate) fn new(config: MemoryConfig, socket: Option<&Path>) -> Result<(Self, Hosting), Problems> {
        let keeping = Keeping { journal: None, lock: None, state_dir: None };
        Self::beginning(config, socket, keeping, PoolFrom::Nothing)
    }

    /// As said; pages that are there need no room.
    pub(crate) fn beginning(
        config: MemoryConfig,
        socket: Option<&Path>,
        keeping: Keeping,
        from: PoolFrom,
    ) -> Result<(Self, Hosting), Problems> {
        let Some(socket) = socket else {
            let remedy = "give a Unix socket, or --backing none";
            return Err(Problems::one(Problem::new("socket", "missing", "engines attach beside it", remedy)));
        };
        let attach = attach_beside(socket);
        let length = attach.as_os_str().len();
        if length > MAX_SOCKET_PATH_BYTES {
            let rule = format!(
                "a socket path has at most {MAX_SOCKET_PATH_BYTES} bytes, and {} has {length}",
                attach.display()
            );
            return Err(Problems::one(Problem::new("socket", socket.display(), rule, "give a shorter one")));
        }
        let machine = Machine::discover(&Root::machine(), config.assume_memory);
        let workers = Workers::of_this_machine();
        if matches!(from, PoolFrom::Nothing) {
            HostPool::check(&config.layout, &config.wishes(workers.clone(), keeping.state_dir.as_ref()), &machine)?;
        }
        let (wake, wakes) = sync_channel(1);
        let total_bytes = AtomicU64::new(config.layout.total_bytes());
        let hosting = Hosting {
            made_bytes: AtomicU64::new(0),
            total_bytes,
            outcome: Mutex::new(None),
            report: OnceLock::new(),
            news: Condvar::new(),
            stop: Arc::clone(&workers.stop),
            wake,
            scrub_ns: AtomicU64::new(0),
            layer_groups: config.layout.groups().count(),
        };
        let past = Remembered::default();
        Ok((Self { config, machine, attach, wakes, workers, keeping, from, past }, hosting))
    }

    /// Who was attached before.
    pub(crate) fn remember(&mut self, past: &Remembered) {
        self.past = past.clone();
    }
}

/// A pool, and the sessions where they came with it.
pub(super) struct Begun {
    pub(super) pool: Arc<HostPool>,
    pub(super) sessions: Option<AttachServer>,
    /// What to tell the operator of a pool that did not come back.
    pub(super) lost: Option<String>,
}

/// Takes the pool over, or makes it.
///
/// # Errors
/// It cannot be had, or the service was stopped meanwhile.
pub(super) fn begin(node: &Arc<Node>, hosting: &Hosting, prepared: &mut Prepared) -> Result<Begun, Problems> {
    let lock = prepared.config.lock;
    match std::mem::replace(&mut prepared.from, PoolFrom::Nothing) {
        PoolFrom::Nothing => Ok(Begun { pool: make(node, hosting, prepared)?, sessions: None, lost: None }),
        PoolFrom::Files(KeptPool { layout, segments }, files) => {
            let adopted = HostPool::adopt(layout, &segments, &files, lock);
            let pool = adopted.map_err(|error| not_adopted(&error, prepared))?;
            Ok(Begun { pool: Arc::new(pool), sessions: None, lost: None })
        }
        PoolFrom::Engine(KeptPool { layout, segments }) => {
            node.pool_settled(PoolBytes::Elsewhere, None);
            let wanted = Share::Wanted(Wanted { layout, segments, lock });
            let sessions = prepared.let_engines_in(node, wanted)?;
            loop {
                if let Some(pool) = sessions.pool(ENGINE_LOOK) {
                    return Ok(Begun { pool, sessions: Some(sessions), lost: None });
                }
                if hosting.stopping() {
                    let rule = "the service was stopped before an engine handed the pool back";
                    return Err(Problems::one(Problem::new(FIELD, "in an engine", rule, "start it again")));
                }
                if !prepared.keeping.lock.as_ref().is_some_and(SessionLock::is_held) {
                    break;
                }
            }
            node.sessions.set_herald(None);
            drop(sessions);
            prepared.past = Remembered::default();
            let ended = node.begin_anew();
            node.pool_settled(PoolBytes::Making, None);
            let lost = format!(
                "The pool went with the engine that had it: {ended} leases have ended, and a new pool was made."
            );
            Ok(Begun { pool: make(node, hosting, prepared)?, sessions: None, lost: Some(lost) })
        }
    }
}

fn make(node: &Node, hosting: &Hosting, prepared: &Prepared) -> Result<Arc<HostPool>, Problems> {
    let Prepared { config, machine, workers, keeping, .. } = prepared;
    let wishes = config.wishes(workers.clone(), keeping.state_dir.as_ref());
    let pool = HostPool::create(config.layout.clone(), &wishes, machine, &|now| hosting.report(now))
        .map_err(|error| refused(error, &config.layout, keeping.state_dir.as_ref()))?;
    // The heap stand-in has no files, and outlives nobody.
    if let Ok(segments) = pool.kept() {
        node.remember(&Note::Pool(KeptPool { layout: config.layout.clone(), segments }));
    }
    Ok(Arc::new(pool))
}

impl Prepared {
    /// Opens the socket that engines attach at.
    ///
    /// # Errors
    /// It cannot be had.
    pub(super) fn let_engines_in(&self, node: &Arc<Node>, share: Share) -> Result<AttachServer, Problems> {
        let Self { config, attach, keeping, past, .. } = self;
        let terms = Terms {
            epoch: node.epoch().get(),
            uids: config.uids.clone(),
            lock: keeping.lock.clone(),
            last_session: past.last_session,
            engine_id: past.dead.values().next().map(|session| session.hello.engine_id.clone()),
        };
        let sessions = AttachServer::start(attach, share, terms, Arc::new(SessionWatcher(Arc::clone(node))));
        let sessions = sessions.map_err(|error| {
            Problems::one(Problem::new("socket", attach.display(), error.to_string(), "name another socket"))
        })?;
        node.sessions.set_herald(Some(sessions.herald()));
        Ok(sessions)
    }
}

/// Segments that are the ones of the journal, and cannot be mapped or locked; or are others by now.
fn not_adopted(error: &AdoptError, prepared: &Prepared) -> Problems {
    Problems::one(match error {
        AdoptError::Segment(error) => error.problem(FIELD, Bytes::new(prepared.config.layout.total_bytes())),
        AdoptError::Count { .. } | AdoptError::Other { .. } => {
            let folder = prepared.keeping.state_dir.as_ref().map_or(Path::new(""), StateDir::path);
            let remedy = "empty the folder: the service begins anew, and the leases of before are lost";
            Problem::new("--state-dir", folder.display(), error.to_string(), remedy)
        }
    })
}

fn refused(error: PoolError, layout: &PoolLayout, state_dir: Option<&StateDir>) -> Problems {
    let wanted = Bytes::new(layout.total_bytes());
    match error {
        PoolError::TooLarge(problems) => problems,
        PoolError::Segment(error) => Problems::one(error.problem(FIELD, wanted)),
        PoolError::StateDir(error) => Problems::one(error.problem(state_dir.map_or(Path::new(""), StateDir::path))),
    }
}
