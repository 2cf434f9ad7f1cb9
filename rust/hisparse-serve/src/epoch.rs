//! The pool's generation number, larger at every start.
//!
//! ```text
//!  epoch = max( milliseconds since 2026 , last epoch in the file + 1 )
//!                  └─ holds where the file was lost   └─ holds where the clock went back
//! ```
//! No two starts share a millisecond, so either of the two is enough: a lease of a dead pool never names one of a new.
//! The file lies beside the socket, as the journal does. Without a socket there is only the clock.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::ledger::Epoch;
use hisparse_mem::beside::beside;
use hisparse_mem::whole_file::{self, Outlives};

/// 2026-01-01 00:00 UTC, since 1970.
const FIRST: Duration = Duration::from_secs(1_767_225_600);
/// Longest file that can hold an epoch, in bytes; a longer one is damaged, and need not be read.
const MAX_FILE_BYTES: u64 = 64;

/// Where the last epoch of the server at `socket` is kept.
pub(crate) fn file_beside(socket: &Path) -> PathBuf {
    beside(socket, ".epoch")
}

/// The next epoch, later than `after` (what a journal knows of), noted in the file before it is used; and what to tell the operator, where the file was damaged.
///
/// # Errors
/// The file cannot be read or written, or the clock is wrong by decades.
pub(crate) fn next(
    file: Option<&Path>,
    after: u64,
    since_unix_epoch: Duration,
) -> Result<(Epoch, Option<String>), Problems> {
    let by_clock = u64::try_from(since_unix_epoch.saturating_sub(FIRST).as_millis()).unwrap_or(u64::MAX);
    let by_clock = by_clock.max(after.saturating_add(1));
    let Some(file) = file else { return Ok((number(by_clock.max(1), "the clock")?, None)) };
    let problem = |error: &io::Error| {
        let rule = format!("holds the server's last generation and cannot be used: {error}");
        Problems::one(Problem::new("epoch file", file.display(), rule, remedy(file, error)))
    };
    let (last, warning) = match read(file) {
        Ok(Some(last)) => (last.get(), None),
        Ok(None) => {
            let shown = file.display();
            (0, Some(format!("the epoch file {shown} held no epoch; the clock has set a new one: {by_clock}")))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => (0, None),
        Err(error) => return Err(problem(&error)),
    };
    let source = if by_clock > last { "the clock".to_owned() } else { file.display().to_string() };
    let epoch = number(by_clock.max(last.saturating_add(1)), &source)?;
    let text = format!("{epoch}\n");
    // After a failure of the machine too: a clock that was set right meanwhile must not find lower ground.
    whole_file::put(file, text.as_bytes(), Outlives::Machine).map_err(|failed| problem(&failed.error))?;
    Ok((epoch, warning))
}

/// The epoch in the file; `None` where it holds anything else, as after a disk that was full.
fn read(file: &Path) -> io::Result<Option<Epoch>> {
    let mut text = Vec::new();
    File::open(file)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut text)?;
    Ok(str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()).and_then(Epoch::new))
}

/// What helps against that error.
fn remedy(file: &Path, error: &io::Error) -> &'static str {
    if file.is_dir() {
        "it is a folder: move it away, or give another path for the socket"
    } else if error.kind() == io::ErrorKind::PermissionDenied {
        "let the server's user read and write it and its folder, or give another path for the socket"
    } else {
        "make its folder writable and its disk have room, or give another path for the socket"
    }
}

fn number(number: u64, source: &str) -> Result<Epoch, Problems> {
    Epoch::new(number).ok_or_else(|| {
        let rule = format!("epochs run from 1 to {}", Epoch::MAX);
        Problems::one(Problem::new("epoch", number, rule, format!("set {source} right")))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const NOW: Duration = FIRST.saturating_add(Duration::from_secs(1_000));

    fn epoch(file: Option<&Path>, now: Duration) -> u64 {
        let (epoch, warning) = next(file, 0, now).unwrap();
        assert_eq!(warning, None);
        epoch.get()
    }

    #[test]
    fn two_starts_in_the_same_moment_have_different_epochs() {
        let home = tempfile::tempdir().unwrap();
        let file = file_beside(&home.path().join("h.sock"));
        assert_eq!(epoch(Some(&file), NOW), 1_000_000);
        assert_eq!(epoch(Some(&file), NOW), 1_000_001);
    }

    #[test]
    fn a_clock_set_back_and_a_lost_file_are_each_survived() {
        let home = tempfile::tempdir().unwrap();
        let file = file_beside(&home.path().join("h.sock"));
        epoch(Some(&file), NOW);
        assert_eq!(epoch(Some(&file), Duration::ZERO), 1_000_001);
        fs::remove_file(&file).unwrap();
        assert_eq!(epoch(Some(&file), NOW + Duration::from_millis(100)), 1_000_100);
        assert_eq!(epoch(None, Duration::ZERO), 1);
    }

    #[test]
    fn a_damaged_file_counts_as_lost_and_is_told_and_mended() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("h.sock.epoch");
        let beyond = (Epoch::MAX + 1).to_string();
        let long = "9".repeat(1_000);
        for content in ["", "\n", "twelve", "-5", "0", "1.5", &beyond, &long, "\u{0}\u{0}"] {
            fs::write(&file, content).unwrap();
            let (epoch, warning) = next(Some(&file), 0, NOW).unwrap();
            assert_eq!(epoch.get(), 1_000_000, "{content:?}");
            assert!(warning.unwrap().contains("held no epoch"), "{content:?}");
            assert_eq!(fs::read_to_string(&file).unwrap(), "1000000\n", "{content:?}");
        }
        fs::write(&file, [0xff, 0xfe]).unwrap();
        assert!(next(Some(&file), 0, NOW).unwrap().1.is_some());
    }

    #[test]
    fn a_folder_in_its_place_is_refused_and_kept() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("h.sock.epoch");
        fs::create_dir(&file).unwrap();
        let refused = next(Some(&file), 0, NOW).unwrap_err().to_string();
        assert!(refused.contains("it is a folder: move it away"), "{refused}");
        assert!(file.is_dir());
    }

    #[test]
    fn an_epoch_that_cannot_be_written_leaves_the_last_one() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("h.sock.epoch");
        epoch(Some(&file), NOW);
        fs::create_dir(beside(&file, ".new")).unwrap();
        let refused = next(Some(&file), 0, NOW).unwrap_err().to_string();
        assert!(refused.contains("cannot be used") && refused.contains("make its folder writable"), "{refused}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "1000000\n");
    }

    #[test]
    fn a_clock_wrong_by_decades_is_refused() {
        let refused = next(None, 0, NOW + Duration::from_secs(100 * 366 * 86_400)).unwrap_err().to_string();
        assert!(refused.contains("set the clock right"), "{refused}");
    }
}
