//! DeepSeek-V4: every layer keeps a sliding window; most also keep one row per 4 (C4, picked by an indexer) or per
//! 128 tokens (C128, read whole).
//!
//! ```text
//!  compress_ratios  [0,       0,       4,            128,           4, …]         checkpoint
//!  layer_types      [sliding, sliding, compressed,   heavily comp., compressed, …] transformers, with compress_rates
//!  Layer            [Window,  Window,  Compressed 4, Compressed 128, …]
//! ```
//! Published files list the draft layers' ratios behind those of the main layers.

use serde_json::Value;

use super::source::{Source, check_length, optional};
use super::{Family, Layer, Model, Shape};
use crate::input::{Fields, whole_number};
use crate::limits::{MAX_CONTEXT_TOKENS, MAX_DIMENSION, MAX_HEADS, MAX_HOT_ROWS, MAX_LAYERS};
use crate::units::Tokens;

/// Ratio of the layers that are compressed so far that they need no indexer.
const HEAVY_RATIO: u64 = 128;

/// Reads the fields of a DeepSeek-V4; `None` where one is missing or wrong (then noted).
pub(super) fn read(source: &mut Source<'_>) -> Option<Model> {
    let fields = &mut source.fields;
    let layer_count = fields.required("num_hidden_layers", MAX_LAYERS);
    let head_dim = fields.required("head_dim", MAX_DIMENSION);
    let qk_rope_head_dim = fields.required("qk_rope_head_dim", MAX_DIMENSION);
    let sliding_window_tokens = fields.required("sliding_window", MAX_CONTEXT_TOKENS);
    let attention_heads = fields.required("num_attention_heads", MAX_HEADS);
    let top_k = fields.required("index_topk", MAX_HOT_ROWS);
    let index_head_dim = fields.required("index_head_dim", MAX_DIMENSION);
    let index_heads = fields.required("index_n_heads", MAX_HEADS);
    let context_tokens = fields.required("max_position_embeddings", MAX_CONTEXT_TOKENS);
    let draft_layers = optional(fields, "num_nextn_predict_layers", 0, MAX_LAYERS, 0);
    let layers = layer_count.and_then(|count| read_layers(fields, count, draft_layers.unwrap_or(0)));
    if let (Some(head), Some(rope)) = (head_dim, qk_rope_head_dim)
        && rope >= head
    {
        fields.problem("qk_rope_head_dim", format!("must be below head_dim, {head}"), "check both widths");
    }
    Some(Model {
        name: source.name.clone(),
        family: Family::DeepseekV4,
        architecture: source.architecture.clone(),
        shape: Shape::DeepseekV4 {
            head_dim: head_dim?,
            qk_rope_head_dim: qk_rope_head_dim?,
            sliding_window_tokens: sliding_window_tokens?,
        },
        layers: layers?,
        draft_layers: draft_layers?,
        attention_heads: attention_heads?,
        top_k: top_k?,
        tail_picks: 0,
        index_head_dim: index_head_dim?,
        index_heads: index_heads?,
        index_pooling: 1,
        context_tokens: Tokens::new(context_tokens?),
        warnings: Vec::new(),
    })
}

/// The layers, from either key style; where a file carries both, they must agree.
fn read_layers(fields: &mut Fields<'_>, count: u64, draft_layers: u64) -> Option<Vec<Layer>> {
    let has = |name: &str| fields.raw(name).is_some();
    match (has("compress_ratios"), has("layer_types")) {
        (true, false) => from_ratios(fields, count, draft_layers),
        (false, true) => from_types(fields, count),
        (true, true) => {
            let by_ratio = from_ratios(fields, count, draft_layers);
            let by_type = from_types(fields, count);
            let (by_ratio, by_type) = (by_ratio?, by_type?);
            if let Some(layer) = (0..by_ratio.len()).find(|&layer| by_ratio[layer] != by_type[layer]) {
                fields.problem_at(
                    "layer_types",
                    layer,
                    format!("disagrees with compress_ratios[{layer}]"),
                    "keep the one that the checkpoint was trained with",
                );
            }
            Some(by_ratio)
        }
        (false, false) => {
            fields.problem("compress_ratios", "is required", "add it, or layer_types with compress_rates");
            None
        }
    }
}

/// `compress_ratios`: 0, 4 or 128 per layer, perhaps with the draft layers' behind them.
fn from_ratios(fields: &mut Fields<'_>, count: u64, draft_layers: u64) -> Option<Vec<Layer>> {
    let name = "compress_ratios";
    let entries = fields.list(name)?;
    let found = u64::try_from(entries.len()).ok()?;
    if found != count.saturating_add(draft_layers) && !check_length(fields, name, entries.len(), count) {
        return None;
    }
    let mut layers = Vec::with_capacity(entries.len());
    for (layer, entry) in entries.iter().enumerate() {
        if let Some(kind) = of_ratio(entry) {
            layers.push(kind);
        } else {
            fields.problem_at(name, layer, "is no ratio of DeepSeek-V4", "use 0, 4 or 128");
        }
    }
    if layers.len() != entries.len() {
        return None;
    }
    layers.truncate(usize::try_from(count).ok()?);
    Some(layers)
}

fn of_ratio(entry: &Value) -> Option<Layer> {
    match u64::try_from(whole_number(entry)?).ok()? {
        0 => Some(Layer::Window),
        ratio @ (Layer::INDEXED_RATIO | HEAVY_RATIO) => Some(Layer::Compressed { ratio }),
        _ => None,
    }
}

/// `layer_types`, with the ratios in `compress_rates`.
fn from_types(fields: &mut Fields<'_>, count: u64) -> Option<Vec<Layer>> {
    let name = "layer_types";
    let entries = fields.list(name)?;
    check_rates(fields);
    let fits = check_length(fields, name, entries.len(), count);
    let mut layers = Vec::with_capacity(entries.len());
    for (layer, entry) in entries.iter().enumerate() {
        match entry.as_str() {
            Some("sliding_attention") => layers.push(Layer::Window),
            Some("compressed_sparse_attention") => layers.push(Layer::Compressed { ratio: Layer::INDEXED_RATIO }),
            Some("heavily_compressed_attention") => layers.push(Layer::Compressed { ratio: HEAVY_RATIO }),
            _ => fields.problem_at(
                name,
                layer,
                "is no layer type of DeepSeek-V4",
                "use sliding_attention, compressed_sparse_attention or heavily_compressed_attention",
            ),
        }
    }
    (fits && layers.len() == entries.len()).then_some(layers)
}

/// `compress_rates`, where given, must hold the two ratios this project knows.
fn check_rates(fields: &mut Fields<'_>) {
    if let Some(mut rates) = fields.object("compress_rates") {
        rates.required_from("compressed_sparse_attention", Layer::INDEXED_RATIO, Layer::INDEXED_RATIO);
        rates.required_from("heavily_compressed_attention", HEAVY_RATIO, HEAVY_RATIO);
        fields.absorb(rates);
    }
}
