//! Control-group limits on memory and on huge pages, whichever version sets them, every visible ancestor included.
//!
//! ```text
//!  headroom of a group = limit − (usage − inactive file cache)          the least over all groups counts
//! ```
//! Inactive file cache is what the kernel drops first when a group nears its limit; it is the only part of the usage
//! counted as room (the kubelet's working-set rule). A group hidden above the container's view cannot be read; version
//! 1 still tells its limit (`hierarchical_memory_limit`), version 2 does not.

mod place;

use std::path::Path;

use serde::Serialize;

use crate::finding::Finding;
use crate::root::Root;
pub use place::Version;
use place::{Place, places};

/// Version 1 writes "unlimited" as the largest whole number of pages; no machine has half of that.
const V1_UNLIMITED_BYTES: u64 = 1 << 62;

/// One limit of one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupLimit {
    /// The file that sets it.
    pub file: String,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// What the group uses, in bytes.
    pub used_bytes: Finding<u64>,
    /// Of that, inactive file cache, in bytes.
    pub reclaimable_bytes: u64,
}

impl GroupLimit {
    /// What may still be used under this limit, in bytes; the limit itself where the usage is not known.
    pub fn headroom_bytes(&self) -> u64 {
        let used = self.used_bytes.known().copied().unwrap_or(0);
        self.limit_bytes.saturating_sub(used.saturating_sub(self.reclaimable_bytes))
    }
}

/// The limits of one controller on this process; an empty list means that nothing limits it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cgroup {
    /// The hierarchies found, own group's folder first in each.
    pub groups: Finding<Vec<Group>>,
    /// Every limit that is set, nearest group first.
    pub limits: Vec<GroupLimit>,
}

/// This process's group in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Which interface it has.
    pub version: Version,
    /// Its folder.
    pub folder: String,
}

impl Cgroup {
    /// Reads the limits on memory.
    pub fn memory(root: &Root) -> Self {
        Self::discover(root, "memory", |place, limits| match place.version {
            Version::V2 => {
                for folder in &place.folders {
                    for name in ["memory.max", "memory.high"] {
                        limits.extend(limit(root, folder, name, "memory.current", Some("inactive_file")));
                    }
                }
            }
            Version::V1 => {
                for folder in &place.folders {
                    limits.extend(limit(
                        root,
                        folder,
                        "memory.limit_in_bytes",
                        "memory.usage_in_bytes",
                        Some("total_inactive_file"),
                    ));
                }
                limits.extend(hidden_ancestor(root, place, limits));
            }
        })
    }

    /// Reads the limits on huge pages of `page_bytes`: on those in use, and on those reserved by a mapping.
    pub fn hugetlb(root: &Root, page_bytes: u64) -> Self {
        let size = hugetlb_size(page_bytes);
        Self::discover(root, "hugetlb", |place, limits| {
            for folder in &place.folders {
                for kind in ["", ".rsvd"] {
                    let stem = format!("hugetlb.{size}{kind}");
                    let (max, used) = match place.version {
                        Version::V2 => (format!("{stem}.max"), format!("{stem}.current")),
                        Version::V1 => (format!("{stem}.limit_in_bytes"), format!("{stem}.usage_in_bytes")),
                    };
                    limits.extend(limit(root, folder, &max, &used, None));
                }
            }
        })
    }

    fn discover(root: &Root, controller: &str, mut read: impl FnMut(&Place, &mut Vec<GroupLimit>)) -> Self {
        let mut limits = Vec::new();
        let places = places(root, controller).inspect(|places| {
            for place in places {
                read(place, &mut limits);
            }
        });
        let groups = places.map(|places| {
            places
                .iter()
                .filter_map(|place| {
                    let folder = place.folders.first()?.display().to_string();
                    Some(Group { version: place.version, folder })
                })
                .collect()
        });
        Self { groups: groups.into(), limits }
    }

    /// The limit that leaves least, if any is set.
    pub fn binding(&self) -> Option<&GroupLimit> {
        self.limits.iter().min_by_key(|limit| limit.headroom_bytes())
    }
}

/// One group's limit, where it sets one.
fn limit(root: &Root, folder: &Path, max: &str, used: &str, reclaimable: Option<&str>) -> Option<GroupLimit> {
    let file = folder.join(max);
    // "max" and a missing file (the root group has none) are both no limit.
    let limit_bytes = root.read_number(&file).ok().filter(|bytes| *bytes < V1_UNLIMITED_BYTES)?;
    let reclaimable_bytes = reclaimable.and_then(|name| stat(root, folder, name)).unwrap_or(0);
    let used_bytes = root.read_number(folder.join(used)).into();
    Some(GroupLimit { file: file.display().to_string(), limit_bytes, used_bytes, reclaimable_bytes })
}

/// Version 1 tells the least limit over all ancestors, also those above the mount. It is set against the usage of
/// the topmost group that can be seen, which is at most its own.
fn hidden_ancestor(root: &Root, place: &Place, seen: &[GroupLimit]) -> Option<GroupLimit> {
    let own = place.folders.first()?;
    let top = place.folders.last()?;
    let limit_bytes = stat(root, own, "hierarchical_memory_limit").filter(|bytes| *bytes < V1_UNLIMITED_BYTES)?;
    if seen.iter().any(|limit| limit.limit_bytes <= limit_bytes) {
        return None;
    }
    Some(GroupLimit {
        file: format!("{} (hierarchical_memory_limit)", own.join("memory.stat").display()),
        limit_bytes,
        used_bytes: root.read_number(top.join("memory.usage_in_bytes")).into(),
        reclaimable_bytes: stat(root, top, "total_inactive_file").unwrap_or(0),
    })
}

/// One figure of a group's `memory.stat`.
fn stat(root: &Root, folder: &Path, name: &str) -> Option<u64> {
    let text = root.read(folder.join("memory.stat")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A page size as the interface files write it: `2MB`, `1GB`, `64KB`.
fn hugetlb_size(page_bytes: u64) -> String {
    match page_bytes {
        bytes if bytes >= 1 << 30 => format!("{}GB", bytes >> 30),
        bytes if bytes >= 1 << 20 => format!("{}MB", bytes >> 20),
        bytes => format!("{}KB", bytes >> 10),
    }
}

#[cfg(test)]
mod tests;
