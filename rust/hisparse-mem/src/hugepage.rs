//! Huge pages: those set aside (hugetlb), and those the kernel makes on its own where it may (transparent).

use serde::Serialize;

use crate::cgroup::Cgroup;
use crate::finding::Finding;
use crate::root::Root;

/// Pages of one size that the machine has set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HugepagePool {
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Pages set aside.
    pub total_pages: u64,
    /// Pages that are neither in use nor promised to a mapping.
    pub free_pages: u64,
    /// Control-group limits on this size.
    pub cgroup: Cgroup,
}

impl HugepagePool {
    /// What can be had in pages of this size, in bytes: free pages and every limit on them, whole pages.
    pub fn available_bytes(&self) -> u64 {
        let free = self.free_pages.saturating_mul(self.page_bytes);
        let limited = self.cgroup.binding().map_or(free, |limit| free.min(limit.headroom_bytes()));
        limited - limited % self.page_bytes
    }
}

/// Whether the kernel makes huge pages of its own accord, and of what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransparentHugepages {
    /// For private memory: `always`, `madvise` or `never`.
    pub anonymous: Finding<String>,
    /// For shared memory (memfd): `always`, `within_size`, `advise`, `never`, `deny` or `force`.
    pub shared: Finding<String>,
}

impl TransparentHugepages {
    /// Whether advice on a memfd has any effect.
    pub fn shared_advice_works(&self) -> bool {
        self.shared.known().is_some_and(|mode| ["always", "within_size", "advise", "force"].contains(&mode.as_str()))
    }
}

const HUGEPAGES: &str = "/sys/kernel/mm/hugepages";
const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage";

/// Every page size the machine knows, smallest first, also those of which none is set aside.
pub fn pools(root: &Root) -> Vec<HugepagePool> {
    let mut pools: Vec<HugepagePool> = root
        .list(HUGEPAGES)
        .iter()
        .filter_map(|name| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let page_bytes = kib.checked_mul(1024).filter(|bytes| *bytes > 0)?;
            let figure = |file: &str| root.read_number(format!("{HUGEPAGES}/{name}/{file}")).unwrap_or(0);
            Some(HugepagePool {
                page_bytes,
                total_pages: figure("nr_hugepages"),
                free_pages: figure("free_hugepages").saturating_sub(figure("resv_hugepages")),
                cgroup: Cgroup::hugetlb(root, page_bytes),
            })
        })
        .collect();
    pools.sort_by_key(|pool| pool.page_bytes);
    pools
}

/// Reads the kernel's modes for transparent huge pages.
pub fn transparent(root: &Root) -> TransparentHugepages {
    let chosen = |file: &str| {
        root.read(format!("{TRANSPARENT}/{file}"))
            .and_then(|text| chosen(&text).ok_or_else(|| format!("{TRANSPARENT}/{file} marks no choice")))
            .into()
    };
    TransparentHugepages { anonymous: chosen("enabled"), shared: chosen("shmem_enabled") }
}

/// The word in brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fixture::Tree;

    #[test]
    fn promised_pages_are_not_free() {
        let tree = Tree::new(&[
            ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "10\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "8\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "3\n"),
        ]);
        let found = pools(&tree.root());
        assert_eq!(found.iter().map(|pool| pool.page_bytes).collect::<Vec<_>>(), [2 << 20, 1 << 30]);
        assert_eq!(found[0].available_bytes(), 5 * (2 << 20));
        assert_eq!(found[1].available_bytes(), 0);
    }

    #[test]
    fn a_control_group_bounds_them_to_whole_pages() {
        let tree = Tree::new(&[
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "10\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "10\n"),
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", "41 31 0:38 / /cg rw - cgroup2 cgroup2 rw\n"),
            ("cg/hugetlb.2MB.max", "5000000\n"),
            ("cg/hugetlb.2MB.current", "0\n"),
        ]);
        assert_eq!(pools(&tree.root())[0].available_bytes(), 2 * (2 << 20));
    }

    #[test]
    fn advice_on_shared_memory_works_only_where_the_kernel_takes_it() {
        let modes = |shared: &str| {
            transparent(
                &Tree::new(&[
                    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
                    ("sys/kernel/mm/transparent_hugepage/shmem_enabled", shared),
                ])
                .root(),
            )
        };
        assert!(modes("always within_size [advise] never deny force").shared_advice_works());
        assert!(!modes("always within_size advise [never] deny force").shared_advice_works());
        assert_eq!(
            modes("").shared,
            Finding::unknown("/sys/kernel/mm/transparent_hugepage/shmem_enabled marks no choice")
        );
        assert_eq!(modes("").anonymous, Finding::Known("madvise".to_owned()));
    }
}
