//! Real configurations: every sparse model is read, every dense one refused with the fields it lacks.

use std::path::PathBuf;

use hisparse_core::model::{Family, Model};

/// The folder of shared configurations, or a printed reason why there is none.
fn shared_configs() -> Option<PathBuf> {
    let root = std::env::var_os("HISPARSE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")), PathBuf::from);
    let folder = root.join("model_configs");
    if folder.is_dir() {
        return Some(folder);
    }
    #[allow(clippy::print_stdout)] // a skipped test says so
    {
        println!("skipped: {} is absent", folder.display());
    }
    None
}

fn read(folder: &std::path::Path, name: &str) -> Result<Model, String> {
    let path = folder.join(name).join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Model::from_json_text(name, &text).map_err(|problems| problems.to_string())
}

#[test]
fn every_dsa_folder_is_read() {
    let Some(folder) = shared_configs() else { return };
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

#[test]
fn every_dense_folder_is_refused_with_the_fields_it_lacks() {
    let Some(folder) = shared_configs() else { return };
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
