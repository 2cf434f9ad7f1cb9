//! The locked-memory limit. Registering host memory with a GPU driver does not count against it on most systems and
//! does under some container runtimes, so it is a note and no limit on the pool; `--mlock` does need it.

use hisparse_core::error::{Problem, Problems};
use hisparse_core::size::show_size;
use hisparse_core::units::Bytes;
use serde::Serialize;

use crate::finding::Finding;
use crate::rlimit::Rlimit;
use crate::root::Root;

/// Bit of `CAP_IPC_LOCK` in a capability mask: its holder is not bound by the limit.
const CAP_IPC_LOCK_BIT: u32 = 14;

/// How a pool that is too large to be locked is helped.
pub(crate) const LOCK_REMEDY: &str =
    "raise the locked-memory limit (ulimit -l, LimitMEMLOCK=infinity), grant CAP_IPC_LOCK, or run without --mlock";

/// What this process may lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memlock {
    /// The soft limit in bytes; `null` is unlimited.
    pub soft_bytes: Finding<Option<u64>>,
    /// The hard limit in bytes; `null` is unlimited.
    pub hard_bytes: Finding<Option<u64>>,
    /// Whether this process holds `CAP_IPC_LOCK` and is not bound by either.
    pub exempt: Finding<bool>,
}

impl Memlock {
    /// Reads the limits of this process.
    pub fn discover(root: &Root) -> Self {
        let Rlimit { soft, hard } = Rlimit::discover(root, "Max locked memory");
        let exempt = root.read("/proc/self/status").and_then(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix("CapEff:"))
                .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
                .map(|mask| mask >> CAP_IPC_LOCK_BIT & 1 == 1)
                .ok_or_else(|| "/proc/self/status has no CapEff".to_owned())
        });
        Self { soft_bytes: soft, hard_bytes: hard, exempt: exempt.into() }
    }

    /// Refuses to lock a pool of `wanted` that the limit does not allow; what is locked already is not known here.
    pub(crate) fn check(&self, wanted: Bytes) -> Result<(), Problems> {
        let Finding::Known(Some(limit)) = self.soft_bytes else { return Ok(()) };
        if self.allows(wanted.get()) {
            return Ok(());
        }
        let (most, size) = (show_size(Bytes::new(limit)), show_size(wanted));
        let rule = format!("must fit the locked-memory limit of {most}, and the pool has {size}");
        Err(Problems::one(Problem::new("--mlock", true, rule, LOCK_REMEDY)))
    }

    /// Whether `bytes` can be locked, as far as is known.
    pub fn allows(&self, bytes: u64) -> bool {
        self.exempt == Finding::Known(true)
            || match &self.soft_bytes {
                Finding::Known(Some(limit)) => bytes <= *limit,
                Finding::Known(None) | Finding::Unknown { .. } => true,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fixture::Tree;

    fn memlock(limits: &str, capabilities: &str) -> Memlock {
        let status = format!("Name:\tx\nCapEff:\t{capabilities}\n");
        Memlock::discover(&Tree::new(&[("proc/self/limits", limits), ("proc/self/status", &status)]).root())
    }

    #[test]
    fn eight_mebibytes_stop_a_larger_lock_unless_exempt() {
        let line = "Max locked memory         8388608              unlimited            bytes\n";
        let bound = memlock(line, "0000000000000000");
        assert_eq!(bound.soft_bytes, Finding::Known(Some(8 << 20)));
        assert_eq!(bound.hard_bytes, Finding::Known(None));
        assert!(bound.allows(8 << 20));
        assert!(!bound.allows((8 << 20) + 1));
        let refusal = bound.check(Bytes::new(1 << 30)).unwrap_err().to_string();
        assert!(refusal.contains("--mlock is true") && refusal.contains("8 MiB") && refusal.contains("ulimit -l"));
        assert_eq!(bound.check(Bytes::new(8 << 20)), Ok(()));
        assert!(memlock(line, "0000000000004000").allows(1 << 40), "CAP_IPC_LOCK lifts the limit");
    }

    #[test]
    fn an_unreadable_limit_is_unknown_and_stops_nothing() {
        let unknown = Memlock::discover(&Tree::new(&[]).root());
        assert!(unknown.soft_bytes.known().is_none());
        assert!(unknown.allows(1 << 40));
        assert_eq!(memlock("Max locked memory many", "0").hard_bytes, Finding::unknown("the limit's line is short"));
    }
}
