//! The extent allocator: which pages are free, in whose hands they last were, and how to cut and join them.
//!
//! ```text
//!  pages   0        8         20      26             60
//!          │ clean  │ held    │ A's   │ held         │ B's …
//!            (0, 8)             (20, 6)                (60, …)     runs of one kind; neighbours of one kind are joined
//!  tags    8……8               6…6                    n…n           length and kind at both ends of a run only
//! ```
//! A free page is *clean* (kind 0, zeroed) or still holds bytes of one tenant (kind 1 + its number). A tenant may be
//! handed clean pages and its own; [`PagePool`](super::PagePool) scrubs the rest first. Best fit from the tenant's own
//! runs, then from clean ones, then the longest runs in turn, which is the fewest extents there can be. Every
//! operation touches the ends of a handful of runs and allocates nothing.

use super::bins::{Bins, Links, PageEntry};
use super::content::{CLEAN, Kind};
use super::extent::{Extent, Extents};
use super::starts::Starts;

#[derive(Debug)]
pub(super) struct FreeSpace {
    links: Links,
    starts: Starts,
    bins: Vec<Bins>,
    pages: u64,
}

impl FreeSpace {
    /// A pool whose every page is free and clean.
    pub(super) fn new(pages: u32) -> Self {
        let mut space = Self::full(pages);
        space.free(Extent::new(0, pages), CLEAN);
        space
    }

    /// A pool of which no page is free.
    pub(super) fn full(pages: u32) -> Self {
        Self {
            links: vec![PageEntry::default(); pages as usize],
            starts: Starts::new(pages),
            bins: vec![Bins::new()],
            pages: 0,
        }
    }

    /// Free pages of all kinds.
    pub(super) const fn pages(&self) -> u64 {
        self.pages
    }

    /// Free pages of one kind.
    pub(super) fn pages_of(&self, kind: Kind) -> u64 {
        self.bins.get(usize::from(kind)).map_or(0, |bins| bins.pages)
    }

    /// Free runs of all kinds.
    pub(super) fn runs(&self) -> u64 {
        self.bins.iter().map(|bins| bins.runs).sum()
    }

    /// Kinds that may have free pages.
    pub(super) fn kinds(&self) -> impl Iterator<Item = Kind> + use<> {
        0..u16::try_from(self.bins.len()).unwrap_or(Kind::MAX)
    }

    /// Length of the longest run that `kind` may be handed (within 1/64 where very many are about as long).
    pub(super) fn longest_for(&self, kind: Kind) -> u32 {
        self.longest_of(kind).max(self.longest_of(CLEAN)).map_or(0, |(length, _)| length)
    }

    /// Length of the longest run of any kind.
    pub(super) fn longest(&self) -> u32 {
        self.kinds().filter_map(|kind| self.longest_of(kind)).map(|(length, _)| length).max().unwrap_or(0)
    }

    fn longest_of(&self, kind: Kind) -> Option<(u32, u32)> {
        let start = self.bins.get(usize::from(kind))?.longest(&self.links)?;
        Some((self.links[start as usize].run, start))
    }

    /// Gives back a run; it joins free neighbours of its kind. Returns the length of the run it is now part of.
    pub(super) fn free(&mut self, extent: Extent, kind: Kind) -> u32 {
        if extent.pages == 0 {
            return 0;
        }
        let (mut start, mut end) = (extent.start, extent.end());
        if start > 0 && self.links[start as usize - 1].run != 0 && self.links[start as usize - 1].kind == kind {
            let before = self.links[start as usize - 1].run;
            self.remove(start - before);
            start -= before;
        }
        if (end as usize) < self.links.len()
            && self.links[end as usize].run != 0
            && self.links[end as usize].kind == kind
        {
            let after = self.links[end as usize].run;
            self.remove(end);
            end += after;
        }
        self.insert(start, end - start, kind);
        end - start
    }

    /// Takes `pages` pages that `kind` may be handed, in as few runs as there can be, appending them to `taken`.
    /// A run with `room` more pages behind it is preferred, never required. Takes nothing and says `false` when
    /// there are not enough.
    pub(super) fn take(&mut self, pages: u32, kind: Kind, room: u32, taken: &mut Extents) -> bool {
        if u64::from(pages) > self.usable_by(kind) {
            return false;
        }
        let mut left = pages;
        while left > 0 {
            let roomy = if room > 0 { self.fit(left.saturating_add(room), kind) } else { None };
            if let Some(start) = roomy.or_else(|| self.fit(left, kind)) {
                taken.push(self.cut(start, left));
                return true;
            }
            let longest = self.longest_of(kind).max(self.longest_of(CLEAN));
            let (length, start) = longest.expect("fewer pages are free than their own sum says");
            taken.push(self.cut(start, length));
            left -= length;
        }
        true
    }

    /// Takes up to `pages` pages that begin exactly at `start`, if `kind` may be handed them.
    pub(super) fn take_at(&mut self, start: u32, pages: u32, kind: Kind, taken: &mut Extents) -> u32 {
        let mut left = pages;
        let mut at = start;
        // A clean run and one of the tenant's own may lie side by side: hence the loop.
        while left > 0 && (at as usize) < self.links.len() && self.links[at as usize].run != 0 {
            let found = self.links[at as usize].kind;
            if found != kind && found != CLEAN {
                break;
            }
            let cut = self.cut(at, left.min(self.links[at as usize].run));
            taken.push(cut);
            left -= cut.pages;
            at = cut.end();
        }
        pages - left
    }

    /// Takes these pages out of the free run that they lie in.
    pub(super) fn carve(&mut self, pages: Extent) {
        let found = self.run_at_or_before(pages.start);
        let (run, kind) = found.expect("the pages lie in a free run, and runs have starts");
        debug_assert!(pages.end() <= run.end(), "{pages:?} is not free");
        self.remove(run.start);
        if pages.start > run.start {
            self.insert(run.start, pages.start - run.start, kind);
        }
        if pages.end() < run.end() {
            self.insert(pages.end(), run.end() - pages.end(), kind);
        }
    }

    /// The last free run that starts at or before this page, and its kind.
    pub(super) fn run_at_or_before(&self, page: u32) -> Option<(Extent, Kind)> {
        let start = self.starts.at_or_before(page)?;
        let PageEntry { run, kind, .. } = self.links[start as usize];
        Some((Extent::new(start, run), kind))
    }

    /// Length of the free run of this kind that starts at `page`.
    pub(super) fn run_from(&self, page: u32, kind: Kind) -> u32 {
        self.links.get(page as usize).filter(|entry| entry.kind == kind).map_or(0, |entry| entry.run)
    }

    /// Whether a run that `kind` may be handed holds `pages` pages.
    pub(super) fn has_run(&self, pages: u32, kind: Kind) -> bool {
        self.fit(pages, kind).is_some()
    }

    /// Takes a longest run of any kind but clean and `but`, cut to `pages`: what must be scrubbed for that tenant.
    pub(super) fn take_foreign(&mut self, pages: u32, but: Kind) -> Option<Extent> {
        let foreign = self.kinds().filter(|kind| *kind != but && *kind != CLEAN);
        let (length, start) = foreign.filter_map(|kind| self.longest_of(kind)).max()?;
        Some(self.cut(start, length.min(pages)))
    }

    /// Pages that `kind` may be handed.
    pub(super) fn usable_by(&self, kind: Kind) -> u64 {
        self.pages_of(CLEAN) + if kind == CLEAN { 0 } else { self.pages_of(kind) }
    }

    /// All free runs with their kinds, for checks.
    pub(super) fn all_runs(&self) -> Vec<(Extent, Kind)> {
        let mut runs: Vec<_> = self
            .bins
            .iter()
            .flat_map(|bins| bins.starts(&self.links))
            .map(|start| (Extent::new(start, self.links[start as usize].run), self.links[start as usize].kind))
            .collect();
        runs.sort_unstable();
        runs
    }

    fn fit(&self, pages: u32, kind: Kind) -> Option<u32> {
        let own = if kind == CLEAN { None } else { self.fit_of(pages, kind) };
        own.or_else(|| self.fit_of(pages, CLEAN))
    }

    fn fit_of(&self, pages: u32, kind: Kind) -> Option<u32> {
        self.bins.get(usize::from(kind))?.best_fit(&self.links, pages)
    }

    /// Takes the first `pages` pages of the run at `start`; what is left stays behind it as room to grow.
    fn cut(&mut self, start: u32, pages: u32) -> Extent {
        let (length, kind) = (self.links[start as usize].run, self.links[start as usize].kind);
        self.remove(start);
        if length > pages {
            self.insert(start + pages, length - pages, kind);
        }
        Extent::new(start, pages)
    }

    fn insert(&mut self, start: u32, length: u32, kind: Kind) {
        while self.bins.len() <= usize::from(kind) {
            self.bins.push(Bins::new());
        }
        for end in [start, start + length - 1] {
            self.links[end as usize].run = length;
            self.links[end as usize].kind = kind;
        }
        self.starts.set(start);
        self.bins[usize::from(kind)].insert(&mut self.links, start);
        self.pages += u64::from(length);
    }

    fn remove(&mut self, start: u32) {
        let (length, kind) = (self.links[start as usize].run, self.links[start as usize].kind);
        self.starts.clear(start);
        self.bins[usize::from(kind)].remove(&mut self.links, start);
        self.links[start as usize].run = 0;
        self.links[(start + length - 1) as usize].run = 0;
        self.pages -= u64::from(length);
    }
}
