//! DeepSeek Sparse Attention over MLA: DeepSeek-V3.2, GLM-5 and its successors, and others with the same fields.
//!
//! ```text
//!  row      [ kv_lora_rank | qk_rope_head_dim ]           one per token and layer
//!  indexer  [ index_head_dim ]                            one per token (or pool of tokens) and layer that scores
//! ```

use serde_json::Value;

use super::source::{Source, check_length, optional};
use super::{Family, Layer, Model, Shape, index_sharing};
use crate::input::Fields;
use crate::limits::{MAX_CONTEXT_TOKENS, MAX_DIMENSION, MAX_HEADS, MAX_HOT_ROWS, MAX_LAYERS, PAGE_TOKENS};
use crate::units::Tokens;

/// Reads the fields of a DSA model; `None` where one is missing or wrong (then noted).
pub(super) fn read(source: &mut Source<'_>, family: Family) -> Option<Model> {
    let (fields, glm5_next) = (&mut source.fields, source.glm5_next);
    let layer_count = fields.required("num_hidden_layers", MAX_LAYERS);
    let kv_lora_rank = fields.required("kv_lora_rank", MAX_DIMENSION);
    // GLM-5.3-Flash has no rotary part.
    let qk_rope_head_dim = fields.required_from("qk_rope_head_dim", 0, MAX_DIMENSION);
    let attention_heads = fields.required("num_attention_heads", MAX_HEADS);
    let top_k = fields.required("index_topk", MAX_HOT_ROWS);
    let index_head_dim = fields.required("index_head_dim", MAX_DIMENSION);
    let index_heads = fields.required("index_n_heads", MAX_HEADS);
    let context_tokens = fields.required("max_position_embeddings", MAX_CONTEXT_TOKENS);
    let draft_layers = optional(fields, "num_nextn_predict_layers", 0, MAX_LAYERS, 0);
    let index_pooling = read_pooling(fields, glm5_next);
    // Its class selects the tail where the file does not say.
    let selects_tail = fields.flag("index_kpool_always_select_tail").unwrap_or(glm5_next);
    let layers = layer_count.and_then(|count| read_layers(fields, count, glm5_next));

    let mut warnings = Vec::new();
    if family == Family::GenericDsa {
        warnings.push(format!(
            "{} is not a model this project knows; it is planned as generic DSA because it has the fields of one.",
            if source.architecture.is_empty() { "The config" } else { &source.architecture }
        ));
    }
    Some(Model {
        name: source.name.clone(),
        family,
        architecture: source.architecture.clone(),
        shape: Shape::Mla { kv_lora_rank: kv_lora_rank?, qk_rope_head_dim: qk_rope_head_dim? },
        layers: layers?,
        draft_layers: draft_layers?,
        attention_heads: attention_heads?,
        top_k: top_k?,
        tail_picks: if selects_tail { index_pooling?.saturating_sub(1) } else { 0 },
        index_head_dim: index_head_dim?,
        index_heads: index_heads?,
        index_pooling: index_pooling?,
        context_tokens: Tokens::new(context_tokens?),
        warnings,
    })
}

/// Tokens that are pooled into one indexer key. Pools lie within pages, so that a page's keys are its own: whoever shares
/// or moves a page takes whole pools along.
fn read_pooling(fields: &mut Fields<'_>, glm5_next: bool) -> Option<u64> {
    let name = "index_kpool";
    // Its class would pool 16 tokens where the file does not say, the published checkpoint pools 4.
    let tokens =
        if glm5_next { fields.required(name, PAGE_TOKENS)? } else { optional(fields, name, 1, PAGE_TOKENS, 1)? };
    if !PAGE_TOKENS.is_multiple_of(tokens) {
        let rule = format!("must divide {PAGE_TOKENS}, the tokens of a page");
        fields.problem(name, rule, "give a model whose pools do not cross pages");
    }
    if tokens > 1 && fields.raw("index_kpool_compress") == Some(&Value::Bool(false)) {
        fields.problem(
            "index_kpool_compress",
            "must be true where keys are pooled: only keys stored in pooled form are known",
            "give a model whose indexer cache is pooled",
        );
    }
    Some(tokens)
}

/// Index sharing, and which layers are linear.
fn read_layers(fields: &mut Fields<'_>, count: u64, glm5_next: bool) -> Option<Vec<Layer>> {
    let kinds = read_kinds(fields, count, glm5_next);
    let sharing = index_sharing::read(fields, count);
    let (kinds, sharing) = (kinds?, sharing?);
    let layers: Vec<Layer> = sharing.into_iter().zip(kinds).map(|(shared, kind)| kind.unwrap_or(shared)).collect();
    // Where the layer that would have scored is linear, nothing was scored.
    let sparse = layers.iter().position(|layer| layer.is_sparse());
    if let Some(first) = sparse.filter(|&first| layers[first] == Layer::Shared) {
        let rule = "shares the top-k of an earlier layer, but none before it scores";
        fields.problem_at("layer_types", first, rule, "make the first sparse layer a full one");
        return None;
    }
    Some(layers)
}

/// What `layer_types` calls a sparse layer: checkpoints, and transformers up to 5.17; transformers from 5.18 on.
const SPARSE: [&str; 2] = ["deepseek_sparse_attention", "indexed_attention"];

/// Where the file does not name the layers of GLM-5.3-Flash's class, the last of each four is sparse, the others are linear.
const GLM5_NEXT_PERIOD: u64 = 4;

/// `layer_types`: `None` for a sparse layer, else what the layer is.
///
/// `full_attention` is a sparse layer in checkpoints of GLM-5.3-Flash's class, whose files transformers reads so too.
/// Elsewhere it is refused: transformers runs the indexer in such layers of GLM-5 and DeepSeek-V3.2, whatever they are
/// called, and no DSA model is known that has dense attention in some.
fn read_kinds(fields: &mut Fields<'_>, count: u64, glm5_next: bool) -> Option<Vec<Option<Layer>>> {
    let name = "layer_types";
    if fields.raw(name).is_none() {
        let sparse = |layer: u64| !glm5_next || layer % GLM5_NEXT_PERIOD == GLM5_NEXT_PERIOD - 1;
        return Some((0..count).map(|layer| (!sparse(layer)).then_some(Layer::Linear)).collect());
    }
    let entries = fields.list(name)?;
    if !check_length(fields, name, entries.len(), count) {
        return None;
    }
    let mut kinds = Vec::with_capacity(entries.len());
    for (layer, entry) in entries.iter().enumerate() {
        kinds.push(match entry.as_str() {
            Some(kind) if SPARSE.contains(&kind) => None,
            Some("full_attention") if glm5_next => None,
            Some("linear_attention") => Some(Layer::Linear),
            Some("full_attention") => {
                let rule = "may be a dense layer, or one with an indexer under an old name";
                let remedy =
                    "write indexed_attention where the layer has an indexer; DSA with dense layers is not known";
                fields.problem_at(name, layer, rule, remedy);
                return None;
            }
            _ => {
                let remedy = "use indexed_attention, deepseek_sparse_attention or linear_attention";
                fields.problem_at(name, layer, "is no layer type of a DSA model", remedy);
                return None;
            }
        });
    }
    Some(kinds)
}
