//! What one row of KV is made of, to the byte, for every family and format.
//!
//! ```text
//!  mla_bf16     [ latent bf16 ×512 | rotary bf16 ×64 ]                                  1152
//!  mla_fp8      [ latent e4m3 ×512 | scale f32 ×4 | rotary bf16 ×64 ]                    656
//!  mla_fp8_raw  [ latent e4m3 ×512 | rotary e4m3 ×64 ]                                   576
//!  mla_f32      [ latent f32 ×512 | rotary f32 ×64 ]                                    2304
//!  dsv4         [ latent e4m3 ×448 | rotary bf16 ×64 ] … then [ scale ue8m0 ×7 + pad ]   584
//!  mha_bf16     [ key bf16 ×128 | value bf16 ×128 ] per KV head of the rank              512 a head
//!  indexer_fp8  [ key e4m3 ×128 ] … then [ scale f32 ×1 ]                                132
//!  indexer_fp4  [ key e2m1 ×128 ] … then [ scale ×4 B ]                                   68
//!  indexer_bf16 [ key bf16 ×128 ]                                                        256
//!  indexer_f32  [ key f32 ×128 ]                                                         512
//! ```
//! The numbers are those of today's models; every width comes from the config. "… then" means that a page holds all
//! first parts before all scales.

use crate::error::Problem;
use crate::model::{Model, Shape};
use crate::platform::{IndexDtype, KvDtype};

mod deepseek_v4;
mod indexer;
mod mha;
mod mla;
pub mod pool;
mod ranks;
mod row;

pub use indexer::{default_dtype as default_index_dtype, dtype_beside as index_dtype_beside};
pub use ranks::{RankHeads, heads_per_rank};
pub use row::{Arrangement, Part, RowLayout, StrideAlign};

impl RowLayout {
    /// The main KV row of `model` in `dtype`, on one of `tp` tensor-parallel ranks.
    ///
    /// # Errors
    /// A width that does not divide into scale blocks, heads that `tp` does not divide, or a format that the family
    /// does not have.
    pub fn main(model: &Model, dtype: KvDtype, tp: u64) -> Result<Self, Problem> {
        let heads = heads_per_rank(model, tp)?;
        match model.shape {
            Shape::Mla { kv_lora_rank, qk_rope_head_dim } => mla::row(kv_lora_rank, qk_rope_head_dim, dtype),
            Shape::DeepseekV4 { head_dim, qk_rope_head_dim, .. } => deepseek_v4::row(head_dim, qk_rope_head_dim, dtype),
            Shape::Mha { head_dim, .. } => mha::row(heads.kv, head_dim, dtype),
        }
    }

    /// The indexer row of `model`: one key per token, or per [`tokens_per_index_row`] tokens. Every rank holds it whole.
    ///
    /// # Errors
    /// A key width that does not divide into scale blocks, or a format that the family does not have.
    pub fn indexer(model: &Model, dtype: IndexDtype) -> Result<Self, Problem> {
        indexer::row(model, dtype)
    }
}

/// Tokens that one indexer row stands for: pooled keys, and the compression of DeepSeek-V4's indexed layers.
pub const fn tokens_per_index_row(model: &Model) -> u64 {
    match model.shape {
        Shape::DeepseekV4 { .. } => crate::model::Layer::INDEXED_RATIO,
        Shape::Mla { .. } | Shape::Mha { .. } => model.index_pooling,
    }
}
