//! What a segment's pages are, from the best kind to the plainest.

use std::fmt;

use hisparse_core::size::show_size;
use hisparse_core::units::Bytes;
use serde::Serialize;

use crate::machine::Machine;

/// Kinds of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
    fn huge_pages_that_would_be_mostly_waste_are_not_used() {
        assert_eq!(order("20", "[never]", &[MIB, MIB]), [Backing::Memfd]);
    }
}
