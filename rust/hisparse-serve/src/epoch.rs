//! The pool's generation number, larger at every start.
//!
//! ```text
//!  epoch = max( 64-second steps since 2026 , last epoch in the file + 1 )
//!                  └─ holds where the file was lost      └─ holds where the clock went back, or a restart is quick
//! ```
//! The file lies beside the socket, as the journal of later versions will. Without a socket there is only the clock.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::ledger::Epoch;

/// 2026-01-01 00:00 UTC in seconds since 1970.
const FIRST_STEP_S: u64 = 1_767_225_600;
/// 2^24 steps of 64 s are 34 years.
const STEP_S: u64 = 64;

/// Where the last epoch of the server at `socket` is kept.
pub(crate) fn file_beside(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".epoch");
    PathBuf::from(name)
}

/// The next epoch, noted in the file before it is used.
///
/// # Errors
/// The file cannot be read or written, or does not hold an epoch.
pub(crate) fn next(file: Option<&Path>, since_unix_epoch: Duration) -> Result<Epoch, Problems> {
    let by_clock = since_unix_epoch.as_secs().saturating_sub(FIRST_STEP_S) / STEP_S;
    let Some(file) = file else { return number(by_clock.max(1), "the clock") };
    let problem = |rule: String| {
        let remedy = "make its folder writable, or move the file away if no server runs here";
        Problems::one(Problem::new("epoch file", file.display(), rule, remedy))
    };
    let last = match fs::read_to_string(file) {
        Ok(text) => text.trim().parse::<u64>().map_err(|_| problem("does not hold a number".into()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(problem(error.to_string())),
    };
    let epoch = number(by_clock.max(last.saturating_add(1)), &file.display().to_string())?;
    write(file, epoch).map_err(|error| problem(error.to_string()))?;
    Ok(epoch)
}

fn number(number: u64, source: &str) -> Result<Epoch, Problems> {
    Epoch::new(number).ok_or_else(|| {
        let rule = format!("epochs run from 1 to {}", Epoch::MAX);
        Problems::one(Problem::new("epoch", number, rule, format!("set {source} right")))
    })
}

/// Beside it, to the disk, then over it: a crash leaves the old number or the new one.
fn write(file: &Path, epoch: Epoch) -> io::Result<()> {
    let aside = file.with_extension("epoch.new");
    let mut new = fs::File::create(&aside)?;
    writeln!(new, "{epoch}")?;
    new.sync_all()?;
    fs::rename(aside, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(FIRST_STEP_S + 1_000 * STEP_S);

    #[test]
    fn two_starts_in_the_same_moment_have_different_epochs() {
        let home = tempfile::tempdir().unwrap();
        let file = file_beside(&home.path().join("h.sock"));
        assert_eq!(next(Some(&file), NOW).unwrap().get(), 1_000);
        assert_eq!(next(Some(&file), NOW).unwrap().get(), 1_001);
    }

    #[test]
    fn a_clock_set_back_and_a_lost_file_are_each_survived() {
        let home = tempfile::tempdir().unwrap();
        let file = file_beside(&home.path().join("h.sock"));
        next(Some(&file), NOW).unwrap();
        assert_eq!(next(Some(&file), Duration::ZERO).unwrap().get(), 1_001);
        fs::remove_file(&file).unwrap();
        assert_eq!(next(Some(&file), NOW + Duration::from_secs(STEP_S)).unwrap().get(), 1_001);
        assert_eq!(next(None, Duration::ZERO).unwrap().get(), 1);
    }

    #[test]
    fn a_broken_file_is_named_and_not_overwritten() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("h.sock.epoch");
        fs::write(&file, "twelve").unwrap();
        assert!(next(Some(&file), NOW).unwrap_err().to_string().contains("does not hold a number"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "twelve");
    }
}
