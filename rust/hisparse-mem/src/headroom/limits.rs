//! What can bound a pool, each bound with where it was read and how to raise it.

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
    pub(super) fn told(&self) -> String {
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

/// Whole mebibytes where there are any: a figure that, typed back in as it is shown, still fits.
pub(super) fn floored(bytes: u64) -> Bytes {
    const MIB: u64 = 1 << 20;
    Bytes::new(if bytes < MIB { bytes } else { bytes - bytes % MIB })
}
