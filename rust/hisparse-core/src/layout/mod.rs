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

use serde::Serialize;

use crate::error::Problem;
use crate::model::{Model, Shape};
use crate::platform::{IndexDtype, KvDtype};

mod deepseek_v4;
mod indexer;
mod mha;
mod mla;
pub mod pool;
mod ranks;

pub use indexer::{default_dtype as default_index_dtype, dtype_beside as index_dtype_beside};
pub use ranks::{RankHeads, heads_per_rank};

/// One run of equal elements in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// What it holds: `latent`, `rotary`, `scale`, `key`, `value`, `pad`.
    pub what: &'static str,
    /// Number format of one element.
    pub format: &'static str,
    /// How many elements.
    pub elements: u64,
    /// Bits of one element.
    pub element_bits: u64,
}

/// How the rows of one page lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrangement {
    /// Row after row.
    RowMajor,
    /// The first `value_bytes` of every row, then the rest (scales) of every row, then padding to a multiple of
    /// `pad_bytes` (1: none).
    ScalesLast {
        /// Bytes of a row that stand in the first run.
        value_bytes: u64,
        /// What a page is padded to a multiple of, in bytes.
        pad_bytes: u64,
    },
}

/// What a row's start is aligned to where rows are stored one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StrideAlign {
    /// No space between rows.
    Packed,
    /// Rows start at multiples of 64 bytes.
    To64,
    /// Rows start at multiples of 128 bytes.
    To128,
}

impl StrideAlign {
    /// The alignment in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Packed => 1,
            Self::To64 => 64,
            Self::To128 => 128,
        }
    }
}

/// The layout of one row, in one layer and on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RowLayout {
    name: &'static str,
    parts: Vec<Part>,
    arrangement: Arrangement,
    row_bytes: u64,
}

impl RowLayout {
    /// Widest row accepted: 2^40 bytes, far above any model, far below what page arithmetic could overflow on.
    const MAX_ROW_BYTES: u64 = 1 << 40;

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

    fn new(name: &'static str, parts: Vec<Part>, arrangement: Arrangement) -> Result<Self, Problem> {
        let bits =
            parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.elements.checked_mul(part.element_bits)?));
        match bits.map(|bits| bits.div_ceil(8)) {
            Some(row_bytes) if row_bytes <= Self::MAX_ROW_BYTES => Ok(Self { name, parts, arrangement, row_bytes }),
            _ => {
                Err(Problem::new(name, "too wide", "must be a row of at most 2^40 bytes", "check the config's widths"))
            }
        }
    }

    /// The layout's name, as in the table above.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What the row is made of, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// How a page of it is arranged.
    pub const fn arrangement(&self) -> Arrangement {
        self.arrangement
    }

    /// Bytes of one row, padding inside the row included.
    pub const fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Bytes from one row's start to the next where rows are stored one after another.
    pub const fn stride_bytes(&self, align: StrideAlign) -> u64 {
        self.row_bytes.next_multiple_of(align.bytes())
    }

    /// Bytes of a page of `rows` rows in this layout's own arrangement; `None` on overflow.
    pub const fn page_bytes(&self, rows: u64) -> Option<u64> {
        let Some(bytes) = self.row_bytes.checked_mul(rows) else { return None };
        match self.arrangement {
            Arrangement::RowMajor => Some(bytes),
            Arrangement::ScalesLast { pad_bytes, .. } => bytes.checked_next_multiple_of(pad_bytes),
        }
    }

    /// Where a page's scales begin, in bytes from its start, if they stand apart from the values; `None` on overflow
    /// too.
    pub const fn scales_offset_bytes(&self, rows: u64) -> Option<u64> {
        match self.arrangement {
            Arrangement::RowMajor => None,
            Arrangement::ScalesLast { value_bytes, .. } => value_bytes.checked_mul(rows),
        }
    }
}

/// Tokens that one indexer row stands for: pooled keys, and the compression of DeepSeek-V4's indexed layers.
pub const fn tokens_per_index_row(model: &Model) -> u64 {
    match model.shape {
        Shape::DeepseekV4 { .. } => crate::model::Layer::INDEXED_RATIO,
        Shape::Mla { .. } | Shape::Mha { .. } => model.index_pooling,
    }
}

/// Blocks of `block` values that share a scale.
///
/// # Errors
/// When `width` is no multiple of `block`.
fn scale_blocks(field: &str, width: u64, block: u64) -> Result<u64, Problem> {
    if width.is_multiple_of(block) {
        return Ok(width / block);
    }
    Err(Problem::new(
        field,
        width,
        format!("must be a multiple of {block}, the values that share a scale in FP8"),
        "use bfloat16 KV for this model",
    ))
}
