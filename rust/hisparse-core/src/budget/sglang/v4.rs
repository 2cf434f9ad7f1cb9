//! DeepSeek-V4's pools, in the doubles that SGLang computes them with.
//!
//! ```text
//!  per window token   L × page ÷ 256  +  L4 × C4 entry × ring ÷ 256
//!  per full token     s × window token  +  L4 × (C4 page ÷ 256 ÷ r + key ÷ 4)  +  L128 × C128 page ÷ 256
//!  fixed              ((running + 2) × ring + 128) × C128 entry × L128
//!  tokens             ⌊(bytes − fixed) ÷ full token⌋ to a page of 256
//! ```
//! `s` window tokens per full token, `r` shrinks the C4 pool. With drafts everything but the fixed part is charged for
//! one more layer, however many there are. The fixed part is inferred: it is the only sum of this form that gives every
//! recorded token count.

use crate::budget::compressor;
use crate::budget::rank::Rank;
use crate::budget::vllm::{floor_to_count, to_f64};
use crate::model::{Layer, Shape};

/// Tokens of a page in the engine's public pools.
pub const PAGE_TOKENS: u64 = 256;

/// Window tokens per full token where none are set.
pub const DEFAULT_WINDOW_RATIO: f64 = 0.1;

/// Requests at once that the state pools are sized for where no limit is set.
pub const DEFAULT_RUNNING_REQUESTS: u64 = 256;

/// Bytes per token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBytes {
    /// `bytes_per_full_token`.
    pub full: f64,
    /// `bytes_per_swa_token`.
    pub window: f64,
    /// Compressed rows of one C4 layer per full token, keys included.
    pub c4: f64,
    /// Compressed rows of one C128 layer per full token.
    pub c128: f64,
    /// Bytes of state that do not grow with tokens.
    pub fixed: f64,
}

/// Tokens of each pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pools {
    /// `full_max_total_num_tokens`, also `max_total_num_tokens`.
    pub full: u64,
    /// `swa_max_total_num_tokens`.
    pub window: u64,
    /// `c4_max_total_num_tokens`; with a ratio that is no integer the engine keeps a float here.
    pub c4: f64,
    /// `c128_max_total_num_tokens`.
    pub c128: u64,
    /// `c4_state_pool_size`.
    pub c4_state: u64,
}

/// What the engine is set to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// The C4 pool's shrink factor (`host_to_device_ratio`).
    pub ratio: f64,
    /// `swa_full_tokens_ratio`.
    pub window_ratio: f64,
    /// `max_running_requests`.
    pub running_requests: u64,
    /// Whether draft layers are on.
    pub drafts: bool,
}

/// Bytes per token; `None` for another family or on overflow.
pub fn token_bytes(rank: &Rank<'_>, setting: &Setting) -> Option<TokenBytes> {
    let Shape::DeepseekV4 { head_dim, .. } = rank.model.shape else { return None };
    let page = to_f64(PAGE_TOKENS);
    let c4_layers = to_f64(rank.indexer_layers());
    let c128_layers = rank.count(|layer| matches!(layer, Layer::Compressed { ratio: 128 }));
    let layers = to_f64(rank.kv_layers());
    let charged = if setting.drafts { (layers + 1.0) / layers } else { 1.0 };
    let ring = compressor::c4_ring_entries(setting.drafts);
    let c4_entry = compressor::c4_entry_bytes(head_dim, rank.model.index_head_dim)?;
    let c4_state = to_f64(c4_entry.checked_mul(ring)?) / page;
    let window_page = to_f64(rank.main.page_bytes(PAGE_TOKENS)?);
    let c4_page = to_f64(rank.main.page_bytes(PAGE_TOKENS / Layer::INDEXED_RATIO)?);
    let c128_page = to_f64(rank.main.page_bytes(PAGE_TOKENS / 128)?);
    let key = to_f64(rank.indexer.row_bytes()) / to_f64(Layer::INDEXED_RATIO);
    let c4 = c4_page / page / setting.ratio + key;
    let c128 = c128_page / page;
    let window = (layers * (window_page / page) + c4_layers * c4_state) * charged;
    let full = setting.window_ratio * window + (c4_layers * c4 + to_f64(c128_layers) * c128) * charged;
    let c128_ring = compressor::c128_ring_entries(setting.drafts);
    let entries = setting.running_requests.checked_add(2)?.checked_mul(c128_ring)?.checked_add(128)?;
    let fixed = entries.checked_mul(compressor::c128_entry_bytes(head_dim)?)?.checked_mul(c128_layers)?;
    Some(TokenBytes { full, window, c4, c128, fixed: to_f64(fixed) })
}

/// The pools that fit `available_bytes`; `None` where the engine refuses to start because no window page fits.
pub fn pools(bytes: &TokenBytes, setting: &Setting, available_bytes: u64) -> Option<Pools> {
    let tokens = (to_f64(available_bytes) - bytes.fixed) / bytes.full;
    let full = floor_to_count(tokens) / PAGE_TOKENS * PAGE_TOKENS;
    let window = floor_to_count(to_f64(full) * setting.window_ratio) / PAGE_TOKENS * PAGE_TOKENS;
    (window > 0).then(|| Pools {
        full,
        window,
        c4: (to_f64(full / Layer::INDEXED_RATIO) / setting.ratio).floor(),
        c128: full / 128,
        c4_state: window / PAGE_TOKENS * compressor::c4_ring_entries(setting.drafts),
    })
}
