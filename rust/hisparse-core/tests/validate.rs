//! `validate` as its users see it: the contract's JSON, all problems together, and what each engine says of the same
//! configuration.

#![allow(clippy::unwrap_used)] // helpers outside a #[test] function are test code too

use hisparse_core::error::{Problem, Problems};
use hisparse_core::model::Model;
use hisparse_core::model::presets::preset;
use hisparse_core::validity::{Surroundings, Validation};
use serde_json::{Value, json};

fn with(model: Option<Result<Model, Problems>>, request: &Value) -> Validation {
    Validation::of_map(request.as_object().unwrap(), Surroundings { model, ..Surroundings::default() })
}

fn bare(request: &Value) -> Validation {
    with(None, request)
}

fn model(name: &str, request: &Value) -> Validation {
    with(Some(preset(name)), request)
}

fn fields(validation: &Validation) -> Vec<&str> {
    validation.problems.iter().map(|problem| problem.field.as_str()).collect()
}

#[test]
fn the_answer_has_the_names_that_others_rely_on() {
    let answer = serde_json::to_value(model("glm-5.2", &json!({"kv_dtype": "fp8_e4m3"}))).unwrap();
    assert_eq!(
        answer,
        json!({
            "valid": true,
            "resolved": {
                "prefill_backend": "flashmla_kv", "decode_backend": "flashmla_kv", "hot_rows": 4096, "ratio": 4,
                "top_k": 2048, "kv_dtype": "fp8_e4m3", "page_size": 64
            },
            "problems": [],
            "warnings": []
        })
    );
    let refused = serde_json::to_value(bare(&json!({"kv_dtype": "int4"}))).unwrap();
    assert_eq!(
        refused["problems"],
        json!([{
            "field": "--kv-dtype", "value": "int4", "rule": "must be a known KV type",
            "remedy": "use one of auto, bfloat16, fp8_e4m3, fp8_raw, float32"
        }])
    );
    assert_eq!((&refused["valid"], &refused["resolved"]["decode_backend"]), (&json!(false), &json!(null)));
}

#[test]
fn all_problems_of_one_configuration_come_back_together() {
    let request = json!({
        "engin": "native", "sm": true, "decode_backend": "flashmla", "prefill_backend": "tilelang", "page_size": 48,
        "hisparse_config": r#"{"device_buffer_size": 1000, "host_to_device_ratio": 0, "topk": 1}"#,
        "host_pool": "2TiB", "assume_memory": "1TiB", "speculative_num_draft_tokens": 8, "kv_dtype": "fp8_e4m3"
    });
    let surroundings = Surroundings {
        model: Some(preset("deepseek-v3.2")),
        host_pool: Problems::one(Problem::new("--host-pool", "2 TiB", "needs hugepages", "reserve them")),
        notes: vec!["memlock is 8 MiB and does not bind this pool.".to_owned()],
    };
    let validation = Validation::of_map(request.as_object().unwrap(), surroundings);
    assert_eq!(
        fields(&validation),
        [
            "engin",
            "--sm",
            "--prefill-backend",
            "--decode-backend",
            "--page-size",
            "--hisparse-config.topk",
            "--hisparse-config.device_buffer_size",
            "--hisparse-config.device_buffer_size",
            "--hisparse-config.host_to_device_ratio",
            "--speculative-num-draft-tokens",
            "--host-pool",
            "--host-pool",
        ],
        "{}",
        validation.problems
    );
    assert_eq!(validation.warnings, ["memlock is 8 MiB and does not bind this pool."]);
}

#[test]
fn a_model_that_is_refused_is_one_problem_among_the_others() {
    let dense = Model::from_json_text("", r#"{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32}"#);
    for engine in ["native", "sglang", "vllm"] {
        let validation = with(Some(dense.clone()), &json!({"engine": engine, "hisparse_config": "[]"}));
        assert_eq!(validation.problems.iter().count(), 2, "{engine}: {}", validation.problems);
        assert!(fields(&validation).contains(&"--hisparse-config"), "{engine}: {}", validation.problems);
    }
}

#[test]
fn flashinfer_wants_glm_with_fp8_on_sm120() {
    let request =
        |sm: u64, kv_dtype: &str| json!({"sm": sm, "kv_dtype": kv_dtype, "decode_backend": "flashinfer_sparse_mla"});
    assert!(model("glm-5", &request(120, "fp8_e4m3")).valid);
    assert!(model("glm-5", &request(121, "auto")).valid);
    for (name, sm, kv_dtype) in
        [("glm-5", 90, "fp8_e4m3"), ("glm-5", 120, "bfloat16"), ("deepseek-v3.2", 120, "fp8_e4m3")]
    {
        let validation = model(name, &request(sm, kv_dtype));
        assert_eq!(fields(&validation), ["--decode-backend"], "{name} {sm} {kv_dtype}");
    }
    let unknown_model = bare(&request(120, "fp8_e4m3"));
    assert!(unknown_model.valid);
    assert_eq!(
        unknown_model.warnings,
        ["--decode-backend flashinfer_sparse_mla is for GLM alone, and no model was given."]
    );
}

#[test]
fn backends_may_differ_between_the_phases() {
    let validation = model(
        "glm-5.2",
        &json!({
            "kv_dtype": "fp8_e4m3", "prefill_backend": "flashmla_kv", "decode_backend": "triton"
        }),
    );
    let resolved = serde_json::to_value(&validation.resolved).unwrap();
    assert!(validation.valid, "{}", validation.problems);
    assert_eq!((&resolved["prefill_backend"], &resolved["decode_backend"]), (&json!("flashmla_kv"), &json!("triton")));
}

#[test]
fn a_backend_without_published_code_is_taken_with_a_warning_and_never_picked() {
    let request = json!({"sm": 120, "kv_dtype": "fp8_e4m3"});
    let picked = serde_json::to_value(model("deepseek-v3.2", &request).resolved).unwrap();
    assert_eq!(picked["decode_backend"], "triton");
    let sglang = model("deepseek-v3.2", &json!({"engine": "sglang", "sm": 120, "kv_dtype": "fp8_e4m3"}));
    assert_eq!(serde_json::to_value(&sglang.resolved).unwrap()["decode_backend"], "flashmla_kv");
    assert!(sglang.valid && sglang.warnings.iter().any(|w| w.contains("no code for SM120")), "{:?}", sglang.warnings);
}

#[test]
fn a_pooled_index_leaves_flashmla_kv_out() {
    let request = json!({"kv_dtype": "fp8_e4m3", "decode_backend": "flashmla_kv"});
    let validation = model("glm-5.3-flash", &request);
    assert_eq!(fields(&validation), ["--decode-backend"], "{}", validation.problems);
    let problem = validation.problems.iter().next().unwrap();
    assert!(problem.rule.contains("pools 4 tokens a key"), "{problem}");
    assert_eq!(problem.remedy, "use one of triton, reference");
}

#[test]
fn a_pooled_index_is_planned_and_served_but_not_decoded_here() {
    let notes = |name: &str| model(name, &json!({})).warnings;
    let of_indexer = |text: &String| text.contains("its decode session refuses a model that pools 4 tokens into one");
    assert!(notes("glm-5.3-flash").iter().any(of_indexer), "{:?}", notes("glm-5.3-flash"));
    assert!(!notes("glm-5.3").iter().any(of_indexer));
}

#[test]
fn families_with_attention_of_their_own_have_no_backend_to_choose() {
    for name in ["deepseek-v4-flash", "minimax-m3"] {
        let validation = model(name, &json!({}));
        assert!(validation.valid, "{name}: {}", validation.problems);
        assert_eq!(validation.resolved.decode_backend, None);
        let named = model(name, &json!({"decode_backend": "triton"}));
        assert_eq!(fields(&named), ["--decode-backend"], "{name}");
        let sglang = model(name, &json!({"engine": "sglang", "decode_backend": "triton"}));
        assert!(sglang.valid && sglang.warnings.iter().any(|w| w.contains("has no effect")), "{:?}", sglang.warnings);
    }
}

#[test]
fn rocm_has_its_own_backends_and_no_sm() {
    let validation = model("glm-5", &json!({"platform": "rocm", "sm": 90, "kv_dtype": "fp8_raw"}));
    assert!(validation.valid, "{}", validation.problems);
    assert_eq!(serde_json::to_value(&validation.resolved).unwrap()["decode_backend"], "tilelang");
    assert_eq!(validation.warnings, ["--sm 90 numbers NVIDIA GPUs and has no effect on rocm."]);
    let cuda = model("glm-5", &json!({"kv_dtype": "fp8_raw"}));
    assert_eq!(fields(&cuda), ["--prefill-backend", "--decode-backend"]);
}

#[test]
fn auto_is_fp8_from_sm100_on_and_bf16_before() {
    for (request, kv_dtype) in [
        (json!({"sm": 90}), "bfloat16"),
        (json!({"sm": 100}), "fp8_e4m3"),
        (json!({"platform": "rocm"}), "bfloat16"),
        (json!({}), "bfloat16"),
    ] {
        assert_eq!(bare(&request).resolved.kv_dtype.as_deref(), Some(kv_dtype), "{request}");
    }
}

#[test]
fn draft_depth_is_checked_before_anything_starts() {
    for (tokens, valid) in [(1, true), (2, true), (5, true), (6, false), (8, false)] {
        let request = json!({"speculative_num_draft_tokens": tokens});
        assert_eq!(model("glm-5.2", &request).valid, valid, "{tokens} tokens");
    }
    let steps = model("glm-5.2", &json!({"speculative_num_steps": 8}));
    assert_eq!(fields(&steps), ["--speculative-num-steps"]);
    assert_eq!(steps.problems.iter().next().unwrap().value, "8", "as it was given");
    let many = model("glm-5.2", &json!({"speculative_num_draft_tokens": 99}));
    assert_eq!(fields(&many), ["--speculative-num-draft-tokens"], "and nothing about the buffer");
    let problem = many.problems.iter().next().unwrap();
    assert!(problem.value == "99" && problem.rule.contains("2 to 5 tokens") && problem.remedy == "use 2 to 5");
    let narrow = model("deepseek-v4-flash", &json!({"speculative_num_draft_tokens": 2}));
    assert_eq!(fields(&narrow), ["--speculative-num-draft-tokens"], "its top-k is 512");
    let tree = model("glm-5.2", &json!({"speculative_num_draft_tokens": 4, "speculative_eagle_topk": 2}));
    assert_eq!(fields(&tree), ["--speculative-eagle-topk"]);
}

#[test]
fn heads_are_those_of_one_rank() {
    let request = |heads: u64| json!({"sm": 120, "kv_dtype": "fp8_e4m3", "decode_backend": "flashinfer_sparse_mla", "heads": heads});
    assert!(model("glm-5", &request(8)).valid);
    let odd = model("glm-5", &request(12));
    assert_eq!(odd.problems.iter().next().unwrap().remedy, "use one of flashmla_kv, triton, reference");
}

#[test]
fn sglang_changes_pages_in_silence_and_native_refuses_them() {
    for page in [1, 32, 128] {
        let request = |engine: &str| json!({"engine": engine, "kv_dtype": "fp8_e4m3", "page_size": page});
        assert_eq!(fields(&model("deepseek-v3.2", &request("native"))), ["--page-size"], "{page}");
        let sglang = model("deepseek-v3.2", &request("sglang"));
        let said = format!("SGLang changes --page-size {page} to 64 here without saying so.");
        assert!(sglang.valid && sglang.warnings.contains(&said), "{:?}", sglang.warnings);
        assert_eq!(sglang.resolved.page_size, Some(64));
    }
}

#[test]
fn vllm_refuses_what_it_is_known_to_refuse() {
    assert_eq!(fields(&model("glm-5.2", &json!({"engine": "vllm", "platform": "rocm"}))), ["--platform"]);
    assert_eq!(fields(&model("deepseek-v4-flash", &json!({"engine": "vllm"}))), ["model_type"]);
    assert_eq!(fields(&model("glm-5.2", &json!({"engine": "vllm", "pp_size": 2}))), ["--pp-size"]);
    let text = r#"{"device_buffer_size": 1024}"#;
    let small = model("glm-5.2", &json!({"engine": "vllm", "hisparse_config": text}));
    assert_eq!(fields(&small), ["--hisparse-config.device_buffer_size"]);
    let deep = model("glm-5.2", &json!({"engine": "vllm", "speculative_num_draft_tokens": 99}));
    assert_eq!(fields(&deep), ["--speculative-num-draft-tokens"], "no buffer was given");
    assert_eq!(deep.problems.iter().next().unwrap().value, "99");
    let fine = model("glm-5.2", &json!({"engine": "vllm", "speculative_num_steps": 3}));
    assert_eq!((fine.valid, &fine.resolved.hot_rows), (true, &json!(10_240)));
}

#[test]
fn absurd_numbers_are_problems_and_never_wrap() {
    for value in [json!(-1), json!(1e18), json!(u64::MAX), json!(1.5), json!("8"), json!(true), json!([])] {
        for key in ["sm", "heads", "page_size", "speculative_num_draft_tokens", "speculative_num_steps", "pp_size"] {
            for engine in ["native", "sglang", "vllm"] {
                let mut request = json!({"engine": engine});
                request[key] = value.clone();
                let validation = bare(&request);
                assert!(!validation.valid, "{engine} {key} {value}");
            }
        }
    }
}

#[test]
fn a_kv_type_that_the_family_does_not_have_is_refused() {
    let validation = model("deepseek-v4-flash", &json!({"kv_dtype": "bfloat16"}));
    assert_eq!(fields(&validation), ["--kv-dtype"], "{}", validation.problems);
    let auto = model("deepseek-v4-flash", &json!({"sm": 90}));
    assert_eq!((auto.valid, auto.resolved.kv_dtype.as_deref()), (true, Some("fp8_e4m3")));
}

#[test]
fn a_host_pool_must_hold_one_longest_request() {
    let request =
        |pool: u64, context: Option<u64>| json!({"kv_dtype": "fp8_e4m3", "host_pool": pool, "context": context});
    // 78 layers of 656 bytes and 21 of 132 a token, and one page more.
    let needed = (131_072 + 64) * (78 * 656 + 21 * 132);
    assert!(model("glm-5.2", &request(needed, Some(131_072))).valid);
    let short = model("glm-5.2", &request(needed - 1, Some(131_072)));
    assert_eq!(fields(&short), ["--host-pool"]);
    let problem = short.problems.iter().next().unwrap();
    assert!(problem.rule.starts_with("must hold one longest request: 131072 tokens of fp8_e4m3 KV need"), "{problem}");
    assert_eq!(fields(&model("glm-5.2", &request(1 << 30, None))), ["--host-pool"], "its context is 1,048,576");
    assert!(model("glm-5.2", &request(1 << 30, Some(8_192))).valid);
    for name in ["deepseek-v4-flash", "minimax-m3"] {
        let validation = model(name, &json!({"host_pool": 1 << 20}));
        assert_eq!(fields(&validation), ["--host-pool"], "{name}: {}", validation.problems);
    }
}
