//! What a segment's pages are, from the best kind to the plainest.

use std::fmt;

use hisparse_core::size::show_size;
use hisparse_core::units::Bytes;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;

/// Kinds of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Backing {
    /// Huge pages set aside by the machine.
    Hugetlb {
        /// Their size in bytes.
        page_bytes: u64,
    },
    /// An anonymous memory file, transparent huge pages advised.
    MemfdThp,
    /// An anonymous memory file.
    Memfd,
    /// A file in a state directory, which outlives this process.
    File,
    /// The heap stand-in: no other process can map it.
    Heap,
}

/// What a user may ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// The best kind that can be had.
    #[default]
    Auto,
    /// Huge pages set aside, of any size, or nothing.
    Huge,
    /// This kind, or nothing.
    Only(Backing),
}

impl Pages {
    /// The words for it: of the setting `pages`.
    pub const WORDS: [&'static str; 4] = ["auto", "huge", "thp", "plain"];

    /// Reads one of [`Pages::WORDS`].
    pub fn read(word: &str) -> Option<Self> {
        match word {
            "auto" => Some(Self::Auto),
            "huge" => Some(Self::Huge),
            "thp" => Some(Self::Only(Backing::MemfdThp)),
            "plain" => Some(Self::Only(Backing::Memfd)),
            _ => None,
        }
    }

    /// What to try for a pool of these segments, best first; never empty.
    pub(crate) fn order(self, machine: &Machine, segments: &[u64]) -> Vec<Backing> {
        match self {
            Self::Auto => Backing::order(machine, segments),
            Self::Only(backing) => vec![backing],
            Self::Huge => {
                let mut sizes: Vec<u64> = machine.hugepages.iter().map(|pool| pool.page_bytes).collect();
                // The smallest comes last, so that it is the one that a refusal names.
                sizes.sort_unstable_by(|a, b| b.cmp(a));
                if sizes.is_empty() {
                    sizes.push(USUAL_HUGE_PAGE_BYTES);
                }
                sizes.into_iter().map(|page_bytes| Backing::Hugetlb { page_bytes }).collect()
            }
        }
    }
}

/// The size of a huge page that is named where the kernel lists none.
const USUAL_HUGE_PAGE_BYTES: u64 = 2 << 20;

impl Backing {
    /// What to try for a pool of `bytes` in segments, best first: huge pages only where enough of them are free for
    /// all of it, advice only where the kernel takes it.
    pub fn order(machine: &Machine, segments: &[u64]) -> Vec<Self> {
        let mut order = Vec::new();
        for pool in machine.hugepages.iter().rev() {
            let needed = segments
                .iter()
                .try_fold(0_u64, |sum, bytes| sum.checked_add(bytes.checked_next_multiple_of(pool.page_bytes)?));
            // A page as large as a segment wastes up to one per segment: only where that is under a tenth.
            let plain = segments.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
            let wasteful = needed.is_none_or(|needed| needed - plain > plain / 10);
            if !wasteful && needed.is_some_and(|needed| needed <= pool.available_bytes()) {
                order.push(Self::Hugetlb { page_bytes: pool.page_bytes });
            }
        }
        if machine.transparent_hugepages.shared_advice_works() {
            order.push(Self::MemfdThp);
        }
        order.push(Self::Memfd);
        order
    }

    /// Its name in JSON and on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Hugetlb { .. } => "hugetlb",
            Self::MemfdThp => "memfd_thp",
            Self::Memfd => "memfd",
            Self::File => "file",
            Self::Heap => "heap",
        }
    }

    /// The size that segments of this kind are rounded up to, in bytes.
    pub const fn granule_bytes(self) -> u64 {
        match self {
            Self::Hugetlb { page_bytes } => page_bytes,
            Self::MemfdThp | Self::Memfd | Self::File | Self::Heap => crate::map::PAGE_BYTES as u64,
        }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hugetlb { page_bytes } => write!(f, "huge pages of {}", show_size(Bytes::new(*page_bytes))),
            Self::MemfdThp => f.write_str("a memory file with transparent huge pages"),
            Self::Memfd => f.write_str("a memory file"),
            Self::File => f.write_str("a file in the state directory"),
            Self::Heap => f.write_str("the heap"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fixture::Tree;

    fn order(free_pages: &str, shared: &str, segments: &[u64]) -> Vec<Backing> {
        let pages = "sys/kernel/mm/hugepages/hugepages-2048kB";
        let tree = Tree::new(&[
            (&format!("{pages}/nr_hugepages"), free_pages),
            (&format!("{pages}/free_hugepages"), free_pages),
            ("sys/kernel/mm/transparent_hugepage/shmem_enabled", shared),
        ]);
        Backing::order(&Machine::discover(&tree.root(), None), segments)
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn huge_pages_come_first_where_they_hold_every_segment() {
        let huge = Backing::Hugetlb { page_bytes: 2 * MIB };
        assert_eq!(order("20", "[never]", &[20 * MIB, 20 * MIB]), [huge, Backing::Memfd]);
        assert_eq!(order("19", "[advise]", &[20 * MIB, 20 * MIB]), [Backing::MemfdThp, Backing::Memfd]);
    }

    #[test]
    fn every_word_is_read_and_huge_pages_asked_for_are_never_replaced() {
        assert!(Pages::WORDS.iter().all(|word| Pages::read(word).is_some()));
        assert_eq!((Pages::read("memfd"), Pages::read("auto")), (None, Some(Pages::Auto)));
        let nothing = Machine::discover(&Tree::new(&[]).root(), None);
        assert_eq!(Pages::Huge.order(&nothing, &[1]), [Backing::Hugetlb { page_bytes: 2 * MIB }]);
        assert_eq!(Pages::Only(Backing::Memfd).order(&nothing, &[1]), [Backing::Memfd]);
    }

    #[test]
    fn huge_pages_that_would_be_mostly_waste_are_not_used() {
        assert_eq!(order("20", "[never]", &[MIB, MIB]), [Backing::Memfd]);
    }
}
