//! Free runs of one kind, sorted into bins by length: which run fits, and which is the longest, in a few bit operations.
//!
//! ```text
//!  length      0…63      64…127     128…255    256…511   …
//!  level         0          1          2          3
//!  64 bins    exact      exact     2 lengths   4 lengths        one bit per level, one 64-bit word per level
//! ```
//! The runs of a bin are a doubly linked list threaded through arrays indexed by a run's first page
//! ([`PageEntry`], shared by all kinds), so that no operation allocates.

use super::content::Kind;
use crate::limits::MAX_POOL_PAGES;

/// Bins of a level, as a power of two: one machine word of them.
const BIN_BITS: u32 = 6;
const BINS: usize = 1 << BIN_BITS;
/// Levels that lengths up to [`MAX_POOL_PAGES`] need.
const LEVELS: usize = (MAX_POOL_PAGES.ilog2() - BIN_BITS + 2) as usize;
/// Runs looked at inside one bin: their lengths differ by at most 1/64, so more looking buys next to nothing.
const LOOKS: usize = 16;

/// What is kept of a page: side by side, so that touching a run costs one cache line per end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageEntry {
    /// Length of a run at its first and at its last page, zero on every other page.
    pub(super) run: u32,
    /// Kind of a run, at the same two pages.
    pub(super) kind: Kind,
    /// First pages of the neighbours in the bin + 1, at a run's first page; zero means none.
    next: u32,
    previous: u32,
}

/// An entry per page.
pub(super) type Links = Vec<PageEntry>;

/// The free runs of one kind.
#[derive(Debug)]
pub(super) struct Bins {
    levels: u32,
    words: [u64; LEVELS],
    heads: Box<[u32]>,
    /// Pages of all runs together.
    pub(super) pages: u64,
    /// How many runs.
    pub(super) runs: u64,
}

impl Bins {
    pub(super) fn new() -> Self {
        Self { levels: 0, words: [0; LEVELS], heads: vec![0; LEVELS * BINS].into_boxed_slice(), pages: 0, runs: 0 }
    }

    /// Level and bin of runs of this length.
    fn place(length: u32) -> (usize, usize) {
        if length < 1 << BIN_BITS {
            return (0, length as usize);
        }
        let log = length.ilog2();
        let bin = (length >> (log - BIN_BITS)) & ((1 << BIN_BITS) - 1);
        ((log - BIN_BITS + 1) as usize, bin as usize)
    }

    /// Adds the run at `start`, whose length is already in `links`.
    pub(super) fn insert(&mut self, links: &mut [PageEntry], start: u32) {
        let length = links[start as usize].run;
        let (level, bin) = Self::place(length);
        let head = &mut self.heads[level * BINS + bin];
        links[start as usize].next = *head;
        links[start as usize].previous = 0;
        if *head != 0 {
            links[*head as usize - 1].previous = start + 1;
        }
        *head = start + 1;
        self.words[level] |= 1 << bin;
        self.levels |= 1 << level;
        self.pages += u64::from(length);
        self.runs += 1;
    }

    /// Takes out the run at `start`, whose length is still in `links`.
    pub(super) fn remove(&mut self, links: &mut [PageEntry], start: u32) {
        let length = links[start as usize].run;
        let (next, previous) = (links[start as usize].next, links[start as usize].previous);
        if next != 0 {
            links[next as usize - 1].previous = previous;
        }
        if previous != 0 {
            links[previous as usize - 1].next = next;
        } else {
            let (level, bin) = Self::place(length);
            self.heads[level * BINS + bin] = next;
            if next == 0 {
                self.words[level] &= !(1 << bin);
                if self.words[level] == 0 {
                    self.levels &= !(1 << level);
                }
            }
        }
        self.pages -= u64::from(length);
        self.runs -= 1;
    }

    /// First page of a shortest run that holds `length` pages (within 1/64 where a bin is crowded).
    pub(super) fn best_fit(&self, links: &[PageEntry], length: u32) -> Option<u32> {
        let (level, bin) = Self::place(length);
        if self.words[level] & (1 << bin) != 0
            && let Some(start) = self.look(links, level, bin, |run, best| run >= length && best.is_none_or(|b| run < b))
        {
            return Some(start);
        }
        let above = self.words[level] & (u64::MAX << bin) & !(1 << bin);
        let (level, word) = if above != 0 {
            (level, above)
        } else {
            let higher = self.levels & (u32::MAX << level) & !(1 << level);
            if higher == 0 {
                return None;
            }
            let level = higher.trailing_zeros() as usize;
            (level, self.words[level])
        };
        self.look(links, level, word.trailing_zeros() as usize, |run, best| best.is_none_or(|b| run < b))
    }

    /// First page of a longest run (within 1/64 where a bin is crowded).
    pub(super) fn longest(&self, links: &[PageEntry]) -> Option<u32> {
        let level = self.levels.checked_ilog2()? as usize;
        let bin = self.words[level].ilog2() as usize;
        self.look(links, level, bin, |run, best| best.is_none_or(|b| run > b))
    }

    /// The run of a bin that `better` prefers over the best so far, among the first few.
    fn look(
        &self,
        links: &[PageEntry],
        level: usize,
        bin: usize,
        better: impl Fn(u32, Option<u32>) -> bool,
    ) -> Option<u32> {
        let exact = level < 2;
        let mut best: Option<(u32, u32)> = None;
        let mut at = self.heads[level * BINS + bin];
        for _ in 0..LOOKS {
            if at == 0 {
                break;
            }
            let run = links[at as usize - 1].run;
            if better(run, best.map(|(length, _)| length)) {
                best = Some((run, at - 1));
            }
            if exact {
                break;
            }
            at = links[at as usize - 1].next;
        }
        best.map(|(_, start)| start)
    }

    /// First pages of all runs, for checks.
    pub(super) fn starts<'a>(&'a self, links: &'a [PageEntry]) -> impl Iterator<Item = u32> + 'a {
        self.heads.iter().flat_map(|head| {
            std::iter::successors(head.checked_sub(1), |start| links[*start as usize].next.checked_sub(1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_cover_every_length_in_order() {
        let mut last = (0, 0);
        for length in 1..=100_000 {
            let place = Bins::place(length);
            assert!(place >= last, "{length}");
            assert!(place.0 < LEVELS && place.1 < BINS, "{length}");
            last = place;
        }
        let top = u32::try_from(MAX_POOL_PAGES).unwrap();
        assert!(Bins::place(top).0 < LEVELS);
    }

    #[test]
    fn a_longer_run_in_the_same_bin_is_found_before_the_next_bin() {
        let mut links = vec![PageEntry::default(); 2_000];
        let mut bins = Bins::new();
        for (start, length) in [(0, 256), (300, 258), (600, 700)] {
            links[start as usize].run = length;
            bins.insert(&mut links, start);
        }
        assert_eq!(bins.best_fit(&links, 257), Some(300));
        assert_eq!(bins.best_fit(&links, 259), Some(600));
        assert_eq!(bins.best_fit(&links, 701), None);
        assert_eq!(bins.longest(&links), Some(600));
    }
}
