//! Room on a memory-backed file system: `/dev/shm`, or the volume of a state directory.
//!
//! Growing a file beyond the room succeeds and its first touch kills with SIGBUS, so the room is asked for first.
//! A container's memory limit counts these pages too.

use std::path::Path;

use rustix::fs::{StatVfs, statfs, statvfs};
use serde::Serialize;

use crate::finding::Finding;

/// `f_type` of tmpfs.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// `f_type` of ramfs.
const RAMFS_MAGIC: u64 = 0x8584_58f6;
/// `f_type` of hugetlbfs.
const HUGETLBFS_MAGIC: u64 = 0x958_458f6;

/// One folder's file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryVolume {
    /// The folder.
    pub path: String,
    /// Whether its files live in memory (tmpfs, ramfs or hugetlbfs).
    pub in_memory: Finding<bool>,
    /// Its size in bytes.
    pub total_bytes: Finding<u64>,
    /// What an unprivileged user may still write, in bytes.
    pub available_bytes: Finding<u64>,
}

impl MemoryVolume {
    /// Asks the file system that holds `folder`.
    pub fn discover(folder: &Path) -> Self {
        if cfg!(miri) {
            let none = || "Miri cannot ask a file system".to_owned();
            let (total_bytes, available_bytes) = (Finding::unknown(none()), Finding::unknown(none()));
            return Self {
                path: folder.display().to_string(),
                in_memory: Finding::unknown(none()),
                total_bytes,
                available_bytes,
            };
        }
        let reason = |e: rustix::io::Errno| format!("cannot ask {}: {e}", folder.display());
        let volume = statvfs(folder).map_err(reason);
        let bytes = |blocks: fn(&StatVfs) -> u64| {
            let figure = volume.as_ref().map_err(Clone::clone).and_then(|v| {
                blocks(v).checked_mul(v.f_frsize).ok_or_else(|| "the figure does not fit 64 bits".to_owned())
            });
            Finding::from(figure)
        };
        Self {
            path: folder.display().to_string(),
            in_memory: statfs(folder).map_err(reason).map(|fs| is_memory(fs.f_type)).into(),
            total_bytes: bytes(|v| v.f_blocks),
            available_bytes: bytes(|v| v.f_bavail),
        }
    }
}

fn is_memory<T: TryInto<u64>>(f_type: T) -> bool {
    f_type.try_into().is_ok_and(|magic| [TMPFS_MAGIC, RAMFS_MAGIC, HUGETLBFS_MAGIC].contains(&magic))
}

#[cfg(all(test, not(miri)))] // Miri has no statvfs
mod tests {
    use super::*;

    #[test]
    fn proc_is_no_memory_volume_and_a_missing_folder_is_a_reason() {
        assert_eq!(MemoryVolume::discover(Path::new("/proc")).in_memory, Finding::Known(false));
        let missing = MemoryVolume::discover(Path::new("/proc/nothing-here"));
        assert!(missing.available_bytes.to_string().starts_with("unknown (cannot ask /proc/nothing-here"));
    }

    #[test]
    fn the_room_never_exceeds_the_size() {
        let here = MemoryVolume::discover(&std::env::temp_dir());
        assert!(here.available_bytes.known().unwrap() <= here.total_bytes.known().unwrap(), "{here:?}");
    }
}
