//! A small file that is put in the place of the one before it: whole, or not at all.
//!
//! ```text
//!  FILE.new   made anew, 0600 ─ written ─ synced ──► renamed to FILE ──► folder synced
//!  FILE       └──────── the old one ────────────────┘└─────── the new one ───────────
//! ```
//! What a caller may rely on:
//!
//! - Who opens `FILE` finds all of the old one or all of the new one, at any moment and after any kill of this process.
//! - Nobody but the owner can open it, whatever the mode of the old one was.
//! - A failure before the rename leaves the old one as it is and takes `FILE.new` away; [`NotPut::in_place`] tells.
//! - What a killed process left of `FILE.new` is in nobody's way: the next one begins it anew, and follows no link there.
//! - Under [`Outlives::Machine`] the new one is on the disk, under its name, when the call returns.
//!
//! One writer at a time: who writes it holds the lock of its socket or of its folder.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::beside::beside;
use crate::memfd::OWNER_ONLY;

/// What a file in its place outlives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlives {
    /// A kill of its process, and no failure of the machine: after one it may be the old one, or broken. For what means
    /// nothing after a reboot, and must not wait for a disk.
    Process,
    /// The machine's failure too: content and name are synced to the disk, which can take as long as the disk does.
    Machine,
}

/// Why a file was not put in its place, or is not known to stay there.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {error}", .path.display())]
pub struct NotPut {
    action: &'static str,
    path: PathBuf,
    /// The system's answer.
    #[source]
    pub error: io::Error,
    /// Whether the new one is in its place all the same, and only the sync of its folder failed.
    pub in_place: bool,
}

/// A new content that is being written beside its place. Dropped before [`WholeFile::put`], it is gone.
#[derive(Debug)]
pub struct WholeFile {
    path: PathBuf,
    aside: Aside,
    file: File,
}

/// A name that is to be free again, unless the file got another.
#[derive(Debug)]
struct Aside {
    path: PathBuf,
    taken: bool,
}

impl Drop for Aside {
    fn drop(&mut self) {
        if self.taken {
            // What stays there is in nobody's way.
            let _stays = fs::remove_file(&self.path);
        }
    }
}

/// Puts these bytes in the place of the file at `path`, and gives it open, to be written behind them.
///
/// # Errors
/// [`NotPut`]: no room, no right to write there, or a folder in the way.
pub fn put(path: &Path, bytes: &[u8], outlives: Outlives) -> Result<File, NotPut> {
    let mut new = WholeFile::beside(path)?;
    new.write(bytes)?;
    new.put(outlives)
}

impl WholeFile {
    /// Begins a new content for the file at `path`.
    ///
    /// # Errors
    /// [`NotPut`].
    pub fn beside(path: &Path) -> Result<Self, NotPut> {
        let mut aside = Aside { path: beside(path, ".new"), taken: false };
        match fs::remove_file(&aside.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(aside.failed("remove", error)),
            _ => {}
        }
        let mut options = File::options();
        options.write(true).create_new(true).mode(OWNER_ONLY.as_raw_mode());
        let file = options.open(&aside.path).map_err(|error| aside.failed("make", error))?;
        aside.taken = true;
        Ok(Self { path: path.to_path_buf(), aside, file })
    }

    /// Writes these bytes behind what it has.
    ///
    /// # Errors
    /// [`NotPut`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), NotPut> {
        self.file.write_all(bytes).map_err(|error| self.aside.failed("write", error))
    }

    /// Puts it in its place, and gives it open, to be written behind what it has.
    ///
    /// # Errors
    /// [`NotPut`].
    pub fn put(self, outlives: Outlives) -> Result<File, NotPut> {
        let Self { path, mut aside, file } = self;
        let synced = outlives == Outlives::Machine;
        if synced {
            file.sync_all().map_err(|error| aside.failed("sync", error))?;
        }
        let failed = |action, path: &Path, error, in_place| NotPut { action, path: path.into(), error, in_place };
        fs::rename(&aside.path, &path).map_err(|error| failed("replace", &path, error, false))?;
        aside.taken = false;
        if synced {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let folder_synced = File::open(folder).and_then(|folder| folder.sync_all());
            folder_synced.map_err(|error| failed("sync the folder", folder, error, true))?;
        }
        Ok(file)
    }
}

impl Aside {
    fn failed(&self, action: &'static str, error: io::Error) -> NotPut {
        NotPut { action, path: self.path.clone(), error, in_place: false }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const BOTH: [Outlives; 2] = [Outlives::Process, Outlives::Machine];

    fn file(home: &tempfile::TempDir) -> PathBuf {
        home.path().join("h.sock.word")
    }

    fn names(home: &tempfile::TempDir) -> Vec<String> {
        let entries = fs::read_dir(home.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_new_content_is_there_alone_and_its_owners_and_can_be_written_on() {
        for outlives in BOTH {
            let home = tempfile::tempdir().unwrap();
            fs::write(file(&home), "old, and longer").unwrap();
            fs::set_permissions(file(&home), PermissionsExt::from_mode(0o666)).unwrap();
            let mut put = put(&file(&home), b"new", outlives).unwrap();
            assert_eq!(names(&home), ["h.sock.word"]);
            assert_eq!(fs::metadata(file(&home)).unwrap().permissions().mode() & 0o777, 0o600);
            put.write_all(b"er").unwrap();
            assert_eq!(fs::read(file(&home)).unwrap(), b"newer");
        }
    }

    #[test]
    fn a_kill_before_the_rename_leaves_the_old_one_and_nothing_in_the_way() {
        let home = tempfile::tempdir().unwrap();
        fs::write(file(&home), "old").unwrap();
        // Nothing of it runs before the end of this test, as after SIGKILL.
        let mut killed = WholeFile::beside(&file(&home)).unwrap();
        killed.write(b"half of a n").unwrap();
        assert_eq!(fs::read(file(&home)).unwrap(), b"old");
        assert!(names(&home).contains(&"h.sock.word.new".to_owned()));
        put(&file(&home), b"new", Outlives::Machine).unwrap();
        assert_eq!(fs::read(file(&home)).unwrap(), b"new");
        assert_eq!(names(&home), ["h.sock.word"]);
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_one_alone_and_says_where() {
        let home = tempfile::tempdir().unwrap();
        fs::write(file(&home), "old").unwrap();
        let mut new = WholeFile::beside(&file(&home)).unwrap();
        new.file = File::options().write(true).open("/dev/full").unwrap();
        let refused = new.write(b"new").unwrap_err();
        drop(new);
        let said = refused.to_string();
        assert!(said.contains("cannot write") && said.contains("h.sock.word.new: No space left"), "{said}");
        assert!(!refused.in_place && refused.error.kind() == io::ErrorKind::StorageFull);
        assert_eq!((fs::read(file(&home)).unwrap(), names(&home)), (b"old".to_vec(), vec!["h.sock.word".into()]));
    }

    #[test]
    #[allow(clippy::print_stderr)] // a test says what it could not look at
    fn a_folder_that_cannot_be_written_leaves_the_old_one_and_says_so() {
        if rustix::process::geteuid().is_root() {
            eprintln!("skipped: root writes to every folder");
            return;
        }
        let home = tempfile::tempdir().unwrap();
        fs::write(file(&home), "old").unwrap();
        fs::set_permissions(home.path(), PermissionsExt::from_mode(0o500)).unwrap();
        let refused = put(&file(&home), b"new", Outlives::Machine).unwrap_err();
        fs::set_permissions(home.path(), PermissionsExt::from_mode(0o700)).unwrap();
        assert_eq!(refused.error.kind(), io::ErrorKind::PermissionDenied, "{refused}");
        assert_eq!(fs::read(file(&home)).unwrap(), b"old");
    }

    #[test]
    fn a_folder_in_the_way_of_either_name_is_refused_and_stays() {
        for in_the_way in ["h.sock.word.new", "h.sock.word"] {
            let home = tempfile::tempdir().unwrap();
            let folder = home.path().join(in_the_way);
            fs::create_dir(&folder).unwrap();
            let refused = put(&file(&home), b"new", Outlives::Machine).unwrap_err();
            assert!(!refused.in_place && refused.to_string().contains(in_the_way), "{refused}");
            assert!(folder.is_dir());
            assert_eq!(names(&home), [in_the_way]);
        }
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let victim = home.path().join("of somebody else");
        fs::write(&victim, "theirs").unwrap();
        std::os::unix::fs::symlink(&victim, home.path().join("h.sock.word.new")).unwrap();
        put(&file(&home), b"new", Outlives::Process).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"theirs");
        assert!(fs::symlink_metadata(file(&home)).unwrap().is_file());
    }
}
