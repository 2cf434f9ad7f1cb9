//! Backend validation against SGLang 0.5.23's own answers: the bare list (`level` validator) and its whole start-up
//! (`level` pipeline), and where `native` differs from them, with the reason of each difference.

#![allow(clippy::unwrap_used)] // helpers outside a #[test] function are test code too

mod common;

use std::collections::BTreeMap;

use common::shared;
use hisparse_core::backends::{sglang, use_one_of};
use hisparse_core::error::Problems;
use hisparse_core::model::Model;
use hisparse_core::model::presets::preset;
use hisparse_core::platform::Platform;
use hisparse_core::validity::sglang::rules;
use hisparse_core::validity::{Surroundings, Validation};
use serde_json::{Map, Value, json};

const SAMPLE: &str = include_str!("data/sglang_backend_sample.json");

/// All vectors: the repository's sample, then the whole set where it is at hand.
fn vectors() -> Vec<Value> {
    let mut vectors: Vec<Value> = serde_json::from_str(SAMPLE).unwrap();
    if let Some(path) = shared("vectors/sglang_backend_validation.json") {
        let all: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(all.len(), 885);
        vectors.extend(all);
    }
    vectors
}

/// The model of a vector, by preset; a dense one is refused by the reader.
fn model(folder: &str) -> Result<Model, Problems> {
    match folder {
        "deepseek_v32" => preset("deepseek-v3.2"),
        "glm_5" => preset("glm-5"),
        "glm_5_2" => preset("glm-5.2"),
        "toy_dsa_2layer" => preset("toy-dsa"),
        "deepseek_v4_flash_checkpoint_keys" => preset("deepseek-v4-flash"),
        "deepseek_v4_pro_checkpoint_keys" => preset("deepseek-v4-pro"),
        "minimax_m3_checkpoint_keys" => preset("minimax-m3"),
        dense => {
            assert!(dense.starts_with("reject_"), "{dense}");
            Model::from_json_text("", &format!(r#"{{"architectures": ["{dense}"], "num_hidden_layers": 32}}"#))
        }
    }
}

/// A vector's inputs as a request of ours. Every input is carried over: an unknown one fails the test.
fn request(inputs: &Value, engine: &str) -> (Map<String, Value>, Surroundings) {
    let mut map = Map::new();
    map.insert("engine".to_owned(), json!(engine));
    let mut surroundings = Surroundings::default();
    for (key, value) in inputs.as_object().unwrap() {
        match key.as_str() {
            "platform" if value == "hip" => drop(map.insert("platform".to_owned(), json!("rocm"))),
            "platform" => {
                let sm: u64 = value.as_str().unwrap().strip_prefix("sm").unwrap().parse().unwrap();
                map.insert("sm".to_owned(), json!(sm));
            }
            "model" => surroundings.model = Some(model(value.as_str().unwrap())),
            "kv_cache_dtype" => drop(map.insert("kv_dtype".to_owned(), value.clone())),
            "dsa_prefill_backend" => drop(map.insert("prefill_backend".to_owned(), value.clone())),
            "dsa_decode_backend" => drop(map.insert("decode_backend".to_owned(), value.clone())),
            "backend" => {
                let phase = inputs["phase"].as_str().unwrap();
                map.insert(format!("{phase}_backend"), value.clone());
            }
            "phase" | "speculative_algorithm" => {} // folded into `backend`; EAGLE is the only algorithm
            other => drop(map.insert(other.to_owned(), value.clone())),
        }
    }
    if surroundings.model.is_some() {
        map.entry("disable_radix_cache").or_insert(json!(false)); // a flag that is not given is off
    }
    (map, surroundings)
}

fn validate(inputs: &Value, engine: &str) -> Validation {
    let (map, surroundings) = request(inputs, engine);
    Validation::of_map(&map, surroundings)
}

/// The rule of ours that a vector's words stand for; `None` where the model's reader speaks.
fn rule_of(meaning: &str) -> Option<&'static str> {
    match meaning {
        "backend is not in the HiSparse list for this platform and dtype" => Some(rules::NOT_LISTED),
        "DSA models take bfloat16 or fp8_e4m3 KV only" => Some(rules::KV_DTYPE),
        "backend exists on ROCm only" => Some(rules::ROCM_ONLY),
        "draft tree wider than one needs a page size of one here" => Some(rules::WIDE_TREE_PAGE),
        "prefix (radix) cache is on" => Some(rules::RADIX),
        "TileLang FP8 layout on CUDA excludes HiSparse" => Some(rules::TILELANG_FP8),
        "draft tree wider than one" => Some(rules::WIDE_TREE),
        "mixed prefill/decode chunks are on" => Some(rules::MIXED_CHUNK),
        "model has no sparse attention of a supported kind" => None,
        other => panic!("unknown meaning {other}"),
    }
}

#[test]
fn every_vector_of_the_bare_list_is_reproduced() {
    let mut seen = 0;
    for vector in vectors().iter().filter(|vector| vector["level"] == "validator") {
        let (inputs, expected) = (&vector["inputs"], &vector["expected"]);
        let platform = if inputs["platform"] == "hip" { Platform::Rocm } else { Platform::Cuda };
        let kv_dtype = sglang::known_kv_dtype(inputs["kv_cache_dtype"].as_str().unwrap());
        let mut allowed: Vec<_> = sglang::allowed(platform, kv_dtype).iter().map(|backend| backend.name()).collect();
        allowed.sort_unstable();
        assert_eq!(json!(allowed), expected["allowed"], "{inputs}");
        assert_eq!(json!(sglang::default_of_list(platform, kv_dtype)), expected["default_backend"], "{inputs}");

        let validation = validate(inputs, "sglang");
        assert_eq!(json!(validation.valid), expected["accepted"], "{inputs}: {}", validation.problems);
        let phase = format!("{}_backend", inputs["phase"].as_str().unwrap());
        let resolved = serde_json::to_value(&validation.resolved).unwrap()[&phase].clone();
        if validation.valid {
            let picked = if inputs["backend"].is_null() { &expected["default_backend"] } else { &inputs["backend"] };
            assert_eq!(resolved, *picked, "{inputs}");
        } else {
            let problem = validation.problems.iter().next().unwrap();
            assert_eq!(Some(problem.rule.as_str()), rule_of(expected["meaning"].as_str().unwrap()), "{inputs}");
            let all = use_one_of(&sglang::allowed(platform, kv_dtype));
            assert_eq!(problem.remedy, all, "{inputs}");
        }
        seen += 1;
    }
    assert!(seen >= 40, "only {seen} vectors");
}

#[test]
fn every_vector_of_the_start_up_is_reproduced() {
    let mut seen = 0;
    for vector in vectors().iter().filter(|vector| vector["level"] == "pipeline") {
        let (inputs, expected) = (&vector["inputs"], &vector["expected"]);
        let validation = validate(inputs, "sglang");
        assert_eq!(json!(validation.valid), expected["accepted"], "{inputs}: {}", validation.problems);
        if validation.valid {
            let resolved = serde_json::to_value(&validation.resolved).unwrap();
            let found = json!({
                "kv_cache_dtype": resolved["kv_dtype"],
                "dsa_prefill_backend": resolved["prefill_backend"],
                "dsa_decode_backend": resolved["decode_backend"],
                "page_size": resolved["page_size"],
            });
            assert_eq!(found, expected["value"], "{inputs}");
        } else {
            let first = validation.problems.iter().next().unwrap();
            match rule_of(expected["meaning"].as_str().unwrap()) {
                Some(rule) => assert_eq!(first.rule, rule, "{inputs}: {}", validation.problems),
                None => assert!(first.rule.contains("lacks"), "{inputs}: {first}"),
            }
        }
        seen += 1;
    }
    assert!(seen >= 60, "only {seen} vectors");
}

/// Why native's answer to a vector differs from SGLang's; a difference of another kind fails the test.
fn reason(inputs: &Value, native: &Validation, expected: &Value) -> &'static str {
    let fields: Vec<_> = native.problems.iter().map(|problem| problem.field.as_str()).collect();
    let backends = ["backend", "dsa_prefill_backend", "dsa_decode_backend"].map(|key| inputs[key].as_str());
    let names = |name: &str| backends.contains(&Some(name));
    let cuda = inputs["platform"] != "hip";
    if expected["accepted"] == json!(false) {
        assert!(native.valid, "{inputs}: refused by both");
        return if inputs["disable_radix_cache"].is_null() && inputs["model"].is_string() {
            "native keeps the prefix cache"
        } else if inputs["enable_mixed_chunk"] == json!(true) {
            "native has no batches of its own to mix"
        } else if cuda && names("triton") {
            "native has Triton kernels of its own on CUDA"
        } else {
            panic!("{inputs}: native accepts what SGLang refuses for another reason")
        };
    }
    assert!(!native.valid, "{inputs}: accepted by both");
    if fields == ["--kv-dtype"] {
        "native knows bfloat16, fp8_e4m3 and fp8_raw, and no fallback for other KV types"
    } else if names("flashinfer_sparse_mla") {
        "native wants GLM, FP8 and SM120 or SM121 for flashinfer_sparse_mla"
    } else if inputs["model"].is_null() && inputs["kv_cache_dtype"] == "auto" {
        "native settles auto first, and refuses a backend of the other KV type"
    } else if fields == ["--page-size"] {
        "native does not change a page size"
    } else if fields.iter().all(|field| field.starts_with("--hisparse-config")) {
        "native reads the configuration first"
    } else if fields == ["--speculative-num-draft-tokens"] {
        "native checks the draft depth first"
    } else {
        panic!("{inputs}: native refuses what SGLang accepts: {}", native.problems)
    }
}

#[test]
fn native_differs_for_named_reasons_alone() {
    let mut reasons: BTreeMap<&str, u32> = BTreeMap::new();
    for vector in &vectors() {
        let (inputs, expected) = (&vector["inputs"], &vector["expected"]);
        let native = validate(inputs, "native");
        if json!(native.valid) != expected["accepted"] {
            *reasons.entry(reason(inputs, &native, expected)).or_default() += 1;
            if expected["accepted"] == json!(true) {
                let warned = validate(inputs, "sglang").warnings;
                assert!(!warned.is_empty(), "{inputs}: SGLang's profile does not warn");
            }
        }
    }
    assert_eq!(reasons.len(), 9, "a reason that no vector shows should be deleted: {reasons:?}");
}
