//! Which memory node a segment's pages come from: asked for before they are made, looked up after.
//!
//! ```text
//!  bind     only that node; the kernel kills rather than take another, so the node's own headroom must be checked
//!  prefer   that node, another where it is full                                               (the default choice)
//!  refused  (seccomp profiles of some container runtimes)  ──►  first touch from threads kept on the node's CPUs
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::size::show_size;
use hisparse_core::units::Bytes;
use rustix::io::Errno;
use serde::Serialize;

use crate::finding::Finding;
use crate::map::{Access, Mapping, PAGE_BYTES};
use crate::numa::Numa;

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Wherever the kernel likes.
    #[default]
    Anywhere,
    /// This node, another where it is full.
    Prefer(u32),
    /// This node alone.
    Bind(u32),
}

impl Placement {
    /// Reads what a user wrote in `field`: `any`, `prefer:NODE[,NODE…]` or `bind:NODE[,NODE…]`. Segments take the nodes
    /// in turn.
    ///
    /// # Errors
    /// Text of another form.
    pub fn read(field: &str, text: &str) -> Result<Vec<Self>, Problems> {
        if text == "any" {
            return Ok(Vec::new());
        }
        let (mode, nodes) = text.split_once(':').unwrap_or((text, ""));
        let place = match mode {
            "prefer" => Self::Prefer,
            "bind" => Self::Bind,
            _ => return Err(Self::unread(field, text)),
        };
        let read = nodes.split(',').map(|node| node.parse().map(place)).collect::<Result<Vec<_>, _>>();
        read.map_err(|_| Self::unread(field, text))
    }

    fn unread(field: &str, text: &str) -> Problems {
        let rule = "must be any, prefer:NODE or bind:NODE, with several nodes as prefer:0,1";
        Problems::one(Problem::new(field, format!("{text:?}"), rule, "name nodes that `doctor` lists"))
    }

    /// The node it names.
    pub const fn node(self) -> Option<u32> {
        match self {
            Self::Anywhere => None,
            Self::Prefer(node) | Self::Bind(node) => Some(node),
        }
    }

    /// Whether this machine lets segments of `bytes` be placed so, each in its turn: a node that is there, and where
    /// pages are bound to one, room on it. A bound page that finds none ends the process, however much is free elsewhere.
    pub(crate) fn check(field: &str, places: &[Self], segments: &[u64], numa: &Numa) -> Result<(), Problems> {
        let Finding::Known(nodes) = &numa.nodes else { return Ok(()) };
        let mut problems = Problems::new();
        let mut wanted: BTreeMap<u32, u64> = BTreeMap::new();
        for (place, bytes) in places.iter().cycle().zip(segments) {
            let sum = place.node().map(|node| wanted.entry(node).or_default());
            if let (Self::Bind(_), Some(sum)) = (place, sum) {
                *sum = sum.saturating_add(*bytes);
            }
        }
        for (id, bytes) in wanted {
            match nodes.iter().find(|node| node.id == id) {
                None => {
                    let there = nodes.iter().map(|node| node.id.to_string()).collect::<Vec<_>>().join(", ");
                    let remedy = format!("name one of {there}");
                    problems.push(Problem::new(field, id, "must be a node that has memory", remedy));
                }
                Some(node) if !node.allowed => {
                    let remedy = "widen the cpuset (cpuset.mems), or name another node";
                    problems.push(Problem::new(field, id, "must be a node that the cpuset allows", remedy));
                }
                Some(node) if bytes > node.available_bytes => {
                    let left = show_size(Bytes::new(node.available_bytes));
                    let rule = format!("must have room for {}, and has {left}", show_size(Bytes::new(bytes)));
                    let remedy = "use prefer: instead of bind:, name more nodes, or ask for a smaller pool";
                    problems.push(Problem::new(field, format!("bind:{id}"), rule, remedy));
                }
                Some(_) => {}
            }
        }
        problems.into_result(())
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anywhere => f.write_str("any node"),
            Self::Prefer(node) => write!(f, "node {node} preferred"),
            Self::Bind(node) => write!(f, "bound to node {node}"),
        }
    }
}

/// How it was brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placed {
    /// Nothing was asked.
    Anywhere,
    /// The kernel keeps to it.
    ByPolicy,
    /// The kernel refused a policy; the threads that make the pages run on the node.
    ByFirstTouch,
}

impl Placed {
    /// Its name in JSON and on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Anywhere => "anywhere",
            Self::ByPolicy => "by_policy",
            Self::ByFirstTouch => "by_first_touch",
        }
    }
}

/// Whether the kernel lets this process choose where pages come from: asked by preferring `node` for a page that is
/// given back at once.
pub(crate) fn policies_allowed(node: u32) -> Finding<bool> {
    if cfg!(miri) {
        return Finding::unknown("Miri has no memory policies");
    }
    let page = crate::memfd::create("hisparse-probe", None).and_then(|file| {
        rustix::fs::ftruncate(&file, PAGE_BYTES as u64)?;
        Mapping::of_file(file.as_fd(), PAGE_BYTES, Access::ReadWrite)
    });
    match page.and_then(|page| place(&page, Placement::Prefer(node))) {
        Ok(placed) => Finding::Known(placed == Placed::ByPolicy),
        Err(errno) => Finding::unknown(format!("mbind: {errno}")),
    }
}

/// Most nodes that a policy can name; kernels are built for at most 1024.
const MAX_NODES: usize = 1024;

/// Sets the policy for pages of `mapping` yet to be made.
///
/// # Errors
/// `EINVAL` for a node that is not there. A refusal is no error: see [`Placed`].
pub(crate) fn place(mapping: &Mapping, placement: Placement) -> Result<Placed, Errno> {
    const BITS: usize = u64::BITS as usize;
    let (mode, node) = match placement {
        Placement::Anywhere => return Ok(Placed::Anywhere),
        Placement::Prefer(node) => (libc::MPOL_PREFERRED, node),
        Placement::Bind(node) => (libc::MPOL_BIND, node),
    };
    if !mapping.is_shared() {
        return Ok(Placed::ByFirstTouch);
    }
    let node = usize::try_from(node).ok().filter(|node| *node < MAX_NODES).ok_or(Errno::INVAL)?;
    let mut mask = [0_u64; MAX_NODES / BITS];
    mask[node / BITS] |= 1 << (node % BITS);
    // SAFETY: needed because no library call of ours covers it. Sound because the range is exactly this mapping, the
    // mask is as long as `maxnode` says, and a policy changes where new pages come from, not what any page holds.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, mapping.view().as_ptr(), mapping.len(), mode, mask.as_ptr(), MAX_NODES, 0)
    };
    match if result == 0 { Ok(()) } else { Err(last_errno()) } {
        Ok(()) => Ok(Placed::ByPolicy),
        Err(Errno::PERM | Errno::NOSYS) => Ok(Placed::ByFirstTouch),
        Err(errno) => Err(errno),
    }
}

/// On which nodes the pages lie, by a sample spread over the mapping: node to its share of the sample in percent.
pub(crate) fn nodes_of(mapping: &Mapping) -> Finding<BTreeMap<u32, u32>> {
    const SAMPLE: usize = 100;
    if !mapping.is_shared() {
        return Finding::unknown("the heap stand-in has no policy");
    }
    let pages = mapping.len().div_ceil(PAGE_BYTES);
    let count = pages.min(SAMPLE);
    let start = mapping.view().as_ptr();
    let addresses: Vec<*const u8> = (0..count).map(|i| start.wrapping_add(i * (pages / count) * PAGE_BYTES)).collect();
    let mut status = vec![-1_i32; count];
    // SAFETY: needed because no library call of ours covers it. Sound because both arrays hold `count` entries, and
    // without target nodes the call moves nothing: it fills in `status`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            count,
            addresses.as_ptr(),
            std::ptr::null::<i32>(),
            status.as_mut_ptr(),
            0,
        )
    };
    if result != 0 {
        return Finding::unknown(format!("move_pages: {}", last_errno()));
    }
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for node in status.iter().filter_map(|node| u32::try_from(*node).ok()) {
        *counts.entry(node).or_default() += 1;
    }
    let percent = |n: usize| u32::try_from(n * 100 / count).unwrap_or(100);
    Finding::Known(counts.into_iter().map(|(node, n)| (node, percent(n))).collect())
}

/// Why the last system call failed.
pub(crate) fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fixture::Tree;

    fn two_nodes(allowed: &str) -> Numa {
        Numa::discover(
            &Tree::new(&[
                ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 4096 kB\nNode 0 MemFree: 1024 kB\n"),
                ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 4096 kB\nNode 1 MemFree: 2048 kB\n"),
                ("proc/self/status", &format!("Mems_allowed_list:\t{allowed}\n")),
            ])
            .root(),
        )
    }

    fn check(text: &str, segments: &[u64], allowed: &str) -> String {
        let places = Placement::read("--numa", text).unwrap();
        Placement::check("--numa", &places, segments, &two_nodes(allowed))
            .map_or_else(|e| e.to_string(), |()| "ok".into())
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_users_write_is_read() {
        let read = |text| Placement::read("--numa", text);
        assert_eq!(read("any"), Ok(vec![]));
        assert_eq!(read("prefer:1"), Ok(vec![Placement::Prefer(1)]));
        assert_eq!(read("bind:0,1"), Ok(vec![Placement::Bind(0), Placement::Bind(1)]));
        for text in ["", "bind", "bind:", "bind:0,", "bind:-1", "interleave:0", "prefer:4294967296", "Any"] {
            assert!(read(text).unwrap_err().to_string().contains("--numa"), "{text}");
        }
    }

    #[test]
    fn a_node_that_cannot_be_had_is_named_with_those_that_can() {
        assert_eq!(check("prefer:0,1", &[MIB, MIB], "0-1"), "ok");
        assert!(check("prefer:2", &[MIB], "0-1").contains("name one of 0, 1"));
        assert!(check("prefer:1", &[MIB], "0").contains("cpuset"));
    }

    #[test]
    fn bound_segments_need_room_on_their_node_and_preferred_ones_do_not() {
        assert_eq!(check("bind:0", &[MIB], "0-1"), "ok");
        assert!(check("bind:0", &[MIB, 1], "0-1").contains("has 1 MiB"), "{}", check("bind:0", &[MIB, 1], "0-1"));
        assert_eq!(check("bind:0,1", &[MIB, 2 * MIB], "0-1"), "ok");
        assert_eq!(check("prefer:0", &[64 * MIB], "0-1"), "ok");
    }

    #[test]
    fn the_probe_answers() {
        let allowed = policies_allowed(0);
        assert!(allowed.known().is_some() || cfg!(miri), "{allowed:?}");
    }
}
