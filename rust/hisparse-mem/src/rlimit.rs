//! Limits that the kernel holds this process to, as `/proc/self/limits` shows them.

use serde::Serialize;

use crate::finding::Finding;
use crate::root::Root;

/// One of them. `null` is unlimited; the unit is that of the kernel's line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rlimit {
    /// What holds now; the process may raise it to the hard limit.
    pub soft: Finding<Option<u64>>,
    /// What only a privileged process may raise.
    pub hard: Finding<Option<u64>>,
}

impl Rlimit {
    /// Reads the line that begins with `name`: `Max open files`.
    pub fn discover(root: &Root, name: &str) -> Self {
        let line = root.read("/proc/self/limits").and_then(|text| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name));
            rest.map(str::to_owned).ok_or_else(|| format!("/proc/self/limits has no {name:?}"))
        });
        let column = |index: usize| {
            let word = line.as_ref().map_err(Clone::clone).and_then(|rest| match rest.split_whitespace().nth(index) {
                Some("unlimited") => Ok(None),
                Some(word) => word.parse().map(Some).map_err(|_| format!("the limit reads {word:?}")),
                None => Err("the limit's line is short".to_owned()),
            });
            Finding::from(word)
        };
        Self { soft: column(0), hard: column(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fixture::Tree;

    #[test]
    fn a_line_is_read_by_its_name() {
        let text = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  unlimited  files\n";
        let limit = Rlimit::discover(&Tree::new(&[("proc/self/limits", text)]).root(), "Max open files");
        assert_eq!((limit.soft, limit.hard), (Finding::Known(Some(1024)), Finding::Known(None)));
    }

    #[test]
    fn a_line_that_is_not_there_or_does_not_read_is_unknown() {
        let tree = Tree::new(&[("proc/self/limits", "Max open files many\n")]);
        let limit = Rlimit::discover(&tree.root(), "Max open files");
        assert_eq!(limit.soft, Finding::unknown("the limit reads \"many\""));
        assert_eq!(limit.hard, Finding::unknown("the limit's line is short"));
        let missing = Rlimit::discover(&tree.root(), "Max locked memory");
        assert_eq!(missing.soft, Finding::unknown("/proc/self/limits has no \"Max locked memory\""));
    }
}
