//! A pool from what a journal remembers, and what a journal must remember of a pool.

use super::{KeptPages, PagePool};
use crate::journal::{Image, Seals};
use crate::pages::content::CLEAN;
use crate::pages::free_space::FreeSpace;

impl PagePool {
    /// Fills a new pool with what a journal remembers; the ledger has checked that every page is in one state.
    pub(crate) fn restore(&mut self, image: &Image, private: u64) {
        self.free = FreeSpace::full(self.total);
        for (run, kind) in image.free_runs() {
            self.free.free(run, kind);
        }
        let isolation = self.isolation;
        self.prefix.restore(&image.seals, |tenant| isolation.kind_of(tenant));
        self.scrub_queue = image.scrub_runs().collect();
        self.scrubbing = self.scrub_queue.iter().map(|run| u64::from(run.pages)).sum();
        self.private = private;
    }

    /// What a journal remembers of the pages, but for those that leases have for themselves.
    pub(crate) fn kept(&self) -> KeptPages {
        let mut kinds = vec![CLEAN; self.total as usize];
        let mut elsewhere = vec![true; self.total as usize];
        for (run, kind) in self.free_extents() {
            kinds[run.start as usize..run.end() as usize].fill(kind);
            elsewhere[run.start as usize..run.end() as usize].fill(false);
        }
        let mut seals = Seals::new(self.total as usize);
        for (page, seal) in self.prefix.kept() {
            kinds[page as usize] = self.kind_of(seal.tenant);
            elsewhere[page as usize] = false;
            seals.insert(page, seal);
        }
        KeptPages { kinds, elsewhere, seals }
    }
}
