//! What a service begins with: nothing, or what an earlier one left.
//!
//! ```text
//!                     journal of this boot and plan?
//!   books only         yes ─► its leases live on                           no ─► anew, if no engine is attached
//!   segments as files  yes, and the files are the ones ─► taken over       no ─► anew, if no engine is attached
//!   memory alone       yes, and an engine still holds the lock ─► wanted back from it
//!   any of them        an engine holds the lock, and there is no such journal ─► refused: its pool must not be lost
//! ```
//! Leases of sessions wait for their engines. What is lost is said once, here.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hisparse_core::env::Moment;
use hisparse_core::error::{Problem, Problems};
use hisparse_core::layout::pool::PoolLayout;
use hisparse_core::ledger::{Epoch, Ledger, LedgerConfig};
use hisparse_mem::beside::beside;
use hisparse_mem::memfd::Identity;
use hisparse_mem::session_lock::SessionLock;
use hisparse_mem::state_dir::StateDir;

use crate::env::MachineEntropy;
use crate::journal::{self, Found};
use crate::remembered::{KeptPool, Remembered, this_boot};

/// Where what outlives this process is kept.
#[derive(Debug)]
pub(crate) struct Keeping {
    pub(crate) journal: Option<PathBuf>,
    pub(crate) lock: Option<SessionLock>,
    pub(crate) state_dir: Option<StateDir>,
}

impl Keeping {
    /// Beside the socket, or in a state directory.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub(crate) fn open(socket: Option<&Path>, state_dir: Option<&Path>) -> Result<Self, Problems> {
        if let Some(path) = state_dir {
            let dir = StateDir::open(path).map_err(|error| Problems::one(error.problem(path)))?;
            return Ok(Self { journal: Some(dir.journal()), lock: Some(dir.session_lock()), state_dir: Some(dir) });
        }
        let lock = socket.map(|socket| SessionLock::at(&beside(socket, ".sessions")));
        Ok(Self { journal: socket.map(journal::file_beside), lock, state_dir: None })
    }

    /// The service has begun: what it put there outlives it.
    pub(crate) const fn keep(&mut self) {
        if let Some(dir) = &mut self.state_dir {
            dir.keep();
        }
    }

    fn engine_lives(&self) -> bool {
        self.lock.as_ref().is_some_and(SessionLock::is_held)
    }
}

/// Where the pool's bytes come from.
#[derive(Debug)]
pub(crate) enum PoolFrom {
    /// They are to be made.
    Nothing,
    /// Files that are here.
    Files(KeptPool, Vec<OwnedFd>),
    /// An engine that still has them.
    Engine(KeptPool),
}

/// How much a node knows of what came before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Nothing came before that could still hold anything.
    New,
    /// All of it.
    Restored,
}

/// What an earlier service left, judged.
#[derive(Debug)]
pub(crate) struct Past {
    pub(crate) pool: PoolFrom,
    pub(crate) warning: Option<String>,
    /// Set where its leases live on.
    found: Option<Found>,
    /// The last epoch that its journal knows of, of whatever plan.
    pub(crate) last_epoch: u64,
}

impl Past {
    /// Reads and judges it.
    ///
    /// # Errors
    /// A damaged journal; an engine whose pool would be lost.
    pub(crate) fn of(keeping: &Keeping, config: &LedgerConfig, layout: Option<&PoolLayout>) -> Result<Self, Problems> {
        let found = keeping.journal.as_deref().map(journal::read).transpose()?.flatten();
        let last_epoch = found.as_ref().map_or(0, |found| found.remembered.epoch);
        let leases = found.as_ref().map_or(0, |found| found.image.leases());
        let epoch = last_epoch;
        let fits = found.filter(|found| {
            found.remembered.boot == this_boot()
                && *found.image.capacity() == config.capacity
                && found.image.isolation() == config.isolation
        });
        let anew = |why: &str| Self {
            pool: PoolFrom::Nothing,
            warning: (leases > 0).then(|| {
                let lost = if leases == 1 { "one lease".into() } else { format!("{leases} leases") };
                format!("{why}: {lost} of epoch {epoch} ended with it, and the service begins anew")
            }),
            found: None,
            last_epoch,
        };
        let lives = keeping.engine_lives();
        let Some(layout) = layout else {
            if lives {
                return Err(pool_in_use(keeping));
            }
            return Ok(match fits {
                Some(found) => Self { pool: PoolFrom::Nothing, warning: None, found: Some(found), last_epoch },
                None => anew("the journal is of another plan or another boot"),
            });
        };
        let pool = fits.as_ref().and_then(|found| found.remembered.pool.clone()).filter(|pool| pool.layout == *layout);
        let (Some(pool), Some(found)) = (pool, fits) else {
            if lives {
                return Err(pool_in_use(keeping));
            }
            return Ok(anew("the pool of the earlier start was another one, or is gone"));
        };
        let from = match &keeping.state_dir {
            Some(dir) => {
                let files = dir.open_segments().map_err(|error| Problems::one(error.problem(dir.path())))?;
                files_of(&pool, &files).then_some(PoolFrom::Files(pool, files))
            }
            None => lives.then_some(PoolFrom::Engine(pool)),
        };
        Ok(match from {
            Some(pool) => Self { pool, warning: None, found: Some(found), last_epoch },
            None => anew("the pool went with the processes that had it"),
        })
    }

    /// The ledger to begin with, and what is remembered beside it.
    ///
    /// # Errors
    /// Figures that no ledger can be made of; a journal that does not add up.
    pub(crate) fn begin(
        self,
        journal: Option<PathBuf>,
        config: LedgerConfig,
        epoch: Epoch,
        learning: Option<Duration>,
        now: Moment,
    ) -> Result<Beginning, Problems> {
        let began = Remembered { epoch: epoch.get(), boot: this_boot(), ..Remembered::default() };
        let Some(Found { image, remembered }) = self.found else {
            let ledger = Ledger::new(config, epoch, &mut MachineEntropy)?;
            return Ok(Beginning { ledger, start: Start::New, learning, remembered: began, journal });
        };
        let restored = Ledger::restore(config, &image, epoch, now, &mut MachineEntropy);
        let mut ledger = restored.map_err(|error| {
            let place = journal.as_deref().unwrap_or(Path::new("")).display();
            let remedy = "move the file away: the service begins anew and the leases in it are lost";
            Problems::one(Problem::new("journal file", place, error.to_string(), remedy))
        })?;
        ledger.await_sessions(now);
        let mut dead = remembered.dead;
        dead.extend(remembered.live);
        let (pool, last_session) = (remembered.pool, remembered.last_session);
        let remembered = Remembered { pool, dead, last_session, ..began };
        Ok(Beginning { ledger, start: Start::Restored, learning, remembered, journal })
    }
}

/// The journal stays as it is: it may be all that leads back to that pool.
fn pool_in_use(keeping: &Keeping) -> Problems {
    let rule = "an engine still uses the pool of an earlier start, and these settings are of another pool, or of none";
    let remedy = "start with the settings of that start, or stop the engine";
    let place = keeping.journal.as_deref().unwrap_or(Path::new("")).display();
    Problems::one(Problem::new("journal file", place, rule, remedy))
}

/// Whether these are the very files of that pool.
fn files_of(pool: &KeptPool, files: &[OwnedFd]) -> bool {
    let same = |(kept, file): (&hisparse_mem::pool::KeptSegment, &OwnedFd)| {
        Identity::of(file.as_fd()).is_ok_and(|found| found == kept.identity)
    };
    files.len() == pool.segments.len() && pool.segments.iter().zip(files).all(same)
}

/// What a node begins with.
#[derive(Debug)]
pub(crate) struct Beginning {
    pub(crate) ledger: Ledger,
    pub(crate) start: Start,
    /// How long leases may be out that it does not know of.
    pub(crate) learning: Option<Duration>,
    pub(crate) remembered: Remembered,
    /// Where to keep a journal; `None` for nowhere.
    pub(crate) journal: Option<PathBuf>,
}

impl Beginning {
    /// Everything is free, and nothing is kept.
    ///
    /// # Errors
    /// Figures that no ledger can be made of.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn unkept(config: LedgerConfig, epoch: Epoch) -> Result<Self, Problems> {
        let ledger = Ledger::new(config, epoch, &mut MachineEntropy)?;
        Ok(Self { ledger, start: Start::New, learning: None, remembered: Remembered::default(), journal: None })
    }
}
