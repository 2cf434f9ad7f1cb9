//! One copy for every process, and what a rank that may only read cannot do: each thing tried by a child of another uid.
#![cfg(not(miri))]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test fails by panicking, and says why it skips

mod common;

use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::process::Stdio;

use hisparse_mem::backing::Backing;
use hisparse_mem::bind::Placement;
use hisparse_mem::map::{Access, Mapping};
use hisparse_mem::populate::Workers;
use hisparse_mem::segment::{Recipe, Segment};
use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

const BYTES: usize = 8 << 20;
const ROW: [u8; 656] = [0x5a; 656];

fn segment() -> Segment {
    let workers = Workers::free(NonZeroUsize::MIN);
    let recipe = Recipe {
        index: 0,
        bytes: BYTES as u64,
        backing: Backing::Memfd,
        placement: Placement::Anywhere,
        node_cpus: &[],
        workers: &workers,
        lock: false,
        generation: None,
    };
    Segment::create(&recipe, &|_| {}).unwrap()
}

#[test]
fn a_read_only_rank_of_another_uid_cannot_change_a_byte() {
    if !common::is_root() {
        return;
    }
    let segment = segment();
    segment.writable().unwrap().write(656, &ROW).unwrap();
    common::run("the_rank_that_tries", Some(common::NOBODY), Some(segment.reader().unwrap()));
    let mut row = [0; 656];
    segment.view().read(656, &mut row).unwrap();
    assert_eq!(row, ROW);
    segment.writable().unwrap().write(656, &[0; 656]).unwrap();
    assert!(segment.view().is_zero(), "nothing else was changed");
    assert_eq!(segment.identity().unwrap().size_bytes, BYTES as u64);
}

#[test]
#[ignore = "run by its parent, under another uid, with a reader's descriptor as standard input"]
fn the_rank_that_tries() {
    if !common::is_child() {
        return;
    }
    let input = std::io::stdin();
    let file = input.as_fd();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let reopened = |path: &str, flags| rustix::fs::open(path, flags, Mode::empty()).map(drop);

    assert_eq!(rustix::io::write(file, b"x"), Err(Errno::BADF), "write");
    assert_eq!(rustix::io::pwrite(file, b"x", 0), Err(Errno::BADF), "pwrite");
    assert_eq!(rustix::fs::ftruncate(file, 0), Err(Errno::INVAL), "truncate");
    assert_eq!(rustix::fs::fallocate(file, hole, 0, 4096), Err(Errno::BADF), "punch a hole");
    assert_eq!(rustix::fs::fcntl_add_seals(file, SealFlags::WRITE), Err(Errno::PERM), "seal");
    assert_eq!(rustix::fs::fchmod(file, Mode::RWXU), Err(Errno::PERM), "change its mode");
    assert_eq!(reopened(&own, OFlags::RDWR), Err(Errno::ACCESS), "reopen for writing");
    assert_eq!(reopened(&own, OFlags::WRONLY), Err(Errno::ACCESS), "reopen for writing alone");
    assert_eq!(reopened(&own, OFlags::WRONLY | OFlags::TRUNC), Err(Errno::ACCESS), "reopen and truncate");
    assert_eq!(Mapping::of_file(file, BYTES, Access::ReadWrite).unwrap_err(), Errno::ACCESS, "map for writing");

    // SAFETY: needed to try what `Mapping` does not offer. Sound: a fresh mapping at a place the kernel picks.
    let map = unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES, ProtFlags::READ, MapFlags::SHARED, file, 0) };
    let map = map.unwrap();
    // SAFETY: needed as above. Sound: the range is that mapping, which nothing refers to.
    let writable = unsafe { rustix::mm::mprotect(map, BYTES, MprotectFlags::READ | MprotectFlags::WRITE) };
    assert_eq!(writable, Err(Errno::ACCESS), "make a read-only mapping writable");
    // SAFETY: as for mprotect.
    let removed = unsafe { rustix::mm::madvise(map, BYTES, Advice::LinuxRemove) };
    assert_eq!(removed, Err(Errno::ACCESS), "remove pages through a mapping");

    // Nor does the owner's process let it in: neither its descriptors nor its memory.
    let owner = rustix::process::getppid().unwrap().as_raw_nonzero();
    assert_eq!(reopened(&format!("/proc/{owner}/fd"), OFlags::RDONLY | OFlags::DIRECTORY), Err(Errno::ACCESS));
    for fd in 3..32 {
        assert_eq!(reopened(&format!("/proc/{owner}/fd/{fd}"), OFlags::RDWR), Err(Errno::ACCESS), "descriptor {fd}");
    }
    assert_eq!(reopened(&format!("/proc/{owner}/mem"), OFlags::RDWR), Err(Errno::ACCESS), "its memory");
}

#[test]
fn two_processes_hold_one_copy_and_see_each_others_rows() {
    let segment = segment();
    let reader = segment.reader().unwrap();
    let (mut command, _folder) = common::child("the_rank_that_waits", None, Some(reader));
    let mut rank = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(rank.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.by_ref().any(|line| line.contains("mapped")), "the rank did not map the segment");

    let shares = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let inode = segment.identity().unwrap().inode;
    let (pss_kib, rss_kib) = (figure_of(&shares, inode, "Pss:"), figure_of(&shares, inode, "Rss:"));
    segment.writable().unwrap().write(656, &ROW).unwrap();
    assert!(rank.wait().unwrap().success(), "the rank did not see the row:\n{}", said.collect::<Vec<_>>().join("\n"));
    assert_eq!(rss_kib, BYTES as u64 / 1024);
    assert_eq!(pss_kib, rss_kib / 2, "each of the two is charged half of one copy");
}

#[test]
#[ignore = "run by its parent with a reader's descriptor as standard input"]
fn the_rank_that_waits() {
    if !common::is_child() {
        return;
    }
    let mapping = Mapping::of_file(std::io::stdin().as_fd(), BYTES, Access::Read).unwrap();
    assert!(mapping.view().is_zero(), "reading it all maps every page");
    println!("mapped");
    let mut row = [0; 656];
    while row != ROW {
        std::thread::yield_now();
        mapping.view().read(656, &mut row).unwrap();
        assert_ne!(rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get()), Some(1), "the parent is gone");
    }
}

/// The figure of the mapping of `inode` in smaps, in KiB. Its first line reads `from-to mode offset device inode name`.
fn figure_of(smaps: &str, inode: u64, figure: &str) -> u64 {
    let inode = inode.to_string();
    let of_inode = |line: &&str| line.split_whitespace().nth(4) == Some(inode.as_str());
    let lines = smaps.lines().skip_while(|line| !of_inode(line));
    let line = lines.into_iter().find_map(|line| line.strip_prefix(figure)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
