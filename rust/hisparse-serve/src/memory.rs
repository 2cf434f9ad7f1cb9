//! The pool's bytes: made in the background, then shared with engines and kept clean.
//!
//! ```text
//!  start ─► room? ─► [own thread: make pages, report] ─► attach socket, scrubber ─► the node grants
//!             └─ no: refused at once       └─ failed, or told to stop: nothing is left, the node says why
//!
//!  decision leaves pages to scrub ──wake──► job ─► scrubber ─► zero ─► scrubbed ──wake──► next job
//!  nothing to scrub, stale pages ──► a few of them ─► the same way ─► rest seven times as long ─► the next few
//! ```
//! The thread lives as long as the server and owns the pool: when it ends, sessions end, then the pages go.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hisparse_core::error::{Problem, Problems};
use hisparse_core::layout::pool::PoolLayout;
use hisparse_core::limits::{MAX_SOCKET_PATH_BYTES, SCRUB_AHEAD_PAGES, SCRUB_AHEAD_SHARE};
use hisparse_core::pages::ScrubJob;
use hisparse_core::size::show_size;
use hisparse_core::units::Bytes;
use hisparse_mem::attach::server::{AttachServer, Share, Terms, Wanted};
use hisparse_mem::backing::Pages;
use hisparse_mem::bind::Placement;
use hisparse_mem::machine::Machine;
use hisparse_mem::pool::{HostPool, PoolError, Progress, Wishes};
use hisparse_mem::populate::Workers;
use hisparse_mem::report::PoolReport;
use hisparse_mem::root::Root;
use hisparse_mem::scrub::Scrubber;
use hisparse_mem::session_lock::SessionLock;
use hisparse_mem::state_dir::StateDir;

use crate::beginning::{Keeping, PoolFrom};
use crate::node::{Node, PoolBytes};
use crate::remembered::{KeptPool, Note, Remembered};
use crate::sessions::SessionWatcher;

/// How the user names the pool.
const FIELD: &str = "--host-pool";
/// Pages of one scrub job: some 50 MB of a large model, so that a stop waits a few milliseconds for it.
const SCRUB_JOB_PAGES: u32 = 16;
/// Time between two looks whether the engine that has the pool still lives.
const ENGINE_LOOK: Duration = Duration::from_millis(50);
/// Time between two looks whether there are stale pages.
const AHEAD_LOOK: Duration = Duration::from_millis(50);
/// Shortest rest between two steps of scrubbing ahead.
const SHORTEST_AHEAD_REST: Duration = Duration::from_millis(1);
/// Jobs that wait for the scrubber beside the one in its hands.
const SCRUB_QUEUE: usize = 1;

/// The bytes that a node shall own.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Where every row lies; it has one page more than the node grants.
    pub layout: PoolLayout,
    /// What its pages shall be.
    pub pages: Pages,
    /// Where segments come from, each in its turn; empty leaves it to the kernel.
    pub placements: Vec<Placement>,
    /// Whether pages are locked.
    pub lock: bool,
    /// Stands in for what the machine says about its memory.
    pub assume_memory: Option<Bytes>,
    /// Users that may attach besides the service's own.
    pub uids: Vec<u32>,
}

impl MemoryConfig {
    /// This layout, with the default of everything else.
    pub const fn new(layout: PoolLayout) -> Self {
        Self { layout, pages: Pages::Auto, placements: Vec::new(), lock: false, assume_memory: None, uids: Vec::new() }
    }

    fn wishes<'a>(&'a self, workers: Workers, state_dir: Option<&'a StateDir>) -> Wishes<'a> {
        let Self { pages, ref placements, lock, assume_memory, .. } = *self;
        Wishes { pages, placements, workers, lock, assume_memory, state_dir }
    }
}

/// Where engines attach to the service at `socket`.
pub fn attach_beside(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".attach");
    PathBuf::from(name)
}

/// How far the bytes are, for everyone who asks.
#[derive(Debug)]
pub(crate) struct Hosting {
    made_bytes: AtomicU64,
    total_bytes: AtomicU64,
    outcome: Mutex<Option<Result<(), Problems>>>,
    report: OnceLock<PoolReport>,
    news: Condvar,
    /// Shared with the threads that make pages.
    stop: Arc<AtomicBool>,
    wake: SyncSender<()>,
    /// Nanoseconds that the last scrub took, until they are read; 0 for none.
    scrub_ns: AtomicU64,
    layer_groups: usize,
}

impl Hosting {
    /// Bytes made, and to be made.
    pub(crate) fn progress(&self) -> Progress {
        let read = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        Progress { made_bytes: read(&self.made_bytes), total_bytes: read(&self.total_bytes) }
    }

    /// Layer groups of the pool, by which engines report.
    pub(crate) const fn layer_groups(&self) -> usize {
        self.layer_groups
    }

    /// Waits until they are made or cannot be, at most so long; `None` while they are being made.
    pub(crate) fn outcome(&self, longest: Duration) -> Option<Result<(), Problems>> {
        let guard = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.news.wait_timeout_while(guard, longest, |outcome| outcome.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// What the pool became; `None` until it is made.
    pub(crate) fn made(&self) -> Option<&PoolReport> {
        self.report.get()
    }

    /// There are pages to scrub. Never waits: one call that is not yet answered stands for all that follow it.
    pub(crate) fn wake(&self) {
        let _awake = self.wake.try_send(());
    }

    fn scrubbed_in(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.scrub_ns.store(ns, Ordering::Relaxed);
        self.wake();
    }

    /// How long the last scrub took, where one has ended since this was asked.
    fn last_scrub(&self) -> Option<Duration> {
        let ns = self.scrub_ns.swap(0, Ordering::Relaxed);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// Nothing more is to be made.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake();
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn report(&self, progress: Progress) {
        self.total_bytes.store(progress.total_bytes, Ordering::Relaxed);
        self.made_bytes.fetch_max(progress.made_bytes, Ordering::Relaxed);
    }

    fn settled(&self, outcome: Result<(), Problems>) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.news.notify_all();
    }
}

/// A pool that fits and is not made yet.
#[derive(Debug)]
pub(crate) struct Prepared {
    config: MemoryConfig,
    machine: Machine,
    attach: PathBuf,
    wakes: Receiver<()>,
    workers: Workers,
    keeping: Keeping,
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
        let total_bytes = AtomicU64::new(total(&config.layout));
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

/// The thread that owns the pool. Dropping it ends the sessions and gives the memory back.
#[derive(Debug)]
pub(crate) struct Host {
    node: Arc<Node>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    /// Begins to make the pages; the node grants when they are there.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(node: Arc<Node>, prepared: Prepared) -> io::Result<Self> {
        let owner = Arc::clone(&node);
        let work = move || host(&owner, prepared);
        let thread = std::thread::Builder::new().name("hisparse-pool".into()).spawn(work)?;
        Ok(Self { node, thread: Some(thread) })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(hosting) = self.node.hosting() {
            hosting.stop();
        }
        if let Some(thread) = self.thread.take() {
            // A panic was reported where it happened.
            let _panicked = thread.join();
        }
    }
}

fn host(node: &Arc<Node>, mut prepared: Prepared) {
    let Some(hosting) = node.hosting() else { return };
    let begun = begin(node, hosting, &mut prepared).and_then(|Begun { pool, sessions, lost }| {
        prepared.keeping.keep();
        let mut report = PoolReport::of(&pool);
        report.notes.extend(lost);
        let numa_node = hosting.report.get_or_init(|| report).only_node();
        let sessions = match sessions {
            Some(sessions) => sessions,
            None => prepared.let_engines_in(node, Share::Pool(Arc::clone(&pool)))?,
        };
        Ok((start_scrubber(node, pool)?, sessions, numa_node))
    });
    match begun {
        Ok((scrubber, sessions, numa_node)) => {
            node.pool_settled(PoolBytes::Ready, numa_node);
            hosting.settled(Ok(()));
            scrub(node, hosting, &scrubber, &prepared.wakes);
            node.sessions.set_herald(None);
            drop(sessions);
        }
        Err(problems) => {
            node.sessions.set_herald(None);
            node.pool_settled(PoolBytes::Failed, None);
            hosting.settled(Err(problems));
        }
    }
}

/// A pool, and the sessions where they came with it.
struct Begun {
    pool: Arc<HostPool>,
    sessions: Option<AttachServer>,
    /// What to tell the operator of a pool that did not come back.
    lost: Option<String>,
}

/// Takes the pool over, or makes it.
fn begin(node: &Arc<Node>, hosting: &Hosting, prepared: &mut Prepared) -> Result<Begun, Problems> {
    let lock = prepared.config.lock;
    match std::mem::replace(&mut prepared.from, PoolFrom::Nothing) {
        PoolFrom::Nothing => Ok(Begun { pool: make(node, hosting, prepared)?, sessions: None, lost: None }),
        PoolFrom::Files(KeptPool { layout, segments }, files) => {
            let adopted = HostPool::adopt(layout, &segments, &files, lock);
            let pool = adopted.map_err(|error| {
                let remedy = "see the kernel's message; to begin anew, empty the folder";
                Problems::one(Problem::new("--state-dir", "its segments", error.to_string(), remedy))
            })?;
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
        .map_err(|error| refused(error, &config.layout))?;
    // The heap stand-in has no files, and outlives nobody.
    if let Ok(segments) = pool.kept() {
        node.remember(&Note::Pool(KeptPool { layout: config.layout.clone(), segments }));
    }
    Ok(Arc::new(pool))
}

impl Prepared {
    fn let_engines_in(&self, node: &Arc<Node>, share: Share) -> Result<AttachServer, Problems> {
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

/// Begins to keep the pages clean.
fn start_scrubber(node: &Arc<Node>, pool: Arc<HostPool>) -> Result<Scrubber<ScrubJob>, Problems> {
    let cleaned = Arc::clone(node);
    let scrubber = Scrubber::start(pool, SCRUB_QUEUE, move |job, took| {
        // A poisoned node grants nothing any more, clean or not.
        let _ = cleaned.decide(None, |state, _| state.ledger.scrubbed(job));
        if let Some(hosting) = cleaned.hosting() {
            hosting.scrubbed_in(took);
        }
    });
    scrubber.map_err(|error| {
        Problems::one(Problem::new("threads", SCRUB_QUEUE, error.to_string(), "raise the limit of processes"))
    })
}

/// Hands the scrubber what there is to scrub, until the end: what somebody waits for at once, and while there is nothing
/// of that, stale pages ahead of the one who will ask, a few at a time with long rests.
#[allow(clippy::disallowed_methods)] // it paces a thread, and decides nothing
fn scrub(node: &Node, hosting: &Hosting, scrubber: &Scrubber<ScrubJob>, wakes: &Receiver<()>) {
    let mut held = None;
    let mut next_ahead = Instant::now();
    loop {
        let rest = next_ahead.saturating_duration_since(Instant::now()).clamp(SHORTEST_AHEAD_REST, AHEAD_LOOK);
        let woken = wakes.recv_timeout(rest);
        if woken == Err(RecvTimeoutError::Disconnected) || hosting.stopping() {
            return;
        }
        if held.is_none() && next_ahead <= Instant::now() {
            node.scrub_ahead(SCRUB_AHEAD_PAGES);
            next_ahead = Instant::now() + AHEAD_LOOK; // sooner, once it is known how long it took
        }
        if let Some(took) = hosting.last_scrub() {
            next_ahead = Instant::now() + took * (SCRUB_AHEAD_SHARE - 1);
        }
        while let Some(job) = held.take().or_else(|| node.next_scrub(SCRUB_JOB_PAGES)) {
            if let Err(job) = scrubber.submit(job) {
                // The end of the job in hand wakes us again.
                held = Some(job);
                break;
            }
        }
    }
}

fn total(layout: &PoolLayout) -> u64 {
    layout.segment_bytes().iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes))
}

fn refused(error: PoolError, layout: &PoolLayout) -> Problems {
    let wanted = Bytes::new(total(layout));
    match error {
        PoolError::TooLarge(problems) => problems,
        PoolError::Segment(error) => Problems::one(error.problem(FIELD, wanted)),
        PoolError::StateDir(error) => {
            Problems::one(Problem::new("--state-dir", show_size(wanted), error.to_string(), "give another folder"))
        }
    }
}

#[cfg(test)]
mod tests {
    use hisparse_core::env::Moment;
    use hisparse_core::layout::pool::PoolShape;
    use hisparse_core::layout::{RowLayout, StrideAlign, default_index_dtype};
    use hisparse_core::ledger::{Epoch, NodeCapacity};
    use hisparse_core::model::{Layer, preset};
    use hisparse_core::platform::{KvDtype, LayerGroups};

    use super::*;
    use crate::env::MachineClock;
    use crate::error::Refusal;
    use crate::node::NodeConfig;

    fn config() -> MemoryConfig {
        let model = preset("glm-5.2").unwrap();
        let main = RowLayout::main(&model, KvDtype::Fp8E4m3, 1).unwrap();
        let indexer = RowLayout::indexer(&model, default_index_dtype(&model)).unwrap();
        let shape = PoolShape {
            layers: &[Layer::Indexed],
            draft_layers: 0,
            main: &main,
            indexer: &indexer,
            page_tokens: 64,
            tokens_per_row: 1,
            tokens_per_index_row: 1,
            pages: 11,
            align: StrideAlign::Packed,
            groups: LayerGroups::Auto,
        };
        MemoryConfig::new(PoolLayout::new(&shape).unwrap())
    }

    #[test]
    fn a_node_grants_nothing_before_its_pool_is_made_and_says_how_far_it_is() {
        let home = tempfile::tempdir().unwrap();
        let (prepared, hosting) = Prepared::new(config(), Some(&home.path().join("h.sock"))).unwrap();
        let node = NodeConfig::of_capacity("test", NodeCapacity::of_host_pages(10, 2));
        let node = Node::new(node, MachineClock::start(), Epoch::FIRST, Vec::new(), Some(hosting)).unwrap();
        let node = Arc::new(node);
        assert!(node.not_ready().unwrap().starts_with("making the host pool: 0 B of "), "{:?}", node.not_ready());
        let grants = || node.decide(None, |state, _: Moment| state.grants_at_all()).unwrap();
        assert_eq!(grants(), Err(Refusal::NoPoolYet));
        assert_eq!(node.hosting().unwrap().outcome(Duration::ZERO), None);
        let host = Host::start(Arc::clone(&node), prepared).unwrap();
        assert_eq!(node.hosting().unwrap().outcome(Duration::from_secs(60)), Some(Ok(())));
        assert_eq!((grants(), node.not_ready()), (Ok(()), None));
        drop(host);
    }

    #[test]
    fn a_stop_ends_the_making_of_pages() {
        let home = tempfile::tempdir().unwrap();
        let (prepared, hosting) = Prepared::new(config(), Some(&home.path().join("h.sock"))).unwrap();
        hosting.stop();
        let node = NodeConfig::of_capacity("test", NodeCapacity::of_host_pages(10, 2));
        let node = Node::new(node, MachineClock::start(), Epoch::FIRST, Vec::new(), Some(hosting)).unwrap();
        let node = Arc::new(node);
        drop(Host::start(Arc::clone(&node), prepared).unwrap());
        assert!(node.hosting().unwrap().outcome(Duration::ZERO).unwrap().is_err());
        assert!(node.not_ready().is_some());
    }

    #[test]
    fn a_socket_path_that_leaves_no_room_for_the_attach_socket_is_refused_before_anything_is_made() {
        let home = tempfile::tempdir().unwrap();
        let name = "s".repeat(MAX_SOCKET_PATH_BYTES - home.path().as_os_str().len() - 1);
        let refusal = Prepared::new(config(), Some(&home.path().join(name))).unwrap_err().to_string();
        assert!(refusal.contains(".attach has"), "{refusal}");
        assert!(Prepared::new(config(), None).unwrap_err().to_string().contains("--backing none"));
    }
}
