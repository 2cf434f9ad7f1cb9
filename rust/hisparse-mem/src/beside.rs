//! Files that belong to another: its path, and a word behind it (`h.sock` ─► `h.sock.epoch`).

use std::path::{Path, PathBuf};

/// The path with `suffix` behind it; what ending it has stays.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
