//! Where this process stands in the control-group hierarchies.
//!
//! ```text
//!  /proc/self/cgroup     4:memory:/kubepods/pod7/abc        0::/kubepods/pod7/abc
//!  /proc/self/mountinfo  root /kubepods/pod7 on /sys/fs/cgroup/memory        (what of it is mounted here)
//!  ────────────────────────────────────────────────────────────────────────────────────────────────
//!  folders, own first:   /sys/fs/cgroup/memory/abc, /sys/fs/cgroup/memory
//! ```
//! Both versions occur, also side by side; a version 2 mount may carry no controller at all. A container may see its
//! own group as the root, or may name a group that lies outside its mount: then the mount point is the best answer.

use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use crate::root::Root;

/// Which interface files a group has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Version {
    /// One hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// This process's groups in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) version: Version,
    /// Own group first, then each ancestor up to the mount point.
    pub(crate) folders: Vec<PathBuf>,
}

/// The hierarchies that may limit `controller`: its version 1 mount, and the unified one.
pub(crate) fn places(root: &Root, controller: &str) -> Result<Vec<Place>, String> {
    let groups = root.read("/proc/self/cgroup")?;
    let mounts: Vec<Mount> = root.read("/proc/self/mountinfo")?.lines().filter_map(Mount::parse).collect();
    let mut places = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let version = if id == "0" && controllers.is_empty() {
            Version::V2
        } else if controllers.split(',').any(|name| name == controller) {
            Version::V1
        } else {
            continue;
        };
        let fitting = mounts.iter().filter(|mount| mount.carries(version, controller));
        if let Some(folders) = folders(root, fitting, Path::new(group)) {
            places.push(Place { version, folders });
        }
    }
    Ok(places)
}

/// The groups of `group` that can be seen through one of `mounts`: through the one that holds it, else the first.
fn folders<'m>(root: &Root, mounts: impl Iterator<Item = &'m Mount>, group: &Path) -> Option<Vec<PathBuf>> {
    let mounts: Vec<&Mount> = mounts.collect();
    let outside = group.components().any(|part| part == Component::ParentDir);
    let holding = mounts.iter().filter(|_| !outside).find_map(|m| Some((*m, group.strip_prefix(&m.root).ok()?)));
    let (mount, below) = holding.or_else(|| Some((*mounts.first()?, Path::new(""))))?;
    // Joined part by part: joining nothing would leave a trailing slash.
    let mut folder = mount.point.clone();
    folder.extend(below.components());
    while folder != mount.point && !root.has(&folder) {
        folder.pop();
    }
    Some(folder.ancestors().take_while(|f| f.starts_with(&mount.point)).map(Path::to_path_buf).collect())
}

/// One line of mountinfo: `36 35 98:0 /root /point rw,… opt:1 - type source super,options`.
struct Mount {
    root: PathBuf,
    point: PathBuf,
    kind: String,
    super_options: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let mut file_system = file_system.split(' ');
        Some(Self {
            root: unescape(mount.next()?),
            point: unescape(mount.next()?),
            kind: file_system.next()?.to_owned(),
            super_options: file_system.nth(1)?.to_owned(),
        })
    }

    fn carries(&self, version: Version, controller: &str) -> bool {
        match version {
            Version::V1 => self.kind == "cgroup" && self.super_options.split(',').any(|option| option == controller),
            Version::V2 => self.kind == "cgroup2",
        }
    }
}

/// A path as mountinfo writes it, with blanks as `\040` and the like.
fn unescape(text: &str) -> PathBuf {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, escaped)) = rest.split_once('\\') {
        out.push_str(plain);
        let code = escaped.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(code) = code {
            out.push(char::from(code));
            rest = &escaped[3..];
        } else {
            out.push('\\');
            rest = escaped;
        }
    }
    out.push_str(rest);
    PathBuf::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fixture::Tree;

    fn memory_places(cgroup: &str, mountinfo: &str, files: &[(&str, &str)]) -> Vec<Place> {
        let mut all = vec![("proc/self/cgroup", cgroup), ("proc/self/mountinfo", mountinfo)];
        all.extend_from_slice(files);
        places(&Tree::new(&all).root(), "memory").unwrap()
    }

    fn paths(place: &Place) -> Vec<&str> {
        place.folders.iter().map(|folder| folder.to_str().unwrap()).collect()
    }

    const V2: &str = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn every_ancestor_up_to_the_mount_point_counts() {
        let found = memory_places("0::/a/b\n", V2, &[("sys/fs/cgroup/a/b/x", "")]);
        assert_eq!(found[0].version, Version::V2);
        assert_eq!(paths(&found[0]), ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]);
    }

    #[test]
    fn both_versions_side_by_side_are_both_read() {
        let mounts = "35 31 0:32 / /cg/memory rw - cgroup cgroup rw,memory\n\
                      36 31 0:33 / /cg/cpu rw - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /cg/unified rw - cgroup2 cgroup2 rw\n";
        let found = memory_places("9:cpu:/z\n4:memory,x:/a\n0::/\n", mounts, &[("cg/memory/a/x", "")]);
        assert_eq!(found.len(), 2);
        assert_eq!(paths(&found[0]), ["/cg/memory/a", "/cg/memory"]);
        assert_eq!(paths(&found[1]), ["/cg/unified"]);
    }

    #[test]
    fn a_container_without_a_namespace_finds_itself_at_the_mount_point() {
        let mounts = "35 31 0:32 /docker/abc /cg/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(paths(&memory_places("4:memory:/docker/abc\n", mounts, &[])[0]), ["/cg/memory"]);
        let nested = memory_places("4:memory:/docker/abc/in\n", mounts, &[("cg/memory/in/x", "")]);
        assert_eq!(paths(&nested[0]), ["/cg/memory/in", "/cg/memory"]);
    }

    #[test]
    fn a_group_outside_the_mount_falls_back_to_the_mount_point() {
        let mounts = "35 31 0:32 /docker/abc /cg/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(paths(&memory_places("4:memory:/other\n", mounts, &[])[0]), ["/cg/memory"]);
        assert_eq!(paths(&memory_places("0::/../up\n", V2, &[])[0]), ["/sys/fs/cgroup"]);
    }

    #[test]
    fn a_group_whose_folder_is_gone_falls_back_to_the_nearest_ancestor() {
        let found = memory_places("0::/a/b/c\n", V2, &[("sys/fs/cgroup/a/x", "")]);
        assert_eq!(paths(&found[0]), ["/sys/fs/cgroup/a", "/sys/fs/cgroup"]);
    }

    #[test]
    fn the_mount_that_holds_the_group_is_preferred_to_an_earlier_one() {
        let mounts = "1 0 0:1 /x /first rw - cgroup2 c rw\n2 0 0:1 / /second rw shared:1 master:2 - cgroup2 c rw\n";
        assert_eq!(paths(&memory_places("0::/\n", mounts, &[])[0]), ["/second"]);
    }

    #[test]
    fn blanks_in_mount_points_are_unescaped() {
        assert_eq!(unescape(r"/a\040b\134c"), PathBuf::from(r"/a b\c"));
        assert_eq!(unescape(r"/a\9"), PathBuf::from(r"/a\9"));
    }
}
