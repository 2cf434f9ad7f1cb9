//! How large a pool may be here: the least of everything that bounds it, and which of them it was.
//!
//! ```text
//!  memory        MemAvailable ── every cgroup ── nodes of the cpuset ──┐
//!  state folder  the same, and the volume's room ──────────────────────┼──► min ──► Headroom, or NoHeadroom
//!  huge pages    free pages ── their cgroup limits ────────────────────┘            with the limit and its remedy
//! ```
//! The answer is never zero and never more than any of its inputs. `--assume-memory` replaces what the machine says
//! about memory (some report too little); a volume's room and free huge pages are facts and stay.
//! The locked-memory limit is not among them: see [`crate::memlock`].

use std::fmt;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::limits::{AUTO_POOL_RESERVE_BYTES, AUTO_POOL_RESERVE_SHARE};
use hisparse_core::size::show_size;
use hisparse_core::units::Bytes;
use serde::Serialize;

mod limits;

use limits::floored;
pub use limits::{Limit, LimitKind, hugepage_limit, memory_limits, no_hugepages, volume_limit};

/// Room for a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Headroom {
    /// What is usable in bytes, at least 1: the least of `limits`.
    pub usable_bytes: u64,
    /// What `--host-pool auto` takes, in bytes: the usable part less a reserve for everything else.
    pub auto_bytes: u64,
    /// Every bound, tightest first.
    pub limits: Vec<Limit>,
}

/// Why no pool fits here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NoHeadroom {
    /// The bound that leaves nothing; `None` where no bound could be read at all.
    pub limit: Option<Limit>,
}

impl fmt::Display for NoHeadroom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.limit {
            Some(limit) => write!(f, "no pool fits: {}; {}", limit.told(), limit.remedy),
            None => write!(f, "{UNREADABLE}; {ASSUME}"),
        }
    }
}

impl std::error::Error for NoHeadroom {}

/// What is said, and advised, where not one bound can be read.
const UNREADABLE: &str = "the memory of this machine cannot be read";
const ASSUME: &str = "give --assume-memory SIZE";

impl NoHeadroom {
    /// The refusal of a pool of `wanted`, which the user named `field`.
    pub fn problem(&self, field: &str, wanted: Bytes) -> Problem {
        let (rule, remedy) = match &self.limit {
            Some(limit) => (limit.told(), limit.remedy.as_str()),
            None => (UNREADABLE.to_owned(), ASSUME),
        };
        Problem::new(field, show_size(wanted), rule, remedy)
    }
}

impl Headroom {
    /// The least of `limits`.
    ///
    /// # Errors
    /// The limit that leaves nothing, or that there is none to go by.
    pub fn of(mut limits: Vec<Limit>) -> Result<Self, NoHeadroom> {
        limits.sort_by_key(|limit| limit.available_bytes);
        let usable_bytes = limits.first().map_or(0, |limit| limit.available_bytes);
        if usable_bytes == 0 {
            return Err(NoHeadroom { limit: limits.into_iter().next() });
        }
        let reserve = (usable_bytes / AUTO_POOL_RESERVE_SHARE).max(AUTO_POOL_RESERVE_BYTES).min(usable_bytes / 2);
        Ok(Self { usable_bytes, auto_bytes: usable_bytes - reserve, limits })
    }

    /// The bound that decides.
    pub fn binding(&self) -> Option<&Limit> {
        self.limits.first()
    }

    /// Whether a pool of `wanted` fits; `field` is how the user named it.
    ///
    /// # Errors
    /// Every bound that is too small, each with how to raise it.
    pub fn check(&self, field: &str, wanted: Bytes) -> Result<(), Problems> {
        let mut problems = Problems::new();
        for limit in self.limits.iter().filter(|limit| limit.available_bytes < wanted.get()) {
            let most = show_size(floored(self.usable_bytes));
            let remedy = format!("ask for {most} or less; otherwise {}", limit.remedy);
            problems.push(Problem::new(field, show_size(wanted), limit.told(), remedy));
        }
        problems.into_result(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::{Cgroup, GroupLimit};
    use crate::finding::Finding;
    use crate::hugepage::HugepagePool;
    use crate::meminfo::Meminfo;
    use crate::numa::Numa;
    use crate::shm::MemoryVolume;
    use proptest::prelude::*;

    fn known(available: u64) -> Meminfo {
        let none = || Finding::unknown("not asked");
        Meminfo { total_bytes: none(), available_bytes: Finding::Known(available), swap_total_bytes: none() }
    }

    fn group(limit_bytes: u64, used: u64, reclaimable_bytes: u64) -> Cgroup {
        let limit = GroupLimit {
            file: "/cg/memory.max".into(),
            limit_bytes,
            used_bytes: Finding::Known(used),
            reclaimable_bytes,
        };
        Cgroup { groups: Finding::Known(Vec::new()), limits: vec![limit] }
    }

    fn no_nodes() -> Numa {
        Numa { nodes: Finding::unknown("none") }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 256 }, ..ProptestConfig::default() })]
        #[test]
        fn usable_is_never_zero_and_never_more_than_any_input(
            available: u64, limit: u64, used: u64, reclaimable: u64, room: u64, assumed: Option<u64>,
        ) {
            let mut limits = memory_limits(
                &known(available), &group(limit, used, reclaimable), &no_nodes(), assumed.map(Bytes::new),
            );
            limits.extend(volume_limit(&MemoryVolume {
                path: "/state".into(),
                in_memory: Finding::Known(true),
                total_bytes: Finding::unknown("not asked"),
                available_bytes: Finding::Known(room),
            }));
            let inputs: Vec<u64> = match assumed {
                Some(assumed) => vec![assumed, room],
                None => vec![available, limit, room],
            };
            match Headroom::of(limits) {
                Ok(headroom) => {
                    prop_assert!(headroom.usable_bytes > 0);
                    prop_assert!(headroom.auto_bytes > 0);
                    prop_assert!(headroom.auto_bytes <= headroom.usable_bytes);
                    prop_assert!(inputs.iter().all(|input| headroom.usable_bytes <= *input));
                    prop_assert!(headroom.check("--host-pool", Bytes::new(headroom.usable_bytes)).is_ok());
                    if let Some(more) = headroom.usable_bytes.checked_add(1) {
                        prop_assert!(headroom.check("--host-pool", Bytes::new(more)).is_err());
                    }
                }
                Err(none) => prop_assert_eq!(none.limit.map(|limit| limit.available_bytes), Some(0)),
            }
        }
    }

    #[test]
    fn a_refusal_names_every_bound_that_is_too_small_and_how_to_raise_it() {
        let limits = memory_limits(&known(8 << 30), &group(2 << 30, 1 << 30, 0), &no_nodes(), None);
        let headroom = Headroom::of(limits).unwrap();
        let refusal = headroom.check("--host-pool", Bytes::new(4 << 30)).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "--host-pool is 4 GiB: its control group has 1 GiB left (/cg/memory.max); ask for 1 GiB or less; otherwise \
             raise that limit (resources.limits.memory of the container or its pod, MemoryMax= of the unit), or give \
             --assume-memory SIZE where too little is reported"
        );
        let both = headroom.check("--host-pool", Bytes::new(16 << 30)).unwrap_err();
        assert_eq!(both.iter().count(), 2);
        assert_eq!(
            both.iter().nth(1).map(ToString::to_string).as_deref(),
            Some(
                "--host-pool is 16 GiB: this machine has 8 GiB left (MemAvailable in /proc/meminfo); ask for 1 GiB or \
                 less; otherwise stop other users of memory here, or give --assume-memory SIZE where too little is reported"
            )
        );
    }

    #[test]
    fn a_full_group_is_a_refusal_that_names_it() {
        let limits = memory_limits(&known(8 << 30), &group(10, 50, 0), &no_nodes(), None);
        let none = Headroom::of(limits).unwrap_err();
        assert!(
            none.to_string().starts_with("no pool fits: its control group has nothing left (/cg/memory.max); raise"),
            "{none}"
        );
    }

    #[test]
    fn an_unreadable_machine_asks_for_an_assumption() {
        let unread = Meminfo { available_bytes: Finding::unknown("no"), ..known(0) };
        let nothing = Cgroup { groups: Finding::unknown("no"), limits: Vec::new() };
        let none = Headroom::of(memory_limits(&unread, &nothing, &no_nodes(), None)).unwrap_err();
        assert!(none.to_string().contains("--assume-memory"), "{none}");
        let assumed = memory_limits(&unread, &nothing, &no_nodes(), Some(Bytes::new(1 << 30)));
        assert_eq!(Headroom::of(assumed).unwrap().usable_bytes, 1 << 30);
    }

    #[test]
    fn huge_pages_name_the_tighter_of_free_pages_and_their_group() {
        let pool = |cgroup| HugepagePool { page_bytes: 2 << 20, total_pages: 10, free_pages: 8, cgroup };
        let free = hugepage_limit(&pool(Cgroup { groups: Finding::Known(Vec::new()), limits: Vec::new() }));
        assert_eq!((free.available_bytes, free.source.as_str()), (16 << 20, "those of 2 MiB that are free"));
        let grouped = hugepage_limit(&pool(group(4 << 20, 0, 0)));
        assert_eq!((grouped.available_bytes, grouped.source.as_str()), (4 << 20, "/cg/memory.max"));
    }
}
