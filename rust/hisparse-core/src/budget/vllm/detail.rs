//! The figures of a start under vLLM's own names, so that a plan can be laid beside the engine's log.

use serde::Serialize;

use super::allocation::Allocation;

/// The hot rows as `ResolvedHiSparseConfig` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Resolved {
    /// Rows the indexer picks per query token.
    pub top_k: u64,
    /// Hot rows of one request.
    pub device_buffer_size: u64,
    /// Most rows one step can pick.
    pub max_union_rows: u64,
}

/// What vLLM computes at its start.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Detail {
    /// Hot rows.
    pub resolved: Resolved,
    /// Cache groups: the host source, the indexer, resident and hot ones.
    pub groups: u64,
    /// Hot groups.
    pub hot_groups: u64,
    /// Resident groups, one to each hot group.
    pub resident_groups: u64,
    /// Layers of each hot group.
    pub hot_group_layers: Vec<u64>,
    /// Blocks of one request in each hot group.
    pub hot_blocks_per_request: u64,
    /// Bytes of one layer's hot page.
    pub hot_page_bytes: u64,
    /// Bytes of all indexers' keys of one block.
    pub indexer_page_bytes: u64,
    /// Bytes of one block of the GPU pool.
    pub gpu_block_bytes: u64,
    /// Blocks of the GPU pool.
    pub gpu_blocks: u64,
    /// Bytes of the GPU pool.
    pub gpu_pool_bytes: u64,
    /// Bytes from one host block to the next.
    pub host_block_stride: u64,
    /// Blocks of the host pool.
    pub host_blocks: u64,
    /// Bytes of one layer's part of a host block.
    pub host_layer_block_bytes: u64,
    /// Bytes of the host pool without alignment.
    pub host_tensor_bytes: u64,
    /// Whether the ranks share the host pool.
    pub shared_host_pool: bool,
    /// Requests of the longest length when one is being admitted and the others read from the host.
    pub steady_state_concurrency: f64,
    /// Requests of the longest length when each holds its whole in-flight window: the maximum vLLM logs.
    pub reported_max_concurrency: f64,
}

impl Detail {
    /// The figures of `allocation`.
    pub fn of(allocation: &Allocation) -> Self {
        let Allocation { hot_rows, groups, host, concurrency, .. } = allocation;
        Self {
            resolved: Resolved {
                top_k: hot_rows.top_k,
                device_buffer_size: hot_rows.hot_rows,
                max_union_rows: hot_rows.union_rows,
            },
            groups: groups.total(),
            hot_groups: groups.hot_groups(),
            resident_groups: groups.hot_groups(),
            hot_group_layers: groups.hot_group_layers.clone(),
            hot_blocks_per_request: allocation.hot_blocks_per_request,
            hot_page_bytes: groups.hot_page_bytes,
            indexer_page_bytes: groups.indexer_page_bytes,
            gpu_block_bytes: groups.gpu_block_bytes,
            gpu_blocks: allocation.gpu_blocks,
            gpu_pool_bytes: allocation.gpu_pool_bytes,
            host_block_stride: host.block_stride_bytes,
            host_blocks: host.blocks,
            host_layer_block_bytes: groups.hot_page_bytes,
            host_tensor_bytes: host.tensor_bytes,
            shared_host_pool: host.shared,
            steady_state_concurrency: concurrency.steady_state,
            reported_max_concurrency: concurrency.logged_maximum,
        }
    }
}
