//! Every recorded answer of vLLM 0.33.0 about HiSparse, by kind: equal to the integer, and to the last digit of a
//! double. A refusal is refused for the same reason.
#![allow(clippy::unwrap_used)] // helpers outside a #[test] function are test code too

use std::collections::BTreeMap;

mod common;

use common::shared;
use hisparse_core::budget::gpu::Gpu;
use hisparse_core::budget::vllm::allocation::{Start, allocate};
use hisparse_core::budget::vllm::cache::Cache;
use hisparse_core::budget::vllm::calculator::{Node, Terms, answer};
use hisparse_core::budget::vllm::config::{read_config, resolve};
use hisparse_core::budget::vllm::connector::host_pool_gib;
use hisparse_core::budget::vllm::detail::Detail;
use hisparse_core::budget::vllm::groups::{Geometry, pack};
use hisparse_core::budget::vllm::pool::{Parallel, check_host_memory, gib_to_bytes, host_block_stride};
use hisparse_core::budget::vllm::published::{self, GLM_5_3_WEIGHTS, RESERVE_GIB, UTILISATION};
use hisparse_core::budget::vllm::registration::ranges;
use hisparse_core::budget::vllm::shared_memory::{check, resolver_bytes};
use hisparse_core::budget::{self, PlanRequest};
use hisparse_core::error::Problems;
use hisparse_core::model::Model;
use hisparse_core::platform::KvDtype;
use serde_json::{Map, Value, json};

/// Cases of the repository's own sample.
const SAMPLE_CASES: u64 = 66;

/// Upstream's reason for a refusal, and words of ours that must stand in the problem.
const REASONS: &[(&str, &str)] = &[
    ("resolver needs more shared memory than the device has", "shared memory per block"),
    ("buffer size must be positive", "must be positive"),
    ("not an integer", "must be a whole number"),
    ("unknown key", "is not a key of hisparse_config"),
    ("not a boolean", "must be true or false"),
    ("one host block is larger than a chunk", "too small for one host block"),
    ("chunk is below one page", "must span at least one page"),
    ("tensor size is not a block multiple", "must be a whole number of blocks"),
    ("pool size is not a page multiple", "must be a whole number of pages"),
    ("host pool size is not positive", "must be positive"),
    ("host pool size is missing", "is required"),
    ("more than one HiSparse connector", "may hold one HiSparse connector"),
    ("pool is above 95 % of free RAM", "must be at most 95 %"),
    ("indexer or sparse specs are missing", "needs sparse-MLA rows and indexer keys"),
    ("buffer is above 32768 rows", "must be at most 32768"),
    ("buffer is below query length x top_k", "must hold every row that one step can pick"),
    ("host pool cannot hold one request of max_model_len plus two blocks", "one request of max_model_len"),
    ("host pool holds no block", "holds no block"),
];

/// The recorded cases: all of them where the shared material is at hand, else the repository's own sample.
fn cases() -> (bool, Vec<Value>) {
    let all = shared("vectors/vllm_hisparse.json").map(|path| std::fs::read_to_string(path).unwrap());
    let sample = include_str!("data/vllm_hisparse_sample.json");
    (all.is_some(), serde_json::from_str(all.as_deref().unwrap_or(sample)).unwrap())
}

fn whole(inputs: &Value, name: &str) -> Option<u64> {
    inputs.get(name).and_then(Value::as_u64)
}

fn need(inputs: &Value, name: &str) -> u64 {
    whole(inputs, name).unwrap_or_else(|| panic!("no {name} in {inputs}"))
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap()
}

/// Our answer to one case, in upstream's names.
fn ours(kind: &str, inputs: &Value) -> Result<Value, Problems> {
    match kind {
        "plan" => plan(inputs),
        "resolved_config" => {
            let rows = resolve(
                need(inputs, "top_k"),
                need(inputs, "num_speculative_tokens"),
                whole(inputs, "device_buffer_size"),
            )?;
            Ok(json!({
                "top_k": rows.top_k,
                "device_buffer_size": rows.hot_rows,
                "max_union_rows": rows.union_rows,
                "shared_memory_bytes": resolver_bytes(rows)?,
            }))
        }
        "shared_memory_limit" => {
            let rows = resolve(
                need(inputs, "top_k"),
                need(inputs, "num_speculative_tokens"),
                whole(inputs, "device_buffer_size"),
            )?;
            check(rows, need(inputs, "limit_bytes"))?;
            Ok(json!({"device_buffer_size": rows.hot_rows}))
        }
        "hisparse_config" => {
            let config = read_config(object(inputs))?;
            let mirror = inputs.get("eager_host_mirror").is_some();
            Ok(if mirror { json!(config.eager_host_mirror) } else { json!(config.device_buffer_size) })
        }
        "host_block_stride" => {
            Ok(json!(host_block_stride(need(inputs, "page_size_bytes"), inputs["shared"].as_bool().unwrap())))
        }
        "registration_ranges" => registration(inputs),
        "host_pool_gib" => {
            Ok(json!(host_pool_gib(inputs["kv_connector"].as_str().unwrap(), object(&inputs["extra_config"]))?))
        }
        "shared_host_pool" => {
            let tensor = need(inputs, "tp");
            let parallel = Parallel {
                pipeline: need(inputs, "pp"),
                world: tensor * need(inputs, "pp"),
                multiprocess: inputs["executor"] == "mp",
                nodes: whole(inputs, "nodes").unwrap_or(1),
                ..Parallel::tensor_only(tensor)
            };
            Ok(json!(parallel.shares_host_pool()))
        }
        "host_memory" => {
            check_host_memory(need(inputs, "pool_gib") << 30, need(inputs, "available_gib") << 30).map(|()| Value::Null)
        }
        "refused_specs" => {
            assert_eq!(inputs["change"], "no indexer cache");
            let geometry = Geometry { row_bytes: 576, indexer_bytes: 132, leads: &[false; 2], block_tokens: 64 };
            pack(geometry).map(|groups| json!(groups.total()))
        }
        _ => panic!("unknown kind {kind}"),
    }
}

fn registration(inputs: &Value) -> Result<Value, Problems> {
    let tensors = match &inputs["tensor_sizes"] {
        Value::Array(sizes) => sizes.iter().map(|size| size.as_u64().unwrap()).collect(),
        repeated => vec![need(repeated, "each"); usize::try_from(need(repeated, "count")).unwrap()],
    };
    let cut = ranges(
        &tensors,
        need(inputs, "num_blocks"),
        need(inputs, "host_block_stride"),
        need(inputs, "max_chunk_bytes"),
    )?;
    let pairs: Vec<[u64; 2]> = cut.iter().map(|range| [range.start, range.end]).collect();
    // A long answer is recorded by its ends and a digest; its middle is checked by its own rules.
    for (left, right) in cut.iter().zip(&cut[1..]) {
        assert_eq!(left.end, right.start, "{inputs}");
    }
    Ok(if pairs.len() <= 64 {
        json!({"count": pairs.len(), "ranges": pairs})
    } else {
        json!({"count": pairs.len(), "first": pairs[..4], "last": pairs[pairs.len() - 4..]})
    })
}

fn model(name: &str) -> Model {
    let path = format!("{}/tests/data/model_configs/{name}/config.json", env!("CARGO_MANIFEST_DIR"));
    Model::from_json_text(name, &std::fs::read_to_string(path).unwrap()).unwrap()
}

fn dtype(inputs: &Value) -> KvDtype {
    match inputs["row"].as_str().unwrap() {
        "bf16" => KvDtype::Bfloat16,
        "fp8_576" => KvDtype::Fp8Raw,
        "fp8_ds_mla_656" => KvDtype::Fp8E4m3,
        other => panic!("unknown row {other}"),
    }
}

fn plan(inputs: &Value) -> Result<Value, Problems> {
    let model = model(inputs["model"].as_str().unwrap());
    let drafts = usize::try_from(whole(inputs, "draft_layers").unwrap_or(0)).unwrap();
    let cache = Cache::of(&model, dtype(inputs), 1, model.layers.len(), drafts)?;
    let block_tokens = whole(inputs, "block_size").or_else(|| whole(inputs, "block")).unwrap_or(64);
    let geometry = cache.geometry(block_tokens);
    let bytes = |name: &str| gib_to_bytes(inputs[name].as_f64().unwrap());
    let mut start =
        Start::new(geometry, model.top_k, bytes("gpu_gib"), bytes("host_gib"), need(inputs, "max_model_len"));
    start.speculative_tokens = whole(inputs, "spec_tokens").unwrap_or(0);
    start.device_buffer_size = whole(inputs, "device_buffer_size");
    start.gpu_blocks_override = whole(inputs, "blocks_override");
    if let Some(tokens) = whole(inputs, "max_in_flight_tokens") {
        start.in_flight_tokens = tokens;
    }
    let tensor = whole(inputs, "tensor_parallel_size").or_else(|| whole(inputs, "tp")).unwrap_or(8);
    start.parallel = Parallel { world: whole(inputs, "world").unwrap_or(tensor), ..Parallel::tensor_only(tensor) };
    allocate(start).map(|allocation| json!(Detail::of(&allocation)))
}

#[test]
fn every_recorded_case_gets_the_engines_answer() {
    let (all, cases) = cases();
    let mut checked: BTreeMap<&str, u64> = BTreeMap::new();
    for case in &cases {
        let kind = case["kind"].as_str().unwrap();
        let (inputs, expected) = (&case["inputs"], &case["expected"]);
        match ours(kind, inputs) {
            Ok(value) => {
                assert_eq!(expected["accepted"], true, "{kind} {inputs}: accepted here, refused there: {expected}");
                let mut theirs = expected["value"].clone();
                if let Some(digest) = theirs.get_mut("sha256_of_compact_json") {
                    assert!(digest.is_string());
                    theirs.as_object_mut().unwrap().remove("sha256_of_compact_json");
                }
                assert_eq!(value, theirs, "{kind} {inputs}");
            }
            Err(problems) => {
                assert_eq!(expected["accepted"], false, "{kind} {inputs}: {problems}");
                let meaning = expected["meaning"].as_str().unwrap();
                let (_, words) = REASONS
                    .iter()
                    .find(|(theirs, _)| *theirs == meaning)
                    .unwrap_or_else(|| panic!("no reason of ours for {meaning}"));
                assert!(problems.to_string().contains(words), "{kind} {inputs}: {meaning} became {problems}");
            }
        }
        *checked.entry(kind).or_default() += 1;
    }
    assert_eq!(checked.len(), 10, "{checked:?}");
    assert_eq!(checked.values().sum::<u64>(), if all { 260 } else { SAMPLE_CASES }, "{checked:?}");
}

/// What a plan request has no word for: the block size, a block count, ranks beyond tensor parallelism.
const NOT_A_PLAN_REQUEST: &[&str] = &["block", "blocks_override", "world"];

#[test]
fn a_plan_request_gets_the_engines_answer() {
    let mut compared = 0;
    for case in cases().1.iter().filter(|case| case["kind"] == "plan") {
        let (inputs, expected) = (&case["inputs"], &case["expected"]);
        if NOT_A_PLAN_REQUEST.iter().any(|name| inputs.get(name).is_some()) {
            continue;
        }
        let host_bytes = gib_to_bytes(inputs["host_gib"].as_f64().unwrap());
        let mut map = json!({
            "engine": "vllm",
            "kv_dtype": dtype(inputs).name(),
            "kv_bytes": gib_to_bytes(inputs["gpu_gib"].as_f64().unwrap()),
            "host_pool": host_bytes.max(1),
            "tp": whole(inputs, "tensor_parallel_size").or_else(|| whole(inputs, "tp")).unwrap_or(8),
            "mtp": whole(inputs, "spec_tokens").unwrap_or(0),
            "draft_layers": whole(inputs, "draft_layers").unwrap_or(0),
            "context": need(inputs, "max_model_len"),
        });
        if let Some(rows) = whole(inputs, "device_buffer_size") {
            map["hot_rows"] = json!(rows);
        }
        let model = model(inputs["model"].as_str().unwrap());
        let planned = PlanRequest::from_json(object(&map)).and_then(|request| budget::plan(&model, &request));
        match planned {
            Ok(plan) => assert_eq!(json!(plan.vllm), expected["value"], "{inputs}"),
            Err(problems) => assert_eq!(expected["accepted"], false, "{inputs}: {problems}"),
        }
        compared += 1;
    }
    assert!(compared >= 16, "{compared}");
}

#[test]
fn every_calculator_case_agrees_to_the_request_and_the_gib() {
    let Some(path) = shared("vectors/vllm_calculator.json") else { return };
    let text = std::fs::read_to_string(path).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 26);
    for case in &cases {
        let (inputs, expected) = (&case["inputs"], &case["expected"]);
        assert_eq!((&inputs["kv"], case["disputed"].as_bool()), (&json!("fp8"), Some(false)), "{inputs}");
        let gpu = Gpu::by_name(inputs["gpu"].as_str().unwrap()).unwrap();
        let node = Node {
            gpu_bytes: gpu.memory_bytes,
            utilisation: UTILISATION,
            reserve_gib: RESERVE_GIB,
            weights: GLM_5_3_WEIGHTS,
            data_parallel: need(inputs, "dp"),
            tensor_parallel: need(inputs, "tp"),
            expert_parallel: inputs["expert_parallel"].as_bool().unwrap(),
            kv_bytes: None,
        };
        let blocks = published::blocks(&published::model().unwrap(), KvDtype::Fp8Raw).unwrap();
        assert_eq!((blocks.groups, blocks.block_tokens), (need(inputs, "groups"), need(inputs, "block_tokens")));
        let mut terms = Terms::new(need(inputs, "hot_rows"));
        terms.retained_pages = need(inputs, "retained_pages");
        terms.max_sequences = need(inputs, "max_requests");
        let got = answer(&node, &blocks, &terms, need(inputs, "context_tokens")).unwrap();

        let formula = &case["formula"];
        let thousandths = |gib: f64| format!("{gib:.3}");
        assert_eq!(thousandths(node.kv_gib()), thousandths(formula["kv_hbm_gib"].as_f64().unwrap()), "{inputs}");
        #[allow(clippy::cast_precision_loss)] // below 2^53
        let least_gib = got.minimum_host_bytes as f64 / f64::from(1 << 30);
        assert_eq!(thousandths(least_gib), thousandths(formula["min_host_gib"].as_f64().unwrap()), "{inputs}");
        assert_eq!((got.baseline, got.hisparse), (need(formula, "baseline"), need(formula, "hisparse")), "{inputs}");
        for (name, value) in [
            ("baseline", got.baseline),
            ("hisparse", got.hisparse),
            ("min_host_gib", got.minimum_host_bytes.div_ceil(1 << 30)),
        ] {
            if let Some(published) = whole(expected, name) {
                assert_eq!(value, published, "{name} of {inputs}");
            }
        }
    }
}
