//! Segments as files in a memory-backed folder, so that they outlive the service.
//!
//! ```text
//!  state/                      0700, the owner's
//!    serve.lock                held (flock) by the one service that uses the folder
//!    sessions.lock             held, shared, by every attached engine: while one lives no new pool is made
//!    journal                   what the service remembers
//!    generation                number of the newest pool
//!    segment-000000000000000c-0003     generation 12, segment 3
//! ```
//! A segment is built without a name and linked into place when it is whole, so a crash leaves no half of one. Locks go
//! with their holders, whatever kills them. Files of older generations are swept at the start of a new one. A start that
//! comes to nothing takes back what it put there, the folder too; what was there before stays.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use hisparse_core::error::Problem;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::finding::Finding;
use crate::memfd::OWNER_ONLY;
use crate::session_lock::SessionLock;
use crate::shm::MemoryVolume;
use crate::whole_file::{self, NotPut, Outlives};

const SERVE_LOCK: &str = "serve.lock";
const SESSIONS_LOCK: &str = "sessions.lock";
const JOURNAL: &str = "journal";
const GENERATION: &str = "generation";

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// A system call failed.
    #[error("cannot {action} {path}: {errno}")]
    Failed {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// Its generation could not be written.
    #[error(transparent)]
    NotPut(#[from] NotPut),
    /// Others could reach into it.
    #[error("{path} must be a folder of this user with mode 0700")]
    Open {
        /// The folder.
        path: String,
    },
    /// Its files would live on a disk.
    #[error("{path} is not in memory")]
    OnDisk {
        /// The folder.
        path: String,
    },
    /// A service runs there.
    #[error("another service uses {path}")]
    InUse {
        /// The folder.
        path: String,
    },
    /// An engine is attached to the pool of an earlier service.
    #[error("an engine still uses the pool in {path}")]
    Attached {
        /// The folder.
        path: String,
    },
}

impl StateDirError {
    /// What would let it be used.
    pub fn remedy(&self) -> &'static str {
        let refused = match self {
            Self::Failed { errno, .. } => io::Error::from(*errno).kind(),
            Self::NotPut(refused) => refused.error.kind(),
            Self::Open { .. } => return "run chmod 700 on it as its owner, or give another folder",
            Self::OnDisk { .. } => {
                return "mount a tmpfs there (emptyDir with medium: Memory), or give another folder";
            }
            Self::InUse { .. } => return "stop that service, or give another folder",
            Self::Attached { .. } => return "stop that engine before a new pool is made, or give another folder",
        };
        match refused {
            io::ErrorKind::StorageFull => {
                "make room there (sizeLimit, or mount -o remount,size=…), or give another folder"
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "let the server's user write there, or give another folder"
            }
            io::ErrorKind::NotFound => "make the folder that it is to be in, or give another folder",
            _ => "give another folder",
        }
    }

    /// The refusal of the folder at `path`.
    pub fn problem(&self, path: &Path) -> Problem {
        Problem::new("--state-dir", path.display(), self.to_string(), self.remedy())
    }
}

/// Files that a start puts there beside segments; the lock that keeps others out goes last.
const OURS: [&str; 4] = [SESSIONS_LOCK, JOURNAL, GENERATION, SERVE_LOCK];

/// A folder that this process alone serves from. Dropped before [`StateDir::keep`], it leaves the folder as it found it.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    folder: OwnedFd,
    /// Whether the folder itself was made by this opening.
    made: bool,
    /// Those of `OURS` that were there before it.
    before: Vec<&'static str>,
    kept: bool,
    _serving: OwnedFd,
}

/// A generation of segments being made in a [`StateDir`].
#[derive(Debug)]
pub struct Generation<'d> {
    dir: &'d StateDir,
    number: u64,
}

impl StateDir {
    /// Opens `path`, making it where it is missing, and takes the service's lock on it. A folder that was made for this and
    /// cannot be used is gone again.
    ///
    /// # Errors
    /// See [`StateDirError`].
    pub fn open(path: &Path) -> Result<Self, StateDirError> {
        let failed = |action| {
            let path = path.display().to_string();
            move |errno| StateDirError::Failed { action, path, errno }
        };
        let made = match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(failed("make")(errno)),
        };
        let opened = Self::open_made(path, made);
        if made && opened.is_err() {
            // Nothing else is in it yet; where something is, it stays.
            let _stays = rustix::fs::rmdir(path);
        }
        opened
    }

    fn open_made(path: &Path, made: bool) -> Result<Self, StateDirError> {
        let shown = path.display().to_string();
        let failed = |action| {
            let path = shown.clone();
            move |errno| StateDirError::Failed { action, path, errno }
        };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(failed("open"))?;
        let stat = rustix::fs::fstat(&folder).map_err(failed("look at"))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(StateDirError::Open { path: shown });
        }
        if MemoryVolume::discover(path).in_memory == Finding::Known(false) {
            return Err(StateDirError::OnDisk { path: shown });
        }
        loop {
            let before = OURS.into_iter().filter(|name| is_there(folder.as_fd(), name)).collect();
            let serving = open_lock(folder.as_fd(), SERVE_LOCK).map_err(failed("open serve.lock in"))?;
            match rustix::fs::flock(&serving, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(StateDirError::InUse { path: shown }),
                Err(errno) => return Err(failed("lock")(errno)),
            }
            // Who had it may have taken the file away between the two calls: a lock on that one keeps nobody out.
            if is_named(folder.as_fd(), SERVE_LOCK, serving.as_fd()) {
                return Ok(Self { path: path.to_path_buf(), folder, made, before, kept: false, _serving: serving });
            }
        }
    }

    /// From here on the folder is in use, and what is in it outlives this process.
    pub const fn keep(&mut self) {
        self.kept = true;
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The sessions' lock: an attached engine holds it for as long as it lives.
    pub fn session_lock(&self) -> SessionLock {
        SessionLock::at(&self.path.join(SESSIONS_LOCK))
    }

    /// Where the service's journal lies.
    pub fn journal(&self) -> PathBuf {
        self.path.join(JOURNAL)
    }

    /// Opens the segments that are there, in order, to be taken over.
    ///
    /// # Errors
    /// Where the folder cannot be listed, or a segment not opened.
    pub fn open_segments(&self) -> Result<Vec<OwnedFd>, StateDirError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let names = self.segments()?.into_iter();
        let files = names.map(|(name, _)| rustix::fs::openat(&self.folder, name, flags, Mode::empty()));
        files.collect::<Result<_, _>>().map_err(self.failed("open a segment in"))
    }

    /// Starts a new generation: sweeps what older ones left, and takes the next number.
    ///
    /// # Errors
    /// Where an engine is still attached to an older one, or the folder cannot be written.
    pub fn new_generation(&self) -> Result<Generation<'_>, StateDirError> {
        let sessions = open_lock(self.folder.as_fd(), SESSIONS_LOCK).map_err(self.failed("open sessions.lock in"))?;
        match rustix::fs::flock(&sessions, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(StateDirError::Attached { path: self.path.display().to_string() }),
            Err(errno) => return Err(self.failed("lock sessions.lock in")(errno)),
        }
        let mut newest = self.recorded_generation();
        for (name, generation) in self.segments()? {
            newest = newest.max(generation);
            rustix::fs::unlinkat(&self.folder, &name, AtFlags::empty()).map_err(self.failed("sweep"))?;
        }
        let number = newest.saturating_add(1);
        // The folder is in memory, so it outlives no machine in any case.
        whole_file::put(&self.path.join(GENERATION), number.to_string().as_bytes(), Outlives::Process)?;
        Ok(Generation { dir: self, number })
    }

    /// Names of the segments in the folder and their generations, in order.
    ///
    /// # Errors
    /// Where the folder cannot be listed.
    pub fn segments(&self) -> Result<Vec<(String, u64)>, StateDirError> {
        let entries = rustix::fs::Dir::read_from(&self.folder).map_err(self.failed("list"))?;
        let mut segments = Vec::new();
        for entry in entries {
            let entry = entry.map_err(self.failed("list"))?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if let Some(generation) = generation_of(name) {
                segments.push((name.to_owned(), generation));
            }
        }
        segments.sort();
        Ok(segments)
    }

    fn recorded_generation(&self) -> u64 {
        let mut text = [0; 20];
        rustix::fs::openat(&self.folder, GENERATION, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|file| rustix::io::read(file, &mut text))
            .ok()
            .and_then(|len| std::str::from_utf8(text.get(..len)?).ok()?.trim().parse().ok())
            .unwrap_or(0)
    }

    fn failed(&self, action: &'static str) -> impl Fn(Errno) -> StateDirError + use<> {
        let path = self.path.display().to_string();
        move |errno| StateDirError::Failed { action, path: path.clone(), errno }
    }
}

impl Generation<'_> {
    /// Its number; larger than that of any before it.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// A file of mode 0600 that has no name yet and is gone if its descriptor is closed now.
    pub(crate) fn create(&self) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.dir.folder, ".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, OWNER_ONLY)
    }

    /// Takes back the names given so far: the pool did not come about.
    ///
    /// # Errors
    /// Where the folder cannot be listed or written.
    pub(crate) fn withdraw(&self) -> Result<(), StateDirError> {
        let of_this = |(name, generation): (String, u64)| (generation == self.number).then_some(name);
        for name in self.dir.segments()?.into_iter().filter_map(of_this) {
            rustix::fs::unlinkat(&self.dir.folder, name, AtFlags::empty()).map_err(self.dir.failed("sweep"))?;
        }
        Ok(())
    }

    /// Gives a finished segment its name.
    pub(crate) fn publish(&self, file: BorrowedFd<'_>, index: usize) -> Result<(), Errno> {
        let open = format!("/proc/self/fd/{}", file.as_raw_fd());
        let name = format!("segment-{:016x}-{index:04}", self.number);
        rustix::fs::linkat(rustix::fs::CWD, open, &self.dir.folder, name, AtFlags::SYMLINK_FOLLOW)
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        for name in OURS.into_iter().filter(|name| !self.before.contains(name)) {
            let _gone = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
        }
        if self.made {
            // Where somebody put something else there, it stays.
            let _stays = rustix::fs::rmdir(&self.path);
        }
    }
}

fn is_there(folder: BorrowedFd<'_>, name: &str) -> bool {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Whether this name leads to this very file.
fn is_named(folder: BorrowedFd<'_>, name: &str, file: BorrowedFd<'_>) -> bool {
    let named = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    let found = rustix::fs::fstat(file);
    named
        .ok()
        .zip(found.ok())
        .is_some_and(|(named, found)| (named.st_dev, named.st_ino) == (found.st_dev, found.st_ino))
}

fn open_lock(folder: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(folder, name, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC, OWNER_ONLY)
}

/// The generation in a segment's name; `None` for any other name.
fn generation_of(name: &str) -> Option<u64> {
    let (generation, index) = name.strip_prefix("segment-")?.split_once('-')?;
    let well_formed = generation.len() == 16 && index.len() >= 4 && index.bytes().all(|b| b.is_ascii_digit());
    well_formed.then(|| u64::from_str_radix(generation, 16).ok()).flatten()
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
