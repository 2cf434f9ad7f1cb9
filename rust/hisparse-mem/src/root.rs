//! Where `/proc`, `/sys` and `/dev` are read from: the machine's own, or a tree of files that a test laid out.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder that stands for `/`.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// This machine.
    pub fn machine() -> Self {
        Self(PathBuf::from("/"))
    }

    /// A tree laid out under `folder`.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// Where the absolute path `path` lies.
    pub fn resolve(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of the file at the absolute path `path`.
    ///
    /// # Errors
    /// Why it could not be read, naming the path as the machine knows it.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<String, String> {
        let path = path.as_ref();
        fs::read_to_string(self.resolve(path)).map_err(|e| format!("cannot read {}: {e}", path.display()))
    }

    /// The whole number that a file holds alone.
    ///
    /// # Errors
    /// As [`Root::read`], or that it holds something else.
    pub fn read_number(&self, path: impl AsRef<Path>) -> Result<u64, String> {
        let path = path.as_ref();
        let text = self.read(path)?;
        text.trim().parse().map_err(|_| format!("{} holds {:?}, not a number", path.display(), text.trim()))
    }

    /// Names in a folder, sorted; none where it cannot be listed.
    pub fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.resolve(path)) else { return Vec::new() };
        let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Whether a file or folder is there.
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.resolve(path).exists()
    }
}

#[cfg(test)]
pub(crate) mod fixture {
    //! Trees of files for tests: `Tree::new(&[("proc/meminfo", "…")])`.

    use super::{Path, Root, fs};

    /// A temporary tree; gone when dropped.
    pub(crate) struct Tree {
        folder: tempfile::TempDir,
    }

    impl Tree {
        pub(crate) fn new(files: &[(&str, &str)]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = folder.path().join(path);
                fs::create_dir_all(path.parent().unwrap_or_else(|| Path::new("/"))).unwrap();
                fs::write(path, text).unwrap();
            }
            Self { folder }
        }

        pub(crate) fn root(&self) -> Root {
            Root::at(self.folder.path())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_the_path_as_the_machine_knows_it() {
        let tree = fixture::Tree::new(&[("sys/a", "12\n"), ("sys/b", "max\n")]);
        let root = tree.root();
        assert_eq!(root.read_number("/sys/a"), Ok(12));
        assert_eq!(root.read_number("/sys/b"), Err("/sys/b holds \"max\", not a number".to_owned()));
        assert!(root.read_number("/sys/c").unwrap_err().starts_with("cannot read /sys/c: "));
        assert_eq!(root.list("/sys"), ["a", "b"]);
        assert!(root.list("/nowhere").is_empty());
    }
}
