//! The whole picture of this machine, as `doctor` shows it.

use std::path::Path;

use hisparse_core::error::Problems;
use hisparse_core::size::show_size;
use hisparse_core::units::Bytes;
use serde::Serialize;

use crate::bind;
use crate::cgroup::Cgroup;
use crate::finding::Finding;
use crate::headroom::{self, Headroom, Limit, NoHeadroom};
use crate::hugepage::{self, HugepagePool, TransparentHugepages};
use crate::meminfo::Meminfo;
use crate::memlock::Memlock;
use crate::numa::Numa;
use crate::rlimit::Rlimit;
use crate::root::Root;
use crate::shm::MemoryVolume;

/// Everything discovery knows; a part that could not be read says why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: Finding<String>,
    /// Memory of the machine.
    pub memory: Meminfo,
    /// Control-group limits on memory.
    pub cgroup: Cgroup,
    /// Memory nodes.
    pub numa: Numa,
    /// Huge pages set aside, by size.
    pub hugepages: Vec<HugepagePool>,
    /// Transparent huge pages.
    pub transparent_hugepages: TransparentHugepages,
    /// `/dev/shm`.
    pub shm: MemoryVolume,
    /// Locked-memory limit.
    pub memlock: Memlock,
    /// Limit on open files.
    pub open_files: Rlimit,
    /// Whether the kernel lets this process say where pages come from (`mbind`; container runtimes often refuse it).
    pub memory_policies: Finding<bool>,
    /// Room for a pool in ordinary memory.
    pub headroom: Room,
    /// What an operator should know, each a full sentence with what to do.
    pub notes: Vec<String>,
}

/// Room, or why there is none. In JSON a [`Headroom`], or `{"limit": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Room {
    /// A pool fits.
    Some(Headroom),
    /// None does.
    None(NoHeadroom),
}

impl Machine {
    /// Looks at the machine under `root`; `assumed` stands in for its memory figures.
    pub fn discover(root: &Root, assumed: Option<Bytes>) -> Self {
        let kernel = root.read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned());
        let memory = Meminfo::discover(root);
        let cgroup = Cgroup::memory(root);
        let numa = Numa::discover(root);
        let policies = match numa.nodes.known().and_then(|nodes| nodes.iter().find(|node| node.allowed)) {
            Some(node) => bind::policies_allowed(node.id),
            None => Finding::unknown("no memory node is known"),
        };
        let headroom = match Headroom::of(headroom::memory_limits(&memory, &cgroup, &numa, assumed)) {
            Ok(headroom) => Room::Some(headroom),
            Err(none) => Room::None(none),
        };
        let mut machine = Self {
            kernel: kernel.into(),
            memory,
            cgroup,
            numa,
            hugepages: hugepage::pools(root),
            transparent_hugepages: hugepage::transparent(root),
            shm: MemoryVolume::discover(&root.resolve("/dev/shm")),
            memlock: Memlock::discover(root),
            open_files: Rlimit::discover(root, "Max open files"),
            memory_policies: policies,
            headroom,
            notes: Vec::new(),
        };
        machine.notes = machine.advice();
        machine
    }

    /// Whether a pool of `wanted` fits in ordinary memory; `field` is how the user named it.
    ///
    /// # Errors
    /// Every limit that is too small, each with how to raise it.
    pub fn check_pool(&self, field: &str, wanted: Bytes) -> Result<(), Problems> {
        match &self.headroom {
            Room::Some(headroom) => headroom.check(field, wanted),
            Room::None(none) => Err(Problems::one(none.problem(field, wanted))),
        }
    }

    /// Room for a pool whose segments are files under `folder`.
    ///
    /// # Errors
    /// The limit that leaves nothing.
    pub fn headroom_in(&self, folder: &Path, assumed: Option<Bytes>) -> Result<Headroom, NoHeadroom> {
        let mut limits = self.memory_limits(assumed);
        limits.extend(headroom::volume_limit(&MemoryVolume::discover(folder)));
        Headroom::of(limits)
    }

    /// Room for a pool in huge pages of `page_bytes`.
    ///
    /// # Errors
    /// The limit that leaves nothing, or that the machine has no pages of this size.
    pub fn headroom_in_hugepages(&self, page_bytes: u64) -> Result<Headroom, NoHeadroom> {
        let pool = self.hugepages.iter().find(|pool| pool.page_bytes == page_bytes);
        Headroom::of(vec![pool.map_or_else(|| headroom::no_hugepages(page_bytes), headroom::hugepage_limit)])
    }

    fn memory_limits(&self, assumed: Option<Bytes>) -> Vec<Limit> {
        headroom::memory_limits(&self.memory, &self.cgroup, &self.numa, assumed)
    }

    fn advice(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Room::None(none) = &self.headroom {
            notes.push(format!("No host pool fits here: {none}."));
        }
        if self.hugepages.iter().all(|pool| pool.total_pages == 0) {
            notes.push(
                "No huge pages are set aside, so segments use ordinary pages; to set some aside write a count to \
                 /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages."
                    .into(),
            );
        }
        if let Some(mode) = self.transparent_hugepages.shared.known()
            && !self.transparent_hugepages.shared_advice_works()
        {
            notes.push(format!(
                "Transparent huge pages for shared memory are set to `{mode}`, so the kernel ignores the advice and \
                 populating a pool takes longer; write `advise` to \
                 /sys/kernel/mm/transparent_hugepage/shmem_enabled."
            ));
        }
        if let (false, Finding::Known(Some(limit))) = (self.memlock.allows(u64::MAX), &self.memlock.soft_bytes) {
            notes.push(format!(
                "At most {} may be locked: `serve --mlock` and, under some container runtimes, registering memory \
                 with a GPU driver need more; raise `ulimit -l` (LimitMEMLOCK=infinity) or grant CAP_IPC_LOCK.",
                show_size(Bytes::new(*limit))
            ));
        }
        if self.numa.restricted_bytes().is_some() {
            notes.push(
                "The cpuset leaves this process some of the memory nodes only; a pool cannot use the others.".into(),
            );
        }
        if self.memory_policies == Finding::Known(false) {
            notes.push(
                "The kernel refuses memory policies (mbind): `serve --numa` falls back to making pages on threads kept \
                 on the node's CPUs; allow mbind in the container's seccomp profile, or grant CAP_SYS_NICE."
                    .into(),
            );
        }
        if self.memory.swap_total_bytes.known().is_some_and(|bytes| *bytes > 0) {
            notes.push("This machine swaps: without `--mlock` idle pages of a pool may be written to disk.".into());
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fixture::Tree;

    #[test]
    fn this_machine_is_described_without_failure() {
        let machine = Machine::discover(&Root::machine(), None);
        assert!(machine.memory.total_bytes.known().is_some_and(|bytes| *bytes > 0), "{machine:#?}");
        let json = serde_json::to_value(&machine).unwrap();
        for part in
            ["kernel", "memory", "cgroup", "numa", "hugepages", "shm", "memlock", "open_files", "headroom", "notes"]
        {
            assert!(json.get(part).is_some(), "{part} is missing from {json:#}");
        }
    }

    #[test]
    fn an_empty_tree_is_described_too() {
        let machine = Machine::discover(&Tree::new(&[]).root(), None);
        assert_eq!(machine.headroom, Room::None(NoHeadroom { limit: None }));
        assert!(machine.notes[0].contains("--assume-memory"), "{:?}", machine.notes);
        assert!(machine.headroom_in_hugepages(2 << 20).is_err());
        let refusal = machine.check_pool("--host-pool", Bytes::new(1 << 30)).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "--host-pool is 1 GiB: the memory of this machine cannot be read; give --assume-memory SIZE"
        );
    }

    #[test]
    fn each_hindrance_is_a_note_with_its_remedy() {
        let tree = Tree::new(&[
            ("proc/meminfo", "MemTotal: 8 kB\nMemAvailable: 4 kB\nSwapTotal: 1 kB\n"),
            ("proc/self/limits", "Max locked memory  8388608  8388608  bytes\n"),
            ("proc/self/status", "CapEff:\t0\nMems_allowed_list:\t0\n"),
            ("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]\n"),
            ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 4 kB\nNode 0 MemFree: 2 kB\n"),
            ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 4 kB\nNode 1 MemFree: 2 kB\n"),
        ]);
        let machine = Machine::discover(&tree.root(), None);
        let told = machine.notes.join("\n");
        for word in ["nr_hugepages", "shmem_enabled", "ulimit -l", "cpuset", "swaps"] {
            assert!(told.contains(word), "no note on {word}:\n{told}");
        }
        let Room::Some(headroom) = &machine.headroom else { panic!("{machine:?}") };
        assert_eq!(headroom.usable_bytes, 2048, "the one allowed node bounds it");
    }

    #[test]
    fn a_state_directory_adds_the_room_of_its_volume() {
        let tree = Tree::new(&[("proc/meminfo", "MemAvailable: 4 kB\n")]);
        let machine = Machine::discover(&tree.root(), None);
        let here = machine.headroom_in(&std::env::temp_dir(), None).unwrap();
        assert_eq!(here.limits.len(), if cfg!(miri) { 1 } else { 2 });
        assert!(here.usable_bytes <= 4096);
        let assumed = machine.headroom_in(&std::env::temp_dir(), Some(Bytes::new(512))).unwrap();
        assert_eq!(assumed.usable_bytes, 512);
    }
}
