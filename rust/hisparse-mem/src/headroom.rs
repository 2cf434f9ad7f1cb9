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

use crate::cgroup::Cgroup;
use crate::hugepage::HugepagePool;
use crate::meminfo::Meminfo;
use crate::numa::Numa;
use crate::shm::MemoryVolume;

/// What can bound a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// The machine's available memory.
    MemAvailable,
    /// A control group's memory limit.
    Cgroup,
    /// Memory of the nodes that the cpuset allows.
    AllowedNodes,
    /// `--assume-memory`.
    Assumed,
    /// Room on the state directory's volume.
    Volume,
    /// Free huge pages, or a control group's limit on them.
    Hugepages,
}

/// One bound: what it leaves, where it was read, how to raise it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// Which it is.
    pub kind: LimitKind,
    /// What it leaves, in bytes.
    pub available_bytes: u64,
    /// Where it was read.
    pub source: String,
    /// How to raise it.
    pub remedy: String,
}

impl Limit {
    /// Who has how much left, and where that was read.
    fn told(&self) -> String {
        let left = match self.available_bytes {
            0 => "nothing".to_owned(),
            bytes => show_size(floored(bytes)),
        };
        let source = &self.source;
        match self.kind {
            LimitKind::MemAvailable => format!("this machine has {left} left ({source})"),
            LimitKind::Cgroup => format!("its control group has {left} left ({source})"),
            LimitKind::AllowedNodes => format!("the memory nodes that it may use have {left} left ({source})"),
            LimitKind::Assumed => format!("{source} leaves {left}"),
            LimitKind::Volume => format!("{source} has {left} left"),
            LimitKind::Hugepages => format!("of huge pages {left} is left ({source})"),
        }
    }
}

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

/// Whole mebibytes where there are any: a figure that, typed back in as it is shown, still fits.
fn floored(bytes: u64) -> Bytes {
    const MIB: u64 = 1 << 20;
    Bytes::new(if bytes < MIB { bytes } else { bytes - bytes % MIB })
}

/// The bounds on ordinary memory, or the assumption in their place.
pub fn memory_limits(memory: &Meminfo, cgroup: &Cgroup, numa: &Numa, assumed: Option<Bytes>) -> Vec<Limit> {
    const OVERRIDE: &str = "give --assume-memory SIZE where too little is reported";
    if let Some(assumed) = assumed {
        let remedy = "raise --assume-memory".to_owned();
        let available_bytes = assumed.get();
        return vec![Limit { kind: LimitKind::Assumed, available_bytes, source: "--assume-memory".into(), remedy }];
    }
    let mut limits = Vec::new();
    if let Some(available) = memory.available_bytes.known() {
        limits.push(Limit {
            kind: LimitKind::MemAvailable,
            available_bytes: *available,
            source: "MemAvailable in /proc/meminfo".into(),
            remedy: format!("stop other users of memory here, or {OVERRIDE}"),
        });
    }
    for limit in &cgroup.limits {
        limits.push(Limit {
            kind: LimitKind::Cgroup,
            available_bytes: limit.headroom_bytes(),
            source: limit.file.clone(),
            remedy: format!(
                "raise that limit (resources.limits.memory of the container or its pod, MemoryMax= of the unit), or {OVERRIDE}"
            ),
        });
    }
    if let Some(available_bytes) = numa.restricted_bytes() {
        limits.push(Limit {
            kind: LimitKind::AllowedNodes,
            available_bytes,
            source: "Mems_allowed_list in /proc/self/status".into(),
            remedy: format!("widen the cpuset (cpuset.mems) to more memory nodes, or {OVERRIDE}"),
        });
    }
    limits
}

/// The bound a state directory's volume adds, where its room is known.
pub fn volume_limit(volume: &MemoryVolume) -> Option<Limit> {
    Some(Limit {
        kind: LimitKind::Volume,
        available_bytes: *volume.available_bytes.known()?,
        source: format!("the volume of {}", volume.path),
        remedy: "make the volume larger (sizeLimit of the emptyDir and the container's memory limit, or mount -o \
                 remount,size=…), or run without --state-dir"
            .into(),
    })
}

/// The bound of a kernel that has no pages of this huge size at all.
pub fn no_hugepages(page_bytes: u64) -> Limit {
    let size = show_size(Bytes::new(page_bytes));
    Limit {
        kind: LimitKind::Hugepages,
        available_bytes: 0,
        source: format!("this kernel has none of {size}"),
        remedy: "use another backing (--pages auto)".into(),
    }
}

/// The bound on pages of one huge size; it stands alone, since they are set aside from ordinary memory.
pub fn hugepage_limit(pool: &HugepagePool) -> Limit {
    let free_bytes = pool.free_pages.saturating_mul(pool.page_bytes);
    let grouped = pool.cgroup.binding().filter(|limit| limit.headroom_bytes() < free_bytes);
    let size = show_size(Bytes::new(pool.page_bytes));
    let (source, remedy) = match grouped {
        Some(limit) => {
            (limit.file.clone(), "raise that limit (resources.limits.hugepages-… of the container)".to_owned())
        }
        None => (
            format!("those of {size} that are free"),
            format!(
                "set more aside (/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages), or use another backing (--pages auto)",
                pool.page_bytes / 1024
            ),
        ),
    };
    Limit { kind: LimitKind::Hugepages, available_bytes: pool.available_bytes(), source, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::GroupLimit;
    use crate::finding::Finding;
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
