//! The journal's file: what the node must remember to be the same node after it was killed.
//!
//! ```text
//!  decision, lock held ─► records ─► pending ── lock free ──► file lock: one write for all that is pending ─► answer
//!                                                                │
//!  twice as long as it need be ─► read it, add it up, write that aside, append what came meanwhile ─► rename
//! ```
//! A record is in the kernel's hands before the caller hears of the decision, so it survives a kill of this process at
//! any moment. It is not synced to a disk: a machine that fails takes the pool's bytes with it, and the journal names
//! the boot it belongs to. A write that fails ends the journal, and its file is removed: a wrong memory is worse than
//! none.
//!
//! Records tell no times, so a note among them says, to the second, when those behind it were decided: by it another
//! start judges how long the leases of a journal that is not its own may still be held.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use hisparse_core::error::{Problem, Problems};
use hisparse_core::journal::{Image, frame};
use hisparse_core::limits::{JOURNAL_COMPACT_BYTES, JOURNAL_GROWTH, JOURNAL_TIME_STEP};
use hisparse_mem::beside::beside;
use hisparse_mem::whole_file::{self, Outlives, WholeFile};

use crate::remembered::{Note, Remembered};

mod content;

pub(crate) use content::{Found, read};
use content::{entry_of, understood, write_state};

/// [`JOURNAL_TIME_STEP`] in milliseconds.
const TIME_STEP_MS: u64 = JOURNAL_TIME_STEP.as_secs() * 1_000;

/// It names its boot and means nothing after another, and it is begun anew while decisions wait: never for a disk.
const OUTLIVES: Outlives = Outlives::Process;

/// Where the journal of the server at `socket` is kept.
pub(crate) fn file_beside(socket: &Path) -> PathBuf {
    beside(socket, ".journal")
}

/// Records on their way to the file, in the order of the decisions.
#[derive(Debug, Default)]
struct Pending {
    records: Vec<u8>,
    /// The last moment that they, or those before them, tell.
    since_boot_ms: u64,
}

/// A journal that is written.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    pending: Mutex<Pending>,
    /// Held while the file is written; `None` after a write failed.
    file: Mutex<Option<File>>,
    bytes: AtomicU64,
    /// Length at which it is compacted.
    compact_at: AtomicU64,
    compacting: AtomicBool,
    /// Writes that failed, those of a shorter copy too.
    failures: AtomicU64,
    /// What to tell the operator once it is not written any more.
    lost: Mutex<Option<String>>,
    /// Whether nobody was told so far.
    unsaid: AtomicBool,
}

impl Journal {
    /// Begins a journal with this state, in place of any before it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn begin(path: &Path, image: &Image, remembered: &Remembered) -> Result<Self, Problems> {
        let state = write_state(image, remembered);
        let file = whole_file::put(path, &state, OUTLIVES).map_err(|error| {
            let remedy = "make its folder writable and have room, or give another path for the socket";
            Problems::one(Problem::new("journal file", path.display(), error.to_string(), remedy))
        })?;
        let bytes = state.len() as u64;
        Ok(Self {
            path: path.to_path_buf(),
            pending: Mutex::new(Pending::after(remembered)),
            file: Mutex::new(Some(file)),
            bytes: AtomicU64::new(bytes),
            compact_at: AtomicU64::new(compact_at(bytes)),
            compacting: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            lost: Mutex::new(None),
            unsaid: AtomicBool::new(false),
        })
    }

    /// Begins it anew, with this state and nothing else.
    pub(crate) fn restart(&self, image: &Image, remembered: &Remembered) {
        let mut file = lock(&self.file);
        *lock(&self.pending) = Pending::after(remembered);
        let state = write_state(image, remembered);
        *file = match whole_file::put(&self.path, &state, OUTLIVES) {
            Ok(file) => {
                *lock(&self.lost) = None;
                Some(file)
            }
            Err(error) => {
                self.give_up(&error);
                None
            }
        };
        self.bytes.store(state.len() as u64, Ordering::Relaxed);
        self.compact_at.store(compact_at(state.len() as u64), Ordering::Relaxed);
    }

    /// Takes the records of a decision over, and when it was made; called in the order of the decisions.
    pub(crate) fn append(&self, records: &mut Vec<u8>, since_boot_ms: u64) {
        if records.is_empty() {
            return;
        }
        let mut pending = lock(&self.pending);
        if since_boot_ms.saturating_sub(pending.since_boot_ms) >= TIME_STEP_MS {
            pending.since_boot_ms = since_boot_ms;
            pending.note(&Note::At { since_boot_ms });
        }
        pending.records.append(records);
    }

    /// Takes a note over.
    pub(crate) fn note(&self, note: &Note) {
        lock(&self.pending).note(note);
    }

    /// Writes what is pending. When it returns, everything that was taken over before is written; or it says, once, why
    /// nothing is any more, for the operator.
    ///
    /// Writes to the page cache, under a lock of its own: it may wait for another decision's write, never for a disk
    /// but where the kernel makes a writer wait.
    pub(crate) fn flush(&self) -> Option<String> {
        self.write_pending();
        // Looked at first: a swap would have all deciders contend for a flag that hardly ever is set.
        let news = self.unsaid.load(Ordering::Relaxed) && self.unsaid.swap(false, Ordering::Relaxed);
        if news { self.lost() } else { None }
    }

    fn write_pending(&self) {
        let mut file = lock(&self.file);
        let records = std::mem::take(&mut lock(&self.pending).records);
        if records.is_empty() {
            return;
        }
        if let Some(open) = file.as_mut() {
            match open.write_all(&records) {
                Ok(()) => drop(self.bytes.fetch_add(records.len() as u64, Ordering::Relaxed)),
                Err(error) => {
                    *file = None;
                    self.give_up(&error);
                }
            }
        }
    }

    /// Nothing is remembered any more: a restart must not believe what is there.
    fn give_up(&self, error: &dyn Display) {
        let removed = fs::remove_file(&self.path);
        let shown = self.path.display();
        let next = match removed {
            Ok(()) => "it was removed, and a restart will know no lease: make room before one".to_owned(),
            Err(error) => format!("nor can it be removed ({error}): remove it before a restart"),
        };
        self.failures.fetch_add(1, Ordering::Relaxed);
        *lock(&self.lost) = Some(format!("the journal {shown} cannot be written ({error}); {next}"));
        self.unsaid.store(true, Ordering::Relaxed);
    }

    /// Writes that failed: one ends the journal, unless it was that of a shorter copy.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Why it is not written any more, and what to do; `None` while it is.
    pub(crate) fn lost(&self) -> Option<String> {
        lock(&self.lost).clone()
    }

    /// Whether it is time to compact it, and nobody does.
    pub(crate) fn is_overlong(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.compact_at.load(Ordering::Relaxed)
            && !self.compacting.swap(true, Ordering::Relaxed)
    }

    /// Writes it anew, as short as it can be. Decisions go on meanwhile.
    pub(crate) fn compact(&self) {
        if self.try_compact().is_err() && lock(&self.file).is_some() {
            self.failures.fetch_add(1, Ordering::Relaxed);
            // There may be room later.
            self.compact_at.store(compact_at(self.bytes.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
        self.compacting.store(false, Ordering::Relaxed);
    }

    fn try_compact(&self) -> io::Result<()> {
        self.write_pending();
        let until = self.bytes.load(Ordering::Relaxed);
        let mut old = Vec::new();
        File::open(&self.path)?.take(until).read_to_end(&mut old)?;
        let found = understood(&old).map_err(io::Error::other)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut state = write_state(&found.image, &found.remembered);
        let mut new = WholeFile::beside(&self.path).map_err(io::Error::other)?;
        new.write(&state).map_err(io::Error::other)?;
        let whole = state.len() as u64;
        let mut file = lock(&self.file);
        let Some(open) = file.as_mut() else { return Ok(()) };
        let meanwhile = usize::try_from(self.bytes.load(Ordering::Relaxed) - until).map_err(io::Error::other)?;
        state.clear();
        state.resize(meanwhile, 0);
        File::open(&self.path)?.read_exact_at(&mut state, until)?;
        new.write(&state).map_err(io::Error::other)?;
        *open = new.put(OUTLIVES).map_err(io::Error::other)?;
        self.bytes.store(whole + meanwhile as u64, Ordering::Relaxed);
        self.compact_at.store(compact_at(whole), Ordering::Relaxed);
        Ok(())
    }
}

impl Pending {
    /// Nothing yet, behind this state.
    const fn after(remembered: &Remembered) -> Self {
        Self { records: Vec::new(), since_boot_ms: remembered.since_boot_ms }
    }

    fn note(&mut self, note: &Note) {
        frame(&mut self.records, |out| entry_of(note).encode(out));
    }
}

fn compact_at(bytes: u64) -> u64 {
    bytes.saturating_mul(JOURNAL_GROWTH).max(JOURNAL_COMPACT_BYTES)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Whole between any two statements, so a panic elsewhere leaves it usable.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
