//! One start of the engine put together: blocks, bytes and both concurrency figures for given memory.
//!
//! ```text
//!  geometry ─► groups ─┬─► GPU blocks  ─┐
//!  top_k, drafts ─► hot rows            ├─► demand ─► concurrency
//!  host bytes ─────────┴─► host blocks ─┘
//! ```

use serde::Serialize;

use crate::error::Problems;

use super::concurrency::{Concurrency, Demand, concurrency};
use super::config::{HotRows, resolve};
use super::groups::{Geometry, Groups, pack};
use super::pool::{HostPool, Parallel, host_pool};
use super::{DEFAULT_IN_FLIGHT_TOKENS, counted};

/// What the engine is started with.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The model's cache.
    pub geometry: Geometry<'a>,
    /// Rows the indexer picks.
    pub top_k: u64,
    /// Draft tokens per step.
    pub speculative_tokens: u64,
    /// Hot rows as configured.
    pub device_buffer_size: Option<u64>,
    /// GPU bytes left for KV.
    pub gpu_bytes: u64,
    /// Bytes of the host pool.
    pub host_bytes: u64,
    /// Longest request.
    pub max_model_len_tokens: u64,
    /// Tokens a request may have in flight while it is admitted.
    pub in_flight_tokens: u64,
    /// `num_gpu_blocks_override`.
    pub gpu_blocks_override: Option<u64>,
    /// How the processes are laid out.
    pub parallel: Parallel,
}

impl<'a> Start<'a> {
    /// A start with defaults for all but the model, the memory and the longest request.
    pub const fn new(
        geometry: Geometry<'a>,
        top_k: u64,
        gpu_bytes: u64,
        host_bytes: u64,
        max_model_len_tokens: u64,
    ) -> Self {
        Self {
            geometry,
            top_k,
            speculative_tokens: 0,
            device_buffer_size: None,
            gpu_bytes,
            host_bytes,
            max_model_len_tokens,
            in_flight_tokens: DEFAULT_IN_FLIGHT_TOKENS,
            gpu_blocks_override: None,
            parallel: Parallel::tensor_only(1),
        }
    }
}

/// What the engine then holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Allocation {
    /// Hot rows, settled.
    pub hot_rows: HotRows,
    /// Blocks of one request's hot buffer in each hot group.
    pub hot_blocks_per_request: u64,
    /// Cache groups and their pages.
    pub groups: Groups,
    /// Blocks of the GPU pool.
    pub gpu_blocks: u64,
    /// Bytes of the GPU pool.
    pub gpu_pool_bytes: u64,
    /// The host pool.
    pub host: HostPool,
    /// Blocks that one longest request takes.
    pub demand: Demand,
    /// Both concurrency figures.
    pub concurrency: Concurrency,
}

/// Puts one start together.
///
/// # Errors
/// Whatever the hot rows, the groups or the host pool refuse; all that can be found in one pass.
pub fn allocate(start: Start<'_>) -> Result<Allocation, Problems> {
    let mut problems = Problems::new();
    let rows = resolve(start.top_k, start.speculative_tokens, start.device_buffer_size);
    let packed = pack(start.geometry);
    let host = packed.as_ref().map_err(Clone::clone).and_then(|groups| {
        host_pool(
            start.host_bytes,
            groups.host_block_bytes,
            start.parallel.shares_host_pool(),
            start.max_model_len_tokens,
            start.geometry.block_tokens,
        )
    });
    let (hot_rows, groups, host) = match (rows, packed, host) {
        (Ok(rows), Ok(groups), Ok(host)) => (rows, groups, host),
        (rows, packed, host) => {
            let pool = if packed.is_ok() { host.err() } else { None };
            for found in [rows.err(), packed.err(), pool].into_iter().flatten() {
                problems.extend(found);
            }
            return Err(problems);
        }
    };

    // `pack` refuses an empty block, so neither division is by zero.
    let gpu_blocks = start.gpu_blocks_override.unwrap_or(start.gpu_bytes / groups.gpu_block_bytes);
    let gpu_pool_bytes =
        counted("num_gpu_blocks_override", gpu_blocks, gpu_blocks.checked_mul(groups.gpu_block_bytes))?;
    let hot_blocks_per_request = hot_rows.hot_rows.div_ceil(start.geometry.block_tokens);
    let demand = Demand::of(
        start.max_model_len_tokens,
        start.in_flight_tokens,
        start.geometry.block_tokens,
        groups.hot_groups(),
        hot_blocks_per_request,
    );
    let demand = counted("max_model_len", start.max_model_len_tokens, demand)?;
    let concurrency = concurrency(demand, gpu_blocks, host.blocks);
    Ok(Allocation { hot_rows, hot_blocks_per_request, groups, gpu_blocks, gpu_pool_bytes, host, demand, concurrency })
}
