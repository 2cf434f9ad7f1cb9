//! `plan --engine sglang` against what SGLang 0.5.23 itself computed: cells, pools and refusals.
//!
//! The repository carries a sample; the whole set is read where it is there.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of tests: a broken vector must stop them, and counts are shown

mod common;

use std::path::PathBuf;

use common::shared;
use hisparse_core::budget::plan::Number;
use hisparse_core::budget::{self, Plan, PlanRequest};
use hisparse_core::error::Problems;
use hisparse_core::model::Model;
use hisparse_core::model::sglang::unreadable as unreadable_by_sglang;
use serde_json::{Map, Value, json};

/// Cases that this project does not answer, by model folder, and why.
const NOT_ANSWERED: [(&str, &str); 2] = [
    ("reject_deepseek_v3", "a dense model: reading its config.json is refused before a plan is made"),
    ("reject_mixtral", "a dense model: reading its config.json is refused before a plan is made"),
];

fn cases() -> Vec<Value> {
    let sample = include_str!("data/sglang_cell_size_sample.json");
    let mut cases: Vec<Value> = serde_json::from_str(sample).unwrap();
    if let Some(path) = shared("vectors/sglang_cell_size.json") {
        let text = std::fs::read_to_string(path).unwrap();
        cases.extend(serde_json::from_str::<Vec<Value>>(&text).unwrap());
    }
    cases
}

fn config(name: &str) -> Option<Value> {
    let own = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/model_configs"));
    let path = [Some(own), shared("model_configs")]
        .into_iter()
        .flatten()
        .map(|folder| folder.join(name).join("config.json"))
        .find(|path| path.exists())?;
    Some(serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
}

fn model(name: &str) -> Option<Model> {
    Some(Model::from_json_text(name, &config(name)?.to_string()).unwrap())
}

/// Whether the engine cannot even read this config, although we can.
fn unreadable(name: &str) -> bool {
    unreadable_by_sglang(&model(name).unwrap(), &config(name).unwrap()).is_some()
}

/// The options of `plan` for a case's inputs.
fn options(inputs: &Value, kv_bytes: u64) -> Map<String, Value> {
    let mut options = json!({"engine": "sglang", "kv_dtype": inputs["dtype"], "kv_bytes": kv_bytes});
    for (theirs, ours) in [
        ("ratio", "ratio"),
        ("tp_size", "tp"),
        ("draft_layers", "draft_layers"),
        ("swa_full_tokens_ratio", "swa_full_tokens_ratio"),
        ("max_running_requests", "max_seqs"),
        ("chunked_prefill_size", "chunked_prefill_size"),
    ] {
        options[ours] = inputs.get(theirs).cloned().unwrap_or(Value::Null);
    }
    options["hisparse"] = Value::Bool(!options["ratio"].is_null());
    if let Some(stage) = inputs.get("stage") {
        options["stage"] = Value::String(format!("{}:{}", stage[0], stage[1]));
    }
    match inputs.get("kind").and_then(Value::as_str) {
        Some("hip") => options["platform"] = json!("rocm"),
        Some(kind) => options["sm"] = json!(kind.trim_start_matches("sm").parse::<u64>().unwrap()),
        None => {}
    }
    options.as_object().unwrap().clone()
}

fn plan(inputs: &Value, kv_bytes: u64) -> Result<Plan, Problems> {
    let model = model(inputs["model"].as_str().unwrap()).unwrap();
    budget::plan(&model, &PlanRequest::from_json(&options(inputs, kv_bytes))?)
}

fn whole(number: u64) -> Number {
    Number::Whole(number)
}

fn check_dsa(case: &str, expected: &Value, plan: &Plan) {
    let detail = plan.sglang.as_ref().unwrap();
    assert_eq!(plan.cell_bytes, whole(expected["cell_size"].as_u64().unwrap()), "cell_size of {case}");
    assert_eq!(detail.target_cell_size, whole(expected["target_cell_size"].as_u64().unwrap()), "target of {case}");
    assert_eq!(detail.page_size, expected["page_size"].as_u64().unwrap(), "page_size of {case}");
    assert_eq!(plan.model.layers, expected["num_layers"].as_u64().unwrap(), "num_layers of {case}");
    if let Some(indexer) = expected.get("indexer_cell_bytes") {
        assert_eq!(detail.indexer_cell_bytes, indexer.as_i64().unwrap(), "indexer_cell_bytes of {case}");
    }
}

fn check_v4(case: &str, expected: &Value, plan: &Plan) {
    let v4 = plan.sglang.as_ref().unwrap().v4.unwrap();
    let bytes = expected["bytes_per_full_token"].as_f64().unwrap();
    assert_eq!(plan.cell_bytes, Number::Float(bytes), "bytes_per_full_token of {case}");
    assert_eq!(json!(v4.bytes_per_swa_token), expected["bytes_per_swa_token"], "bytes_per_swa_token of {case}");
    assert_eq!(json!(v4.swa_full_tokens_ratio), expected["swa_ratio"], "swa_ratio of {case}");
}

fn check_v4_pools(case: &str, value: &Value, plan: &Plan) {
    let v4 = plan.sglang.as_ref().unwrap().v4.unwrap();
    for (name, found) in [
        ("full_max_total_num_tokens", plan.device_tokens),
        ("swa_max_total_num_tokens", v4.swa_max_total_num_tokens),
        ("c128_max_total_num_tokens", v4.c128_max_total_num_tokens),
        ("c4_state_pool_size", v4.c4_state_pool_size),
    ] {
        assert_eq!(found, value[name].as_u64().unwrap(), "{name} of {case}");
    }
    let c4 = value["c4_max_total_num_tokens"].as_f64().unwrap();
    assert!((v4.c4_max_total_num_tokens - c4).abs() < 0.5, "c4_max_total_num_tokens of {case}: {c4}");
}

fn check(case: &Value) -> bool {
    let inputs = &case["inputs"];
    let name = inputs["model"].as_str().unwrap();
    if NOT_ANSWERED.iter().any(|(model, _)| *model == name) {
        return false;
    }
    if model(name).is_none() {
        println!("skipped: no config.json of {name} here");
        return false;
    }
    let (text, expected) = (inputs.to_string(), &case["expected"]);
    if expected.get("accepted") == Some(&Value::Bool(false)) {
        assert!(unreadable(name) || plan(inputs, 64 << 30).is_err(), "{text} should be refused");
        return true;
    }
    for pool in expected["pool_sizes"].as_array().unwrap() {
        let available = pool["available_bytes"].as_u64().unwrap();
        let case = format!("{text} with {available} bytes");
        let found = plan(inputs, available);
        if pool["accepted"] == Value::Bool(false) {
            assert!(found.is_err(), "{case} should be refused");
            continue;
        }
        let found = found.unwrap_or_else(|problems| panic!("{case}: {problems}"));
        let tokens = pool["value"]["max_total_num_tokens"].as_u64().unwrap();
        assert_eq!(found.device_tokens, tokens, "max_total_num_tokens of {case}");
        if expected.get("cell_size").is_some() {
            check_dsa(&case, expected, &found);
        } else {
            check_v4(&case, expected, &found);
            check_v4_pools(&case, &pool["value"], &found);
        }
    }
    true
}

#[test]
fn cells_and_pools_equal_the_engines_own() {
    let cases = cases();
    let answered = cases.iter().filter(|case| check(case)).count();
    println!("{answered} of {} cases answered; not answered: {NOT_ANSWERED:?}", cases.len());
    assert!(answered >= 30, "only {answered} cases were compared");
}
