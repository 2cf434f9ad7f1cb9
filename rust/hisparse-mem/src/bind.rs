//! Which memory node a segment's pages come from: asked for before they are made, looked up after.
//!
//! ```text
//!  bind     only that node; the kernel kills rather than take another, so the node's own headroom must be checked
//!  prefer   that node, another where it is full                                               (the default choice)
//!  refused  (seccomp profiles of some container runtimes)  ──►  first touch from threads kept on the node's CPUs
//! ```

use std::collections::BTreeMap;

use rustix::io::Errno;
use serde::Serialize;

use crate::finding::Finding;
use crate::map::{Mapping, PAGE_BYTES};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Wherever the kernel likes.
    #[default]
    Anywhere,
    /// This node, another where it is full.
    Prefer(u32),
    /// This node alone.
    Bind(u32),
}

/// How it was brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placed {
    /// Nothing was asked.
    Anywhere,
    /// The kernel keeps to it.
    ByPolicy,
    /// The kernel refused a policy; the threads that make the pages run on the node.
    ByFirstTouch,
}

/// Most nodes that a policy can name; kernels are built for at most 1024.
const MAX_NODES: usize = 1024;

/// Sets the policy for pages of `mapping` yet to be made.
///
/// # Errors
/// `EINVAL` for a node that is not there. A refusal is no error: see [`Placed`].
pub(crate) fn place(mapping: &Mapping, placement: Placement) -> Result<Placed, Errno> {
    const BITS: usize = u64::BITS as usize;
    let (mode, node) = match placement {
        Placement::Anywhere => return Ok(Placed::Anywhere),
        Placement::Prefer(node) => (libc::MPOL_PREFERRED, node),
        Placement::Bind(node) => (libc::MPOL_BIND, node),
    };
    if !mapping.is_shared() {
        return Ok(Placed::ByFirstTouch);
    }
    let node = usize::try_from(node).ok().filter(|node| *node < MAX_NODES).ok_or(Errno::INVAL)?;
    let mut mask = [0_u64; MAX_NODES / BITS];
    mask[node / BITS] |= 1 << (node % BITS);
    // SAFETY: needed because no library call of ours covers it. Sound because the range is exactly this mapping, the
    // mask is as long as `maxnode` says, and a policy changes where new pages come from, not what any page holds.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, mapping.view().as_ptr(), mapping.len(), mode, mask.as_ptr(), MAX_NODES, 0)
    };
    match if result == 0 { Ok(()) } else { Err(last_errno()) } {
        Ok(()) => Ok(Placed::ByPolicy),
        Err(Errno::PERM | Errno::NOSYS) => Ok(Placed::ByFirstTouch),
        Err(errno) => Err(errno),
    }
}

/// On which nodes the pages lie, by a sample spread over the mapping: node to its share of the sample in percent.
pub(crate) fn nodes_of(mapping: &Mapping) -> Finding<BTreeMap<u32, u32>> {
    const SAMPLE: usize = 100;
    if !mapping.is_shared() {
        return Finding::unknown("the heap stand-in has no policy");
    }
    let pages = mapping.len().div_ceil(PAGE_BYTES);
    let count = pages.min(SAMPLE);
    let start = mapping.view().as_ptr();
    let addresses: Vec<*const u8> = (0..count).map(|i| start.wrapping_add(i * (pages / count) * PAGE_BYTES)).collect();
    let mut status = vec![-1_i32; count];
    // SAFETY: needed because no library call of ours covers it. Sound because both arrays hold `count` entries, and
    // without target nodes the call moves nothing: it fills in `status`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            count,
            addresses.as_ptr(),
            std::ptr::null::<i32>(),
            status.as_mut_ptr(),
            0,
        )
    };
    if result != 0 {
        return Finding::unknown(format!("move_pages: {}", last_errno()));
    }
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for node in status.iter().filter_map(|node| u32::try_from(*node).ok()) {
        *counts.entry(node).or_default() += 1;
    }
    let percent = |n: usize| u32::try_from(n * 100 / count).unwrap_or(100);
    Finding::Known(counts.into_iter().map(|(node, n)| (node, percent(n))).collect())
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
