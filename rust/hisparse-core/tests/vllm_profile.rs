//! `--engine vllm` as a plan: the engine's own figures, its refusals, and a warning for each of its quirks.
#![allow(clippy::unwrap_used)] // helpers outside a #[test] function are test code too

use hisparse_core::budget::plan::{Binding, Plan};
use hisparse_core::budget::request::PlanRequest;
use hisparse_core::budget::vllm::profile;
use hisparse_core::error::Problems;
use hisparse_core::model::Model;
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

/// GLM-5.2's shape, or with `freq` 1 GLM-5's.
fn glm(freq: u64) -> Model {
    let config = json!({
        "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "num_hidden_layers": 78,
        "num_attention_heads": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk": 2048,
        "index_n_heads": 32, "index_head_dim": 128, "index_topk_freq": freq, "index_skip_topk_offset": 3,
        "max_position_embeddings": 1_048_576, "num_nextn_predict_layers": 1,
    });
    Model::from_json_text("glm", &config.to_string()).unwrap()
}

fn v32() -> Model {
    let config = json!({
        "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "num_hidden_layers": 61,
        "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk": 2048,
        "index_n_heads": 64, "index_head_dim": 128, "max_position_embeddings": 163_840,
    });
    Model::from_json_text("v32", &config.to_string()).unwrap()
}

fn plan(model: &Model, request: &Value, kv_bytes: u64) -> Result<Plan, Problems> {
    let mut map = request.as_object().unwrap().clone();
    map.insert("engine".to_owned(), json!("vllm"));
    profile(model, &PlanRequest::from_json(&map)?, kv_bytes)
}

fn refused(model: &Model, request: &Value) -> Vec<String> {
    plan(model, request, 24 * GIB).unwrap_err().into_iter().map(|problem| problem.field).collect()
}

#[track_caller]
fn warned(plan: &Plan, words: &[&str]) {
    for words in words {
        assert!(plan.warnings.iter().any(|text| text.contains(words)), "no {words:?} in {:#?}", plan.warnings);
    }
}

#[test]
fn both_concurrency_figures_are_named() {
    let request = json!({"kv_dtype": "fp8_raw", "host_pool": "384GiB", "context": 131_072, "tp": 8});
    let plan = plan(&glm(4), &request, 24 * GIB).unwrap();
    warned(&plan, &["16.5 is the maximum it logs", "40.0 is its steady state", "k + 1 slots"]);
    assert_eq!((plan.hot_rows, plan.cell_bytes), (4096, 2880.into()));
    assert_eq!(plan.host_bytes, 143_395 * 2_875_392);
    assert_eq!(plan.physical_host_bytes, plan.host_bytes, "eight ranks share one pool");
    assert_eq!((plan.logical_tokens, plan.max_request_tokens), (139_810 * 64, 131_072));
    assert_eq!(plan.device_bytes.total(), Some(139_810 * 184_320));
    assert_eq!((plan.break_even_tokens, plan.vllm.map(|detail| detail.gpu_blocks)), (Some(5429), Some(139_810)));
}

#[test]
fn a_draft_layer_is_warned_of_with_both_block_sizes() {
    let request = json!({"kv_dtype": "fp8_raw", "host_pool": "384GiB", "context": 131_072, "tp": 8, "mtp": 3});
    let plan = plan(&glm(4), &request, 24 * GIB).unwrap();
    assert_eq!(plan.model.draft_layers, 1);
    assert_eq!((plan.model.layers, plan.model.indexer_layers), (78, 21));
    warned(&plan, &["from 184320 to 221184 bytes", "21.1 is its steady state"]);
}

#[test]
fn the_scaled_record_and_a_tiny_model_are_warned_of() {
    let request = json!({"kv_dtype": "fp8_e4m3", "host_pool": "384GiB", "context": 131_072});
    warned(&plan(&v32(), &request, 24 * GIB).unwrap(), &["515328 bytes up to a block of 545792"]);
    let two_layers = json!({"kv_dtype": "fp8_raw", "host_pool": "384GiB", "num_layers": 2});
    warned(&plan(&v32(), &two_layers, 24 * GIB).unwrap(), &["over half of it"]);
}

#[test]
fn all_refusals_come_back_together_under_the_names_of_flags() {
    let request = json!({
        "platform": "rocm", "pp": 2, "ratio": 4, "hot_rows": 1024, "kv_dtype": "fp8_raw", "assume_memory": "1GiB"
    });
    assert_eq!(refused(&glm(4), &request), ["--platform", "--pp", "--ratio", "--hot-rows"]);
    assert_eq!(refused(&glm(4), &json!({"stage": "0:39", "pp": 2})), ["--pp", "--stage"]);
    assert_eq!(refused(&glm(4), &json!({"host_pool": "1GiB"})), ["--host-pool"]);
    assert_eq!(refused(&glm(4), &json!({"tp": 9})), ["--tp"]);
    let memory = json!({"host_pool": "384GiB", "assume_memory": "384GiB", "context": 8192, "sm": 120, "mtp": 4});
    assert_eq!(refused(&glm(4), &memory), ["--host-pool", "--hot-rows"]);
}

#[test]
fn without_a_host_pool_the_least_that_suffices_is_named() {
    let request = json!({"kv_dtype": "fp8_raw", "context": 131_072, "tp": 8});
    let plan = plan(&glm(4), &request, 24 * GIB).unwrap();
    assert_eq!(plan.host_bytes, 40 * 2048 * 2_875_392);
    warned(&plan, &["does not start without host_pool_gib", "235552112640"]);
}

#[test]
fn the_table_is_the_published_one() {
    let request = json!({"kv_dtype": "fp8_raw", "context": [8192, 131_072, 1_048_576], "tp": 8});
    let kv_bytes = 19_162_114_555; // 17.846 GiB, what the calculator leaves of an H200 beside GLM-5.3
    let plan = plan(&glm(4), &request, kv_bytes).unwrap();
    let rows: Vec<_> = plan
        .concurrency
        .iter()
        .map(|row| (row.baseline, row.hisparse, row.host_bytes.div_ceil(GIB), row.binding))
        .collect();
    assert_eq!(
        rows,
        [(49, 71, 25, Binding::Seats), (3, 30, 165, Binding::IndexerTokens), (0, 5, 220, Binding::IndexerTokens)]
    );
}

#[test]
fn a_length_beyond_the_model_is_planned_with_a_warning() {
    let plan = plan(&v32(), &json!({"kv_dtype": "fp8_raw", "context": 1_048_576}), 24 * GIB).unwrap();
    warned(&plan, &["above the model's own 163840", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"]);
}

#[test]
fn a_plan_that_loses_says_so() {
    let request = json!({"kv_dtype": "fp8_raw", "context": [2048, 4096], "tp": 8});
    let plan = plan(&glm(4), &request, 24 * GIB).unwrap();
    warned(&plan, &["Up to 4096 tokens HiSparse gives no more", "below 5429 tokens"]);
}

#[test]
fn a_pool_that_admits_nothing_says_so() {
    let request = json!({"kv_dtype": "fp8_raw", "host_pool": "384GiB", "context": 131_072});
    let plan = plan(&glm(4), &request, 1 << 20).unwrap();
    assert_eq!((plan.max_request_tokens, plan.seats), (0, 0));
    warned(&plan, &["No request of 131072 tokens can be admitted"]);
}

#[test]
fn a_model_without_mla_is_planned_without_hisparse_and_says_so() {
    let config = json!({
        "architectures": ["MiniMaxM3SparseForCausalLM"], "model_type": "minimax_m3", "text_config": {
            "num_hidden_layers": 4, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
            "max_position_embeddings": 131_072,
            "sparse_attention_config": {
                "sparse_block_size": 128, "sparse_index_dim": 128, "sparse_num_index_heads": 4,
                "sparse_topk_blocks": 16, "sparse_attention_freq": [0, 1, 1, 1], "use_sparse_attention": true
            }
        }
    });
    let model = Model::from_json_text("m3", &config.to_string()).unwrap();
    let plan = plan(&model, &json!({"kv_dtype": "bfloat16"}), GIB).unwrap();
    assert!(!plan.hisparse && plan.host_bytes == 0);
    warned(&plan, &["leaves HiSparse off without a word"]);
}

#[test]
fn without_hisparse_a_token_costs_what_the_published_baseline_says() {
    let request = json!({"kv_dtype": "fp8_raw", "hisparse": false, "context": 131_072});
    let plan = plan(&glm(4), &request, 24 * GIB).unwrap();
    assert_eq!(plan.cell_bytes, 47_700.into());
    assert_eq!(plan.concurrency[0].baseline, 24 * GIB / 3_052_800 / 2048);
}
