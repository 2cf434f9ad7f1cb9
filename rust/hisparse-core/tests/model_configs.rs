//! Real configurations: every sparse model is read, every dense one refused with the fields it lacks.

mod common;

use std::path::{Path, PathBuf};

use common::shared;
use hisparse_core::model::{Family, Layer, Model, Shape, preset};
use serde_json::{Value, json};

/// The folder of samples that the repository carries, then the shared one with uncut files, where it is there.
fn folders() -> impl Iterator<Item = PathBuf> {
    let own = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/model_configs"));
    [Some(own), shared("model_configs")].into_iter().flatten()
}

fn read(folder: &Path, name: &str) -> Result<Model, String> {
    let path = folder.join(name).join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Model::from_json_text(name, &text).map_err(|problems| problems.to_string())
}

#[test]
fn every_dsa_folder_is_read() {
    for folder in folders() {
        for (name, family, layers, indexed) in [
            ("deepseek_v32", Family::DeepseekV32, 61, 61),
            ("toy_dsa_2layer", Family::DeepseekV32, 2, 2),
            ("glm_5", Family::GlmMoeDsa, 78, 78),
            ("glm_5_1", Family::GlmMoeDsa, 78, 78),
            ("glm_5_2", Family::GlmMoeDsa, 78, 21),
            ("glm_5_2_pattern", Family::GlmMoeDsa, 78, 21),
        ] {
            let model = read(&folder, name).unwrap();
            assert_eq!(
                (model.family, model.kv_layers(), model.indexer_layers(), model.top_k, model.warnings.as_slice()),
                (family, layers, indexed, 2048, [].as_slice()),
                "{name}"
            );
        }
    }
}

#[test]
fn every_dense_folder_is_refused_with_the_fields_it_lacks() {
    for folder in folders() {
        for (name, lacks) in [
            ("reject_deepseek_v3", "it lacks index_topk, index_n_heads, index_head_dim"),
            ("reject_llama", "it lacks kv_lora_rank, qk_rope_head_dim, index_topk, index_n_heads, index_head_dim"),
            ("reject_qwen3", "it lacks kv_lora_rank"),
            ("reject_mixtral", "it lacks kv_lora_rank"),
        ] {
            let refusal = read(&folder, name).unwrap_err();
            assert_eq!(refusal.lines().count(), 1, "{name}: {refusal}");
            assert!(refusal.contains(lacks), "{name}: {refusal}");
        }
    }
}

#[test]
fn sparse_layers_under_their_later_name_give_the_same_model() {
    for folder in folders() {
        for name in ["deepseek_v32", "glm_5", "glm_5_2"] {
            let text = std::fs::read_to_string(folder.join(name).join("config.json")).unwrap();
            let later = text.replace("deepseek_sparse_attention", "indexed_attention");
            assert_ne!(text, later, "{name} names its layers");
            assert_eq!(Model::from_json_text(name, &later).unwrap(), read(&folder, name).unwrap(), "{name}");
        }
    }
}

/// What transformers 5.24 does with checkpoints of this class, whose sparse layers go by three names, or by none.
#[test]
fn sparse_layers_of_glm_5_3_flash_give_the_same_model_under_each_of_their_names() {
    let text = include_str!("../presets/glm-5.3-flash.json");
    let model = Model::from_json_text("", text).unwrap();
    assert_eq!((model.indexer_layers(), model.count_layers(|layer| layer == Layer::Linear)), (11, 34));
    for name in ["indexed_attention", "full_attention"] {
        let renamed = text.replace("deepseek_sparse_attention", name);
        assert_ne!(text, renamed);
        assert_eq!(Model::from_json_text("", &renamed).as_ref(), Ok(&model), "{name}");
    }
    let mut unnamed: Value = serde_json::from_str(text).unwrap();
    unnamed["text_config"]["layer_types"] = Value::Null;
    assert_eq!(Model::from_value("", &unnamed).as_ref(), Ok(&model));
    unnamed["text_config"]["index_kpool_always_select_tail"] = json!(false);
    let without_tail = Model::from_value("", &unnamed).unwrap();
    assert_eq!((model.picks_per_row(), without_tail.picks_per_row()), (2_051, 2_048));
    unnamed["text_config"]["index_kpool"] = Value::Null;
    let refusal = Model::from_value("", &unnamed).unwrap_err().to_string();
    assert!(refusal.starts_with("text_config.index_kpool is null: is required"), "{refusal}");
}

#[test]
fn the_sparse_attention_of_qwen4_exp_is_refused_by_name() {
    let config = json!({"model_type": "qwen4_exp", "text_config": {
        "model_type": "qwen4_exp_text", "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 256,
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
    }});
    let refusal = Model::from_value("", &config).unwrap_err().to_string();
    assert_eq!(refusal.lines().count(), 1, "{refusal}");
    assert!(refusal.contains("indexer_budget is 2048: belongs to the sparse attention of Qwen4-Exp"), "{refusal}");
}

#[test]
fn both_key_styles_give_the_same_model() {
    for folder in folders() {
        for (plain, checkpoint) in [
            ("deepseek_v4_flash", "deepseek_v4_flash_checkpoint_keys"),
            ("deepseek_v4_pro", "deepseek_v4_pro_checkpoint_keys"),
            ("minimax_m3", "minimax_m3_checkpoint_keys"),
            ("glm_5_2", "glm_5_2_pattern"),
        ] {
            let left = read(&folder, plain).unwrap();
            let right = Model { name: left.name.clone(), ..read(&folder, checkpoint).unwrap() };
            assert_eq!(left, right, "{plain} and {checkpoint}");
        }
    }
}

#[test]
fn deepseek_v4_has_windows_and_two_compressions() {
    for folder in folders() {
        for (name, windows, fine, coarse, top_k) in
            [("deepseek_v4_flash", 2, 21, 20, 512), ("deepseek_v4_pro", 0, 29, 32, 1024)]
        {
            let model = read(&folder, name).unwrap();
            let counts = [Layer::Window, Layer::Compressed { ratio: 4 }, Layer::Compressed { ratio: 128 }]
                .map(|kind| model.count_layers(|layer| layer == kind));
            assert_eq!(counts, [windows, fine, coarse], "{name}");
            assert_eq!(
                (model.top_k, model.indexer_layers(), model.family),
                (top_k, fine, Family::DeepseekV4),
                "{name}"
            );
        }
    }
}

#[test]
fn minimax_m3_picks_blocks_in_all_but_three_layers() {
    for folder in folders() {
        let model = read(&folder, "minimax_m3").unwrap();
        assert_eq!(model.shape, Shape::Mha { kv_heads: 4, head_dim: 128, block_tokens: 128 });
        assert_eq!((model.kv_layers(), model.sparse_layers(), model.top_k), (60, 57, 2048));
        assert_eq!(model.layers[..4], [Layer::Dense, Layer::Dense, Layer::Dense, Layer::Indexed]);
    }
}

#[test]
fn presets_have_the_shape_of_the_shared_configurations() {
    for folder in folders() {
        for (preset_name, name) in [
            ("deepseek-v3.2", "deepseek_v32"),
            ("glm-5", "glm_5"),
            ("glm-5.1", "glm_5_1"),
            ("glm-5.2", "glm_5_2"),
            ("deepseek-v4-flash", "deepseek_v4_flash"),
            ("minimax-m3", "minimax_m3"),
            ("toy-dsa", "toy_dsa_2layer"),
        ] {
            let model = Model { name: name.to_owned(), ..preset(preset_name).unwrap() };
            assert_eq!(model, read(&folder, name).unwrap(), "{preset_name}");
        }
    }
}

#[test]
fn an_unknown_model_with_dsa_fields_is_planned_with_a_warning() {
    let own = folders().next().unwrap();
    let model = read(&own, "generic_dsa").unwrap();
    assert_eq!((model.family, model.layers.len()), (Family::GenericDsa, 4));
    assert_eq!(model.warnings.len(), 1);
    assert!(model.warnings[0].starts_with("AnotherSparseForCausalLM is not a model this project knows"));
}
