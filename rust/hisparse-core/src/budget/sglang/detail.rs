//! Figures of a plan under SGLang's own names, so that they can be held against its log and its source.

use serde::Serialize;

use crate::budget::number::Number;

/// Figures under the engine's own names.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Detail {
    /// Release described.
    pub version: &'static str,
    /// `cell_size`, or `bytes_per_full_token` of DeepSeek-V4.
    pub cell_size: Number,
    /// `target_cell_size`: without draft layers.
    pub target_cell_size: Number,
    /// `indexer_cell_bytes`; negative under a negative ratio.
    pub indexer_cell_bytes: i64,
    /// `page_size` of the pools, whatever was asked for.
    pub page_size: u64,
    /// `max_total_num_tokens`.
    pub max_total_num_tokens: u64,
    /// `max_req_input_len`: inputs of this length are refused.
    pub max_req_input_len: u64,
    /// Rows of a request's buffer with its extra page.
    pub padded_buffer_size: u64,
    /// Scratch rows of a request under speculation.
    pub spec_scratch_capacity: u64,
    /// Bytes outside the engine's budget: tables, mapping, pad pages.
    pub unbudgeted_bytes: u64,
    /// Pools of DeepSeek-V4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v4: Option<V4Detail>,
}

/// Pools of DeepSeek-V4 under the engine's own names.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct V4Detail {
    /// Bytes per window token, all layers.
    pub bytes_per_swa_token: f64,
    /// Window tokens per full token.
    pub swa_full_tokens_ratio: f64,
    /// `swa_max_total_num_tokens`.
    pub swa_max_total_num_tokens: u64,
    /// `c4_max_total_num_tokens`.
    pub c4_max_total_num_tokens: f64,
    /// `c128_max_total_num_tokens`.
    pub c128_max_total_num_tokens: u64,
    /// `c4_state_pool_size`.
    pub c4_state_pool_size: u64,
}
