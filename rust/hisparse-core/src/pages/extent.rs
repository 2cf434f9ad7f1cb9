//! Runs of consecutive page numbers, and the short lists of them that a lease holds.
//!
//! ```text
//!  page numbers   … 7 [8 9 10 11] 12 13 [14 15] 16 …
//!  extents             (8, 4)             (14, 2)
//! ```
//! Few extents per request is a performance property: swap-in from contiguous pages runs at twice the speed.

use serde::Serialize;

/// A run of pages with consecutive numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Extent {
    /// Number of its first page.
    pub start: u32,
    /// How many pages it has.
    pub pages: u32,
}

impl Extent {
    /// The run of `pages` pages that begins at `start`.
    pub const fn new(start: u32, pages: u32) -> Self {
        Self { start, pages }
    }

    /// Number of the page behind its last one. Pool sizes are bounded far below 2^32, so this cannot overflow.
    pub const fn end(self) -> u32 {
        self.start + self.pages
    }
}

/// Extents in the order of the tokens they hold. Neighbours are merged; a single extent needs no heap memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    first: Extent,
    rest: Vec<Extent>,
}

impl Extents {
    /// No page.
    pub const fn new() -> Self {
        Self { first: Extent::new(0, 0), rest: Vec::new() }
    }

    /// Appends a run; one that continues the last run lengthens it. A run of no pages is nothing.
    pub fn push(&mut self, extent: Extent) {
        if extent.pages == 0 {
            return;
        }
        match self.last_mut() {
            Some(last) if last.end() == extent.start => last.pages += extent.pages,
            Some(_) => self.rest.push(extent),
            None => self.first = extent,
        }
    }

    /// Appends all runs of another list.
    pub fn append(&mut self, other: &Self) {
        for extent in other.iter() {
            self.push(extent);
        }
    }

    /// The runs in token order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Extent> + '_ {
        (self.first.pages > 0).then_some(self.first).into_iter().chain(self.rest.iter().copied())
    }

    /// Page numbers in token order.
    pub fn page_numbers(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.iter().flat_map(|extent| extent.start..extent.end())
    }

    /// The runs of `count` pages from the page at `place` on, as far as there are so many.
    pub(crate) fn part(&self, place: u32, count: u32) -> impl Iterator<Item = Extent> + '_ {
        let (mut skip, mut left) = (place, count);
        self.iter().filter_map(move |extent| {
            let skipped = skip.min(extent.pages);
            skip -= skipped;
            let taken = left.min(extent.pages - skipped);
            left -= taken;
            (taken > 0).then(|| Extent::new(extent.start + skipped, taken))
        })
    }

    /// The page at this place.
    pub(crate) fn page_at(&self, place: u32) -> Option<u32> {
        self.part(place, 1).next().map(|extent| extent.start)
    }

    /// How many runs there are.
    pub fn len(&self) -> usize {
        usize::from(self.first.pages > 0) + self.rest.len()
    }

    /// Whether there is no page.
    pub const fn is_empty(&self) -> bool {
        self.first.pages == 0
    }

    /// Pages of all runs together.
    pub fn pages(&self) -> u32 {
        self.iter().map(|extent| extent.pages).sum()
    }

    /// The last run.
    pub fn last(&self) -> Option<Extent> {
        self.rest.last().copied().or((self.first.pages > 0).then_some(self.first))
    }

    fn last_mut(&mut self) -> Option<&mut Extent> {
        match self.rest.last_mut() {
            Some(last) => Some(last),
            None => (self.first.pages > 0).then_some(&mut self.first),
        }
    }
}

impl FromIterator<Extent> for Extents {
    fn from_iter<I: IntoIterator<Item = Extent>>(runs: I) -> Self {
        let mut extents = Self::new();
        for run in runs {
            extents.push(run);
        }
        extents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_merge_and_strangers_do_not() {
        let extents: Extents =
            [Extent::new(8, 2), Extent::new(10, 2), Extent::new(14, 2), Extent::new(16, 0)].into_iter().collect();
        assert_eq!(extents.iter().collect::<Vec<_>>(), [Extent::new(8, 4), Extent::new(14, 2)]);
        assert_eq!((extents.len(), extents.pages()), (2, 6));
        assert_eq!(extents.page_numbers().collect::<Vec<_>>(), [8, 9, 10, 11, 14, 15]);
    }

    #[test]
    fn a_part_begins_and_ends_within_runs() {
        let extents: Extents = [Extent::new(8, 4), Extent::new(20, 3), Extent::new(30, 2)].into_iter().collect();
        let part = |place, count| extents.part(place, count).collect::<Vec<_>>();
        assert_eq!(part(2, 4), [Extent::new(10, 2), Extent::new(20, 2)]);
        assert_eq!(part(4, 3), [Extent::new(20, 3)]);
        assert_eq!(part(8, 9), [Extent::new(31, 1)]);
        assert_eq!((part(9, 1), part(3, 0)), (vec![], vec![]));
        assert_eq!((extents.page_at(6), extents.page_at(9)), (Some(22), None));
    }

    #[test]
    fn an_empty_list_has_no_last_run() {
        assert_eq!((Extents::new().last(), Extents::new().len()), (None, 0));
    }
}
