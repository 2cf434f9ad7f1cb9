//! Segments of each kind, and what is left after a step fails: nothing.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

#[cfg(not(miri))]
const MIB: u64 = 1 << 20;

fn workers() -> Workers {
    Workers::free(NonZeroUsize::new(2).unwrap())
}

fn recipe(bytes: u64, backing: Backing, workers: &Workers) -> Recipe<'_> {
    let placement = Placement::Anywhere;
    Recipe { index: 0, bytes, backing, placement, node_cpus: &[], workers, lock: false, generation: None }
}

fn quiet(_: u64) {}

#[test]
fn the_heap_stand_in_takes_every_step() {
    let workers = workers();
    let made = AtomicU64::new(0);
    let segment = Segment::create(&recipe(10_000, Backing::Heap, &workers), &|bytes| {
        made.fetch_add(bytes, Ordering::Relaxed);
    })
    .unwrap();
    assert_eq!((segment.len(), made.into_inner()), (12_288, 12_288), "rounded up to pages");
    segment.writable().unwrap().write(12_000, b"row").unwrap();
    let mut row = [0; 3];
    segment.view().read(12_000, &mut row).unwrap();
    assert_eq!(&row, b"row");
    assert!(segment.writer().is_none() && segment.identity() == Err(Errno::BADF));
}

#[test]
fn a_segment_is_between_one_byte_and_sixty_four_gibibytes() {
    let workers = workers();
    for bytes in [0, MAX_SEGMENT_BYTES + 1, u64::MAX] {
        let error = Segment::create(&recipe(bytes, Backing::Heap, &workers), &quiet).unwrap_err();
        assert_eq!((error.step, error.errno), (Step::Size, Errno::FBIG), "{bytes}");
    }
}

#[cfg(not(miri))]
mod with_a_kernel {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    use crate::hugepage;
    use crate::root::Root;
    use crate::state_dir::StateDir;

    #[test]
    fn a_memory_file_is_sealed_whole_and_shared() {
        let workers = workers();
        let segment = Segment::create(&recipe(3 * MIB, Backing::Memfd, &workers), &quiet).unwrap();
        assert!(segment.identity().unwrap().is_sealed());
        assert!(segment.view().is_zero());
        let reader = segment.reader().unwrap();
        let second = Mapping::of_file(reader.as_fd(), 3 << 20, Access::Read).unwrap();
        segment.writable().unwrap().write(MIB, b"row").unwrap();
        let mut row = [0; 3];
        second.view().read(MIB, &mut row).unwrap();
        assert_eq!(&row, b"row", "both map one copy");
        assert!(second.writable().is_none());
        assert_eq!(Mapping::of_file(reader.as_fd(), 4096, Access::ReadWrite).unwrap_err(), Errno::ACCESS);
    }

    #[test]
    fn advice_that_the_kernel_ignores_is_no_failure() {
        let workers = workers();
        assert!(Segment::create(&recipe(MIB, Backing::MemfdThp, &workers), &quiet).is_ok());
    }

    #[test]
    fn a_preferred_node_is_reported() {
        let workers = workers();
        let wanted = Recipe { placement: Placement::Prefer(0), ..recipe(MIB, Backing::Memfd, &workers) };
        let segment = Segment::create(&wanted, &quiet).unwrap();
        match (segment.placed(), segment.nodes()) {
            (Placed::ByPolicy, Finding::Known(nodes)) => assert!(nodes.contains_key(&0), "{nodes:?}"),
            (Placed::ByFirstTouch, _) | (_, Finding::Unknown { .. }) => eprintln!("policies are refused here"),
            other => panic!("{other:?}"),
        }
        let nowhere = Recipe { placement: Placement::Bind(1023), ..recipe(MIB, Backing::Memfd, &workers) };
        if segment.placed() == Placed::ByPolicy {
            let error = Segment::create(&nowhere, &quiet).unwrap_err();
            assert_eq!(error.step, Step::Place);
            assert!(error.to_string().contains("doctor"), "{error}");
        }
    }

    #[test]
    fn too_few_huge_pages_are_a_refusal_that_names_them() {
        let Some(pool) = hugepage::pools(&Root::machine()).into_iter().find(|pool| pool.page_bytes == 2 << 20) else {
            eprintln!("skipped: this kernel has no 2 MiB huge pages");
            return;
        };
        let bytes = pool.available_bytes() + 64 * MIB;
        let workers = workers();
        let backing = Backing::Hugetlb { page_bytes: pool.page_bytes };
        let error = Segment::create(&recipe(bytes, backing, &workers), &quiet).unwrap_err();
        assert!(error.to_string().contains("nr_hugepages"), "{error}");
    }

    /// A tmpfs of 8 MiB of our own; `None`, said aloud, where it cannot be mounted.
    fn small_volume() -> Option<SmallVolume> {
        let folder = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o700))
            .tempdir()
            .expect("a temporary folder can be made");
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8M,mode=0700", "tmpfs"])
            .arg(folder.path())
            .status()
            .is_ok_and(|status| status.success());
        if !mounted {
            eprintln!("skipped: a tmpfs cannot be mounted here (needs root)");
            return None;
        }
        Some(SmallVolume { folder })
    }

    struct SmallVolume {
        folder: tempfile::TempDir,
    }

    impl Drop for SmallVolume {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(self.folder.path()).status();
        }
    }

    #[test]
    fn a_full_volume_half_way_leaves_nothing_and_names_the_remedy() {
        let Some(volume) = small_volume() else { return };
        let dir = StateDir::open(volume.folder.path()).unwrap();
        let generation = dir.new_generation().unwrap();
        let workers = workers();
        let room = || *crate::shm::MemoryVolume::discover(volume.folder.path()).available_bytes.known().unwrap();
        let before = room();
        let file = |bytes| Recipe { generation: Some(&generation), ..recipe(bytes, Backing::File, &workers) };
        let error = Segment::create(&file(64 * MIB), &quiet).unwrap_err();
        assert_eq!(error.step, Step::Populate);
        assert!(error.to_string().contains("sizeLimit"), "{error}");
        assert_eq!(room(), before, "every page went back");
        assert_eq!(dir.segments().unwrap(), []);
        let fits = Segment::create(&file(2 * MIB), &quiet).unwrap();
        assert_eq!(dir.segments().unwrap().len(), 1);
        assert!(!fits.identity().unwrap().is_sealed(), "files of a mounted file system carry no seals");
    }
}
