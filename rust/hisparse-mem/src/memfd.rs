//! Memory files: made, sealed, reopened for readers, and known again after a restart.
//!
//! ```text
//!  seals      stop                                   do not stop
//!  shrink     truncation, so no SIGBUS in a mapper   a writer's hole punching: those pages read as zero
//!  grow       a file larger than was accounted for   writing, by whoever holds a writable descriptor
//!  seal       any further seal                       —
//! ```
//! A fresh memory file has mode 0777, by which anyone holding a read-only descriptor of it may reopen it for writing
//! through `/proc`; so the mode is narrowed before anything else. A process of the owner's own uid still can.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Who may open a segment again: its owner.
pub(crate) const OWNER_ONLY: Mode = Mode::RUSR.union(Mode::WUSR);

/// Bit at which a huge page's size (its base-2 logarithm) stands among the flags.
const HUGE_SHIFT: u32 = 26;

/// What a segment is known by after its maker is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Device of the file system that holds it.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its seals, as the kernel's bits; 0 where the file cannot carry any.
    pub seals: u32,
}

impl Identity {
    /// Asks the kernel about an open file.
    ///
    /// # Errors
    /// As `fstat` says.
    pub fn of(file: BorrowedFd<'_>) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(file)?;
        let seals = rustix::fs::fcntl_get_seals(file).unwrap_or(SealFlags::empty());
        let size_bytes = u64::try_from(stat.st_size).map_err(|_| Errno::OVERFLOW)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino, size_bytes, seals: seals.bits() })
    }

    /// Whether it can neither shrink nor grow, nor be unsealed.
    pub fn is_sealed(&self) -> bool {
        SealFlags::from_bits_retain(self.seals).contains(SEALS)
    }
}

/// The seals of a finished segment.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// An empty memory file of mode 0600, in huge pages of `huge_page_bytes` where given.
pub(crate) fn create(name: &str, huge_page_bytes: Option<u64>) -> Result<OwnedFd, Errno> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if let Some(bytes) = huge_page_bytes {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(bytes.trailing_zeros() << HUGE_SHIFT);
    }
    // Kernels before 6.3 do not know that a file may be made unfit for running code.
    let file = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        made => made?,
    };
    rustix::fs::fchmod(&file, OWNER_ONLY)?;
    Ok(file)
}

/// Fixes the size for good.
pub(crate) fn seal(file: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::fs::fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::GROW)?;
    rustix::fs::fcntl_add_seals(file, SealFlags::SEAL)
}

/// A second descriptor of the same file that can only read, whatever the first one can.
///
/// # Errors
/// As `open` says; `EACCES` where the caller is not the owner, `ENOENT` without `/proc`.
pub fn reopen_read_only(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// A second descriptor of the same file that can write, for its owner.
pub(crate) fn reopen_writable(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_file_keeps_its_size_and_takes_no_more_seals() {
        let file = create("test", None).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        assert!(!Identity::of(file.as_fd()).unwrap().is_sealed());
        seal(file.as_fd()).unwrap();
        assert_eq!(rustix::fs::ftruncate(&file, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&file, 16384), Err(Errno::PERM));
        assert_eq!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::PERM));
        let identity = Identity::of(file.as_fd()).unwrap();
        assert!(identity.is_sealed());
        assert_eq!(identity.size_bytes, 8192);
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_mode & 0o777, 0o600);
    }

    #[test]
    fn a_readers_descriptor_is_the_same_file_and_cannot_write() {
        let file = create("test", None).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let reader = reopen_read_only(file.as_fd()).unwrap();
        assert_eq!(Identity::of(reader.as_fd()), Identity::of(file.as_fd()));
        assert_eq!(rustix::io::write(&reader, b"x"), Err(Errno::BADF));
    }
}
