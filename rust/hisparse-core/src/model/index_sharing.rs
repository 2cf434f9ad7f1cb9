//! Which layers score their own top-k (F) and which reuse the one before (S).
//!
//! ```text
//!  indexer_types       ["full", "full", "full", "shared", …]   transformers
//!  index_topk_pattern  "FFFSSSFSSS…"                           checkpoint
//!  index_topk_freq 4, index_skip_topk_offset 3                 checkpoint:  layer i shares unless
//!                                                              max(i − offset + 1, 0) divides by freq
//!      layer  0 1 2 3 4 5 6 7 8 9 10 …
//!             F F F S S S F S S S F
//! ```
//! A file may say it in several of these ways; they must agree.

use super::Layer;
use super::source::{check_length, optional};
use crate::input::Fields;
use crate::limits::MAX_LAYERS;

/// Offset where the file gives a frequency alone: layers 0 and 1 are full (transformers, SGLang, vLLM).
const DEFAULT_OFFSET: u64 = 2;

/// Reads one way of saying it; `None` where it is wrong (then noted).
type Reader = fn(&mut Fields<'_>, u64) -> Option<Vec<Layer>>;

/// Reads the sharing of `layers` layers. `None` where it is wrong (then noted).
pub(super) fn read(fields: &mut Fields<'_>, layers: u64) -> Option<Vec<Layer>> {
    let ways: [(&str, Reader); 2] = [("indexer_types", named), ("index_topk_pattern", lettered)];
    let mut said = Vec::new();
    for (name, reader) in ways {
        if fields.raw(name).is_some() {
            said.push((name, reader(fields, layers)));
        }
    }
    let periodic = periodic(fields, layers);
    // A frequency of 1, the default, does not contradict a pattern.
    if said.is_empty() || periodic.as_ref().is_none_or(|sharing| sharing.contains(&Layer::Shared)) {
        said.push(("index_topk_freq", periodic));
    }
    let said: Option<Vec<_>> = said.into_iter().map(|(name, sharing)| Some((name, sharing?))).collect();
    let mut said = said?.into_iter();
    let (first_name, first) = said.next()?;
    for (name, sharing) in said {
        if let Some(layer) = (0..first.len()).find(|&layer| first[layer] != sharing[layer]) {
            fields.problem(
                name,
                format!("disagrees with {first_name} at layer {layer}"),
                "keep the one that the checkpoint was trained with",
            );
            return None;
        }
    }
    Some(first)
}

/// `indexer_types`: a list of `full` and `shared`.
fn named(fields: &mut Fields<'_>, layers: u64) -> Option<Vec<Layer>> {
    let name = "indexer_types";
    let entries = fields.list(name)?;
    let words: Vec<Option<&str>> = entries.iter().map(serde_json::Value::as_str).collect();
    strict(fields, name, &words, ["full", "shared"], layers)
}

/// `index_topk_pattern`: text, or a list, of `F` and `S`.
fn lettered(fields: &mut Fields<'_>, layers: u64) -> Option<Vec<Layer>> {
    let name = "index_topk_pattern";
    let value = fields.raw(name)?;
    if let Some(text) = value.as_str() {
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<Option<&str>> = letters.iter().map(|letter| Some(letter.as_str())).collect();
        return strict(fields, name, &letters, ["F", "S"], layers);
    }
    let Some(entries) = value.as_array() else {
        fields.problem(name, "must be text of F and S", "write one letter per layer");
        return None;
    };
    let words: Vec<Option<&str>> = entries.iter().map(serde_json::Value::as_str).collect();
    strict(fields, name, &words, ["F", "S"], layers)
}

/// One known word per layer, and a full layer first: anything else is refused.
fn strict(
    fields: &mut Fields<'_>,
    name: &str,
    words: &[Option<&str>],
    [full, shared]: [&str; 2],
    layers: u64,
) -> Option<Vec<Layer>> {
    let mut sharing = Vec::with_capacity(words.len());
    for (layer, word) in words.iter().enumerate() {
        match *word {
            Some(word) if word == full => sharing.push(Layer::Indexed),
            Some(word) if word == shared => sharing.push(Layer::Shared),
            _ => {
                let rule = format!("entry {layer} must be {full} or {shared}, in this case and spelling");
                fields.problem(name, rule, "write one entry per layer");
                return None;
            }
        }
    }
    if !check_length(fields, name, words.len(), layers) {
        return None;
    }
    if sharing.first() == Some(&Layer::Shared) {
        fields.problem(name, "starts with a shared layer, which has nothing to reuse", format!("start with {full}"));
        return None;
    }
    Some(sharing)
}

/// `index_topk_freq` with `index_skip_topk_offset`; all full where the file says nothing.
fn periodic(fields: &mut Fields<'_>, layers: u64) -> Option<Vec<Layer>> {
    let frequency = optional(fields, "index_topk_freq", 1, MAX_LAYERS, 1);
    let offset = optional(fields, "index_skip_topk_offset", 1, MAX_LAYERS, DEFAULT_OFFSET);
    Some(every(frequency?, offset?, layers))
}

/// The periodic rule itself.
fn every(frequency: u64, offset: u64, layers: u64) -> Vec<Layer> {
    (0..layers)
        .map(|layer| {
            let since_offset = (layer + 1).saturating_sub(offset);
            if since_offset.is_multiple_of(frequency) { Layer::Indexed } else { Layer::Shared }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn letters(config: &Value, layers: u64) -> Result<String, String> {
        let mut fields = Fields::new(config.as_object().unwrap(), "");
        let sharing = read(&mut fields, layers);
        let problems = fields.finish();
        match sharing {
            Some(sharing) if problems.is_empty() => {
                Ok(sharing.iter().map(|layer| if *layer == Layer::Shared { 'S' } else { 'F' }).collect())
            }
            _ => Err(problems.to_string()),
        }
    }

    #[test]
    fn the_three_ways_of_saying_it_agree() {
        let expected = Ok("FFFSSSFSSSFS".to_owned());
        let types: Vec<&str> =
            "FFFSSSFSSSFS".chars().map(|letter| if letter == 'F' { "full" } else { "shared" }).collect();
        for config in [
            json!({"index_topk_freq": 4, "index_skip_topk_offset": 3}),
            json!({"index_topk_pattern": "FFFSSSFSSSFS"}),
            json!({"index_topk_pattern": ["F", "F", "F", "S", "S", "S", "F", "S", "S", "S", "F", "S"]}),
            json!({"indexer_types": types}),
            json!({"indexer_types": types, "index_topk_freq": 4, "index_skip_topk_offset": 3}),
            json!({"indexer_types": types, "index_topk_freq": 1}),
        ] {
            assert_eq!(letters(&config, 12), expected, "{config}");
        }
    }

    #[test]
    fn a_frequency_alone_keeps_the_first_two_layers_full() {
        assert_eq!(letters(&json!({"index_topk_freq": 3}), 8), Ok("FFSSFSSF".to_owned()));
        assert_eq!(letters(&json!({}), 3), Ok("FFF".to_owned()));
    }

    #[test]
    fn a_pattern_that_sglang_would_misread_is_refused() {
        for (config, why) in [
            (json!({"index_topk_pattern": "FSSF"}), "one entry for each of the 5 layers, not 4"),
            (json!({"index_topk_pattern": "fssff"}), "entry 0 must be F or S"),
            (json!({"index_topk_pattern": "FSXFF"}), "entry 2 must be F or S"),
            (json!({"index_topk_pattern": "SFFFF"}), "starts with a shared layer"),
            (json!({"index_topk_pattern": 7}), "must be text"),
            (json!({"indexer_types": ["shared", "full", "full", "full", "full"]}), "starts with a shared layer"),
            (json!({"indexer_types": "full"}), "must be a list"),
            (json!({"index_topk_freq": 0}), "range"),
            (json!({"index_topk_freq": true}), "range"),
            (json!({"index_topk_freq": 2, "index_skip_topk_offset": 0}), "range"),
            (json!({"index_skip_topk_offset": "three"}), "range"),
            (
                json!({"index_topk_freq": 2, "index_topk_pattern": "FFFFS"}),
                "disagrees with index_topk_pattern at layer 2",
            ),
        ] {
            let refusal = letters(&config, 5).unwrap_err();
            assert!(refusal.contains(why), "{config}: {refusal}");
        }
    }
}
