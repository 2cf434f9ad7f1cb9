//! The thread that owns the pool, from its first page to its last.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use hisparse_mem::attach::server::Share;
use hisparse_mem::report::PoolReport;

use super::cleaning::{scrub, start_scrubber};
use super::making::{Begun, Prepared, begin};
use crate::node::Node;
use crate::pool_bytes::PoolBytes;

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
    use std::time::Duration;

    use hisparse_core::env::Moment;
    use hisparse_core::layout::pool::{PoolLayout, PoolShape};
    use hisparse_core::layout::{RowLayout, StrideAlign, default_index_dtype};
    use hisparse_core::ledger::{Epoch, NodeCapacity};
    use hisparse_core::limits::MAX_SOCKET_PATH_BYTES;
    use hisparse_core::model::{Layer, preset};
    use hisparse_core::platform::{KvDtype, LayerGroups};

    use super::*;
    use crate::env::MachineClock;
    use crate::error::Refusal;
    use crate::memory::MemoryConfig;
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
