//! Sentences of `warnings[]`: where vLLM 0.33.0 differs from what this project does, each with its figures.
//!
//! What no plan can say is listed in [`NOT_PLANNED`], by name and with the reason.

use crate::budget::plan;
use crate::error::Problems;

use super::allocation::Allocation;
use super::config::HotRows;
use super::groups::Groups;
use super::pool::HostPool;
use super::shared_memory::resolver_bytes;
use super::{ACTIVE_TAIL_PAGES, DEFAULT_IN_FLIGHT_TOKENS};

/// What a plan for vLLM leaves out, and why. Shown in the docs beside the profile.
pub const NOT_PLANNED: &[(&str, &str)] = &[
    ("decode context parallelism", "vLLM refuses HiSparse with it; a plan has no such flag"),
    ("dual-batch overlap", "vLLM refuses it with shared top-k; it changes no allocation"),
    ("in-flight tokens", "vLLM derives them from max_num_batched_tokens; a plan takes 16,384"),
    ("side_buffer_tokens", "vLLM sizes side buffers by the batch, not by the pool, so it is 0"),
    (
        "device_bytes.tables, .maps, .side",
        "vLLM takes them from its memory reserve before it sizes the pool, so they are 0",
    ),
    ("device_bytes.draft", "draft layers share the blocks of the other layers, so it is 0"),
    (
        "block size, num_gpu_blocks_override, world size",
        "a plan has no flag for them; `allocation::Start` takes all three",
    ),
    ("connectors", "a second connector's host memory (offloaded indexer keys) is its own budget"),
];

/// The resolver's cost when the host holds nearly everything.
pub const RESOLVER: &str = "vLLM's resolver keeps k keys in a hash table of k + 1 slots: a call takes about 1 ms when \
    nearly all picks are on the host; native's table is larger.";

/// `--share-host` where the engine does not.
pub const NOT_SHARED: &str = "vLLM shares the host pool only between two or more tensor-parallel ranks of one node: \
    --share-host changes nothing here.";

/// HiSparse asked for, and nothing in the model it could apply to.
pub const NOT_APPLIED: &str = "vLLM finds no MLA layer in this model and leaves HiSparse off without a word: this is \
    the plan without it; native plans the model with HiSparse.";

/// The two concurrency figures.
pub fn two_figures(allocation: &Allocation, max_model_len_tokens: u64) -> String {
    format!(
        "vLLM gives two figures for requests of {max_model_len_tokens} tokens: {:.1} is the maximum it logs, which takes \
         every request to hold its whole in-flight window of {DEFAULT_IN_FLIGHT_TOKENS} tokens on the GPU; {:.1} is \
         its steady state, where one request is being admitted and the others keep {ACTIVE_TAIL_PAGES} pages per \
         group and read the rest from the host. The table counts every request at the cost of the latter, as the \
         published calculator does.",
        allocation.concurrency.logged_maximum, allocation.concurrency.steady_state
    )
}

/// What draft layers do to the block, if anything.
pub fn draft_rounding(without: &Groups, with: &Groups, draft_layers: u64) -> Option<String> {
    (with.gpu_block_bytes > without.gpu_block_bytes).then(|| {
        format!(
            "{draft_layers} draft layer(s) raise vLLM's GPU block from {} to {} bytes, because blocks are whole rows of \
             hot pages; native adds the draft layer's own bytes.",
            without.gpu_block_bytes, with.gpu_block_bytes
        )
    })
}

/// What rounding to whole hot pages, or small groups, waste of each indexer block.
pub fn block_rounding(groups: &Groups) -> Option<String> {
    let unused = groups.unused_by_indexer_bytes();
    if unused == 0 {
        return None;
    }
    let most = if unused > groups.gpu_block_bytes / 2 { ", over half of it" } else { "" };
    Some(format!(
        "vLLM rounds the indexer's page of {} bytes up to a block of {}: {unused} bytes of every indexer block{most} are \
         never used; native rounds nothing.",
        groups.indexer_page_bytes, groups.gpu_block_bytes
    ))
}

/// No host pool was named, and vLLM does not start without one.
pub fn no_host_pool(host: &HostPool, max_model_len_tokens: u64) -> String {
    format!(
        "vLLM does not start without host_pool_gib: this plan takes {} bytes, the least that lets the GPU pool bind at \
         {max_model_len_tokens} tokens.",
        host.blocks.saturating_mul(host.block_stride_bytes)
    )
}

/// A GPU whose shared memory is not known here.
///
/// # Errors
/// Rows that overflow.
pub fn unknown_shared_memory(sm: u64, rows: HotRows) -> Result<String, Problems> {
    Ok(format!(
        "The shared memory of SM {sm} is not known here: vLLM refuses to start where a block has less than the {} bytes \
         that its resolver needs.",
        resolver_bytes(rows)?
    ))
}

/// A context longer than the model's own.
pub fn beyond_the_model(own_tokens: u64, max_model_len_tokens: u64) -> Option<String> {
    (max_model_len_tokens > own_tokens).then(|| {
        format!(
            "vLLM refuses a max_model_len of {max_model_len_tokens}, above the model's own {own_tokens}, unless \
             VLLM_ALLOW_LONG_MAX_MODEL_LEN is set; this plan is for a start with it."
        )
    })
}

/// The longest request does not fit on the GPU while it is admitted.
pub fn too_long_to_admit(max_request_tokens: u64, max_model_len_tokens: u64) -> String {
    format!(
        "No request of {max_model_len_tokens} tokens can be admitted: the GPU pool holds the admission of \
         {max_request_tokens} at most. Give more --kv-bytes or plan a shorter context."
    )
}

/// Contexts at which the hot buffers cost more than they save.
pub fn losing(break_even_context_tokens: Option<u64>, rows: &[plan::Concurrency]) -> Option<String> {
    let gains_nothing = |row: &&plan::Concurrency| row.hisparse <= row.baseline && row.baseline > 0;
    let longest = rows.iter().filter(gains_nothing).map(|row| row.context).max()?;
    let even = break_even_context_tokens.map_or_else(
        || "at no context do the hot buffers pay".to_owned(),
        |even| format!("below {even} tokens the hot buffers cost more GPU memory than they save"),
    );
    Some(format!("Up to {longest} tokens HiSparse gives no more requests than doing without: {even}."))
}

/// How to read a plan of an engine with one pool.
pub fn one_pool() -> String {
    "vLLM leases indexer, hot and resident pages from one GPU pool: device_bytes is its split when the steady state's \
     longest requests run, the rest resident; tables, maps, side and draft are not in it."
        .to_owned()
}
