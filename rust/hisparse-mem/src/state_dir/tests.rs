//! Folders in memory: whole segments, one service, and nothing left of a start that came to nothing.

use super::*;

/// A folder in memory; `None`, said aloud, where this machine has no `/dev/shm`.
fn folder() -> Option<tempfile::TempDir> {
    let made = tempfile::Builder::new().permissions(private()).tempdir_in("/dev/shm").ok();
    if made.is_none() {
        eprintln!("skipped: no writable /dev/shm here");
    }
    made
}

fn private() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o700)
}

fn names(path: &Path) -> Vec<String> {
    crate::root::Root::at(path).list("/")
}

#[test]
fn a_segment_has_a_name_only_when_it_is_whole() {
    let Some(folder) = folder() else { return };
    let dir = StateDir::open(folder.path()).unwrap();
    let generation = dir.new_generation().unwrap();
    let file = generation.create().unwrap();
    assert_eq!(dir.segments().unwrap(), []);
    generation.publish(file.as_fd(), 3).unwrap();
    assert_eq!(dir.segments().unwrap(), [("segment-0000000000000001-0003".to_owned(), 1)]);
    drop(generation.create().unwrap());
    assert_eq!(names(folder.path()), ["generation", "segment-0000000000000001-0003", "serve.lock", "sessions.lock"]);
}

#[test]
fn a_new_generation_sweeps_the_old_and_counts_on() {
    let Some(folder) = folder() else { return };
    for expected in 1..4 {
        let mut dir = StateDir::open(folder.path()).unwrap();
        dir.keep();
        let generation = dir.new_generation().unwrap();
        assert_eq!(generation.number(), expected);
        assert_eq!(dir.segments().unwrap(), [], "older segments are gone");
        generation.publish(generation.create().unwrap().as_fd(), 0).unwrap();
    }
    std::fs::write(folder.path().join("generation"), "not a number").unwrap();
    let dir = StateDir::open(folder.path()).unwrap();
    assert_eq!(dir.new_generation().unwrap().number(), 4, "the names tell where the record does not");
}

#[test]
fn two_services_never_share_a_folder() {
    let Some(folder) = folder() else { return };
    let first = StateDir::open(folder.path()).unwrap();
    assert!(matches!(StateDir::open(folder.path()), Err(StateDirError::InUse { .. })));
    drop(first);
    assert!(StateDir::open(folder.path()).is_ok());
}

#[test]
fn no_new_pool_is_made_while_an_engine_is_attached() {
    let Some(folder) = folder() else { return };
    let dir = StateDir::open(folder.path()).unwrap();
    let session = dir.session_lock().hold().unwrap();
    let refusal = dir.new_generation().unwrap_err();
    assert!(matches!(refusal, StateDirError::Attached { .. }), "{refusal}");
    drop(session);
    assert!(dir.new_generation().is_ok());
}

#[test]
fn a_folder_others_can_reach_into_is_refused_with_the_remedy() {
    let Some(folder) = folder() else { return };
    let shared = std::os::unix::fs::PermissionsExt::from_mode(0o750);
    std::fs::set_permissions(folder.path(), shared).unwrap();
    assert!(StateDir::open(folder.path()).unwrap_err().remedy().contains("chmod 700"));
}

#[test]
fn a_refusal_names_the_folder_and_once_what_helps() {
    let Some(home) = folder() else { return };
    let _first = StateDir::open(home.path()).unwrap();
    let missing = home.path().join("a/b");
    for (path, rule, remedy) in [
        (home.path(), "another service uses", "stop that service"),
        (&missing, "cannot make", "make the folder that it is to be in"),
    ] {
        let said = StateDir::open(path).unwrap_err().problem(path).to_string();
        let shown = path.display().to_string();
        assert!(said.starts_with(&format!("--state-dir is {shown}: {rule}")) && said.contains(remedy), "{said}");
        assert_eq!(said.matches("another folder").count(), 1, "{said}");
    }
}

#[test]
fn a_refused_folder_is_left_behind_only_where_it_was_there_before() {
    let on_disk = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let missing = on_disk.path().join("state");
    let Err(StateDirError::OnDisk { .. }) = StateDir::open(&missing) else {
        eprintln!("skipped: the sources are not on a disk that can be told from memory");
        return;
    };
    assert!(!missing.exists(), "it was made for this alone");
    std::fs::create_dir(&missing).unwrap();
    std::fs::set_permissions(&missing, private()).unwrap();
    assert!(matches!(StateDir::open(&missing), Err(StateDirError::OnDisk { .. })));
    assert!(missing.exists(), "it is not ours to remove");
}

#[test]
fn a_start_that_comes_to_nothing_leaves_the_folder_as_it_was() {
    let Some(home) = folder() else { return };
    let path = home.path().join("state");
    let begin = |keep: bool| {
        let mut dir = StateDir::open(&path).unwrap();
        dir.new_generation().unwrap();
        std::fs::write(dir.journal(), "").unwrap();
        if keep {
            dir.keep();
        }
    };
    begin(false);
    assert!(!path.exists(), "it was made for this alone");

    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, private()).unwrap();
    std::fs::write(path.join("of another"), "").unwrap();
    begin(false);
    assert_eq!(names(&path), ["of another"]);

    begin(true);
    let kept = names(&path);
    assert_eq!(kept, ["generation", "journal", "of another", "serve.lock", "sessions.lock"]);
    begin(false);
    assert_eq!(names(&path), kept, "what a service left stays");
}

#[test]
fn a_lock_whose_file_was_taken_away_keeps_nobody_out() {
    let Some(home) = folder() else { return };
    let folder = rustix::fs::open(home.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    let lock = open_lock(folder.as_fd(), SERVE_LOCK).unwrap();
    assert!(is_named(folder.as_fd(), SERVE_LOCK, lock.as_fd()));
    std::fs::remove_file(home.path().join(SERVE_LOCK)).unwrap();
    assert!(!is_named(folder.as_fd(), SERVE_LOCK, lock.as_fd()));
    drop(open_lock(folder.as_fd(), SERVE_LOCK).unwrap());
    assert!(!is_named(folder.as_fd(), SERVE_LOCK, lock.as_fd()), "another file of that name");
}

#[test]
fn only_segment_names_are_swept() {
    assert_eq!(generation_of("segment-00000000000000ff-0001"), Some(255));
    for name in ["segment-ff-0001", "segment-00000000000000ff-x", "segment-00000000000000ff", "notes.txt"] {
        assert_eq!(generation_of(name), None, "{name}");
    }
}
