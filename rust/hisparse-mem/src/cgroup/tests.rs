//! Limits read from laid-out trees: version 1, version 2, both, nested, unlimited, none.

use super::*;
use crate::root::fixture::Tree;

const V2_MOUNT: &str = "41 31 0:38 / /cg rw - cgroup2 cgroup2 rw\n";
const V1_MOUNT: &str = "35 31 0:32 / /cg rw - cgroup cgroup rw,memory,hugetlb\n";

fn memory(own: &str, mounts: &str, files: &[(&str, &str)]) -> Cgroup {
    let mut all = vec![("proc/self/cgroup", own), ("proc/self/mountinfo", mounts)];
    all.extend_from_slice(files);
    Cgroup::memory(&Tree::new(&all).root())
}

#[test]
fn inactive_file_cache_counts_as_room_and_active_does_not() {
    let found = memory(
        "0::/pod\n",
        V2_MOUNT,
        &[
            ("cg/pod/memory.max", "1000\n"),
            ("cg/pod/memory.current", "900\n"),
            ("cg/pod/memory.stat", "anon 100\nfile 800\ninactive_file 300\nactive_file 500\n"),
        ],
    );
    assert_eq!(found.binding().unwrap().headroom_bytes(), 400);
}

#[test]
fn the_least_of_all_ancestors_binds() {
    let found = memory(
        "0::/pod/app\n",
        V2_MOUNT,
        &[
            ("cg/pod/app/memory.max", "max\n"),
            ("cg/pod/app/memory.current", "10\n"),
            ("cg/pod/memory.max", "1000\n"),
            ("cg/pod/memory.high", "800\n"),
            ("cg/pod/memory.current", "700\n"),
        ],
    );
    let binding = found.binding().unwrap();
    assert_eq!((binding.file.as_str(), binding.headroom_bytes()), ("/cg/pod/memory.high", 100));
    assert_eq!(found.limits.len(), 2, "an unlimited group adds none: {found:?}");
}

#[test]
fn version_1_unlimited_is_no_limit() {
    let files = [("cg/memory.limit_in_bytes", "9223372036854771712\n"), ("cg/memory.usage_in_bytes", "5\n")];
    assert_eq!(memory("4:memory:/\n", V1_MOUNT, &files).binding(), None);
}

#[test]
fn version_1_uses_the_hierarchical_figures() {
    let found = memory(
        "4:memory:/a\n",
        V1_MOUNT,
        &[
            ("cg/a/memory.limit_in_bytes", "1000\n"),
            ("cg/a/memory.usage_in_bytes", "600\n"),
            ("cg/a/memory.stat", "inactive_file 1\ntotal_inactive_file 100\nhierarchical_memory_limit 1000\n"),
        ],
    );
    assert_eq!(found.binding().unwrap().headroom_bytes(), 500);
    assert_eq!(found.limits.len(), 1, "its own limit is not told twice: {found:?}");
}

#[test]
fn version_1_tells_a_limit_of_an_ancestor_above_the_view() {
    let found = memory(
        "4:memory:/docker/abc\n",
        "35 31 0:32 /docker/abc /cg ro - cgroup cgroup rw,memory\n",
        &[
            ("cg/memory.limit_in_bytes", "9223372036854771712\n"),
            ("cg/memory.usage_in_bytes", "600\n"),
            ("cg/memory.stat", "hierarchical_memory_limit 2000\n"),
        ],
    );
    let binding = found.binding().unwrap();
    assert_eq!(binding.headroom_bytes(), 1400);
    assert!(binding.file.contains("hierarchical_memory_limit"), "{binding:?}");
}

#[test]
fn a_unified_mount_without_controllers_adds_nothing_to_version_1() {
    let found = memory(
        "4:memory:/a\n0::/\n",
        "35 31 0:32 / /cg rw - cgroup cgroup rw,memory\n41 31 0:38 / /un rw - cgroup2 cgroup2 rw\n",
        &[("cg/a/memory.limit_in_bytes", "50\n"), ("un/cgroup.controllers", "\n")],
    );
    assert_eq!(found.limits.len(), 1);
    let versions: Vec<Version> = found.groups.known().unwrap().iter().map(|g| g.version).collect();
    assert_eq!(versions, [Version::V1, Version::V2]);
}

#[test]
fn usage_beyond_the_limit_leaves_nothing_and_does_not_wrap() {
    let files = [("cg/p/memory.max", "10\n"), ("cg/p/memory.current", "50\n")];
    assert_eq!(memory("0::/p\n", V2_MOUNT, &files).binding().unwrap().headroom_bytes(), 0);
}

#[test]
fn an_unknown_usage_leaves_the_limit_itself() {
    let found = memory("0::/p\n", V2_MOUNT, &[("cg/p/memory.max", "10\n")]);
    assert_eq!(found.binding().unwrap().headroom_bytes(), 10);
    assert!(found.limits[0].used_bytes.known().is_none());
}

#[test]
fn a_process_without_control_groups_is_unlimited_and_says_why() {
    let none = Cgroup::memory(&Tree::new(&[]).root());
    assert_eq!(none.binding(), None);
    assert!(none.groups.known().is_none());
}

#[test]
fn huge_pages_have_limits_of_their_own_in_both_versions() {
    let tree = Tree::new(&[
        ("proc/self/cgroup", "5:hugetlb:/a\n"),
        ("proc/self/mountinfo", V1_MOUNT),
        ("cg/a/hugetlb.2MB.limit_in_bytes", "9223372036852678656\n"),
        ("cg/a/hugetlb.2MB.rsvd.limit_in_bytes", "4194304\n"),
        ("cg/a/hugetlb.2MB.rsvd.usage_in_bytes", "2097152\n"),
    ]);
    assert_eq!(Cgroup::hugetlb(&tree.root(), 2 << 20).binding().unwrap().headroom_bytes(), 2 << 20);
    assert_eq!(Cgroup::hugetlb(&tree.root(), 1 << 30).binding(), None);
    let unified = Tree::new(&[
        ("proc/self/cgroup", "0::/a\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("cg/a/hugetlb.1GB.max", "1073741824\n"),
        ("cg/a/hugetlb.1GB.current", "0\n"),
    ]);
    assert_eq!(Cgroup::hugetlb(&unified.root(), 1 << 30).binding().unwrap().headroom_bytes(), 1 << 30);
}
