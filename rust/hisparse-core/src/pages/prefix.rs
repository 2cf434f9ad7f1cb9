//! The prefix index: sealed pages by content hash, shared by reference count, the unreferenced ones in LRU order.
//!
//! ```text
//!  chain asked for   h0 h1 h2 h3 h4 h5 h6          found: pages 40 to 44, then 90 and 91
//!                    │              │
//!  heads             ▼              ▼              only the first page of a run that follows no other one is looked up
//!  hashes by page    40 41 42 43 44 │ 45 46        the rest is read along the pages, as one block of memory
//!                                   90 91 92
//!  runs              [40, 45) 2 holders, [45, 47) warm, [90, 93) cold
//! ```
//! *Warm* pages are on the LRU list of their kind. They leave it in order of age for the *cold* ones, which lie in the free
//! space and are hits until somebody takes them; the allocator takes those that make the longest runs, since eviction by age
//! alone would give a request hundreds of scattered pages. The deepest page of a released chain is the oldest, so that a
//! chain shrinks from its end. What lies behind a page that was taken is found again once that page's content is back.
//!
//! Hashes are chained: the hash of the page at place *i* covers pages 0 to *i*, so a match counts only from the first page
//! on, and a hash is one of its place. They are keyed per tenant, and a match never crosses tenants. Every hash of a match is
//! compared: that costs 3 ns a page, where a look-up costs 40.
//!
//! A page that is not in `heads` is found from the page before it alone. So a chain whose middle was taken, and that is
//! published anew, may be sealed twice from there on: see `docs/adr`, 0005.

use hashbrown::HashTable;

use super::content::{Kind, PageHash, TenantIndex};
use super::extent::{Extent, Extents};
use super::runs::{Run, Runs, State};
use super::seeded::Folding;
use crate::env::Entropy;
use crate::journal::{HashedPart, KeptSeal, Seals};

/// Hashes compared at once; the last lot is gone through one by one.
const COMPARED_AT_ONCE: usize = 32;

/// A chain of hashes, and how far it has been followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk<'h> {
    tenant: TenantIndex,
    /// Place in the chain of the first hash that is left.
    place: u32,
    /// The page of the hash before that one, where it is known.
    after: Option<u32>,
    left: &'h [PageHash],
}

impl<'h> Walk<'h> {
    /// A tenant's chain from a place on.
    pub(super) const fn new(tenant: TenantIndex, place: u32, after: Option<u32>, hashes: &'h [PageHash]) -> Self {
        Self { tenant, place, after, left: hashes }
    }

    /// A chain from its first page on.
    pub(super) const fn whole(tenant: TenantIndex, hashes: &'h [PageHash]) -> Self {
        Self::new(tenant, 0, None, hashes)
    }

    /// How far it came, and on which page that is.
    pub(super) const fn end(&self) -> (u32, Option<u32>) {
        (self.place, self.after)
    }

    fn pass(&mut self, pages: Extent) {
        self.place += pages.pages;
        self.after = Some(pages.end() - 1);
        self.left = &self.left[pages.pages as usize..];
    }
}

#[derive(Debug)]
pub(super) struct PrefixIndex {
    runs: Runs,
    /// Of each page, meaningless where it is not sealed.
    hashes: Vec<PageHash>,
    /// First pages of the runs that follow no other one.
    heads: HashTable<u32>,
    hasher: Folding,
}

impl PrefixIndex {
    pub(super) fn new(pages: u32, entropy: &mut dyn Entropy) -> Self {
        Self {
            runs: Runs::new(pages),
            // The kernel gives the memory when it is first used.
            hashes: vec![PageHash::default(); pages as usize],
            // Room for a head per page from the start: to grow a table of a million takes longer than any call may wait.
            heads: HashTable::with_capacity(pages as usize),
            hasher: Folding::new(entropy),
        }
    }

    /// In which hands the sealed pages are.
    pub(super) const fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Sealed pages that nobody holds.
    pub(super) const fn evictable(&self) -> u64 {
        self.runs.warm() + self.runs.cold()
    }

    /// Whether this page is sealed.
    pub(super) fn is_sealed(&self, page: u32) -> bool {
        self.runs.around(page).is_some()
    }

    /// Whether some lease holds this page; `None` for one that is not sealed.
    pub(super) fn is_held(&self, page: u32) -> Option<bool> {
        self.runs.around(page).map(|(_, run)| matches!(run.state, State::Held(_)))
    }

    /// Whether this page is sealed and lies in the free space.
    pub(super) fn is_cold(&self, page: u32) -> bool {
        self.runs.around(page).is_some_and(|(_, run)| matches!(run.state, State::Cold(_)))
    }

    /// The next pages of a chain that are here, at most so many, and whether somebody holds them. They are of one run.
    pub(super) fn next(&self, walk: &mut Walk<'_>, most: u32) -> Option<(Extent, bool)> {
        let first = walk.left.first().filter(|_| most > 0)?;
        let behind = walk.after.map(|after| after + 1);
        let page = behind.filter(|page| self.stands(*page, walk, first)).or_else(|| self.head(walk, first))?;
        let (run, about) = self.runs.around(page)?;
        let stored = &self.hashes[page as usize..run.end().min(page.saturating_add(most)) as usize];
        let found = Extent::new(page, alike(stored, walk.left));
        walk.pass(found);
        Some((found, matches!(about.state, State::Held(_))))
    }

    /// One more lease holds these pages of one run. Whether they were cold: they must leave the free space then.
    pub(super) fn hold(&mut self, pages: Extent) -> bool {
        self.runs.hold(pages)
    }

    /// One lease less holds these pages of one run; the deepest is the first to be evicted.
    pub(super) fn let_go(&mut self, pages: Extent) {
        self.runs.let_go(pages);
    }

    /// Makes up to `most` of the oldest warm pages of a kind cold: they must enter the free space.
    pub(super) fn chill_oldest(&mut self, kind: Kind, most: u32) -> Option<Extent> {
        self.runs.chill_oldest(kind, most)
    }

    /// Seals those of one lease's pages whose place in the chain is not here yet. A place that is here stays where it is, and
    /// a page that is sealed stays what it is: the lease's page is private then as before.
    pub(super) fn seal(&mut self, own: impl IntoIterator<Item = Extent>, kind: Kind, walk: &mut Walk<'_>) -> Extents {
        let mut sealed = Extents::new();
        for mut rest in own {
            while rest.pages > 0 && !walk.left.is_empty() {
                let passed = if let Some((known, _)) = self.next(walk, rest.pages) {
                    known.pages
                } else {
                    let most = u32::try_from(walk.left.len()).unwrap_or(u32::MAX).min(rest.pages);
                    let open = self.unsealed_from(Extent::new(rest.start, most));
                    let pages = Extent::new(rest.start, open.max(1));
                    if open > 0 {
                        self.add(pages, kind, walk);
                        sealed.push(pages);
                    }
                    walk.pass(pages);
                    if open == 0 {
                        walk.after = None;
                    }
                    pages.pages
                };
                rest = Extent::new(rest.start + passed, rest.pages - passed);
            }
        }
        sealed
    }

    /// Forgets what is cached in pages that have left the free space.
    pub(super) fn forget(&mut self, mut pages: Extent) {
        while self.runs.cold() > 0
            && let Some(cached) = self.runs.last_within(pages)
        {
            let (run, orphan) = self.runs.remove(cached);
            if !run.follows {
                self.remove_head(cached.start, &run);
            }
            if let Some(page) = orphan {
                self.insert_head(page);
            }
            pages.pages = cached.start - pages.start;
        }
    }

    /// Seals pages as a journal remembers them, in the order in which they were let go.
    pub(super) fn restore(&mut self, seals: &Seals, kind_of: impl Fn(TenantIndex) -> Kind) {
        for (pages, seal) in seals.runs_by_age() {
            for page in pages.start..pages.end() {
                self.hashes[page as usize] = seals.get(page).map_or_else(PageHash::default, |seal| seal.hash);
            }
            let KeptSeal { tenant, place, holders, .. } = *seal;
            let follows = seals.follows(pages.start);
            self.runs.add(pages, Run::of(tenant, kind_of(tenant), place, follows, holders.max(1)));
            if !follows {
                self.insert_head(pages.start);
            }
            if holders == 0 {
                self.runs.let_go(pages);
            }
        }
    }

    /// Every sealed page as a journal remembers it.
    pub(super) fn kept(&self) -> impl Iterator<Item = (u32, KeptSeal)> + '_ {
        self.runs.iter().flat_map(move |(pages, run)| {
            (pages.start..pages.end()).map(move |page| {
                let (holders, turn) = match run.state {
                    State::Held(holders) => (holders, 0),
                    State::Warm(turn) | State::Cold(turn) => (0, turn + u64::from(pages.end() - 1 - page)),
                };
                let (place, hash) = (run.place + page - pages.start, self.hashes[page as usize]);
                let follows = page > pages.start || run.follows;
                (page, KeptSeal { tenant: run.tenant, hash, place, follows, holders, turn })
            })
        })
    }

    /// These sealed pages as a journal is told of them, each run by itself.
    pub(super) fn hashed(&self, pages: &Extents) -> impl Iterator<Item = HashedPart<'_>> {
        pages.iter().flat_map(move |extent| {
            let mut first_page = extent.start;
            std::iter::from_fn(move || {
                let (run, about) = self.runs.around(first_page).filter(|_| first_page < extent.end())?;
                let end = run.end().min(extent.end());
                let part = HashedPart {
                    first_page,
                    place: about.place + first_page - run.start,
                    follows: first_page > run.start || about.follows,
                    hashes: &self.hashes[first_page as usize..end as usize],
                };
                first_page = end;
                Some(part)
            })
        })
    }

    /// What does not hold of the heads, if anything: a run is found by its first page, or from the page before it.
    pub(super) fn broken_rule(&self) -> Option<String> {
        let mut heads = 0;
        for (pages, run) in self.runs.iter() {
            let before = pages.start.checked_sub(1).and_then(|page| self.runs.around(page));
            let in_chain = before.is_some_and(|(run_before, about)| {
                about.tenant == run.tenant && about.place + run_before.pages == run.place
            });
            if run.follows && !in_chain {
                return Some(format!("the run {pages:?} follows {before:?}, and is {run:?}"));
            }
            let key = self.key(run.tenant, run.place, &self.hashes[pages.start as usize]);
            let listed = self.heads.find(key, |page| *page == pages.start).is_some();
            if listed == run.follows {
                return Some(format!("the run {pages:?} is {run:?}, among the heads: {listed}"));
            }
            heads += usize::from(listed);
        }
        (heads != self.heads.len()).then(|| format!("{heads} runs are heads, and {} are listed", self.heads.len()))
    }

    /// Whether this page stands at the place that a chain has come to, under this hash.
    fn stands(&self, page: u32, walk: &Walk<'_>, hash: &PageHash) -> bool {
        self.runs.around(page).is_some_and(|(run, about)| {
            about.tenant == walk.tenant
                && about.place + (page - run.start) == walk.place
                && self.hashes[page as usize] == *hash
        })
    }

    fn head(&self, walk: &Walk<'_>, hash: &PageHash) -> Option<u32> {
        let key = self.key(walk.tenant, walk.place, hash);
        self.heads.find(key, |page| self.stands(*page, walk, hash)).copied()
    }

    /// How many of these pages, from the first on, are not sealed.
    fn unsealed_from(&self, mut pages: Extent) -> u32 {
        while let Some(sealed) = self.runs.last_within(pages) {
            pages.pages = sealed.start - pages.start;
        }
        pages.pages
    }

    fn add(&mut self, pages: Extent, kind: Kind, walk: &Walk<'_>) {
        let hashes = &walk.left[..pages.pages as usize];
        self.hashes[pages.start as usize..pages.end() as usize].copy_from_slice(hashes);
        let before = walk.after.filter(|after| after + 1 == pages.start).and_then(|after| self.runs.around(after));
        let follows =
            before.is_some_and(|(run, about)| about.tenant == walk.tenant && about.place + run.pages == walk.place);
        self.runs.add(pages, Run::of(walk.tenant, kind, walk.place, follows, 1));
        if !follows {
            self.insert_head(pages.start);
        }
        // A run that was sealed before its beginning was stays a head of its own.
    }

    fn insert_head(&mut self, page: u32) {
        let Some((_, run)) = self.runs.around(page) else { return };
        let key = self.key(run.tenant, run.place, &self.hashes[page as usize]);
        let Self { runs, hashes, heads, hasher } = self;
        let rekey = |page: &u32| {
            runs.starting_at(*page).map_or(0, |run| hasher.place(run.tenant, run.place, &hashes[*page as usize]))
        };
        heads.insert_unique(key, page, rekey);
    }

    fn remove_head(&mut self, page: u32, run: &Run) {
        let key = self.key(run.tenant, run.place, &self.hashes[page as usize]);
        if let Ok(entry) = self.heads.find_entry(key, |found| *found == page) {
            entry.remove();
        }
    }

    fn key(&self, tenant: TenantIndex, place: u32, hash: &PageHash) -> u64 {
        self.hasher.place(tenant, place, hash)
    }
}

/// How many hashes two lists have in common from their first on, which is one.
fn alike(stored: &[PageHash], asked: &[PageHash]) -> u32 {
    let pairs = stored.chunks(COMPARED_AT_ONCE).zip(asked.chunks(COMPARED_AT_ONCE));
    let mut common = 0;
    for (some, others) in pairs {
        let most = some.len().min(others.len());
        if some[..most].as_flattened() == others[..most].as_flattened() {
            common += most;
            continue;
        }
        common += some.iter().zip(others).take_while(|(one, other)| one == other).count();
        break;
    }
    // Both are parts of lists of pages, which `u32` counts.
    u32::try_from(common).unwrap_or(u32::MAX)
}
