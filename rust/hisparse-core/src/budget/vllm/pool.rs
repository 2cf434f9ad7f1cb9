//! The two pools: blocks on the GPU, blocks in pinned host memory, and who shares the latter.
//!
//! ```text
//!  GPU    ⌊kv bytes / GPU block⌋ blocks, leased to indexer, resident and hot groups alike
//!  host   ⌊host bytes / stride⌋ blocks; stride = host page, rounded up to 4 KiB where ranks share one mapping
//! ```

use serde::Serialize;

use crate::error::{Problem, Problems};

use super::{GIB, floor_to_count, to_f64};

/// Alignment of a host block in a mapping that several ranks share, in bytes.
pub const SHARED_ALIGNMENT_BYTES: u64 = 4096;

/// Host blocks beyond one longest request: the null block, and the tail of a copy on write.
pub const SPARE_HOST_BLOCKS: u64 = 2;

/// Part of the available memory that a host pool may take.
pub const HOST_MEMORY_SHARE: f64 = 0.95;

/// How the engine's processes are laid out, as far as the host pool depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallel {
    /// Whether the platform is CUDA or looks like it.
    pub cuda_alike: bool,
    /// Tensor-parallel ranks.
    pub tensor: u64,
    /// Pipeline stages.
    pub pipeline: u64,
    /// Prefill context-parallel ranks.
    pub prefill_context: u64,
    /// Decode context-parallel ranks.
    pub decode_context: u64,
    /// All ranks of one replica.
    pub world: u64,
    /// Whether workers are processes of one launcher (`distributed_executor_backend` is `mp`).
    pub multiprocess: bool,
    /// Nodes of one replica.
    pub nodes: u64,
}

impl Parallel {
    /// `tensor` ranks of one node, run by the multiprocess executor.
    pub const fn tensor_only(tensor: u64) -> Self {
        Self {
            cuda_alike: true,
            tensor,
            pipeline: 1,
            prefill_context: 1,
            decode_context: 1,
            world: tensor,
            multiprocess: true,
            nodes: 1,
        }
    }

    /// Whether all ranks map one host pool; otherwise each allocates its own.
    pub const fn shares_host_pool(self) -> bool {
        self.cuda_alike
            && self.tensor > 1
            && self.pipeline == 1
            && self.prefill_context == 1
            && self.decode_context == 1
            && self.world == self.tensor
            && self.multiprocess
            && self.nodes == 1
    }
}

/// Bytes from one host block to the next; `None` on overflow.
pub const fn host_block_stride(page_bytes: u64, shared: bool) -> Option<u64> {
    if shared { page_bytes.checked_next_multiple_of(SHARED_ALIGNMENT_BYTES) } else { Some(page_bytes) }
}

/// A size in GiB as the bytes that vLLM counts: the product's whole part. 0 for what is not positive.
pub fn gib_to_bytes(gib: f64) -> u64 {
    floor_to_count(gib * GIB)
}

/// The pinned host pool of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostPool {
    /// Bytes from one block to the next.
    pub block_stride_bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// Bytes that hold rows; the strides add alignment to them.
    pub tensor_bytes: u64,
    /// Whether the ranks share it.
    pub shared: bool,
}

/// Sizes the host pool.
///
/// # Errors
/// A pool without a block, or too small for one request of `max_model_len_tokens` and [`SPARE_HOST_BLOCKS`].
pub fn host_pool(
    host_bytes: u64,
    host_block_bytes: u64,
    shared: bool,
    max_model_len_tokens: u64,
    block_tokens: u64,
) -> Result<HostPool, Problems> {
    let stride = host_block_stride(host_block_bytes, shared)
        .filter(|stride| *stride > 0)
        .ok_or_else(|| host_problem(host_bytes, "a host block must have a size that fits in 64 bits"))?;
    let blocks = host_bytes / stride;
    if blocks == 0 {
        return Err(host_problem(host_bytes, format!("holds no block: one takes {stride} bytes")));
    }
    let needed = max_model_len_tokens.div_ceil(block_tokens.max(1)).saturating_add(SPARE_HOST_BLOCKS);
    if blocks < needed {
        let rule = format!(
            "holds {blocks} blocks, one request of max_model_len {max_model_len_tokens} needs {needed} of {stride} bytes"
        );
        return Err(host_problem(host_bytes, rule));
    }
    // A page is at most a stride, and blocks × stride is at most `host_bytes`.
    Ok(HostPool { block_stride_bytes: stride, blocks, tensor_bytes: blocks * host_block_bytes, shared })
}

fn host_problem(host_bytes: u64, rule: impl Into<String>) -> Problems {
    Problems::one(Problem::new(
        "host_pool_gib",
        format!("{host_bytes} bytes"),
        rule,
        "raise host_pool_gib or lower max_model_len",
    ))
}

/// Whether a pool of `pool_bytes` may be pinned with `available_bytes` of memory free.
///
/// # Errors
/// A pool above [`HOST_MEMORY_SHARE`] of what is free.
pub fn check_host_memory(pool_bytes: u64, available_bytes: u64) -> Result<(), Problems> {
    let limit = to_f64(available_bytes) * HOST_MEMORY_SHARE;
    if to_f64(pool_bytes) <= limit {
        return Ok(());
    }
    Err(host_problem(
        pool_bytes,
        format!("must be at most 95 % of the {available_bytes} bytes of memory that are available"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_block_starts_on_a_page() {
        assert_eq!(host_block_stride(3_274_752, true), Some(3_276_800));
        assert_eq!(host_block_stride(3_274_752, false), Some(3_274_752));
        assert_eq!(host_block_stride(u64::MAX, true), None);
    }

    #[test]
    fn one_longest_request_and_two_blocks_must_fit() {
        let page = 2_875_392;
        assert!(host_pool(page * 2049, page, true, 131_072, 64).is_err());
        assert_eq!(host_pool(page * 2050, page, true, 131_072, 64).unwrap().blocks, 2050);
    }

    #[test]
    fn only_tensor_ranks_of_one_node_share_the_pool() {
        assert!(Parallel::tensor_only(8).shares_host_pool());
        assert!(!Parallel::tensor_only(1).shares_host_pool());
        assert!(!Parallel { nodes: 2, ..Parallel::tensor_only(8) }.shares_host_pool());
    }
}
