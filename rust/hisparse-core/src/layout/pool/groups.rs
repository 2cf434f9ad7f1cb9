//! Which layers lie side by side: an indexed layer and those that reuse its top-k.
//!
//! ```text
//!  layers   I S S S I S S D I        groups   0–3   4–6   7   8        (off: one each)
//! ```
//! Rows of a group must be one run of bytes, so it ends where layers do not follow each other, and formats that keep
//! a page's scales apart have no groups at all.

use std::ops::Range;

use super::shape::PoolShape;
use crate::layout::Arrangement;
use crate::model::Layer;
use crate::platform::LayerGroups;

/// Groups of main layers, then each draft layer, with the rows that a page of theirs has. Layers without rows in host
/// memory (linear ones, and those that keep a window alone) are in none.
pub(super) fn groups(shape: &PoolShape<'_>, drafts: usize) -> Vec<(Range<usize>, u64)> {
    let together = shape.groups == LayerGroups::Auto && shape.main.arrangement() == Arrangement::RowMajor;
    let mut groups: Vec<(Range<usize>, u64)> = Vec::new();
    for (index, layer) in shape.layers.iter().enumerate() {
        let Some(rows) = page_rows(shape, *layer) else { continue };
        match groups.last_mut() {
            Some((group, _)) if together && *layer == Layer::Shared && joins(shape, group, index) => {
                group.end = index + 1;
            }
            _ => groups.push((index..index + 1, rows)),
        }
    }
    let sparse_rows = shape.page_tokens / shape.tokens_per_row.max(1);
    if drafts_have_rows(shape) {
        groups.extend((shape.layers.len()..shape.layers.len() + drafts).map(|layer| (layer..layer + 1, sparse_rows)));
    }
    groups
}

/// DeepSeek-V4's draft layers keep the window alone; its pages stand for several tokens a row.
pub(super) const fn drafts_have_rows(shape: &PoolShape<'_>) -> bool {
    shape.tokens_per_row == 1
}

/// Whether the layer at `index` reuses the top-k of the group right before it.
fn joins(shape: &PoolShape<'_>, group: &Range<usize>, index: usize) -> bool {
    group.end == index && shape.layers.get(group.start).is_some_and(|first| first.is_sparse())
}

/// Rows that one page has in this layer.
fn page_rows(shape: &PoolShape<'_>, layer: Layer) -> Option<u64> {
    match layer {
        Layer::Indexed | Layer::Shared | Layer::Dense => Some(shape.page_tokens / shape.tokens_per_row.max(1)),
        Layer::Compressed { ratio } => Some((shape.page_tokens / ratio.max(1)).max(1)),
        Layer::Window | Layer::Linear => None,
    }
}
