//! What processes leave on the host when all of them are dead: memory that nobody has, and names that nobody uses.
//!
//! ```text
//!  control group ── every child joins before it begins ──► its shared memory, as charged: exact, whatever runs beside
//!  none can be made ──► /proc/meminfo before and after: the whole host's, so only much can be told
//! ```
#![allow(clippy::print_stdout)] // a test says what it could not look at, and what it measured

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Figures of the kernel lag by some pages for each processor, and by as much as two seconds.
const LAG_BYTES: u64 = 1 << 20;
const LAG: Duration = Duration::from_secs(5);

/// Where a group that counts memory can be made: version 1, then version 2.
const MOUNTS: [&str; 3] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Processes of which is known what they leave.
pub(crate) struct Group {
    folder: Option<PathBuf>,
    shared_before: u64,
    names_before: BTreeSet<OsString>,
}

impl Group {
    /// An empty one. `name` tells it from others of this process.
    pub(crate) fn new(name: &str) -> Self {
        let folder = MOUNTS.iter().find_map(|mount| {
            let folder = Path::new(mount).join(format!("hisparse-{name}-{}", std::process::id()));
            std::fs::create_dir(&folder).ok()?;
            // Under version 1 one of them is a plain tmpfs, which takes any folder.
            let counts = folder.join("cgroup.procs").exists() && figure(&folder.join("memory.stat"), "shmem").is_some();
            if !counts {
                let _empty = std::fs::remove_dir(&folder);
            }
            counts.then_some(folder)
        });
        if folder.is_none() {
            println!("no control group that counts memory can be made here: the whole host's figures are looked at");
        }
        Self { folder, shared_before: shared_of_host(), names_before: names_in_shm() }
    }

    /// A command that runs `program` in the group from its first instruction on.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let Some(folder) = &self.folder else { return Command::new(program) };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", r#"echo $$ >"$0" && exec "$@""#]).arg(folder.join("cgroup.procs")).arg(program);
        command
    }

    /// Bytes of shared memory that its processes have, or left; `None` where there is no group.
    pub(crate) fn shared_bytes(&self) -> Option<u64> {
        figure(&self.folder.as_ref()?.join("memory.stat"), "shmem")
    }

    /// Nothing of what its processes had is left, now that they are dead; they had `had_bytes` in all, one after another.
    pub(crate) fn has_left_nothing(&self, had_bytes: u64, processes: &[u32]) {
        let (left, allowed) = match self.shared_bytes() {
            Some(_) => (Box::new(|| self.shared_bytes().unwrap_or(0)) as Box<dyn Fn() -> u64>, LAG_BYTES),
            None => (Box::new(|| shared_of_host().saturating_sub(self.shared_before)) as _, had_bytes / 10),
        };
        let end = std::time::Instant::now() + LAG;
        while left() > allowed && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100));
        }
        println!("shared memory left: {} of {had_bytes} bytes, allowed are {allowed}", left());
        assert!(left() <= allowed, "{} bytes are left on the host of {had_bytes}; allowed are {allowed}", left());
        let ours = |name: &OsString| {
            let name = name.to_string_lossy();
            let number = |part: &str| part.parse().is_ok_and(|number: u32| processes.contains(&number));
            name.contains("hisparse") && name.split(|letter: char| !letter.is_ascii_digit()).any(number)
        };
        // What else has come may be that of a service beside this one.
        let names: Vec<_> = names_in_shm().difference(&self.names_before).filter(|name| ours(name)).cloned().collect();
        assert!(names.is_empty(), "left in /dev/shm: {names:?}");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            // Where a process is left in it, the test has failed already.
            let _busy = std::fs::remove_dir(folder);
        }
    }
}

fn names_in_shm() -> BTreeSet<OsString> {
    std::fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

/// Shared memory of the whole host in bytes.
fn shared_of_host() -> u64 {
    figure(Path::new("/proc/meminfo"), "Shmem:").unwrap_or(0) * 1024
}

/// The number behind `name` at the beginning of a line.
fn figure(file: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok()).flatten()
    })
}
