//! What processes of other users can do to a pool: read it where they are let in as readers, and nothing else.
//!
//! ```text
//!  root: two pools, two services ──► socket A admits uid 65534        socket B admits uid 65533
//!                                        ▲ reader of A, tries everything      ▲ writer of B, alive
//!                                        └─ tries socket B, B's processes, descriptors, memory
//! ```
//! The hostile ones are this binary run again as another user; each trial must end with the refusal that is written
//! beside it. Needs root, else says that it is skipped.
#![cfg(not(miri))]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of tests; a child says that it is ready

use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use hisparse_core::layout::pool::{Content, PoolLayout, PoolShape};
use hisparse_core::layout::{RowLayout, StrideAlign, default_index_dtype};
use hisparse_core::model::{Layer, preset};
use hisparse_core::platform::{KvDtype, LayerGroups};
use hisparse_mem::attach::MAX_DESCRIPTORS;
use hisparse_mem::attach::client::{AttachError, AttachedPool};
use hisparse_mem::attach::frame::{Frame, Hello, MAX_FRAME_BYTES, PROTOCOL, Reason, Role, Token};
use hisparse_mem::attach::server::{AttachServer, Session, Share, Terms, Watcher};
use hisparse_mem::backing::{Backing, Pages};
use hisparse_mem::machine::Machine;
use hisparse_mem::pool::{HostPool, Wishes};
use hisparse_mem::populate::Workers;
use hisparse_mem::root::Root;
use hisparse_mem::rows::PoolMemory;
use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};

const UID_A: u32 = 65_534;
const UID_B: u32 = 65_533;
const STRANGER: u32 = 65_532;
const SOCKET: &str = "HISPARSE_TEST_SOCKET";
const OTHER_SOCKET: &str = "HISPARSE_TEST_OTHER_SOCKET";
const VICTIMS: &str = "HISPARSE_TEST_VICTIMS";
const ROW: [u8; 656] = [7; 656];

struct Quiet;

impl Watcher for Quiet {
    fn token(&self) -> Token {
        Token([5; 16])
    }
    fn opened(&self, _: &Session) {}
    fn closed(&self, _: &Session) {}
}

struct Service {
    pool: Arc<HostPool>,
    socket: PathBuf,
    _server: AttachServer,
}

fn service(folder: &Path, name: &str, uid: u32) -> Service {
    let model = preset("glm-5.2").unwrap();
    let main = RowLayout::main(&model, KvDtype::Fp8E4m3, 1).unwrap();
    let indexer = RowLayout::indexer(&model, default_index_dtype(&model)).unwrap();
    let layout = PoolLayout::new(&PoolShape {
        layers: &[Layer::Indexed],
        draft_layers: 0,
        main: &main,
        indexer: &indexer,
        page_tokens: 64,
        tokens_per_row: 1,
        tokens_per_index_row: 1,
        pages: 8,
        align: StrideAlign::Packed,
        groups: LayerGroups::Auto,
    })
    .unwrap();
    let pages = Pages::Only(Backing::Memfd);
    let wishes = Wishes { pages, workers: Workers::free(NonZeroUsize::MIN), ..Wishes::default() };
    let machine = Machine::discover(&Root::machine(), None);
    let pool = Arc::new(HostPool::create(layout, &wishes, &machine, &|_| {}).unwrap());
    pool.write_row(Content::Main, 0, 3, 1, &ROW).unwrap();
    let socket = folder.join(name);
    let terms = Terms { epoch: 1, uids: vec![uid], lock: None, last_session: 0, engine_id: None };
    let server = AttachServer::start(&socket, Share::Pool(Arc::clone(&pool)), terms, Arc::new(Quiet)).unwrap();
    Service { pool, socket, _server: server }
}

/// This binary, at a place that every user reaches, to be run as one test of it.
fn as_user(uid: u32, program: &Path, test: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads", "1"]).uid(uid).gid(uid);
    command
}

fn succeeds(mut command: Command, what: &str) {
    let done = command.output().unwrap();
    let told = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && told.contains("1 passed"), "{what}:\n{told}");
}

/// Ends a child that its test did not.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _waited = self.0.wait();
    }
}

#[test]
fn another_users_reader_changes_nothing_and_another_engine_reaches_nothing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can run processes as other users");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.path().join("hostile");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let (a, b) = (service(folder.path(), "a.sock", UID_A), service(folder.path(), "b.sock", UID_B));

    // Engine B lives and has its pool mapped while engine A's process tries to get at it.
    let mut engine_b = as_user(UID_B, &program, "engine_of_b");
    engine_b.env(SOCKET, &b.socket).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut engine_b = Ended(engine_b.spawn().unwrap());
    let mut lines = BufReader::new(engine_b.0.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("engine b is attached")), "engine B did not attach");

    let mut hostile = as_user(UID_A, &program, "hostile_reader_of_a");
    let victims = format!("{},{}", std::process::id(), engine_b.0.id());
    hostile.env(SOCKET, &a.socket).env(OTHER_SOCKET, &b.socket).env(VICTIMS, victims);
    succeeds(hostile, "the reader of another user");
    let mut stranger = as_user(STRANGER, &program, "a_user_that_is_not_listed");
    stranger.env(SOCKET, &a.socket);
    succeeds(stranger, "a user that is not listed");

    for service in [&a, &b] {
        let mut row = [0; 656];
        service.pool.read_row(Content::Main, 0, 3, 1, &mut row).unwrap();
        assert_eq!(row, ROW, "every byte is as it was");
        assert_eq!(service.pool.segments()[0].identity().unwrap().size_bytes, service.pool.segments()[0].len());
    }
    let mut input = engine_b.0.stdin.take().unwrap();
    input.write_all(b"end\n").unwrap();
    assert!(engine_b.0.wait().unwrap().success(), "engine B read its own rows to the end");
}

fn socket_of(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(name).expect("the test above sets it"))
}

#[test]
#[ignore = "a part of the test above, run by it as another user"]
fn engine_of_b() {
    let pool = AttachedPool::attach(&socket_of(SOCKET), "b", 0, Role::Writer).unwrap();
    println!("engine b is attached");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let mut row = [0; 656];
    pool.read_row(Content::Main, 0, 3, 1, &mut row).unwrap();
    assert_eq!(row, ROW);
}

#[test]
#[ignore = "a part of the test above, run by it as another user"]
fn a_user_that_is_not_listed() {
    for role in [Role::Reader, Role::Writer] {
        match AttachedPool::attach(&socket_of(SOCKET), "a", 0, role) {
            Err(AttachError::Refused(Reason::Forbidden)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
#[ignore = "a part of the test above, run by it as another user"]
fn hostile_reader_of_a() {
    let pool = AttachedPool::attach(&socket_of(SOCKET), "a", 1, Role::Reader).unwrap();
    let mut row = [0; 656];
    pool.read_row(Content::Main, 0, 3, 1, &mut row).unwrap();
    assert_eq!(row, ROW, "what a reader is let in for");
    let files = descriptors(&socket_of(SOCKET));
    assert!(!files.is_empty());
    for file in &files {
        through_the_descriptor(file.as_fd());
        through_a_mapping(file.as_fd());
    }
    match AttachedPool::attach(&socket_of(OTHER_SOCKET), "b", 1, Role::Reader) {
        Err(AttachError::Refused(Reason::Forbidden)) => {}
        other => panic!("{other:?}"),
    }
    for victim in std::env::var(VICTIMS).unwrap().split(',') {
        through_another_process(victim.parse().unwrap());
    }
    let named = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!named.into_iter().any(|name| name.to_string_lossy().contains("hisparse")), "segments have no names");
}

/// The descriptors that the service sends, as a peer of our own making keeps them.
fn descriptors(path: &Path) -> Vec<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    let hello = Hello { protocols: vec![PROTOCOL], role: Role::Reader, engine_id: "a".into(), rank: 2, resume: None };
    let bytes = Frame::Hello(hello).encode().unwrap();
    sendmsg(&socket, &[IoSlice::new(&bytes)], &mut SendAncillaryBuffer::default(), SendFlags::empty()).unwrap();
    let mut files = Vec::new();
    while files.is_empty() {
        let mut bytes = vec![0; MAX_FRAME_BYTES];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        assert!(got.bytes > 0, "the service hung up");
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
    }
    files
}

fn through_the_descriptor(file: BorrowedFd<'_>) {
    assert_eq!(rustix::io::pwrite(file, b"x", 0), Err(Errno::BADF), "write");
    for size in [0, 4096, 1 << 30] {
        let refused = rustix::fs::ftruncate(file, size).unwrap_err();
        assert!([Errno::INVAL, Errno::BADF, Errno::PERM].contains(&refused), "truncate to {size}: {refused}");
    }
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for flags in [hole, FallocateFlags::ZERO_RANGE, FallocateFlags::empty()] {
        let refused = rustix::fs::fallocate(file, flags, 0, 4096).unwrap_err();
        assert!([Errno::BADF, Errno::PERM, Errno::OPNOTSUPP].contains(&refused), "{flags:?}: {refused}");
    }
    for seals in [SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::SEAL] {
        assert_eq!(rustix::fs::fcntl_add_seals(file, seals), Err(Errno::PERM), "{seals:?}");
    }
    assert_eq!(rustix::fs::fchmod(file, Mode::RWXU | Mode::RWXO), Err(Errno::PERM), "change the mode");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let writing = [OFlags::RDWR, OFlags::WRONLY, OFlags::RDWR | OFlags::TRUNC, OFlags::WRONLY | OFlags::APPEND];
    for flags in writing {
        let refused = rustix::fs::open(&path, flags, Mode::empty()).map(drop);
        assert_eq!(refused, Err(Errno::ACCESS), "reopen with {flags:?}");
    }
    assert_eq!(std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap_err().raw_os_error(), Some(1));
    let truncated = std::fs::OpenOptions::new().write(true).truncate(true).open(&path);
    assert_eq!(truncated.unwrap_err().raw_os_error(), Some(13), "truncate by its path");
}

fn through_a_mapping(file: BorrowedFd<'_>) {
    const LEN: usize = 4096;
    let map = |protection| {
        // SAFETY: the kernel picks a free place for a mapping that nothing else knows of.
        unsafe { mm::mmap(std::ptr::null_mut(), LEN, protection, MapFlags::SHARED, file, 0) }
    };
    assert_eq!(map(ProtFlags::READ | ProtFlags::WRITE).map(drop), Err(Errno::ACCESS), "map for writing");
    let read = map(ProtFlags::READ).expect("a reader may map");
    for protection in [MprotectFlags::READ | MprotectFlags::WRITE, MprotectFlags::WRITE] {
        // SAFETY: the range is the mapping made above, which nothing refers to.
        let refused = unsafe { mm::mprotect(read, LEN, protection) };
        assert_eq!(refused, Err(Errno::ACCESS), "make it {protection:?}");
    }
    // SAFETY: as above. `MADV_REMOVE` would punch a hole into the file.
    let refused = unsafe { libc::madvise(read, LEN, libc::MADV_REMOVE) };
    assert_eq!((refused, last_errno()), (-1, Errno::ACCESS), "punch a hole through the mapping");
    // SAFETY: as above.
    let refused = unsafe { libc::madvise(read, LEN, libc::MADV_POPULATE_WRITE) };
    assert_eq!(refused, -1, "make pages for writing");
    // SAFETY: as above.
    unsafe { mm::munmap(read, LEN) }.unwrap();
}

fn through_another_process(victim: i32) {
    let listed = std::fs::read_dir(format!("/proc/{victim}/fd")).map(Iterator::count);
    assert!(listed.is_err(), "listed the descriptors of {victim}: {listed:?}");
    for fd in 0..64 {
        let path = format!("/proc/{victim}/fd/{fd}");
        assert!(rustix::fs::open(&path, OFlags::RDONLY, Mode::empty()).is_err(), "opened {path}");
    }
    assert!(std::fs::read_dir(format!("/proc/{victim}/map_files")).is_err(), "listed its mappings' files");
    assert!(std::fs::File::open(format!("/proc/{victim}/mem")).is_err(), "opened its memory");
    let mut byte = 0_u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(4096), iov_len: 1 };
    // SAFETY: the local buffer is a byte of ours, the remote address is for the kernel to refuse.
    let moved = unsafe {
        [
            libc::process_vm_readv(victim, &raw const local, 1, &raw const remote, 1, 0),
            libc::process_vm_writev(victim, &raw const local, 1, &raw const remote, 1, 0),
        ]
    };
    assert_eq!((moved, last_errno()), ([-1, -1], Errno::PERM), "reached into its memory");
    let process = rustix::process::Pid::from_raw(victim).unwrap();
    let process = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).unwrap();
    for fd in 0..64 {
        // SAFETY: the call makes a descriptor or refuses; it touches no memory.
        let taken = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) };
        assert_eq!((taken, last_errno()), (-1, Errno::PERM), "took descriptor {fd}");
    }
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
