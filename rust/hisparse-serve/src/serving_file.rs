//! Which journal speaks for the leases of a socket: the word that a server of counts alone leaves for the next start.
//!
//! ```text
//!  begins ─► SOCKET.serving {journal, epoch, boot} ── ends, and holds no lease ─► removed
//!
//!  the next start there finds   none, or one of another boot          ─► nothing is out
//!                               its own journal named, and read       ─► the journal tells
//!                               another journal, without a lease      ─► nothing is out
//!                               another journal, with leases          ─► waits one lease life from what it says last on
//!                               a journal that is not there           ─► waits one lease life
//! ```
//! A start that waits writes down for which journal: the start that names that one again has nothing to wait for.
//!
//! A start that is refused leaves no such word. Times are those that the machine has been up: a word or a journal of another
//! boot is none, and neither a wall clock that is set nor a file's own time, which any copy changes, makes a wait shorter.
//! A server that owns its pool's bytes needs none: its leases are of that pool, and end with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::ledger::Epoch;
use hisparse_core::limits::JOURNAL_TIME_STEP;
use hisparse_mem::beside::beside;
use hisparse_mem::whole_file::{self, Outlives};
use serde::{Deserialize, Serialize};

use crate::journal;
use crate::remembered::this_boot;

/// The file's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Word {
    /// Where its leases are written down.
    journal: PathBuf,
    /// The state directory that the journal is in; without one it lies beside the socket.
    state_dir: Option<PathBuf>,
    epoch: u64,
    boot: String,
    /// Until when it granted nothing itself, in milliseconds that the machine had been up; 0 where it granted from the first.
    learning_until_ms: u64,
    /// The one journal whose leases it waited for, where it was one and was there.
    #[serde(default)]
    learning_of: Option<Other>,
}

/// A journal that a start did not name, whose leases it waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Other {
    journal: PathBuf,
    state_dir: Option<PathBuf>,
    epoch: u64,
}

impl Other {
    /// Why a start that does not name it waits, and how it need not.
    fn why(&self) -> String {
        let remedy = match &self.state_dir {
            Some(dir) => format!("start with --state-dir {} to go on with them", dir.display()),
            None => "start without --state-dir to go on with them".to_owned(),
        };
        format!("its leases are in another journal than is named now, {}: {remedy}", self.journal.display())
    }
}

/// Leases may be out that no journal at hand tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unsure {
    /// When they have ended: how long to grant nothing.
    pub(crate) wait: Duration,
    /// What to tell the operator.
    pub(crate) warning: String,
    /// The one journal that tells of them, where there is one.
    of: Option<Other>,
}

/// The word of one socket, as one start sees it. Dropped before [`ServingFile::keep`], it is again as it was found.
#[derive(Debug)]
pub(crate) struct ServingFile {
    file: PathBuf,
    ours: Word,
    replaced: Replaced,
}

/// What ours took the place of.
#[derive(Debug)]
enum Replaced {
    /// It is not there yet, or is there for good.
    Nothing,
    NoFile,
    File(Vec<u8>),
}

impl ServingFile {
    /// The word that a start of this epoch is to leave beside `socket`.
    pub(crate) fn beside(socket: &Path, journal: &Path, state_dir: Option<&Path>, epoch: Epoch) -> Self {
        let ours = Word {
            journal: settled(journal),
            state_dir: state_dir.map(settled),
            epoch: epoch.get(),
            boot: this_boot(),
            learning_until_ms: 0,
            learning_of: None,
        };
        Self { file: beside(socket, ".serving"), ours, replaced: Replaced::Nothing }
    }

    /// Whether the start before may have leases out that our journal does not tell of. `journal_epoch` is the last start
    /// that our journal knows of, 0 without one; `now` is since the boot; a lease ends by itself after `life`.
    pub(crate) fn judge(&self, journal_epoch: u64, life: Duration, now: Duration) -> Option<Unsure> {
        let text = match fs::read(&self.file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                return Some(self.unsure(life, &format!("{} cannot be read ({error})", self.file.display()), None));
            }
        };
        let Ok(word) = serde_json::from_slice::<Word>(&text) else {
            return Some(self.unsure(life, &format!("{} is damaged", self.file.display()), None));
        };
        if word.boot != self.ours.boot {
            return None;
        }
        // What it waited for is what our own journal tells: then that wait is over.
        let found = word.learning_of.as_ref().is_some_and(|other| other.epoch == journal_epoch);
        let until = if found { 0 } else { word.learning_until_ms };
        let learns = Duration::from_millis(until).saturating_sub(now).min(life);
        // Who wrote the word wrote its journal first: a journal later than the word is of a start that was cut off there.
        let same = word.journal == self.ours.journal;
        let own = journal_epoch == word.epoch || (same && journal_epoch > word.epoch);
        let theirs = if own { Some(Duration::ZERO) } else { unended(&word, life, now) };
        let Some(theirs) = theirs else {
            let why = format!("its journal, {}, is gone or cannot be used", word.journal.display());
            return Some(self.unsure(life, &why, None));
        };
        let Word { journal, state_dir, epoch, learning_of, .. } = word;
        let yet = "the start before had yet to wait for leases that it did not know of";
        let (why, of) = match (theirs.is_zero(), learns.is_zero()) {
            (true, true) => return None,
            (true, false) => (learning_of.as_ref().map_or_else(|| yet.to_owned(), Other::why), learning_of),
            (false, nothing_else) => {
                let other = Other { journal, state_dir, epoch };
                (other.why(), Some(other).filter(|_| nothing_else))
            }
        };
        Some(self.unsure(theirs.max(learns), &why, of))
    }

    fn unsure(&self, wait: Duration, why: &str, of: Option<Other>) -> Unsure {
        let wait_s = wait.as_millis().div_ceil(1_000);
        let file = self.file.display();
        let warning = format!(
            "who holds what the start before granted is unknown: {why}. Nothing is granted for {wait_s} s, when every lease \
             of before has ended. Where nobody uses one any more, as when the engine was started anew: stop this service, \
             remove {file}, and start it again"
        );
        Unsure { wait, warning, of }
    }

    /// Leaves the word: from now on, `now` since the boot, leases may be out. `unsure`: of what none will be granted.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn leave(&mut self, unsure: Option<&Unsure>, now: Duration) -> Result<(), Problems> {
        let until =
            unsure.map_or(0, |unsure| u64::try_from(now.saturating_add(unsure.wait).as_millis()).unwrap_or(u64::MAX));
        let learning_of = unsure.and_then(|unsure| unsure.of.clone());
        let word = Word { learning_until_ms: until, learning_of, ..self.ours.clone() };
        // Plain data with text for keys: nothing of it can fail to be written.
        let text = serde_json::to_vec(&word).unwrap_or_default();
        self.replaced = fs::read(&self.file).map_or(Replaced::NoFile, Replaced::File);
        // A word that a failing machine broke would cost the next start a wait for nothing.
        whole_file::put(&self.file, &text, Outlives::Machine).map_err(|error| {
            let remedy = "make its folder writable and have room, or give another path for the socket";
            Problems::one(Problem::new("serving file", self.file.display(), error.to_string(), remedy))
        })?;
        Ok(())
    }

    /// The service has begun: the word outlives it.
    pub(crate) fn keep(&mut self) {
        self.replaced = Replaced::Nothing;
    }

    /// Nothing is out: the next start has nothing to wait for.
    pub(crate) fn remove(&self) {
        // What stays there costs the next start a wait, and no lease.
        let _stays = fs::remove_file(&self.file);
    }
}

impl Drop for ServingFile {
    fn drop(&mut self) {
        // A start that came to nothing granted nothing. What cannot be put back costs the next one a wait, and no lease.
        match &self.replaced {
            Replaced::File(before) => drop(whole_file::put(&self.file, before, Outlives::Machine)),
            Replaced::NoFile => self.remove(),
            Replaced::Nothing => {}
        }
    }
}

/// How long leases of that journal may still be held, zero where there are none; `None` where it does not tell.
fn unended(word: &Word, life: Duration, now: Duration) -> Option<Duration> {
    let found = journal::read(&word.journal).ok()??;
    if found.remembered.epoch != word.epoch {
        return None;
    }
    if found.image.leases() == 0 {
        return Some(Duration::ZERO);
    }
    let told = Some(found.remembered.since_boot_ms).filter(|told| *told > 0);
    let last = told.map_or(now, |told| Duration::from_millis(told).saturating_add(JOURNAL_TIME_STEP));
    Some(last.saturating_add(life).saturating_sub(now).min(life))
}

/// The path without links and dots in its folder, which is there.
fn settled(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (folder.canonicalize(), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use hisparse_core::env::Moment;
    use hisparse_core::ledger::{AdmitRequest, Ledger, LedgerConfig, NodeCapacity};

    use super::*;
    use crate::env::MachineEntropy;
    use crate::journal::Journal;
    use crate::remembered::Remembered;

    const LIFE: Duration = Duration::from_secs(600);
    const EPOCH: u64 = 7;

    /// A word whose journal was begun 100 s after the boot, and is not the one that is named now.
    struct Left {
        home: tempfile::TempDir,
        ledger: Ledger,
        journal: Journal,
    }

    impl Left {
        fn new(begun: Duration) -> Self {
            let home = tempfile::tempdir().unwrap();
            let config = LedgerConfig::new(NodeCapacity::of_host_pages(100, 50));
            let mut ledger = Ledger::new(config, Epoch::FIRST, &mut MachineEntropy).unwrap();
            ledger.keep_log();
            let since_boot_ms = u64::try_from(begun.as_millis()).unwrap();
            let remembered = Remembered { epoch: EPOCH, since_boot_ms, ..Remembered::default() };
            let journal = Journal::begin(&home.path().join("theirs"), &ledger.image(), &remembered).unwrap();
            let mut word = word(&home, "theirs");
            word.leave(None, begun).unwrap();
            word.keep();
            Self { home, ledger, journal }
        }

        /// Grants a lease so long after the boot.
        fn grant(&mut self, now: Duration) {
            self.ledger.admit(&AdmitRequest::new("", 64, 0), Moment::ORIGIN).unwrap();
            let mut records = Vec::new();
            self.ledger.take_log(&mut records);
            self.journal.append(&mut records, u64::try_from(now.as_millis()).unwrap());
            assert_eq!(self.journal.flush(), None);
        }

        fn wait(&self, now: Duration) -> Option<Duration> {
            word(&self.home, "ours").judge(0, LIFE, now).map(|unsure| unsure.wait)
        }
    }

    fn word(home: &tempfile::TempDir, journal: &str) -> ServingFile {
        let epoch = Epoch::new(EPOCH).unwrap();
        ServingFile::beside(&home.path().join("h.sock"), &home.path().join(journal), None, epoch)
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn leases_of_a_journal_that_is_not_named_end_a_life_after_what_it_says_last() {
        let mut left = Left::new(s(100));
        assert_eq!(left.wait(s(150)), None, "it holds nothing");
        left.grant(s(200));
        assert_eq!(left.wait(s(200)), Some(LIFE));
        assert_eq!(left.wait(s(500)), Some(s(200 + 1 + 600 - 500)));
        assert_eq!(left.wait(s(801)), None);
        left.grant(s(200) + Duration::from_millis(999));
        assert_eq!(left.wait(s(500)), Some(s(301)), "within the second that is told already");
        left.grant(s(300));
        assert_eq!(left.wait(s(500)), Some(s(401)));
        left.journal.compact();
        assert_eq!(left.wait(s(500)), Some(s(401)), "a compacted one says the same");
        assert_eq!(left.wait(s(50)), Some(LIFE), "never longer than a life, whatever it says");
    }

    #[test]
    fn who_names_the_journal_that_was_waited_for_waits_for_nothing() {
        let mut left = Left::new(s(100));
        left.grant(s(200));
        let later = Epoch::new(EPOCH + 1).unwrap();
        let begun = Remembered { epoch: later.get(), since_boot_ms: 300_000, ..Remembered::default() };
        let empty = Ledger::new(LedgerConfig::new(NodeCapacity::of_host_pages(100, 50)), later, &mut MachineEntropy);
        let path = left.home.path().join("ours");
        let _ours = Journal::begin(&path, &empty.unwrap().image(), &begun).unwrap();
        let mut without = ServingFile::beside(&left.home.path().join("h.sock"), &path, None, later);
        for again in [0, later.get()] {
            let unsure = without.judge(again, LIFE, s(300)).unwrap();
            assert_eq!(unsure.wait, s(501), "that other journal is not named, at the first start and the next");
            assert!(unsure.warning.contains("/theirs: start without --state-dir"), "{}", unsure.warning);
            without.leave(Some(&unsure), s(300)).unwrap();
            without.keep();
        }
        assert_eq!(left.wait(s(300)), Some(s(501)), "a third journal tells of neither");
        let named = word(&left.home, "theirs");
        assert_eq!(named.judge(EPOCH, LIFE, s(300)), None, "it is named again");
        assert_eq!(named.judge(EPOCH - 1, LIFE, s(300)).unwrap().wait, s(501), "what it was before is not what it is");
    }

    #[test]
    fn a_journals_own_time_says_nothing_of_its_leases() {
        let mut left = Left::new(s(100));
        left.grant(s(200));
        let file = fs::File::options().append(true).open(left.home.path().join("theirs")).unwrap();
        for modified in [SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + s(u64::from(u32::MAX))] {
            file.set_modified(modified).unwrap();
            assert_eq!(left.wait(s(500)), Some(s(301)), "{modified:?}");
        }
    }

    #[test]
    fn leases_of_a_journal_that_tells_no_time_are_waited_for_a_whole_life() {
        let mut left = Left::new(s(0));
        left.grant(s(0));
        assert_eq!(left.wait(s(10_000)), Some(LIFE));
    }
}
