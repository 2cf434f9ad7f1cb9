//! Bytes as the text of a layout, which an engine reads from the service before it maps anything.
//!
//! ```text
//!  bytes 0, 1: where in a whole layout's text the rest is laid over it; beyond its end ─► the rest alone is the text
//!
//!  text ─► refused        or ─► a layout ─► the last row of each layer, the ranges of its pages: within their segments?
//! ```
//! Found at fault: a panic, or a layout that was accepted and names a byte outside its segments.

#![no_main]

use std::sync::LazyLock;

use hisparse_core::layout::pool::{Content, PoolLayout, PoolShape};
use hisparse_core::layout::{RowLayout, StrideAlign, default_index_dtype};
use hisparse_core::model::{Layer, preset};
use hisparse_core::platform::{KvDtype, LayerGroups};
use libfuzzer_sys::fuzz_target;

/// The text of a layout of four layers, two of which share an index.
static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let model = preset("glm-5.2").expect("a bundled model");
    let main = RowLayout::main(&model, KvDtype::Fp8E4m3, 1).expect("a supported type");
    let indexer = RowLayout::indexer(&model, default_index_dtype(&model)).expect("a supported type");
    let shape = PoolShape {
        layers: &[Layer::Indexed, Layer::Indexed, Layer::Shared, Layer::Indexed],
        draft_layers: 0,
        main: &main,
        indexer: &indexer,
        page_tokens: 64,
        tokens_per_row: 1,
        tokens_per_index_row: 1,
        pages: 100,
        align: StrideAlign::Packed,
        groups: LayerGroups::Auto,
    };
    serde_json::to_vec(&PoolLayout::new(&shape).expect("a small pool")).expect("plain data")
});

/// Layers and pages looked at of each region, and of the whole: a layout may name millions.
const LOOKS: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let [high, low, rest @ ..] = bytes else { return };
    let at = usize::from(u16::from_be_bytes([*high, *low]));
    let text = match WHOLE.get(..at) {
        Some(before) => [before, rest, WHOLE.get(at + rest.len()..).unwrap_or_default()].concat(),
        None => rest.to_vec(),
    };
    let Ok(layout) = serde_json::from_slice::<PoolLayout>(&text) else { return };
    let size = |segment: usize| layout.segment_bytes()[segment];
    for region in layout.regions().iter().filter(|region| region.content == Content::Main) {
        for layer in region.layers.clone().take(LOOKS) {
            let Some(view) = layout.layer(region.content, layer) else { continue };
            let (page, row) = (layout.pages().saturating_sub(1), view.page_rows.saturating_sub(1));
            if let Some(at) = view.row_bytes_at(page, row) {
                assert!(at + view.row_bytes <= size(region.segment), "layer {layer} ends beyond its segment");
            }
        }
    }
    for (segment, range) in layout.ranges_of(0..layout.pages().min(LOOKS as u64)) {
        assert!(range.end <= size(segment), "{range:?} of segment {segment}");
    }
});
