//! A machine that has too little: each case is a refusal that names the limit and its remedy, in a process that lives on.
#![cfg(not(miri))]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test fails by panicking, and says why it skips

mod common;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use hisparse_core::units::Bytes;
use hisparse_mem::backing::Backing;
use hisparse_mem::bind::Placement;
use hisparse_mem::machine::{Machine, Room};
use hisparse_mem::populate::Workers;
use hisparse_mem::root::Root;
use hisparse_mem::segment::{Recipe, Segment, SegmentError, Step};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const MIB: u64 = 1 << 20;

fn make(bytes: u64, backing: Backing, lock: bool) -> Result<Segment, SegmentError> {
    let workers = Workers::free(NonZeroUsize::MIN);
    let placement = Placement::Anywhere;
    let recipe =
        Recipe { index: 0, bytes, backing, placement, node_cpus: &[], workers: &workers, lock, generation: None };
    Segment::create(&recipe, &|_| {})
}

/// Lowers the soft limit of this process.
fn lower(resource: Resource, to: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(to), maximum }).unwrap();
}

#[test]
fn a_small_locked_memory_limit_is_refused_with_its_remedy() {
    if common::is_root() {
        common::run("the_one_with_little_to_lock", Some(common::NOBODY), None);
    }
}

#[test]
#[ignore = "run by its parent, without privileges"]
fn the_one_with_little_to_lock() {
    if !common::is_child() {
        return;
    }
    lower(Resource::Memlock, 8 * MIB);
    let error = make(16 * MIB, Backing::Memfd, true).unwrap_err();
    assert_eq!(error.step, Step::Lock);
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    let machine = Machine::discover(&Root::machine(), None);
    assert!(!machine.memlock.allows(16 * MIB));
    assert!(machine.notes.iter().any(|note| note.contains("ulimit -l")), "{:?}", machine.notes);
    assert!(make(4 * MIB, Backing::Memfd, true).is_ok(), "what fits can be locked");
    assert!(make(16 * MIB, Backing::Memfd, false).is_ok(), "without locking the limit does not matter");
}

#[test]
fn too_little_address_space_is_refused_with_its_remedy() {
    common::run("the_one_without_address_space", None, None);
}

#[test]
#[ignore = "run by its parent, since it limits its own process"]
fn the_one_without_address_space() {
    if !common::is_child() {
        return;
    }
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let used = statm.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 4096;
    lower(Resource::As, used + 256 * MIB);
    let error = make(1024 * MIB, Backing::Memfd, false).unwrap_err();
    assert_eq!((error.step, error.errno), (Step::Map, rustix::io::Errno::NOMEM));
    assert!(error.to_string().contains("ulimit -v"), "{error}");
    assert!(make(MIB, Backing::Memfd, false).is_ok(), "the process goes on");
}

/// A control group of our own; gone when dropped.
struct Group(PathBuf);

impl Group {
    /// A group with `file` set to `limit` in the hierarchy at one of `mounts`; `None`, said aloud, where none allows it.
    fn new(mounts: &[(&str, &str)], limit: u64) -> Option<Self> {
        for (mount, file) in mounts {
            let group = PathBuf::from(mount).join(format!("hisparse-test-{}-{file}", std::process::id()));
            if std::fs::create_dir(&group).is_ok() {
                let group = Self(group);
                // Under version 1 the first mount is a plain tmpfs, which takes any folder.
                if group.0.join("cgroup.procs").exists()
                    && std::fs::write(group.0.join(file), limit.to_string()).is_ok()
                {
                    return Some(group);
                }
            }
        }
        println!("skipped: no control group can be made here");
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir(&self.0);
    }
}

const GROUP: &str = "HISPARSE_TEST_GROUP";

/// Runs the ignored test `name`, which joins `group` itself.
fn run_in(group: &Group, name: &str) {
    let (mut command, _folder) = common::child(name, None, None);
    let output = command.env(GROUP, &group.0).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}:\n{said}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "{said}");
}

fn join_group() -> PathBuf {
    let group = PathBuf::from(std::env::var_os(GROUP).unwrap());
    std::fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    group
}

#[test]
fn a_small_control_group_is_refused_before_the_kernel_kills() {
    if !common::is_root() {
        return;
    }
    let places = [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
    let Some(group) = Group::new(&places, 128 * MIB) else { return };
    run_in(&group, "the_one_in_a_small_group");
}

#[test]
#[ignore = "run by its parent, in a control group of 128 MiB"]
fn the_one_in_a_small_group() {
    if !common::is_child() {
        return;
    }
    let group = join_group();
    let machine = Machine::discover(&Root::machine(), None);
    let refusal = machine.check_pool("--host-pool", Bytes::new(1024 * MIB)).unwrap_err().to_string();
    assert!(refusal.contains(group.to_str().unwrap()), "{refusal}");
    assert!(refusal.contains("resources.limits.memory"), "{refusal}");
    let Room::Some(room) = &machine.headroom else { panic!("{machine:?}") };
    assert!(room.usable_bytes <= 128 * MIB, "{room:?}");
    // What it calls safe is safe: made in full, and the process lives.
    let segment = make(room.auto_bytes, Backing::Memfd, false).unwrap();
    assert!(segment.len() >= 32 * MIB, "{room:?}");
    let after = Machine::discover(&Root::machine(), None);
    let Room::Some(left) = &after.headroom else { panic!("{after:?}") };
    assert!(left.usable_bytes < room.usable_bytes, "the segment counts: {left:?}");
}

/// Huge pages set aside for a test; set back when dropped.
struct HugePages {
    before: String,
}

const NR_HUGEPAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

impl HugePages {
    fn set(pages: u64) -> Option<Self> {
        let before = std::fs::read_to_string(NR_HUGEPAGES).ok()?;
        let wanted = before.trim().parse::<u64>().ok()? + pages;
        let set = std::fs::write(NR_HUGEPAGES, wanted.to_string()).ok().map(|()| Self { before })?;
        let now = std::fs::read_to_string(NR_HUGEPAGES).ok()?;
        (now.trim() == wanted.to_string()).then_some(set)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _restored = std::fs::write(NR_HUGEPAGES, self.before.trim());
    }
}

#[test]
fn huge_pages_that_run_out_half_way_are_all_given_back() {
    if !common::is_root() {
        return;
    }
    let places = [("/sys/fs/cgroup", "hugetlb.2MB.max"), ("/sys/fs/cgroup/unified", "hugetlb.2MB.max")];
    for (mount, _) in places {
        let _already_on = std::fs::write(PathBuf::from(mount).join("cgroup.subtree_control"), "+hugetlb");
    }
    let Some(group) = Group::new(&places, 8 * MIB) else { return };
    let Some(_pages) = HugePages::set(16) else {
        println!("skipped: no huge pages can be set aside here");
        return;
    };
    run_in(&group, "the_one_whose_huge_pages_run_out");
}

#[test]
#[ignore = "run by its parent, in a control group of 8 MiB of huge pages"]
fn the_one_whose_huge_pages_run_out() {
    if !common::is_child() {
        return;
    }
    join_group();
    let pool =
        || hisparse_mem::hugepage::pools(&Root::machine()).into_iter().find(|p| p.page_bytes == 2 * MIB).unwrap();
    let before = pool();
    assert!(before.free_pages >= 16, "{before:?}");
    assert_eq!(before.available_bytes(), 8 * MIB, "the group binds: {before:?}");
    let backing = Backing::Hugetlb { page_bytes: 2 * MIB };
    let error = make(16 * MIB, backing, false).unwrap_err();
    assert_eq!(error.step, Step::Populate, "{error}");
    assert!(error.to_string().contains("huge pages"), "{error}");
    assert_eq!(pool().free_pages, before.free_pages, "every page went back");
    let segment = make(8 * MIB, backing, false).unwrap();
    assert!(segment.identity().unwrap().is_sealed());
}
