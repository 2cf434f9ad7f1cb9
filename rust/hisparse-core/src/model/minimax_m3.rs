//! MiniMax M3: grouped-query attention whose sparse layers read the blocks that a K-only index picks.
//!
//! ```text
//!  checkpoint    sparse_attention_config { sparse_topk_blocks, sparse_block_size, sparse_attention_freq [0,0,0,1,…] }
//!  transformers  index_topk_blocks, index_block_size, layer_types [full_attention, …, minimax_m3_sparse, …]
//! ```

use serde_json::Value;

use super::source::{Source, check_length, optional};
use super::{Family, Layer, Model, Shape};
use crate::input::{Fields, whole_number};
use crate::limits::{MAX_CONTEXT_TOKENS, MAX_DIMENSION, MAX_HEADS, MAX_HOT_ROWS, MAX_LAYERS};
use crate::units::Tokens;

/// Reads the fields of a MiniMax M3; `None` where one is missing or wrong (then noted).
pub(super) fn read(source: &mut Source<'_>) -> Option<Model> {
    let fields = &mut source.fields;
    let layer_count = fields.required("num_hidden_layers", MAX_LAYERS);
    let attention_heads = fields.required("num_attention_heads", MAX_HEADS);
    let kv_heads = fields.required("num_key_value_heads", MAX_HEADS);
    let head_dim = fields.required("head_dim", MAX_DIMENSION);
    let context_tokens = fields.required("max_position_embeddings", MAX_CONTEXT_TOKENS);
    let draft_layers = optional(fields, "num_nextn_predict_layers", 0, MAX_LAYERS, 0);
    if let (Some(heads), Some(groups)) = (attention_heads, kv_heads)
        && !heads.is_multiple_of(groups)
    {
        fields.problem("num_key_value_heads", format!("must divide num_attention_heads, {heads}"), "check both counts");
    }

    let mut nested = fields.object("sparse_attention_config");
    let mut either =
        |plain: &str, checkpoint: &str, max: u64| read_either(fields, nested.as_mut(), plain, checkpoint, max);
    let index_heads = either("index_n_heads", "sparse_num_index_heads", MAX_HEADS);
    let index_head_dim = either("index_head_dim", "sparse_index_dim", MAX_DIMENSION);
    let block_tokens = either("index_block_size", "sparse_block_size", MAX_HOT_ROWS);
    let blocks = either("index_topk_blocks", "sparse_topk_blocks", MAX_HOT_ROWS);
    let layers = layer_count.and_then(|count| read_layers(fields, nested.as_mut(), count));
    let top_k = block_tokens.zip(blocks).map(|(tokens, blocks)| tokens.saturating_mul(blocks));
    if let Some(tokens) = top_k
        && tokens > MAX_HOT_ROWS
    {
        let name =
            if fields.raw("index_topk_blocks").is_some() { "index_topk_blocks" } else { "sparse_attention_config" };
        fields.problem(
            name,
            format!("picks {tokens} tokens a step, above {MAX_HOT_ROWS}"),
            "pick fewer or smaller blocks",
        );
    }
    if let Some(nested) = nested {
        fields.absorb(nested);
    }
    Some(Model {
        name: source.name.clone(),
        family: Family::MinimaxM3,
        architecture: source.architecture.clone(),
        shape: Shape::Mha { kv_heads: kv_heads?, head_dim: head_dim?, block_tokens: block_tokens? },
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

/// A number under its transformers name, or inside `sparse_attention_config` under the checkpoint's; both must agree.
fn read_either(
    fields: &mut Fields<'_>,
    nested: Option<&mut Fields<'_>>,
    plain: &str,
    checkpoint: &str,
    max: u64,
) -> Option<u64> {
    let Some(nested) = nested else { return fields.required(plain, max) };
    if fields.raw(plain).is_none() {
        return nested.required(checkpoint, max);
    }
    let by_plain = fields.required(plain, max);
    if nested.raw(checkpoint).is_some() {
        let by_checkpoint = nested.required(checkpoint, max);
        if let (Some(plain_value), Some(checkpoint_value)) = (by_plain, by_checkpoint)
            && plain_value != checkpoint_value
        {
            nested.problem(checkpoint, format!("disagrees with {plain}, {plain_value}"), "keep the checkpoint's value");
        }
    }
    by_plain
}

/// The layers, from either key style; where a file carries both, they must agree.
fn read_layers(fields: &mut Fields<'_>, nested: Option<&mut Fields<'_>>, count: u64) -> Option<Vec<Layer>> {
    let by_flag = match nested {
        Some(nested) => {
            check_switches(nested, count);
            nested.raw("sparse_attention_freq").is_some().then(|| from_flags(nested, count))
        }
        None => None,
    };
    let by_type = fields.raw("layer_types").is_some().then(|| from_types(fields, count));
    match (by_flag, by_type) {
        (Some(layers), None) | (None, Some(layers)) => layers,
        (Some(by_flag), Some(by_type)) => {
            let (by_flag, by_type) = (by_flag?, by_type?);
            if let Some(layer) = (0..by_flag.len()).find(|&layer| by_flag[layer] != by_type[layer]) {
                let rule = format!("disagrees with sparse_attention_config.sparse_attention_freq[{layer}]");
                fields.problem_at("layer_types", layer, rule, "keep the checkpoint's value");
            }
            Some(by_flag)
        }
        (None, None) => {
            fields.problem("layer_types", "is required", "add it, or sparse_attention_config.sparse_attention_freq");
            None
        }
    }
}

/// `sparse_attention_freq`: 1 where the layer is sparse, 0 where it is dense.
fn from_flags(nested: &mut Fields<'_>, count: u64) -> Option<Vec<Layer>> {
    let flags = read_flags(nested, "sparse_attention_freq", count)?;
    Some(flags.into_iter().map(|sparse| if sparse { Layer::Indexed } else { Layer::Dense }).collect())
}

fn read_flags(nested: &mut Fields<'_>, name: &str, count: u64) -> Option<Vec<bool>> {
    let entries = nested.list(name)?;
    let fits = check_length(nested, name, entries.len(), count);
    let mut flags = Vec::with_capacity(entries.len());
    for (layer, entry) in entries.iter().enumerate() {
        match whole_number(entry) {
            Some(0) => flags.push(false),
            Some(1) => flags.push(true),
            _ => nested.problem_at(name, layer, "must be 0 or 1", "write 1 for a sparse layer"),
        }
    }
    (fits && flags.len() == entries.len()).then_some(flags)
}

/// `layer_types`: `full_attention` or `minimax_m3_sparse`.
fn from_types(fields: &mut Fields<'_>, count: u64) -> Option<Vec<Layer>> {
    let name = "layer_types";
    let entries = fields.list(name)?;
    let fits = check_length(fields, name, entries.len(), count);
    let mut layers = Vec::with_capacity(entries.len());
    for (layer, entry) in entries.iter().enumerate() {
        match entry.as_str() {
            Some("full_attention") => layers.push(Layer::Dense),
            Some("minimax_m3_sparse") => layers.push(Layer::Indexed),
            _ => fields.problem_at(
                name,
                layer,
                "is no layer type of MiniMax M3",
                "use full_attention or minimax_m3_sparse",
            ),
        }
    }
    (fits && layers.len() == entries.len()).then_some(layers)
}

/// Switches that would change what is stored: sparse attention off, or an index that keeps values beside its keys.
fn check_switches(nested: &mut Fields<'_>, count: u64) {
    if nested.raw("use_sparse_attention").is_some_and(|value| *value != Value::Bool(true)) {
        nested.problem("use_sparse_attention", "must be true: without it the model is dense", "give a sparse model");
    }
    if nested.raw("sparse_disable_index_value").is_none() || nested.raw("sparse_attention_freq").is_none() {
        return;
    }
    let keys_only = read_flags(nested, "sparse_disable_index_value", count);
    // Wrong entries of the other list are noted by its own reader.
    let sparse = nested.raw("sparse_attention_freq").and_then(Value::as_array);
    for (layer, keys_only) in keys_only.into_iter().flatten().enumerate() {
        if !keys_only && sparse.and_then(|flags| flags.get(layer)).and_then(whole_number) == Some(1) {
            let rule = "must be 1 on a sparse layer: only an index of keys alone is known";
            nested.problem_at("sparse_disable_index_value", layer, rule, "give a model with a K-only index");
        }
    }
}
