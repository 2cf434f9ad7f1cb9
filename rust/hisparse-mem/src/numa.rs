//! NUMA nodes: which have memory, and which of them this process may use (a cpuset may leave it one of two).

use serde::Serialize;

use crate::finding::Finding;
use crate::meminfo::kib_field;
use crate::root::Root;

/// One node that has memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// All of its memory in bytes.
    pub total_bytes: u64,
    /// Free, plus inactive file cache and reclaimable slab: what an allocation bound to it can hope for, in bytes.
    pub available_bytes: u64,
    /// Its CPUs as the kernel writes them: `0-15,32-47`.
    pub cpus: String,
    /// Whether this process may allocate there.
    pub allowed: bool,
}

impl Node {
    /// Its CPUs, each by number.
    pub fn cpu_numbers(&self) -> Vec<usize> {
        id_list(&self.cpus).into_iter().filter_map(|cpu| usize::try_from(cpu).ok()).collect()
    }
}

/// The nodes of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Numa {
    /// Nodes with memory, by number; unknown where the kernel shows none.
    pub nodes: Finding<Vec<Node>>,
}

const NODES: &str = "/sys/devices/system/node";

impl Numa {
    /// Reads the nodes and this process's share of them.
    pub fn discover(root: &Root) -> Self {
        let allowed = root
            .read("/proc/self/status")
            .ok()
            .and_then(|text| Some(id_list(text.lines().find_map(|l| l.strip_prefix("Mems_allowed_list:"))?)));
        let nodes: Vec<Node> = root
            .list(NODES)
            .iter()
            .filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok())
            .filter_map(|id| read_node(root, id, allowed.as_deref()))
            .collect();
        let mut nodes = nodes;
        nodes.sort_by_key(|node| node.id);
        Self {
            nodes: if nodes.is_empty() {
                Finding::unknown(format!("{NODES} shows no node with memory"))
            } else {
                Finding::Known(nodes)
            },
        }
    }

    /// Bytes available on the nodes this process may use, where that is not all of them.
    pub fn restricted_bytes(&self) -> Option<u64> {
        let nodes = self.nodes.known()?;
        if nodes.iter().all(|node| node.allowed) {
            return None;
        }
        Some(
            nodes.iter().filter(|node| node.allowed).fold(0, |sum: u64, node| sum.saturating_add(node.available_bytes)),
        )
    }
}

fn read_node(root: &Root, id: u32, allowed: Option<&[u32]>) -> Option<Node> {
    let text = root.read(format!("{NODES}/node{id}/meminfo")).ok()?;
    let total_bytes = kib_field(&text, "MemTotal").filter(|total| *total > 0)?;
    let part = |name| kib_field(&text, name).unwrap_or(0);
    let available = part("MemFree").saturating_add(part("Inactive(file)")).saturating_add(part("SReclaimable"));
    Some(Node {
        id,
        total_bytes,
        available_bytes: available.min(total_bytes),
        cpus: root.read(format!("{NODES}/node{id}/cpulist")).unwrap_or_default().trim().to_owned(),
        allowed: allowed.is_none_or(|ids| ids.contains(&id)),
    })
}

/// The numbers of a kernel list, `0-2,5`; parts that are no numbers are left out.
fn id_list(text: &str) -> Vec<u32> {
    /// More nodes, and more CPUs, than kernels are built for.
    const MOST: u32 = 16_384;
    let mut ids = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            ids.extend(first..=last.min(MOST));
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fixture::Tree;

    const NODE0: &str = "Node 0 MemTotal: 1000 kB\nNode 0 MemFree: 400 kB\nNode 0 Inactive(file): 50 kB\n";
    const NODE1: &str = "Node 1 MemTotal: 1000 kB\nNode 1 MemFree: 900 kB\n";

    fn tree(allowed: &str) -> Tree {
        Tree::new(&[
            ("sys/devices/system/node/node0/meminfo", NODE0),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            ("sys/devices/system/node/node1/meminfo", NODE1),
            ("sys/devices/system/node/node2/meminfo", "Node 2 MemTotal: 0 kB\n"),
            ("proc/self/status", &format!("Mems_allowed_list:\t{allowed}\n")),
        ])
    }

    #[test]
    fn a_node_without_memory_is_left_out() {
        let numa = Numa::discover(&tree("0-2").root());
        let nodes = numa.nodes.known().unwrap();
        assert_eq!(nodes.iter().map(|n| n.id).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((nodes[0].available_bytes, nodes[0].cpus.as_str()), (450 * 1024, "0-3"));
        assert_eq!(numa.restricted_bytes(), None);
    }

    #[test]
    fn a_cpuset_that_leaves_one_node_bounds_the_memory() {
        let numa = Numa::discover(&tree("0").root());
        assert_eq!(numa.restricted_bytes(), Some(450 * 1024));
    }

    #[test]
    fn a_machine_that_shows_no_nodes_is_unknown() {
        assert!(Numa::discover(&Tree::new(&[]).root()).nodes.known().is_none());
    }

    #[test]
    fn kernel_lists_are_read_with_their_ranges() {
        assert_eq!(id_list(" 0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(id_list(""), Vec::<u32>::new());
        assert_eq!(id_list("x,3-1,4"), [4]);
    }
}
