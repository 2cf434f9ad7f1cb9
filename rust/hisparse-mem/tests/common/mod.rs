//! Children of a test: the test binary itself, run again for one ignored test, perhaps under another uid.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Set in a child's environment; an ignored test that does not find it was not started by its parent.
const CHILD: &str = "HISPARSE_TEST_CHILD";

/// A uid that owns nothing.
pub(crate) const NOBODY: u32 = 65_534;

/// Whether this process is such a child.
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Whether this process may make groups, mount volumes and change its uid; says so where not.
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: needs root");
    }
    root
}

/// The command that runs the ignored test `name`; keep the folder until it has ended.
pub(crate) fn child(name: &str, uid: Option<u32>, stdin: Option<OwnedFd>) -> (Command, tempfile::TempDir) {
    // A copy that every uid can reach: the target folder may lie in someone's home.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.path().join("child");
    // By another process: a file that any thread of this one has open for writing cannot be run by a child.
    let own = std::env::current_exe().unwrap();
    assert!(Command::new("install").args(["-m", "755"]).arg(own).arg(&program).status().unwrap().success());
    let mut command = Command::new(program);
    command.args(["--exact", name, "--ignored", "--nocapture"]).env(CHILD, "1").current_dir("/");
    command.stdin(stdin.map_or_else(Stdio::null, Stdio::from));
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    (command, folder)
}

/// Runs it to its end and fails with what it printed unless it succeeds and ran its test.
pub(crate) fn run(name: &str, uid: Option<u32>, stdin: Option<OwnedFd>) {
    let (mut command, _folder) = child(name, uid, stdin);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} ended with {}:\n{said}\n{told}", output.status);
    assert!(said.contains("1 passed"), "{name} did not run:\n{said}\n{told}");
}
