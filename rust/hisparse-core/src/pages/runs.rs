//! Sealed pages as runs: neighbours in one chain that are in the same hands, in one entry, however many they are.
//!
//! ```text
//!  pages    … 40 41 42 43 44 45 46 47 …            one chain, places 0 to 7
//!  holders     2  2  2  1  1  0  0  0
//!  runs       [40, 43) 2   [43, 45) 1   [45, 48) 0, warm: its last page is the oldest
//! ```
//! What is carried is a number of holders and a place in the LRU order for *each page*; runs only spell it shorter. So a run
//! may be split anywhere and joined with its like at any time, and nothing can tell.

use super::content::{Kind, TenantIndex};
use super::extent::Extent;
use super::starts::Starts;

/// No run, no neighbour.
const NONE: u32 = u32::MAX;

/// In whose hands sealed pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// So many leases hold them, one at least.
    Held(u32),
    /// Nobody does. The turn in which the last page was let go; each page before it was let go one turn later.
    Warm(u64),
    /// Nobody does, and they lie in the free space. As [`State::Warm`].
    Cold(u64),
}

/// What is said of a run's pages, under the number of the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pages: u32,
    /// Place in its chain of the first page.
    pub(super) place: u32,
    pub(super) tenant: TenantIndex,
    kind: Kind,
    /// Whether the page before the first one is the one before it in its chain.
    pub(super) follows: bool,
    pub(super) state: State,
    older: u32,
    newer: u32,
}

impl Run {
    /// On every page that is not the first of a run.
    const NOWHERE: Self = Self {
        pages: 0,
        place: 0,
        tenant: 0,
        kind: 0,
        follows: false,
        state: State::Cold(0),
        older: NONE,
        newer: NONE,
    };

    /// Pages of such a run, held by so many leases.
    pub(super) const fn of(tenant: TenantIndex, kind: Kind, place: u32, follows: bool, holders: u32) -> Self {
        Self { tenant, kind, place, follows, state: State::Held(holders), ..Self::NOWHERE }
    }
}

/// Unreferenced runs of one kind, oldest first.
#[derive(Clone, Copy, Debug)]
struct Lru {
    oldest: u32,
    newest: u32,
    pages: u64,
}

#[derive(Debug)]
pub(super) struct Runs {
    by_page: Vec<Run>,
    starts: Starts,
    lists: Vec<Lru>,
    turn: u64,
    held: u64,
    warm: u64,
    cold: u64,
}

impl Runs {
    pub(super) fn new(pages: u32) -> Self {
        let by_page = vec![Run::NOWHERE; pages as usize];
        Self { by_page, starts: Starts::new(pages), lists: Vec::new(), turn: 0, held: 0, warm: 0, cold: 0 }
    }

    /// Sealed pages that some lease holds.
    pub(super) const fn held(&self) -> u64 {
        self.held
    }

    /// Sealed pages that nobody holds and that are not in the free space.
    pub(super) const fn warm(&self) -> u64 {
        self.warm
    }

    /// Sealed pages that lie in the free space.
    pub(super) const fn cold(&self) -> u64 {
        self.cold
    }

    /// Warm pages of one kind.
    pub(super) fn warm_of(&self, kind: Kind) -> u64 {
        self.lists.get(usize::from(kind)).map_or(0, |list| list.pages)
    }

    /// Number of the page behind the oldest warm one of a kind.
    pub(super) fn oldest_end(&self, kind: Kind) -> Option<u32> {
        let oldest = self.lists.get(usize::from(kind)).filter(|list| list.pages > 0)?.oldest;
        Some(oldest + self.by_page[oldest as usize].pages)
    }

    /// The run that a page lies in, and what is said of it.
    pub(super) fn around(&self, page: u32) -> Option<(Extent, &Run)> {
        if page as usize >= self.by_page.len() {
            return None;
        }
        let start = self.starts.at_or_before(page)?;
        let run = &self.by_page[start as usize];
        (page < start + run.pages).then_some((Extent::new(start, run.pages), run))
    }

    /// The run that starts at this page.
    pub(super) fn starting_at(&self, page: u32) -> Option<&Run> {
        self.by_page.get(page as usize).filter(|run| run.pages > 0)
    }

    /// The last sealed pages among these, as far as they are of one run.
    pub(super) fn last_within(&self, pages: Extent) -> Option<Extent> {
        let start = self.starts.at_or_before(pages.end().checked_sub(1)?)?;
        let end = pages.end().min(start + self.by_page[start as usize].pages);
        let start = start.max(pages.start);
        (start < end).then(|| Extent::new(start, end - start))
    }

    /// Adds pages that are not sealed yet. They are part of the run before them where they are like it.
    pub(super) fn add(&mut self, pages: Extent, run: Run) {
        self.by_page[pages.start as usize] = Run { pages: pages.pages, ..run };
        self.starts.set(pages.start);
        self.held += u64::from(pages.pages);
        self.join_around(pages.start);
    }

    /// One more lease holds these pages of one run. Whether they were cold: they must leave the free space then.
    pub(super) fn hold(&mut self, pages: Extent) -> bool {
        let start = self.cut_out(pages);
        let before = self.by_page[start as usize].state;
        let holders = match before {
            State::Held(holders) => holders + 1,
            State::Warm(_) => {
                self.unlink(start);
                self.held += u64::from(pages.pages);
                1
            }
            State::Cold(_) => {
                self.cold -= u64::from(pages.pages);
                self.held += u64::from(pages.pages);
                1
            }
        };
        self.by_page[start as usize].state = State::Held(holders);
        self.join_around(start);
        matches!(before, State::Cold(_))
    }

    /// One lease less holds these pages of one run, the last page first; where it was the last lease they are the newest
    /// evictable pages of their kind.
    pub(super) fn let_go(&mut self, pages: Extent) {
        let start = self.cut_out(pages);
        let run = &mut self.by_page[start as usize];
        if let State::Held(holders @ 2..) = run.state {
            run.state = State::Held(holders - 1);
        } else {
            run.state = State::Warm(self.turn + 1);
            self.turn += u64::from(pages.pages);
            self.held -= u64::from(pages.pages);
            self.link_newest(start);
        }
        self.join_around(start);
    }

    /// Makes the oldest warm pages of a kind cold, at most so many of one run, and names them: they must enter the free
    /// space.
    pub(super) fn chill_oldest(&mut self, kind: Kind, most: u32) -> Option<Extent> {
        let oldest = self.lists.get(usize::from(kind)).filter(|list| list.pages > 0 && most > 0)?.oldest;
        let end = oldest + self.by_page[oldest as usize].pages;
        let chilled = Extent::new(oldest.max(end.saturating_sub(most)), most.min(end - oldest));
        let start = self.cut_out(chilled);
        self.unlink(start);
        let run = &mut self.by_page[start as usize];
        if let State::Warm(turn) = run.state {
            run.state = State::Cold(turn);
        }
        self.cold += u64::from(chilled.pages);
        self.join_around(start);
        Some(chilled)
    }

    /// Takes out cold pages of one run, and says what was said of them. The page behind them follows nothing any more: it is
    /// named where it did.
    pub(super) fn remove(&mut self, pages: Extent) -> (Run, Option<u32>) {
        let start = self.cut_out(pages);
        let removed = std::mem::replace(&mut self.by_page[start as usize], Run::NOWHERE);
        debug_assert!(matches!(removed.state, State::Cold(_)), "{pages:?} are {:?}", removed.state);
        self.starts.clear(start);
        self.cold -= u64::from(pages.pages);
        let behind = self.by_page.get_mut(pages.end() as usize).filter(|run| run.pages > 0 && run.follows);
        let orphan = behind.map(|run| {
            run.follows = false;
            pages.end()
        });
        (removed, orphan)
    }

    /// The kind other than `but` whose oldest warm page is the oldest of all.
    pub(super) fn oldest_foreign(&self, but: Kind) -> Option<Kind> {
        let kinds = 0..u16::try_from(self.lists.len()).unwrap_or(Kind::MAX);
        kinds.filter(|kind| *kind != but && self.warm_of(*kind) > 0).min_by_key(|kind| {
            match self.by_page[self.lists[usize::from(*kind)].oldest as usize].state {
                State::Warm(turn) => turn,
                State::Held(_) | State::Cold(_) => u64::MAX,
            }
        })
    }

    /// All runs in the order of their pages, for checks and for a journal.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Extent, &Run)> {
        let starts = (0..).zip(&self.by_page).filter(|(_, run)| run.pages > 0);
        starts.map(|(start, run)| (Extent::new(start, run.pages), run))
    }

    /// Pages on the LRU lists, walked link by link from the oldest on, for checks.
    pub(super) fn walk_lru(&self) -> impl Iterator<Item = u32> + '_ {
        let present = |start: u32| (start != NONE).then_some(start);
        let walk = move |list: &Lru| {
            std::iter::successors(present(list.oldest), move |start| present(self.by_page[*start as usize].newer))
        };
        self.lists.iter().flat_map(walk).flat_map(|start| (start..start + self.by_page[start as usize].pages).rev())
    }

    /// Makes these pages of one run a run of their own.
    fn cut_out(&mut self, pages: Extent) -> u32 {
        let start = self.starts.at_or_before(pages.start).expect("the pages are part of a run, which has a start");
        let end = start + self.by_page[start as usize].pages;
        debug_assert!(pages.pages > 0 && pages.end() <= end, "{pages:?} of the run from {start} to {end}");
        if pages.end() < end {
            self.split(start, pages.end());
        }
        if start < pages.start {
            self.split(start, pages.start);
        }
        pages.start
    }

    fn split(&mut self, start: u32, at: u32) {
        let whole = self.by_page[start as usize];
        let (left, right) = (at - start, start + whole.pages - at);
        let mut rest = Run { pages: right, place: whole.place + left, follows: true, ..whole };
        let first = &mut self.by_page[start as usize];
        first.pages = left;
        match whole.state {
            State::Held(_) => {}
            State::Warm(turn) => {
                first.state = State::Warm(turn + u64::from(right));
                first.older = at;
                rest.newer = start;
                self.set_newer(whole.kind, whole.older, at);
            }
            State::Cold(turn) => first.state = State::Cold(turn + u64::from(right)),
        }
        self.by_page[at as usize] = rest;
        self.starts.set(at);
    }

    /// Joins the run at `start` with its neighbours where they are alike.
    fn join_around(&mut self, start: u32) {
        self.join(start, start + self.by_page[start as usize].pages);
        if self.by_page[start as usize].follows
            && let Some(before) = start.checked_sub(1).and_then(|page| self.starts.at_or_before(page))
            && before + self.by_page[before as usize].pages == start
        {
            self.join(before, start);
        }
    }

    /// Joins two runs that touch, where one may stand for both.
    fn join(&mut self, left: u32, right: u32) {
        let Some(last) = self.starting_at(right).copied() else { return };
        let first = self.by_page[left as usize];
        let in_one_chain = last.follows && first.tenant == last.tenant && first.place + first.pages == last.place;
        let alike = match (first.state, last.state) {
            (State::Held(some), State::Held(others)) => some == others,
            (State::Warm(turn), State::Warm(older)) => first.older == right && turn == older + u64::from(last.pages),
            (State::Cold(turn), State::Cold(older)) => turn == older + u64::from(last.pages),
            _ => false,
        };
        if !in_one_chain || !alike {
            return;
        }
        let joined = &mut self.by_page[left as usize];
        joined.pages += last.pages;
        joined.state = last.state;
        joined.older = last.older;
        if let State::Warm(_) = last.state {
            self.set_newer(last.kind, last.older, left);
        }
        self.by_page[right as usize] = Run::NOWHERE;
        self.starts.clear(right);
    }

    fn link_newest(&mut self, start: u32) {
        let Run { pages, kind, .. } = self.by_page[start as usize];
        while self.lists.len() <= usize::from(kind) {
            self.lists.push(Lru { oldest: NONE, newest: NONE, pages: 0 });
        }
        let list = &mut self.lists[usize::from(kind)];
        let older = std::mem::replace(&mut list.newest, start);
        list.pages += u64::from(pages);
        self.warm += u64::from(pages);
        self.by_page[start as usize].older = older;
        self.by_page[start as usize].newer = NONE;
        self.set_newer(kind, older, start);
    }

    fn unlink(&mut self, start: u32) {
        let Run { pages, kind, older, newer, .. } = self.by_page[start as usize];
        self.lists[usize::from(kind)].pages -= u64::from(pages);
        self.warm -= u64::from(pages);
        self.set_newer(kind, older, newer);
        match newer {
            NONE => self.lists[usize::from(kind)].newest = older,
            newer => self.by_page[newer as usize].older = older,
        }
        let run = &mut self.by_page[start as usize];
        (run.older, run.newer) = (NONE, NONE);
    }

    /// What comes after `older` on the list of a kind; the first of the list where there is no older one.
    fn set_newer(&mut self, kind: Kind, older: u32, newer: u32) {
        match older {
            NONE => self.lists[usize::from(kind)].oldest = newer,
            older => self.by_page[older as usize].newer = newer,
        }
    }
}
