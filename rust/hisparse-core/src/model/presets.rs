//! Models known by name: the few fields of each `config.json` that its KV depends on, kept in the crate.
//!
//! ```text
//!  "glm-5.2" ──► presets/glm-5.2.json ──► the same reader as any config.json ──► Model
//! ```
//! A preset's note says where its numbers come from and what is not certain about them.

use serde::Serialize;

use super::{Family, Model};
use crate::error::{Problem, Problems};
use crate::input::nearest;

/// A bundled model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Preset {
    /// Its name on the command line.
    pub name: &'static str,
    /// Other names it answers to.
    pub aliases: &'static [&'static str],
    /// Its family.
    pub family: Family,
    /// Where the numbers come from, and what is not certain.
    pub note: &'static str,
    #[serde(skip)]
    config: &'static str,
}

macro_rules! preset {
    ($name:literal, $family:ident, $aliases:expr, $note:literal) => {
        Preset {
            name: $name,
            aliases: &$aliases,
            family: Family::$family,
            note: $note,
            config: include_str!(concat!("../../presets/", $name, ".json")),
        }
    };
}

/// Every preset, in the order of a listing.
pub const ALL: &[Preset] = &[
    preset!(
        "deepseek-v3.2",
        DeepseekV32,
        ["deepseek-ai/DeepSeek-V3.2", "deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-v3.2-exp"],
        "Published shape."
    ),
    preset!("glm-5", GlmMoeDsa, ["zai-org/GLM-5"], "Published shape."),
    preset!("glm-5.1", GlmMoeDsa, ["zai-org/GLM-5.1"], "Published shape, the same as GLM-5."),
    preset!(
        "glm-5.2",
        GlmMoeDsa,
        ["zai-org/GLM-5.2"],
        "Published shape: 21 of 78 layers carry an indexer (frequency 4, offset 3)."
    ),
    preset!(
        "glm-5.3",
        GlmMoeDsa,
        ["zai-org/GLM-5.3"],
        "Taken from public transcriptions of its config.json, which agree with GLM-5.2 in every field used here."
    ),
    preset!(
        "glm-5.3-flash",
        GlmMoeDsa,
        ["zai-org/GLM-5.3-Flash"],
        "Taken from public transcriptions of its config.json: 34 linear and 11 sparse layers, no rotary part, 4 tokens \
         pooled into an indexer key. Not certain: whether the draft layer keeps its own indexer keys."
    ),
    preset!(
        "deepseek-v4-flash",
        DeepseekV4,
        ["deepseek-ai/DeepSeek-V4-Flash"],
        "Taken from public transcriptions of its config.json: 2 window layers, 21 of ratio 4, 20 of ratio 128."
    ),
    preset!(
        "deepseek-v4-pro",
        DeepseekV4,
        ["deepseek-ai/DeepSeek-V4-Pro"],
        "Taken from public transcriptions of its config.json: 30 layers of ratio 4, 31 of ratio 128. The default of \
         transformers' class has 29 and 32."
    ),
    preset!(
        "minimax-m3",
        MinimaxM3,
        ["MiniMaxAI/MiniMax-M3"],
        "Shape of transformers' class and of public transcriptions. Not certain: the context (524,288 here, 1,048,576 in \
         some copies) and the number of draft layers (none here)."
    ),
    preset!(
        "toy-dsa",
        DeepseekV32,
        [],
        "Made up: DeepSeek-V3.2's attention widths in two layers, for tests and examples."
    ),
];

/// Reads the preset of this name or alias; letter case does not matter.
///
/// # Errors
/// An unknown name, with the nearest known one.
pub fn preset(name: &str) -> Result<Model, Problems> {
    let wanted = name.trim();
    let answers = |known: &str| known.eq_ignore_ascii_case(wanted);
    match ALL.iter().find(|preset| answers(preset.name) || preset.aliases.iter().any(|alias| answers(alias))) {
        Some(preset) => Model::from_json_text(preset.name, preset.config),
        None => Err(Problems::one(unknown(name))),
    }
}

fn unknown(name: &str) -> Problem {
    let names: Vec<&str> = ALL.iter().map(|preset| preset.name).collect();
    let remedy = match nearest(name.trim(), &names) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("give a config.json, or one of {}", names.join(", ")),
    };
    Problem::new("MODEL", format!("{name:?}"), "is no preset", remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Layer, Shape};

    #[test]
    fn every_preset_reads_as_its_family_under_each_of_its_names() {
        for entry in ALL {
            let model = preset(entry.name).unwrap();
            assert_eq!((model.name.as_str(), model.family), (entry.name, entry.family));
            for alias in entry.aliases {
                assert_eq!(preset(&alias.to_uppercase()), Ok(model.clone()), "{alias}");
            }
        }
    }

    #[test]
    fn no_two_presets_share_a_name() {
        let mut names: Vec<String> = ALL
            .iter()
            .flat_map(|preset| preset.aliases.iter().chain([&preset.name]))
            .map(|name| name.to_lowercase())
            .collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
    }

    #[test]
    fn the_layers_are_those_of_the_notes() {
        let layers = |name: &str| {
            let model = preset(name).unwrap();
            (model.kv_layers(), model.indexer_layers(), model.sparse_layers())
        };
        assert_eq!(layers("deepseek-v3.2"), (61, 61, 61));
        assert_eq!(layers("glm-5.1"), (78, 78, 78));
        assert_eq!(layers("glm-5.2"), (78, 21, 78));
        assert_eq!(layers("glm-5.3"), (78, 21, 78));
        assert_eq!(layers("glm-5.3-flash"), (11, 11, 11));
        assert_eq!(layers("deepseek-v4-flash"), (43, 21, 21));
        assert_eq!(layers("deepseek-v4-pro"), (61, 30, 30));
        assert_eq!(layers("minimax-m3"), (60, 57, 57));
        assert_eq!(layers("toy-dsa"), (2, 2, 2));
    }

    #[test]
    fn glm_5_3_flash_is_linear_but_for_every_fourth_layer() {
        let model = preset("glm-5.3-flash").unwrap();
        assert_eq!(model.layers[..4], [Layer::Linear, Layer::Linear, Layer::Linear, Layer::Indexed]);
        assert_eq!(model.shape, Shape::Mla { kv_lora_rank: 512, qk_rope_head_dim: 0 });
        assert_eq!((model.index_pooling, model.warnings.len()), (4, 0));
        assert_eq!((model.top_k, model.picks_per_row()), (2_048, 2_051), "the top-k, and a pool that is not full");
    }

    #[test]
    fn an_unknown_name_finds_its_neighbour() {
        assert_eq!(
            preset("glm-5.22").unwrap_err().to_string(),
            "MODEL is \"glm-5.22\": is no preset; did you mean glm-5.2?"
        );
        assert!(preset("qwen").unwrap_err().to_string().contains("give a config.json, or one of deepseek-v3.2, "));
    }
}
