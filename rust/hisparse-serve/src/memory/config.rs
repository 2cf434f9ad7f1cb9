//! What the pool's bytes shall be.

use std::path::{Path, PathBuf};

use hisparse_core::layout::pool::PoolLayout;
use hisparse_core::units::Bytes;
use hisparse_mem::backing::Pages;
use hisparse_mem::beside::beside;
use hisparse_mem::bind::Placement;
use hisparse_mem::pool::Wishes;
use hisparse_mem::populate::Workers;
use hisparse_mem::state_dir::StateDir;

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

    pub(super) fn wishes<'a>(&'a self, workers: Workers, state_dir: Option<&'a StateDir>) -> Wishes<'a> {
        let Self { pages, ref placements, lock, assume_memory, .. } = *self;
        Wishes { pages, placements, workers, lock, assume_memory, state_dir }
    }
}

/// Where engines attach to the service at `socket`.
pub fn attach_beside(socket: &Path) -> PathBuf {
    beside(socket, ".attach")
}
