//! `/proc/meminfo`: what the whole machine has. Inside a container it still shows the whole machine, which is why
//! [`crate::headroom`] never looks at it alone.

use serde::Serialize;

use crate::finding::Finding;
use crate::root::Root;

/// The figures of the machine, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Meminfo {
    /// `MemTotal`.
    pub total_bytes: Finding<u64>,
    /// `MemAvailable`: free, plus what the kernel expects to reclaim without swapping.
    pub available_bytes: Finding<u64>,
    /// `SwapTotal`; a pool's pages never belong in swap.
    pub swap_total_bytes: Finding<u64>,
}

impl Meminfo {
    /// Reads the machine's figures.
    pub fn discover(root: &Root) -> Self {
        let text = root.read("/proc/meminfo");
        let field = |name: &str| match &text {
            Ok(text) => kib_field(text, name).ok_or_else(|| format!("/proc/meminfo has no {name}")).into(),
            Err(reason) => Finding::unknown(reason),
        };
        Self {
            total_bytes: field("MemTotal"),
            available_bytes: field("MemAvailable"),
            swap_total_bytes: field("SwapTotal"),
        }
    }
}

/// The bytes of a line `Name:   123 kB`, wherever the name stands in the line (node files put `Node 0` before it).
pub(crate) fn kib_field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (label, value) = line.split_once(':')?;
        if label.split_whitespace().next_back()? != name {
            return None;
        }
        let mut words = value.split_whitespace();
        let number: u64 = words.next()?.parse().ok()?;
        match words.next() {
            Some("kB") => number.checked_mul(1024),
            _ => Some(number),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fixture::Tree;

    #[test]
    fn figures_are_bytes() {
        let tree = Tree::new(&[("proc/meminfo", "MemTotal:  100 kB\nMemFree: 5 kB\nMemAvailable:  40 kB\n")]);
        let info = Meminfo::discover(&tree.root());
        assert_eq!(info.total_bytes, Finding::Known(102_400));
        assert_eq!(info.available_bytes, Finding::Known(40_960));
        assert_eq!(info.swap_total_bytes, Finding::unknown("/proc/meminfo has no SwapTotal"));
    }

    #[test]
    fn a_missing_file_is_a_reason_and_no_failure() {
        let info = Meminfo::discover(&Tree::new(&[]).root());
        assert!(info.total_bytes.to_string().starts_with("unknown (cannot read /proc/meminfo"), "{info:?}");
    }

    #[test]
    fn a_nodes_file_reads_alike() {
        assert_eq!(kib_field("Node 0 MemFree:    7 kB\n", "MemFree"), Some(7168));
        assert_eq!(kib_field("HugePages_Total:       3\n", "HugePages_Total"), Some(3));
        assert_eq!(kib_field("MemFree: 18446744073709551615 kB", "MemFree"), None, "overflow is no number");
    }
}
