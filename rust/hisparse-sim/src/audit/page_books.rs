//! What the auditor remembers of pages from step to step.

use std::collections::BTreeMap;
use std::sync::Arc;

use hisparse_core::ledger::LeaseId;
use hisparse_core::pages::PageHash;

#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) lease: LeaseId,
    pub(super) pages: Vec<u32>,
    pub(super) until_us: u64,
}

#[derive(Debug)]
pub(super) struct PageBooks {
    pub(super) total: u32,
    /// Whose bytes a page holds.
    pub(super) bytes_of: BTreeMap<u32, Arc<str>>,
    /// Under which hash a page was published last.
    pub(super) published: BTreeMap<u32, (Arc<str>, PageHash)>,
    pub(super) transfers: Vec<Transfer>,
    /// Pages that some lease lists, each once.
    pub(super) held: u64,
}

impl PageBooks {
    pub(super) fn new(total: u64) -> Self {
        Self {
            total: u32::try_from(total).unwrap_or(u32::MAX),
            bytes_of: BTreeMap::new(),
            published: BTreeMap::new(),
            transfers: Vec::new(),
            held: 0,
        }
    }

    pub(super) fn transfer(&mut self, lease: LeaseId, pages: Vec<u32>, until_us: u64) {
        self.transfers.push(Transfer { lease, pages, until_us });
    }

    pub(super) fn transfers_end(&mut self, leases: &[LeaseId], by_us: u64) {
        for transfer in self.transfers.iter_mut().filter(|transfer| leases.contains(&transfer.lease)) {
            transfer.until_us = transfer.until_us.min(by_us);
        }
    }

    pub(super) fn is_published(&self, page: u32) -> bool {
        self.published.contains_key(&page)
    }
}
