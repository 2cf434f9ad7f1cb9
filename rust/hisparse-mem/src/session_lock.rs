//! Which pools are in use: a lock that every attached process holds, whatever else becomes of it.
//!
//! ```text
//!  service ── opens the file anew, locks it shared, sends the descriptor ──► engine keeps it open
//!  service, after a restart ── can it be locked alone? ── no ──► an engine lives, and no new pool is made
//! ```
//! The kernel lets a lock go with the last descriptor of its opening, however its process ends. So there is nothing to
//! time out, and nothing to clean up.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use crate::memfd::OWNER_ONLY;

/// The lock of one pool's sessions.
#[derive(Clone, Debug)]
pub struct SessionLock {
    path: PathBuf,
}

impl SessionLock {
    /// The lock in this file, which is made when it is needed.
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_path_buf() }
    }

    /// One session's hold on it.
    ///
    /// # Errors
    /// As `open` and `flock` say.
    pub fn hold(&self) -> Result<OwnedFd, Errno> {
        let file = self.open(OFlags::CREATE)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)?;
        Ok(file)
    }

    /// Whether a session holds it. A file that cannot be looked at counts as held: a pool in use must not be lost.
    pub fn is_held(&self) -> bool {
        match self.open(OFlags::empty()) {
            Ok(file) => rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err(),
            Err(errno) => errno != Errno::NOENT,
        }
    }

    fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        rustix::fs::open(&self.path, flags | OFlags::RDWR | OFlags::CLOEXEC, OWNER_ONLY)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_held_for_as_long_as_any_session_keeps_its_descriptor() {
        let home = tempfile::tempdir().unwrap();
        let lock = SessionLock::at(&home.path().join("sessions"));
        assert!(!lock.is_held());
        let (first, second) = (lock.hold().unwrap(), lock.hold().unwrap());
        let copy = first.try_clone().unwrap();
        drop((first, second));
        assert!(lock.is_held(), "the copy is as good");
        drop(copy);
        assert!(!lock.is_held());
    }
}
