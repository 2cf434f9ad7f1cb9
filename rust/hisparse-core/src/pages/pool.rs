//! The host pool's pages: every page is in exactly one state, and every way between states is one function, here or
//! in `scrubbing.rs`.
//!
//! ```text
//!                reserve / grow                    publish
//!      free ───────────────────────► private ───────────────────► held (sealed, shared)
//!       ▲ ▲                             │                            │    ▲
//!       │ └───────── give_back ─────────┘                   give_back│    │pin
//!       │   taken by another lease                                   ▼    │
//!       └─────────────────────────────────────────────────────── evictable (warm, then cold)
//!       ▲                            start_scrub, for who asks or ahead
//!       └── scrubbed ── scrubbing ◄────────────── free pages that hold another tenant's bytes
//! ```
//! Private pages belong to one lease: reserved, filling, or quarantined, which the ledger tells apart. A page that
//! changes tenant passes through scrubbing; a tenant's own pages come back to it unzeroed. With
//! [`Isolation::Shared`] (a pool whose bytes others own) nothing is ever scrubbed.

use std::collections::VecDeque;

use serde::Serialize;

use super::content::{CLEAN, Kind, PageHash, TenantIndex};
use super::extent::{Extent, Extents};
use super::free_space::FreeSpace;
use super::isolation::Isolation;
use super::prefix::{PrefixIndex, Walk};
use crate::env::Entropy;
use crate::journal::{HashedPart, Seals};
use crate::limits::{MAX_CHILLED_FOR_A_RUN, STOCK_SHARE};

mod remembering;
mod scrubbing;

/// How many pages are in each state. They add up to the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PageCounts {
    /// Free, clean or not.
    pub free: u64,
    /// In the hands of single leases.
    pub private: u64,
    /// Sealed and held by at least one lease.
    pub held: u64,
    /// Sealed and held by none.
    pub evictable: u64,
    /// Waiting for zeroes, or being zeroed.
    pub scrubbing: u64,
}

/// Prefix pages found for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hits {
    /// Pages from the first on that are there.
    pub pages: u32,
    /// Those among them that nobody holds, which pinning takes from what could be evicted.
    pub evictable: u32,
}

/// What a page is that no lease has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Free, clean or not.
    Free,
    /// Sealed and held by at least one lease.
    Held,
    /// Sealed and held by none.
    Evictable,
}

/// Pages being zeroed. It is returned with `PagePool::scrubbed`; there is no other way to get these pages free.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "pages in a lost job stay in `scrubbing` for ever"]
pub struct ScrubJob {
    extent: Extent,
}

impl ScrubJob {
    /// The pages to zero, in every layer.
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    const fn finish(self) -> Extent {
        self.extent
    }
}

/// What a journal remembers of a pool's pages.
#[derive(Debug)]
pub(crate) struct KeptPages {
    /// Whose bytes each page holds.
    pub(crate) kinds: Vec<Kind>,
    /// Pages that are neither free nor sealed: in a lease's hands, or being zeroed.
    pub(crate) elsewhere: Vec<bool>,
    /// Sealed pages.
    pub(crate) seals: Seals,
}

/// A pool's pages. See the module's picture.
#[derive(Debug)]
pub struct PagePool {
    total: u32,
    isolation: Isolation,
    free: FreeSpace,
    prefix: PrefixIndex,
    scrub_queue: VecDeque<Extent>,
    scrubbing: u64,
    private: u64,
    /// Where scrubbing ahead goes on: below this page.
    ahead: u32,
}

impl PagePool {
    /// A pool of `pages` free, clean pages.
    pub(crate) fn new(pages: u32, isolation: Isolation, entropy: &mut dyn Entropy) -> Self {
        Self {
            total: pages,
            isolation,
            free: FreeSpace::new(pages),
            prefix: PrefixIndex::new(pages, entropy),
            scrub_queue: VecDeque::new(),
            scrubbing: 0,
            private: 0,
            ahead: pages,
        }
    }

    /// Pages of the pool.
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// Pages in each state.
    pub const fn counts(&self) -> PageCounts {
        PageCounts {
            free: self.free.pages() - self.prefix.runs().cold(),
            private: self.private,
            held: self.prefix.runs().held(),
            evictable: self.prefix.evictable(),
            scrubbing: self.scrubbing,
        }
    }

    /// Pages this tenant can have at once: clean ones, its own, and its own evictable ones. `None` stands for a
    /// tenant that has left nothing here yet.
    pub(crate) fn obtainable(&self, tenant: Option<TenantIndex>) -> u64 {
        match (tenant, self.isolation) {
            (None, Isolation::Scrub) => self.free.usable_by(CLEAN),
            (None, Isolation::Shared) => self.free.usable_by(CLEAN) + self.prefix.runs().warm_of(CLEAN),
            (Some(tenant), _) => {
                let kind = self.kind_of(tenant);
                self.free.usable_by(kind) + self.prefix.runs().warm_of(kind)
            }
        }
    }

    /// Pages that would be this tenant's if every other tenant's unheld page were scrubbed for it.
    pub(crate) fn obtainable_after_scrub(&self) -> u64 {
        self.free.pages() + self.prefix.runs().warm() + self.scrubbing
    }

    /// Length of the longest free run, over all tenants' pages.
    pub fn longest_run(&self) -> u32 {
        self.free.longest()
    }

    /// Length of the longest free run this tenant may be handed at once.
    pub(crate) fn longest_run_for(&self, tenant: Option<TenantIndex>) -> u32 {
        self.free.longest_for(tenant.map_or(CLEAN, |tenant| self.kind_of(tenant)))
    }

    /// Number of free runs: how broken up the free space is.
    pub fn free_runs(&self) -> u64 {
        self.free.runs()
    }

    /// Pages that hold this tenant's bytes and belong to no lease.
    pub(crate) fn left_behind(&self, tenant: TenantIndex) -> u64 {
        match self.isolation {
            Isolation::Scrub => {
                let kind = self.kind_of(tenant);
                self.free.pages_of(kind) + self.prefix.runs().warm_of(kind)
            }
            // Kinds do not tell tenants apart here: any cached page may be this tenant's.
            Isolation::Shared => self.prefix.evictable(),
        }
    }

    /// How much of this chain of hashes is there, from its first page on.
    pub(crate) fn probe(&self, tenant: TenantIndex, hashes: &[PageHash]) -> Hits {
        let mut hits = Hits::default();
        let mut walk = Walk::whole(tenant, hashes);
        while let Some((found, held)) = self.prefix.next(&mut walk, u32::MAX) {
            hits.pages += found.pages;
            hits.evictable += if held { 0 } else { found.pages };
        }
        hits
    }

    /// Holds the first `pages` pages of a chain that [`PagePool::probe`] has just found.
    pub(crate) fn pin(&mut self, tenant: TenantIndex, hashes: &[PageHash], pages: u32) -> Extents {
        let mut pinned = Extents::new();
        let mut left = pages;
        let mut walk = Walk::whole(tenant, hashes);
        while let Some((found, _)) = self.prefix.next(&mut walk, left) {
            if self.prefix.hold(found) {
                self.free.carve(found);
            }
            pinned.push(found);
            left -= found.pages;
        }
        pinned
    }

    /// Takes `pages` private pages in the fewest runs, evicting this tenant's oldest cached pages where it must.
    /// A run with `room` more pages behind it is preferred. Appends to `pages_of_lease`, whose last run is
    /// lengthened in place first. Takes nothing and says `false` when there are not enough.
    pub(crate) fn reserve(&mut self, tenant: TenantIndex, pages: u32, room: u32, pages_of_lease: &mut Extents) -> bool {
        let kind = self.kind_of(tenant);
        if u64::from(pages) > self.obtainable(Some(tenant)) {
            return false;
        }
        let mut taken = Extents::new();
        let in_place = match pages_of_lease.last() {
            Some(last) => self.free.take_at(last.end(), pages, kind, &mut taken),
            None => 0,
        };
        self.make_room(pages - in_place, kind);
        let enough = self.free.take(pages - in_place, kind, room, &mut taken);
        debug_assert!(enough, "the count above said there are enough");
        self.forget_cached(&taken);
        pages_of_lease.append(&taken);
        self.private += u64::from(pages);
        self.restock(pages, kind);
        true
    }

    /// Chills cached pages, oldest first, until there are `pages` free ones, and in one run where that takes no more
    /// work and no more cold pages than `limits.rs` allows: contiguity is worth the older part of the cache, and the
    /// younger part is spared.
    fn make_room(&mut self, pages: u32, kind: Kind) {
        if pages == 0 || self.free.has_run(pages, kind) {
            return;
        }
        let mut work_left = MAX_CHILLED_FOR_A_RUN;
        let mut run = 0;
        loop {
            let lacking = u64::from(pages).saturating_sub(self.free.usable_by(kind));
            // What is chilled next joins what is free behind it.
            let behind = self.prefix.runs().oldest_end(kind).map_or(0, |end| self.free.run_from(end, kind));
            let for_a_run = if run < pages { work_left.min(pages.saturating_sub(behind).max(1)) } else { 0 };
            let most = for_a_run.max(u32::try_from(lacking).unwrap_or(u32::MAX));
            let Some(chilled) = self.prefix.chill_oldest(kind, most) else { break };
            run = self.free.free(chilled, kind);
            work_left = work_left.saturating_sub(chilled.pages);
        }
    }

    /// Keeps a stock of pages that can be taken, so that a search for a run has something to choose from: chills the
    /// oldest cached pages while the stock is low, a bounded number for each page that has changed hands.
    fn restock(&mut self, changed_hands: u32, kind: Kind) {
        let stock = u64::from(self.total) / STOCK_SHARE;
        let mut left = changed_hands.saturating_mul(2);
        loop {
            let lacking = stock.saturating_sub(self.free.usable_by(kind));
            let most = left.min(u32::try_from(lacking).unwrap_or(u32::MAX));
            let Some(chilled) = self.prefix.chill_oldest(kind, most) else { break };
            self.free.free(chilled, kind);
            left -= chilled.pages;
        }
    }

    /// Pages that leave the free space lose what was cached in them.
    fn forget_cached(&mut self, taken: &Extents) {
        for run in taken.iter() {
            self.prefix.forget(run);
        }
    }

    /// Seals a lease's private pages, `own`, under the hashes of its chain from `place` on: `after` is where the place before
    /// was found last. Returns which; a place that is in the index already stays where it is, and a page that is sealed stays
    /// what it is. Returns too where the chain's last place is.
    pub(crate) fn publish(
        &mut self,
        tenant: TenantIndex,
        own: impl IntoIterator<Item = Extent>,
        (place, after): (u32, Option<u32>),
        hashes: &[PageHash],
    ) -> (Extents, (u32, Option<u32>)) {
        let mut walk = Walk::new(tenant, place, after, hashes);
        let sealed = self.prefix.seal(own, self.kind_of(tenant), &mut walk);
        self.private -= u64::from(sealed.pages());
        (sealed, walk.end())
    }

    /// Sealed pages as a journal is told of them.
    pub(crate) fn hashed(&self, sealed: &Extents) -> Vec<HashedPart<'_>> {
        self.prefix.hashed(sealed).collect()
    }

    /// Whether this page is sealed.
    pub(crate) fn is_sealed(&self, page: u32) -> bool {
        self.prefix.is_sealed(page)
    }

    /// What each of these pages is, in their order: free, sealed (held or not), or `None` for one that a lease has for
    /// itself or that is being zeroed.
    pub(crate) fn standing(&self, pages: Extent) -> Vec<Option<Standing>> {
        let sealed = |page| {
            let held = self.prefix.is_held(page)?;
            Some(if held { Standing::Held } else { Standing::Evictable })
        };
        let mut found: Vec<_> = (pages.start..pages.end()).map(sealed).collect();
        let mut before = pages.end();
        while let Some((run, _)) = before.checked_sub(1).and_then(|page| self.free.run_at_or_before(page)) {
            if run.end() <= pages.start {
                break;
            }
            for page in run.start.max(pages.start)..run.end().min(pages.end()) {
                // A cold page lies in the free space, and is still cached.
                found[(page - pages.start) as usize].get_or_insert(Standing::Free);
            }
            before = run.start;
        }
        found
    }

    /// Takes back a lease's pages: `shared` are let go; of `own`, those it published too, and the rest become free.
    /// The deepest page goes first, so that it is the first to be evicted.
    pub(crate) fn give_back(&mut self, tenant: TenantIndex, shared: &Extents, own: &Extents, published: bool) {
        let kind = self.kind_of(tenant);
        for run in own.iter().rev() {
            if published {
                self.let_go_sealed(run, |pool, private| pool.free_private(private, kind));
            } else {
                self.free_private(run, kind);
            }
        }
        for run in shared.iter().rev() {
            self.let_go_sealed(run, |_, unsealed| debug_assert!(unsealed.pages == 0, "{unsealed:?} was shared"));
        }
        if published || !shared.is_empty() {
            self.restock(shared.pages() + own.pages(), kind);
        }
    }

    fn free_private(&mut self, pages: Extent, kind: Kind) {
        self.free.free(pages, kind);
        self.private -= u64::from(pages.pages);
    }

    /// Lets go of the sealed pages among these, the deepest first; `unsealed` gets those between them.
    fn let_go_sealed(&mut self, mut pages: Extent, unsealed: impl Fn(&mut Self, Extent)) {
        while pages.pages > 0 {
            let sealed = self.prefix.runs().last_within(pages).unwrap_or(Extent::new(pages.start, 0));
            unsealed(self, Extent::new(sealed.end(), pages.end() - sealed.end()));
            if sealed.pages > 0 {
                self.prefix.let_go(sealed);
            }
            pages.pages = sealed.start - pages.start;
        }
    }

    pub(crate) const fn kind_of(&self, tenant: TenantIndex) -> Kind {
        self.isolation.kind_of(tenant)
    }

    /// Free runs in address order, for checks.
    pub(crate) fn free_extents(&self) -> Vec<(Extent, Kind)> {
        self.free.all_runs()
    }

    /// Every sealed page with its number of holders, for checks.
    pub(crate) fn sealed_pages(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.prefix.kept().map(|(page, seal)| (page, seal.holders))
    }

    /// Pages on the LRU lists, for checks.
    pub(crate) fn warm_pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.prefix.runs().walk_lru()
    }

    /// Whether a sealed page lies in the free space, for checks.
    pub(crate) fn is_cold(&self, page: u32) -> bool {
        self.prefix.is_cold(page)
    }

    /// What does not hold of the prefix index, if anything.
    pub(crate) fn broken_index_rule(&self) -> Option<String> {
        self.prefix.broken_rule()
    }
}
