//! What a pool is laid out from.

use crate::layout::{RowLayout, StrideAlign};
use crate::model::Layer;
use crate::platform::LayerGroups;

/// What a pool shall hold.
#[derive(Clone, Copy, Debug)]
pub struct PoolShape<'a> {
    /// Main layers in order.
    pub layers: &'a [Layer],
    /// Draft layers behind them, each with rows and index keys of its own.
    pub draft_layers: u64,
    /// Main KV of one token in one layer.
    pub main: &'a RowLayout,
    /// Index key of one row.
    pub indexer: &'a RowLayout,
    /// Tokens of one page.
    pub page_tokens: u64,
    /// Tokens that one main row of a sparse layer stands for.
    pub tokens_per_row: u64,
    /// Tokens that one index row stands for.
    pub tokens_per_index_row: u64,
    /// Pages, the one that takes what must go nowhere included.
    pub pages: u64,
    /// What rows are aligned to.
    pub align: StrideAlign,
    /// Whether layers that share an index lie side by side.
    pub groups: LayerGroups,
}
