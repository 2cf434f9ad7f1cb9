//! Bytes per device token, as SGLang's pool configurators count them.
//!
//! ```text
//!  DSA   L × row + 132 × (HiSparse ? L : Li) × r      + D × (row + 132) × r
//!  M3    Ls × row + (Ld × row + Li × key) × r         + ⌊D × cell / L⌋ × r        (the ratio twice)
//! ```
//! `L` layers, `Li` with an indexer, `Ls` sparse, `Ld` dense, `D` draft layers, `r` the ratio, 1 where HiSparse is off.
//! With HiSparse on, DSA charges every layer an indexer: index sharing is lost. DeepSeek-V4 has its own counting in
//! `v4.rs`.

use crate::budget::number::Number;
use crate::budget::rank::Rank;
use crate::budget::request::{HostSizing, PlanRequest};
use crate::budget::vllm::to_f64;
use crate::layout::RowLayout;
use crate::limits::{CONFIG_RATIO, PAGE_TOKENS};
use crate::model::{Layer, Model, Shape};
use crate::platform::{KvDtype, Platform};

use super::v4;

/// Tokens of a page in MiniMax M3's pools.
const M3_PAGE_TOKENS: u64 = 128;

/// Bytes per token of a pool, before and with draft layers. A negative ratio makes them shrink, as it does upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Main layers (`target_cell_size`).
    pub target: i64,
    /// Main and draft layers (`cell_size`).
    pub with_drafts: i64,
    /// Indexer part of the main layers (`indexer_cell_bytes`).
    pub indexer: i64,
    /// Bytes of one row of main KV.
    pub row_bytes: u64,
}

/// The ratio the engine computes with, and whether it would see an integer.
pub fn ratio(request: &PlanRequest) -> (f64, bool) {
    match request.sizing {
        _ if !request.hisparse => (1.0, true),
        Some(HostSizing::Ratio(ratio)) => (ratio.to_f64(), ratio.denominator() == 1),
        Some(HostSizing::UncheckedRatio(ratio)) => (ratio, ratio.fract() == 0.0),
        _ => (to_f64(CONFIG_RATIO), true),
    }
}

/// Tokens of a page in the engine's pools, whatever was asked for.
pub fn page_tokens(model: &Model, request: &PlanRequest) -> u64 {
    match (model.shape, request.platform) {
        (Shape::DeepseekV4 { .. }, _) => v4::PAGE_TOKENS,
        (Shape::Mha { .. }, _) => M3_PAGE_TOKENS,
        (Shape::Mla { .. }, Platform::Cuda) => PAGE_TOKENS,
        (Shape::Mla { .. }, Platform::Rocm) => 1,
    }
}

/// How the engine stores main KV: FP8 has no scales on HIP, nor with the TRT-LLM backend that SM100 uses when HiSparse
/// is off.
pub fn stored_as(request: &PlanRequest) -> KvDtype {
    let trtllm = request.sm / 10 == 10 && !request.hisparse;
    match request.kv_dtype {
        KvDtype::Fp8E4m3 if request.platform == Platform::Rocm || trtllm => KvDtype::Fp8Raw,
        dtype => dtype,
    }
}

/// Bytes per device token for the same model and options; `None` where the engine would not compute one.
pub fn cell_bytes(rank: &Rank<'_>, request: &PlanRequest) -> Option<Number> {
    if matches!(rank.model.shape, Shape::DeepseekV4 { .. }) {
        return v4::token_bytes(rank, &v4_setting(rank, request)).map(|bytes| Number::Float(bytes.full));
    }
    u64::try_from(cell(rank, request)?.with_drafts).ok().map(Number::Whole)
}

/// The V4 configurator's inputs.
pub(super) fn v4_setting(rank: &Rank<'_>, request: &PlanRequest) -> v4::Setting {
    v4::Setting {
        ratio: ratio(request).0,
        window_ratio: request.swa_full_tokens_ratio.unwrap_or(v4::DEFAULT_WINDOW_RATIO),
        running_requests: request.max_seqs.unwrap_or(v4::DEFAULT_RUNNING_REQUESTS),
        drafts: rank.draft_layers > 0,
    }
}

/// The cell of a DSA or M3 model; `None` on overflow, and for DeepSeek-V4.
pub fn cell(rank: &Rank<'_>, request: &PlanRequest) -> Option<Cell> {
    let row_bytes = RowLayout::main(rank.model, stored_as(request), request.tp).ok()?.row_bytes();
    let key_bytes = rank.indexer.row_bytes();
    let (ratio, _) = ratio(request);
    match rank.model.shape {
        Shape::DeepseekV4 { .. } => None,
        Shape::Mla { .. } => {
            let layers = rank.kv_layers();
            let indexers = if request.hisparse { layers } else { rank.indexer_layers() };
            let indexer = scaled(indexers.checked_mul(key_bytes)?, ratio)?;
            let target = signed(layers.checked_mul(row_bytes)?)?.checked_add(indexer)?;
            let drafts = rank.draft_layers.checked_mul(row_bytes.checked_add(key_bytes)?)?;
            Some(Cell { target, with_drafts: target.checked_add(scaled(drafts, ratio)?)?, indexer, row_bytes })
        }
        Shape::Mha { .. } => {
            let dense = rank.count(|layer| layer == Layer::Dense);
            let indexer = rank.indexer_layers().checked_mul(key_bytes)?;
            let resident = dense.checked_mul(row_bytes)?.checked_add(indexer)?;
            let target = signed(rank.sparse_layers().checked_mul(row_bytes)?)?.checked_add(scaled(resident, ratio)?)?;
            let per_draft = target.checked_mul(signed(rank.draft_layers)?)?.checked_div(signed(rank.kv_layers())?)?;
            let drafts = scaled_signed(per_draft, ratio)?;
            Some(Cell { target, with_drafts: target.checked_add(drafts)?, indexer: scaled(indexer, ratio)?, row_bytes })
        }
    }
}

fn signed(count: u64) -> Option<i64> {
    i64::try_from(count).ok()
}

/// `int(count × ratio)` as Python computes it.
fn scaled(count: u64, ratio: f64) -> Option<i64> {
    scaled_signed(signed(count)?, ratio)
}

#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // the engine computes with the same doubles
fn scaled_signed(count: i64, ratio: f64) -> Option<i64> {
    let product = count as f64 * ratio;
    (product.abs() < 9.0e15).then_some(product as i64)
}
