//! How SGLang 0.5.23 reads the same `config.json`, for plans that say what that engine will do.
//!
//! ```text
//!  index_topk_pattern "FSSS" for 12 layers     ours: refused          SGLang: FSSSFFFFFFFF, without a word
//!  index_topk_pattern "fsssfsss…"              ours: refused          SGLang: all full
//!  index_topk_pattern "SFFF…"                  ours: refused          SGLang: accepted, then the coordinator asserts
//!  DeepSeek-V4 in transformers' keys           ours: read             SGLang: fails to load
//! ```

use serde_json::{Map, Value};

use super::{Family, Layer, Model};
use crate::error::Problem;
use crate::input::{shown, whole_number};
use crate::limits::MAX_LAYERS;

/// Which layers SGLang believes to share their top-k.
///
/// Order of precedence: `cli_factor` above 1, `indexer_types`, `index_topk_pattern`, `index_topk_freq` with
/// `index_skip_topk_offset`.
///
/// # Errors
/// Where SGLang raises: a frequency or an offset that is not positive, or a field it cannot compute with.
pub fn index_sharing(config: &Map<String, Value>) -> Result<Vec<Layer>, Problem> {
    let layers = number(config, "num_hidden_layers")?
        .and_then(|count| u64::try_from(count).ok())
        .filter(|count| *count <= MAX_LAYERS)
        .ok_or_else(|| refusal(config, "num_hidden_layers", "must be a number of layers"))?;
    let shares = sharing_rule(config)?;
    Ok((0..layers).map(|layer| if shares(layer) { Layer::Shared } else { Layer::Indexed }).collect())
}

/// The rule of one config: does this layer share?
fn sharing_rule(config: &Map<String, Value>) -> Result<Box<dyn Fn(u64) -> bool + '_>, Problem> {
    if let Some(factor) = number(config, "cli_factor")?.and_then(|factor| u64::try_from(factor).ok()).filter(|f| *f > 1)
    {
        return Ok(Box::new(move |layer| layer % factor != 0));
    }
    if let Some(types) = present(config, "indexer_types") {
        return Ok(Box::new(move |layer| entry(types, layer).is_some_and(|kind| kind == "shared")));
    }
    if let Some(pattern) = present(config, "index_topk_pattern") {
        return Ok(Box::new(move |layer| entry(pattern, layer).is_some_and(|letter| letter == "S")));
    }
    let frequency = positive(config, "index_topk_freq", 1)?;
    // Without an offset SGLang counts from layer 1, which is an offset of 2.
    let offset = positive(config, "index_skip_topk_offset", 2)?;
    Ok(Box::new(move |layer| !(layer + 1).saturating_sub(offset).is_multiple_of(frequency)))
}

/// Entry `layer` of a list of words or of a text's letters; `None` past its end, or where it is no text.
fn entry(value: &Value, layer: u64) -> Option<String> {
    let index = usize::try_from(layer).ok()?;
    match value {
        Value::String(text) => text.chars().nth(index).map(String::from),
        Value::Array(entries) => entries.get(index)?.as_str().map(str::to_owned),
        _ => None,
    }
}

fn present<'a>(config: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    config.get(name).filter(|value| !value.is_null())
}

fn number(config: &Map<String, Value>, name: &str) -> Result<Option<i128>, Problem> {
    let Some(value) = present(config, name) else { return Ok(None) };
    whole_number(value).map(Some).ok_or_else(|| refusal(config, name, "must be a whole number"))
}

fn positive(config: &Map<String, Value>, name: &str, default: u64) -> Result<u64, Problem> {
    match number(config, name)? {
        None => Ok(default),
        Some(value) => u64::try_from(value)
            .ok()
            .filter(|value| *value > 0)
            .ok_or_else(|| refusal(config, name, "must be positive: SGLang 0.5.23 asserts it")),
    }
}

fn refusal(config: &Map<String, Value>, name: &str, rule: &str) -> Problem {
    let value = config.get(name).map_or_else(|| "missing".to_owned(), shown);
    Problem::new(name, value, rule, "correct the config.json")
}

/// Layers that score, each with the layers that reuse its top-k: what SGLang's coordinator prefetches together.
/// Layers that nobody reuses are left out.
///
/// # Errors
/// When the first layer shares: the coordinator asserts then.
pub fn prefetch_groups(layers: &[Layer]) -> Result<Vec<(usize, Vec<usize>)>, Problem> {
    let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        if *layer != Layer::Shared {
            groups.push((index, Vec::new()));
        } else if let Some((_, sharers)) = groups.last_mut() {
            sharers.push(index);
        } else {
            return Err(Problem::new(
                "index_topk_pattern",
                "S first",
                "starts with a shared layer, which has nothing to reuse",
                "start with F",
            ));
        }
    }
    groups.retain(|(_, sharers)| !sharers.is_empty());
    Ok(groups)
}

/// The F and S pattern that SGLang's prefetch uses; `None` where it is off: no layer shares, or there is more than
/// one pipeline stage.
pub fn prefetch_pattern(model: &Model, pipeline_stages: u64) -> Option<String> {
    if pipeline_stages != 1 || !model.layers.contains(&Layer::Shared) {
        return None;
    }
    Some(model.layers.iter().map(|layer| if *layer == Layer::Shared { 'S' } else { 'F' }).collect())
}

/// Why SGLang cannot load this config although we can: it knows DeepSeek-V4 and MiniMax M3 by the checkpoint's keys
/// alone.
pub fn unreadable(model: &Model, config: &Value) -> Option<Problem> {
    let key = match model.family {
        Family::DeepseekV4 => "compress_ratios",
        Family::MinimaxM3 => "sparse_attention_config",
        Family::DeepseekV32 | Family::GlmMoeDsa | Family::GenericDsa => return None,
    };
    let has = |object: &Value| object.get(key).is_some_and(|value| !value.is_null());
    if has(config) || config.get("text_config").is_some_and(has) {
        return None;
    }
    Some(Problem::new(
        key,
        "missing",
        "is required by SGLang 0.5.23",
        "use the config.json of the published checkpoint",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(config: &Value) -> Result<String, Problem> {
        let layers = index_sharing(config.as_object().unwrap())?;
        Ok(layers.iter().map(|layer| if *layer == Layer::Shared { 'S' } else { 'F' }).collect())
    }

    #[test]
    fn what_we_refuse_sglang_reads_as_full() {
        for (pattern, layers) in [(json!("FSS"), "FSSFFF"), (json!("fsssss"), "FFFFFF"), (json!("FXYZSS"), "FFFFSS")] {
            assert_eq!(read(&json!({"num_hidden_layers": 6, "index_topk_pattern": pattern})).as_deref(), Ok(layers));
        }
    }

    #[test]
    fn a_factor_beats_every_other_field() {
        let config =
            json!({"num_hidden_layers": 6, "cli_factor": 3, "index_topk_freq": 2, "index_topk_pattern": "FFFFFF"});
        assert_eq!(read(&config).as_deref(), Ok("FSSFSS"));
    }

    #[test]
    fn sglang_raises_on_a_frequency_or_offset_of_zero() {
        for config in [
            json!({"num_hidden_layers": 6, "index_topk_freq": 0}),
            json!({"num_hidden_layers": 6, "index_topk_freq": 4, "index_skip_topk_offset": 0}),
        ] {
            assert!(read(&config).is_err(), "{config}");
        }
    }

    #[test]
    fn a_group_is_a_scoring_layer_and_those_that_reuse_it() {
        let layers = [Layer::Indexed, Layer::Indexed, Layer::Shared, Layer::Shared, Layer::Indexed];
        assert_eq!(prefetch_groups(&layers), Ok(vec![(1, vec![2, 3])]));
        assert!(prefetch_groups(&[Layer::Shared]).is_err());
    }
}
