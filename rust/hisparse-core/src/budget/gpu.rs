//! GPUs the planner knows by name, and how much of one is left for KV.
//!
//! ```text
//!  141 GB × 0.92 ── weights of this rank ── 15 GiB reserve ──► kv_bytes
//! ```
//! Memory is what the maker prints on the box, in units of 10⁹ bytes. Utilisation and reserve are those of the published
//! concurrency calculator, so that plans compare with it.

use std::fmt;

use serde::Serialize;

use crate::platform::Platform;

/// How a GPU reaches host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostLink {
    /// PCI Express, fifth generation, 16 lanes: about 64 GB/s each way before overheads.
    Pcie5X16,
    /// PCI Express, sixth generation, 16 lanes: about 128 GB/s each way before overheads.
    Pcie6X16,
    /// NVLink chip-to-chip, to the Grace processor beside it.
    NvlinkC2c,
}

/// One GPU the planner knows by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// The name users write (`h200`).
    pub name: &'static str,
    /// Memory in bytes, as marketed (141 GB is 141 × 10⁹).
    pub memory_bytes: u64,
    /// Its software platform.
    pub platform: Platform,
    /// CUDA compute capability × 10 (`90`, `100`, `120`); 0 on ROCm.
    pub sm: u64,
    /// How it reaches host memory.
    pub host_link: HostLink,
}

const GB: u64 = 1_000_000_000;

const fn cuda(name: &'static str, memory_gb: u64, sm: u64, host_link: HostLink) -> Gpu {
    Gpu { name, memory_bytes: memory_gb * GB, platform: Platform::Cuda, sm, host_link }
}

const fn rocm(name: &'static str, memory_gb: u64) -> Gpu {
    Gpu { name, memory_bytes: memory_gb * GB, platform: Platform::Rocm, sm: 0, host_link: HostLink::Pcie5X16 }
}

/// Every known GPU, in the order they are offered.
pub const GPUS: &[Gpu] = &[
    cuda("h100", 80, 90, HostLink::Pcie5X16),
    cuda("h200", 141, 90, HostLink::Pcie5X16),
    cuda("b200", 180, 100, HostLink::Pcie5X16),
    cuda("b300", 288, 103, HostLink::Pcie6X16),
    cuda("gb200", 186, 100, HostLink::NvlinkC2c),
    cuda("rtx-pro-6000", 96, 120, HostLink::Pcie5X16),
    rocm("mi300x", 192),
    rocm("mi355x", 288),
];

impl Gpu {
    /// The GPU of this name; case, `_` and spaces do not matter.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        let plain = |c: char| if matches!(c, '_' | ' ') { '-' } else { c.to_ascii_lowercase() };
        GPUS.iter().find(|gpu| gpu.name.chars().eq(name.chars().map(plain)))
    }

    /// Names of all, for error texts.
    pub fn names() -> String {
        GPUS.iter().map(|gpu| gpu.name).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_however_it_is_written() {
        assert_eq!(Gpu::by_name("H200").map(|gpu| gpu.memory_bytes), Some(141_000_000_000));
        assert_eq!(Gpu::by_name("RTX_PRO 6000").map(|gpu| gpu.sm), Some(120));
        assert_eq!(Gpu::by_name("h300"), None);
    }
}
