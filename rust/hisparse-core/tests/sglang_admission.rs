//! SGLang 0.5.23's pools, tables, buffers and admission, against what the engine itself answered.
//!
//! The repository carries a sample; the whole set is read where it is there.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of tests: a broken vector must stop them, and counts are shown

mod common;

use std::collections::BTreeMap;

use common::shared;
use hisparse_core::budget::sglang::admission::{DecodeQueue, Free, LengthLimits, colocated_prefill, host_slots};
use hisparse_core::budget::sglang::buffers::{self, Grown};
use hisparse_core::budget::sglang::pools::{BuildError, Capacity, Shape};
use hisparse_core::budget::sglang::tables::{self, Refusal, Tables};
use serde_json::{Value, json};

/// `top_k` of the decode-admission cases with speculation, which do not record it: the only one of the recorded table
/// cases that gives their scratch size at both depths.
const UNRECORDED_TOP_K: u64 = 1_024;

fn cases() -> Vec<Value> {
    let mut cases: Vec<Value> = serde_json::from_str(include_str!("data/sglang_admission_sample.json")).unwrap();
    if let Some(path) = shared("vectors/sglang_admission.json") {
        cases.extend(serde_json::from_str::<Vec<Value>>(&std::fs::read_to_string(path).unwrap()).unwrap());
    }
    cases
}

fn number(object: &Value, key: &str) -> u64 {
    object[key].as_u64().unwrap_or_else(|| panic!("{key} in {object}"))
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).collect()
}

fn refused(expected: &Value) -> Option<&str> {
    (expected.get("accepted") == Some(&Value::Bool(false))).then(|| expected["error_type"].as_str().unwrap())
}

fn capacity_of(inputs: &Value, layers: u64, row_bytes: u64) -> Result<Capacity, BuildError> {
    let ratio = &inputs["ratio"];
    let shape = Shape { layers, row_bytes, indexer_bytes: 132, page_tokens: number(inputs, "page_size") };
    Capacity::new(shape, number(inputs, "device_tokens"), ratio.as_f64().unwrap(), ratio.is_i64() || ratio.is_u64())
}

fn capacity(inputs: &Value) -> Value {
    let row_bytes = if inputs["kv_cache_dtype"] == "bfloat16" { 1_152 } else { 656 };
    match capacity_of(inputs, number(inputs, "layers"), row_bytes) {
        Ok(found) => json!({
            "size": found.logical_tokens, "size_full": found.logical_tokens, "available_size": found.available(),
            "logical_available": found.logical_available, "device_available": found.device_available,
            "mapping_entries": found.mapping_entries, "mapping_bytes": found.mapping_bytes,
            "device_kv_bytes": found.device_kv_bytes, "device_index_bytes": found.device_index_bytes,
            "host_tokens": found.host_tokens, "host_pages": found.host_tokens / number(inputs, "page_size"),
            "host_available": found.host_tokens, "host_bytes": found.host_bytes, "item_bytes": row_bytes
        }),
        Err(BuildError::FractionalRatio) => json!("TypeError"),
        Err(BuildError::NegativeRatio) => json!("RuntimeError"),
        Err(BuildError::Overflow) => json!("overflow"),
    }
}

fn limits_of(inputs: &Value) -> LengthLimits {
    let pools = capacity_of(inputs, 2, 656).unwrap();
    let device_tokens = number(inputs, "device_tokens");
    LengthLimits::new(device_tokens, pools.logical_tokens, number(inputs, "context_len"), number(inputs, "page_size"))
}

fn limits(inputs: &Value) -> Value {
    let limits = limits_of(inputs);
    let requests: Vec<Value> = inputs["requests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|request| {
            let (input, new) = (number(request, "input_len"), number(request, "max_new_tokens"));
            json!({
                "input_len": input, "max_new_tokens": new, "input_refused": limits.refuses_input(input),
                "granted_new_tokens": limits.granted_new_tokens(input, new),
                "decode_prealloc_refused": limits.prealloc_refuses(input)
            })
        })
        .collect();
    json!({
        "max_token_pool_size": limits.max_token_pool_size, "effective_max_total_num_tokens": inputs["device_tokens"],
        "max_total_num_tokens": inputs["device_tokens"], "max_req_len": limits.max_req_len,
        "max_req_input_len": limits.max_req_input_len, "requests": requests
    })
}

fn tables_of(inputs: &Value) -> Result<Tables, Refusal> {
    Tables::new(&tables::Setting {
        layers: number(inputs, "layers"),
        request_slots: number(inputs, "request_slots"),
        context_tokens: number(inputs, "context_len"),
        buffer_rows: number(inputs, "device_buffer_size"),
        top_k: number(inputs, "top_k"),
        page_tokens: number(inputs, "page_size"),
        draft_tokens: number(inputs, "num_draft_tokens"),
    })
}

/// Everything but the per-table shapes, which add up to the byte counts.
fn table_sizes(inputs: &Value) -> Value {
    let Ok(found) = tables_of(inputs) else { return json!("ValueError") };
    let page = number(inputs, "page_size");
    let reserve: BTreeMap<String, u64> =
        [0, 1, 64, 4_096, 10_000].iter().map(|held| (held.to_string(), found.slot_reserve(*held, page))).collect();
    json!({
        "padded_buffer_size": found.padded_rows, "lru_slot_numbers_correct": found.recency_is_correct,
        "gpu_bytes": found.gpu_bytes, "spec_gpu_bytes": found.spec_gpu_bytes,
        "spec_scratch_capacity": found.scratch_rows, "request_slot_reserve": reserve
    })
}

fn buffer_setting(inputs: &Value) -> buffers::Setting {
    buffers::Setting { buffer_rows: number(inputs, "device_buffer_size"), page_tokens: number(inputs, "page_size") }
}

#[allow(clippy::cast_precision_loss)] // the engine's own doubles
fn device_buffer(inputs: &Value) -> Value {
    let setting = buffer_setting(inputs);
    let (admitted, device) = (number(inputs, "admitted_len"), number(inputs, "device_tokens"));
    let pools = capacity_of(inputs, 2, 656).unwrap();
    let held = setting.at_admission(admitted);
    let Grown { slots, newest_column } = setting.grown(admitted, number(inputs, "grown_to"));
    let (host, _, left) = host_slots(pools.host_tokens, setting.page_tokens, &[admitted]);
    json!({
        "logical_ok": left < pools.host_tokens, "host_slots_held": host[0], "logical_held": host[0],
        "device_slots_at_admission": held, "buffer_size_at_admission": held, "device_slots_after_growth": slots,
        "newest_slot_unmapped": newest_column.is_none(), "newest_column": newest_column,
        "stats": {
            "device_tokens": slots, "device_token_usage": slots as f64 / device as f64,
            "host_tokens": host[0], "host_token_usage": host[0] as f64 / pools.host_tokens as f64
        }
    })
}

fn growth_under_load(inputs: &Value) -> Value {
    let setting = buffer_setting(inputs);
    let (device, requests) = (number(inputs, "device_tokens"), number(inputs, "requests"));
    let (admitted, grown) = (number(inputs, "admitted_len"), number(inputs, "grown_to"));
    json!({
        "device_left_after_admission": setting.left_after(device, requests, admitted),
        "growth_fits": setting.growth_fits(device, requests, admitted, grown)
    })
}

fn host_slot_case(inputs: &Value) -> Value {
    let capacity = capacity_of(inputs, 2, 656).unwrap().host_tokens;
    let (held, failed_at, left) = host_slots(capacity, number(inputs, "page_size"), &numbers(&inputs["request_lens"]));
    let failed_at = failed_at.map(|request| json!({"request": request, "error_type": "RuntimeError"}));
    json!({"host_capacity": capacity, "held": held, "failed_at": failed_at, "host_left": left})
}

fn colocated(inputs: &Value) -> Value {
    let pools = capacity_of(inputs, 2, 656).unwrap();
    let free = Free { logical: pools.logical_available, device: pools.device_available };
    let (fits, left) = colocated_prefill(free, number(inputs, "page_size"), &numbers(&inputs["prompt_lens"]));
    json!({
        "fits": fits, "logical_left": left.logical, "device_left": left.device,
        "available_size": left.logical.min(left.device)
    })
}

fn decode_admission(inputs: &Value) -> Value {
    let pools = capacity_of(inputs, 2, 656).unwrap();
    let table = tables_of(&json!({
        "layers": 2, "context_len": 4096, "top_k": UNRECORDED_TOP_K, "request_slots": inputs["request_slots"],
        "device_buffer_size": inputs["device_buffer_size"], "page_size": inputs["page_size"],
        "num_draft_tokens": inputs["num_draft_tokens"]
    }))
    .unwrap();
    let device = pools.device_available - number(inputs, "device_tokens_in_use");
    let queue = DecodeQueue {
        free: Free { logical: pools.logical_available, device },
        slots_per_request: table.padded_rows + table.scratch_rows,
        in_transfer: number(inputs, "in_transfer"),
        reserved_decode_tokens: number(inputs, "reserved_decode_tokens"),
        metadata_slots: number(inputs, "metadata_slots"),
        request_slots: number(inputs, "request_slots"),
        page_tokens: number(inputs, "page_size"),
    };
    let inputs_tokens = numbers(&inputs["input_lens"]);
    let admitted = queue.admits(&inputs_tokens, number(inputs, "max_new_tokens"));
    let taken = &inputs_tokens[..usize::try_from(admitted).unwrap()];
    let (held, _, host_left) = host_slots(pools.host_tokens, queue.page_tokens, taken);
    json!({
        "admitted": admitted, "padded_buffer_size": table.padded_rows, "spec_scratch": table.scratch_rows,
        "logical_left": pools.logical_available - held.iter().sum::<u64>(), "host_left": host_left,
        "device_left": device
    })
}

/// The recorded answer in the form that ours has.
fn expectation(kind: &str, expected: &Value) -> Value {
    let mut expected = expected.clone();
    if let Some(error) = refused(&expected) {
        return json!(error);
    }
    match kind {
        "tables" => {
            for apart in ["tables", "spec_tables", "lru_slot_number_min"] {
                expected.as_object_mut().unwrap().remove(apart);
            }
        }
        "growth_under_load" => {
            let fits = refused(&expected["growth"]).is_none();
            expected.as_object_mut().unwrap().remove("growth");
            expected["growth_fits"] = json!(fits);
        }
        "host_slots" => {
            if let Some(each) = expected["held"].get("each").and_then(Value::as_u64) {
                let count = usize::try_from(number(&expected["held"], "count")).unwrap();
                expected["held"] = json!(vec![each; count]);
            }
        }
        _ => {}
    }
    expected
}

#[test]
fn every_recorded_answer_is_given() {
    let mut answered: BTreeMap<String, u64> = BTreeMap::new();
    for case in cases() {
        let (kind, inputs) = (case["kind"].as_str().unwrap(), &case["inputs"]);
        let found = match kind {
            "capacity" => capacity(inputs),
            "limits" => limits(inputs),
            "tables" => table_sizes(inputs),
            "device_buffer" => device_buffer(inputs),
            "growth_under_load" => growth_under_load(inputs),
            "host_slots" => host_slot_case(inputs),
            "colocated_prefill" => colocated(inputs),
            "decode_admission" => decode_admission(inputs),
            other => panic!("a kind of case that nothing answers: {other}"),
        };
        assert_eq!(found, expectation(kind, &case["expected"]), "{kind} of {inputs}");
        *answered.entry(kind.to_owned()).or_default() += 1;
    }
    println!("answered: {answered:?}");
    assert_eq!(answered.len(), 8, "a kind is missing: {answered:?}");
}
