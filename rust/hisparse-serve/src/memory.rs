//! The pool's bytes: made in the background, then shared with engines and kept clean.
//!
//! ```text
//!  start ─► room? ─► [own thread: make pages, report] ─► attach socket, scrubber ─► the node grants
//!             └─ no: refused at once       └─ failed, or told to stop: nothing is left, the node says why
//! ```
//! The thread lives as long as the server and owns the pool: when it ends, sessions end, then the pages go.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hisparse_core::error::Problems;
use hisparse_core::layout::pool::PoolLayout;
use hisparse_core::units::Bytes;
use hisparse_mem::attach::server::Share;
use hisparse_mem::backing::Pages;
use hisparse_mem::beside::beside;
use hisparse_mem::bind::Placement;
use hisparse_mem::pool::{Progress, Wishes};
use hisparse_mem::populate::Workers;
use hisparse_mem::report::PoolReport;
use hisparse_mem::state_dir::StateDir;

use crate::node::Node;
use crate::pool_bytes::PoolBytes;

mod cleaning;
mod making;

pub(crate) use self::making::Prepared;
use cleaning::{scrub, start_scrubber};
use making::{Begun, begin};

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
    beside(socket, ".attach")
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

#[cfg(test)]
mod tests {
    use hisparse_core::env::Moment;
    use hisparse_core::layout::pool::PoolShape;
    use hisparse_core::layout::{RowLayout, StrideAlign, default_index_dtype};
    use hisparse_core::ledger::{Epoch, NodeCapacity};
    use hisparse_core::limits::MAX_SOCKET_PATH_BYTES;
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
        assert_eq!(grants(), Err(Refusal::NoPool(PoolBytes::Making)));
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
