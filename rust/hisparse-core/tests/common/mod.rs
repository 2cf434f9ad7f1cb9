//! Finding material that lies outside the repository.

use std::path::PathBuf;

/// A file or folder of the shared material, or a printed reason why there is none.
///
/// `HISPARSE_SHARED` names the material's folder; without it, the one beside the repository is taken.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("HISPARSE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")), PathBuf::from);
    let found = root.join(path);
    if found.exists() {
        return Some(found);
    }
    #[allow(clippy::print_stdout)] // a skipped test says so
    {
        println!("skipped: {} is absent", found.display());
    }
    None
}
