//! The concurrency calculator: how many requests a GPU holds with its whole KV on board, and how many with HiSparse.
//!
//! ```text
//!  KV memory = GPU × utilisation − (shared weights ÷ TP + experts ÷ (EP ? DP × TP : TP)) − reserve
//!
//!  pages     = ⌈L / 64⌉
//!  baseline  = ⌊⌊KV / baseline block⌋ / pages⌋
//!  request   = pages + groups × (⌈B / 64⌉ + retained) + other             in GPU blocks
//!  gpu       = ⌊⌊KV / GPU block⌋ / request⌋        host = ⌊⌊host / host block⌋ / pages⌋
//!  HiSparse  = max(baseline, min(sequences, gpu, host))
//! ```
//! The first published form is one page for one model. Here blocks come from any model's layers, the draft depth sets
//! the hot rows, and the binding limit is named.

use serde::Serialize;

use crate::error::{Problem, Problems};

use super::groups::Groups;
use super::{ACTIVE_TAIL_PAGES, GIB, counted, floor_to_count, to_f64};

/// Requests at once in one replica where no limit is given: the published calculator's.
pub const DEFAULT_MAX_SEQUENCES: u64 = 1_024;

/// What the weights take, in GiB over the whole replica.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Weights {
    /// Weights that tensor parallelism divides.
    pub shared_gib: f64,
    /// Routed experts, which expert parallelism divides over data-parallel ranks too.
    pub routed_experts_gib: f64,
}

/// One engine's GPUs and how the model is spread over them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Node {
    /// Memory of one GPU, in bytes, as its maker states it.
    pub gpu_bytes: u64,
    /// Part of that which the engine may use.
    pub utilisation: f64,
    /// GiB kept for activations, graphs and the rest.
    pub reserve_gib: f64,
    /// The model's weights.
    pub weights: Weights,
    /// Data-parallel replicas.
    pub data_parallel: u64,
    /// Tensor-parallel ranks.
    pub tensor_parallel: u64,
    /// Whether the experts are spread over all ranks.
    pub expert_parallel: bool,
    /// GPU bytes for KV, where they are known and need not be estimated.
    pub kv_bytes: Option<u64>,
}

impl Node {
    /// One rank of which only the memory left for KV matters.
    pub const fn with_kv_bytes(kv_bytes: u64) -> Self {
        Self {
            gpu_bytes: kv_bytes,
            utilisation: 1.0,
            reserve_gib: 0.0,
            weights: Weights { shared_gib: 0.0, routed_experts_gib: 0.0 },
            data_parallel: 1,
            tensor_parallel: 1,
            expert_parallel: false,
            kv_bytes: Some(kv_bytes),
        }
    }

    /// GPU memory left for KV on each rank, in GiB; below zero when the weights do not fit.
    pub fn kv_gib(&self) -> f64 {
        if let Some(bytes) = self.kv_bytes {
            return to_f64(bytes) / GIB;
        }
        let tensor = to_f64(self.tensor_parallel);
        let spread = if self.expert_parallel { to_f64(self.data_parallel) * tensor } else { tensor };
        let weights = self.weights.shared_gib / tensor + self.weights.routed_experts_gib / spread;
        to_f64(self.gpu_bytes) / GIB * self.utilisation - weights - self.reserve_gib
    }
}

/// What one block of 64 tokens costs in each pool, and how many groups a request has one in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Blocks {
    /// Bytes on the GPU without HiSparse: every layer's rows and every indexer's keys.
    pub baseline_bytes: u64,
    /// Bytes of a block of the shared GPU pool.
    pub gpu_bytes: u64,
    /// Bytes on the host.
    pub host_bytes: u64,
    /// Hot groups, each of which a request pays its hot and retained pages in.
    pub groups: u64,
    /// Tokens of a block.
    pub block_tokens: u64,
}

impl Blocks {
    /// The blocks of packed groups; `None` on overflow.
    pub fn of(groups: &Groups, block_tokens: u64) -> Option<Self> {
        Some(Self {
            baseline_bytes: groups.baseline_block_bytes()?,
            gpu_bytes: groups.gpu_block_bytes,
            host_bytes: groups.host_block_bytes,
            groups: groups.hot_groups(),
            block_tokens,
        })
    }
}

/// What each request takes and how many may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Terms {
    /// Hot rows of one request.
    pub hot_rows: u64,
    /// Pages per group that stay on the GPU beside the hot buffer.
    pub retained_pages: u64,
    /// GPU blocks per request for anything else.
    pub other_blocks: u64,
    /// Requests that may run at once in one replica.
    pub max_sequences: u64,
    /// Host pool of one replica, in bytes; `None` asks how much it would have to be.
    pub host_bytes: Option<u64>,
    /// Whether the ranks of a replica share that pool, rather than each having one.
    pub share_host: bool,
    /// Host bytes that hold offloaded indexer keys, apart from the pool.
    pub indexer_offload_bytes: u64,
}

impl Terms {
    /// Requests with this many hot rows and nothing else out of the ordinary.
    pub const fn new(hot_rows: u64) -> Self {
        Self {
            hot_rows,
            retained_pages: ACTIVE_TAIL_PAGES,
            other_blocks: 0,
            max_sequences: DEFAULT_MAX_SEQUENCES,
            host_bytes: None,
            share_host: true,
            indexer_offload_bytes: 0,
        }
    }

    /// GPU blocks a request takes whatever its length: hot and retained pages of each group; `None` on overflow.
    fn fixed_blocks(&self, blocks: &Blocks) -> Option<u64> {
        let hot = (blocks.block_tokens > 0).then(|| self.hot_rows.div_ceil(blocks.block_tokens))?;
        let pages = hot.checked_add(self.retained_pages)?;
        blocks.groups.checked_mul(pages)?.checked_add(self.other_blocks)
    }
}

/// What stops one more request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Binding {
    /// The engine's limit on running requests.
    Sequences,
    /// GPU memory.
    Gpu,
    /// Host memory.
    Host,
}

/// Requests of one length per data-parallel replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// Length of each request.
    pub context_tokens: u64,
    /// Requests with all KV on the GPU.
    pub baseline: u64,
    /// Requests with HiSparse; never below the baseline, because full residency stays possible.
    pub hisparse: u64,
    /// GPU blocks of one request with HiSparse.
    pub request_blocks: u64,
    /// Requests that GPU memory alone allows with HiSparse.
    pub gpu_limit: u64,
    /// Requests that the host pool alone allows, where one is given.
    pub host_limit: Option<u64>,
    /// Host bytes per replica from which on the host no longer limits; 0 where HiSparse gains nothing.
    pub minimum_host_bytes: u64,
    /// Host bytes of the node: the pools of all replicas (and ranks, unless shared) and the offloaded keys.
    pub physical_host_bytes: Option<u64>,
    /// Requests whose indexer keys the offloaded bytes hold.
    pub indexer_offload_requests: u64,
    /// What stops the next request.
    pub binding: Binding,
}

/// Answers for requests of `context_tokens`.
///
/// # Errors
/// A zero length, degree or block, a memory share outside 0 to 1, and sums that overflow.
pub fn answer(node: &Node, blocks: &Blocks, terms: &Terms, context_tokens: u64) -> Result<Answer, Problems> {
    check(node, blocks, context_tokens)?;
    let kv_bytes = node.kv_gib() * GIB;
    let pages = context_tokens.div_ceil(blocks.block_tokens);
    let baseline = (floor_to_count(kv_bytes / to_f64(blocks.baseline_bytes)) / pages).min(terms.max_sequences);

    let request = terms.fixed_blocks(blocks).and_then(|fixed| fixed.checked_add(pages));
    let request = counted("hot_rows", terms.hot_rows, request)?;
    let gpu_limit = floor_to_count(kv_bytes / to_f64(blocks.gpu_bytes)) / request;
    let host_limit = terms.host_bytes.map(|bytes| bytes / blocks.host_bytes / pages);

    let wanted = gpu_limit.min(terms.max_sequences);
    let offloaded = wanted.min(host_limit.unwrap_or(u64::MAX));
    let minimum_host_bytes = if wanted > baseline {
        let bytes = wanted.checked_mul(pages).and_then(|count| count.checked_mul(blocks.host_bytes));
        counted("context_tokens", context_tokens, bytes)?
    } else {
        0
    };
    let offload_bytes = pages.checked_mul(blocks.gpu_bytes).and_then(|keys| keys.checked_mul(node.tensor_parallel));
    Ok(Answer {
        context_tokens,
        baseline,
        hisparse: baseline.max(offloaded),
        request_blocks: request,
        gpu_limit,
        host_limit,
        minimum_host_bytes,
        physical_host_bytes: physical_host_bytes(node, terms)?,
        indexer_offload_requests: terms.indexer_offload_bytes
            / counted("context_tokens", context_tokens, offload_bytes)?,
        binding: match host_limit {
            _ if terms.max_sequences <= baseline.max(offloaded) => Binding::Sequences,
            Some(host) if host < gpu_limit && host >= baseline => Binding::Host,
            _ => Binding::Gpu,
        },
    })
}

fn physical_host_bytes(node: &Node, terms: &Terms) -> Result<Option<u64>, Problems> {
    let Some(pool) = terms.host_bytes else { return Ok(None) };
    let copies = if terms.share_host { 1 } else { node.tensor_parallel };
    let bytes = pool
        .checked_mul(node.data_parallel)
        .and_then(|bytes| bytes.checked_mul(copies))
        .and_then(|bytes| bytes.checked_add(terms.indexer_offload_bytes));
    counted("host_pool_gib", pool, bytes).map(Some)
}

/// The context in tokens below which a request costs more GPU memory with HiSparse than without, before lengths are
/// rounded to pages. `None` where it never pays, because an indexer block is no smaller than a whole one.
///
/// # Errors
/// Sums that overflow.
pub fn break_even_context_tokens(blocks: &Blocks, terms: &Terms) -> Result<Option<u64>, Problems> {
    let Some(saved) = blocks.baseline_bytes.checked_sub(blocks.gpu_bytes).filter(|saved| *saved > 0) else {
        return Ok(None);
    };
    let fixed = counted("hot_rows", terms.hot_rows, terms.fixed_blocks(blocks))?;
    let tokens = u128::from(fixed) * u128::from(blocks.gpu_bytes);
    let tokens = tokens.checked_mul(u128::from(blocks.block_tokens)).map(|bytes| bytes.div_ceil(u128::from(saved)));
    counted("hot_rows", terms.hot_rows, tokens.and_then(|tokens| u64::try_from(tokens).ok())).map(Some)
}

fn check(node: &Node, blocks: &Blocks, context_tokens: u64) -> Result<(), Problems> {
    let mut problems = Problems::new();
    for (field, value) in [
        ("context_tokens", context_tokens),
        ("data_parallel", node.data_parallel),
        ("tensor_parallel", node.tensor_parallel),
        ("block_size", blocks.block_tokens),
        ("baseline_block_bytes", blocks.baseline_bytes),
        ("gpu_block_bytes", blocks.gpu_bytes),
        ("host_block_bytes", blocks.host_bytes),
    ] {
        if value == 0 {
            problems.push(Problem::new(field, value, "must be at least 1", "give a positive number"));
        }
    }
    if !(0.0..=1.0).contains(&node.utilisation) {
        problems.push(Problem::new("utilisation", node.utilisation, "must be from 0 to 1", "0.92 is usual"));
    }
    for (field, gib) in [
        ("reserve_gib", node.reserve_gib),
        ("shared_gib", node.weights.shared_gib),
        ("routed_experts_gib", node.weights.routed_experts_gib),
    ] {
        if !(gib.is_finite() && gib >= 0.0) {
            problems.push(Problem::new(field, gib, "must be a finite size", "give GiB, at least 0"));
        }
    }
    problems.into_result(())
}
