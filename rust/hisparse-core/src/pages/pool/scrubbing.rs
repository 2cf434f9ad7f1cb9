//! Pages on their way from one tenant to another: chosen, zeroed by somebody else, free again.
//!
//! ```text
//!  free or cached, of another tenant ── start_scrub ──┐
//!  stale, of whomever ── start_scrub_ahead ───────────┼─► queue ── next_scrub ─► ScrubJob ── scrubbed ─► free, clean
//! ```

use super::{Isolation, PagePool, ScrubJob};
use crate::limits::SCRUB_AHEAD_LOOK_PAGES;
use crate::pages::content::{CLEAN, TenantIndex};
use crate::pages::extent::Extent;
use crate::pages::prefix::PrefixIndex;

impl PagePool {
    /// Moves up to `pages` unheld pages of other tenants into scrubbing, free ones before cached ones. Returns which.
    pub(crate) fn start_scrub(&mut self, tenant: TenantIndex, pages: u64) -> Vec<Extent> {
        let kind = self.kind_of(tenant);
        let mut runs = Vec::new();
        if self.isolation == Isolation::Shared {
            return runs;
        }
        let mut left = u32::try_from(pages).unwrap_or(u32::MAX).min(self.total);
        let wanted = left;
        while left > 0 {
            let free = self.free.take_foreign(left, kind);
            let cached = |prefix: &mut PrefixIndex| {
                let oldest = prefix.runs().oldest_foreign(kind)?;
                prefix.chill_oldest(oldest, left)
            };
            let Some(run) = free.or_else(|| cached(&mut self.prefix)) else { break };
            self.prefix.forget(run);
            left -= run.pages;
            runs.push(run);
            match self.scrub_queue.back_mut() {
                Some(last) if run.end() == last.start => *last = Extent::new(run.start, last.pages + run.pages),
                Some(last) if last.end() == run.start => last.pages += run.pages,
                _ => self.scrub_queue.push_back(run),
            }
        }
        self.scrubbing += u64::from(wanted - left);
        runs
    }

    /// Free pages that hold some tenant's bytes, cached prefixes not counted.
    pub fn stale(&self) -> u64 {
        match self.isolation {
            Isolation::Scrub => self.free.pages() - self.free.pages_of(CLEAN) - self.prefix.runs().cold(),
            Isolation::Shared => 0,
        }
    }

    /// Moves up to `most` stale pages, in one run, into scrubbing. Goes through the pool from its end to its start, each
    /// time from where the last one ended, and looks at a bounded number of pages.
    pub(crate) fn start_scrub_ahead(&mut self, most: u32) -> Option<Extent> {
        if self.stale() == 0 {
            return None;
        }
        for _ in 0..SCRUB_AHEAD_LOOK_PAGES {
            let Some(page) = self.ahead.checked_sub(1) else {
                self.ahead = self.total;
                continue;
            };
            let Some((run, kind)) = self.free.run_at_or_before(page) else {
                self.ahead = 0;
                continue;
            };
            if kind == CLEAN || page >= run.end() {
                self.ahead = if kind == CLEAN { run.start } else { run.end() };
                continue;
            }
            self.ahead = page;
            if self.prefix.is_cold(page) {
                continue;
            }
            let mut start = page;
            while start > run.start && page - start + 1 < most && !self.prefix.is_cold(start - 1) {
                start -= 1;
            }
            self.ahead = start;
            let stale = Extent::new(start, page - start + 1);
            self.free.carve(stale);
            self.scrub_queue.push_back(stale);
            self.scrubbing += u64::from(stale.pages);
            return Some(stale);
        }
        None
    }

    /// The next pages to zero, at most `most` of them.
    pub(crate) fn next_scrub(&mut self, most: u32) -> Option<ScrubJob> {
        let mut run = self.scrub_queue.pop_front()?;
        if run.pages > most.max(1) {
            let most = most.max(1);
            self.scrub_queue.push_front(Extent::new(run.start + most, run.pages - most));
            run.pages = most;
        }
        Some(ScrubJob { extent: run })
    }

    /// These pages are zeroed now.
    pub(crate) fn scrubbed(&mut self, job: ScrubJob) {
        let extent = job.finish();
        self.free.free(extent, CLEAN);
        self.scrubbing -= u64::from(extent.pages);
    }
}
