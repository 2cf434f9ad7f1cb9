//! Where SGLang 0.5.23 differs from this project, its plan says so, with the figures of both.

#![allow(clippy::unwrap_used)] // helpers of tests: a broken preset must stop them

use hisparse_core::budget::{self, Plan, PlanRequest};
use hisparse_core::error::Problems;
use hisparse_core::model::presets::preset;
use serde_json::{Value, json};

fn plan(name: &str, mut options: Value) -> Result<Plan, Problems> {
    options["engine"] = json!("sglang");
    budget::plan(&preset(name).unwrap(), &PlanRequest::from_json(options.as_object().unwrap())?)
}

#[test]
fn each_difference_is_a_warning_with_its_figures() {
    for (name, options, texts) in [
        ("glm-5.2", json!({"ratio": 4}), vec!["in all 78 layers instead of 21, 92352 bytes", "budgets 53940"]),
        (
            "glm-5.2",
            json!({"ratio": 4}),
            vec!["budgets 92352 bytes per device token at a ratio of 4; native budgets 62256"],
        ),
        ("glm-5.2", json!({"ratio": 4}), vec!["max_req_len is 232511 although 930048 tokens fit", "inputs of 232506"]),
        ("glm-5.2", json!({"ratio": 4}), vec!["more than 929536 tokens", "holds up all behind it"]),
        ("glm-5.2", json!({"ratio": 4}), vec!["does not reserve growth", "reads slot 0"]),
        ("glm-5.2", json!({"ratio": 4}), vec!["out of its budget", "7.10 MiB", "pad page can be handed"]),
        ("glm-5.2", json!({"ratio": 4, "tp": 8, "share_host": true}), vec!["on each of the 8", "changes nothing here"]),
        ("glm-5.2", json!({"ratio": 10, "draft_layers": 1}), vec!["at N × r: 162008 bytes", "154128 without"]),
        (
            "minimax-m3",
            json!({"ratio": 4, "tp": 4, "kv_dtype": "bfloat16", "draft_layers": 1}),
            vec!["twice", "99940", "93696"],
        ),
        ("deepseek-v4-flash", json!({"ratio": 4, "draft_layers": 3}), vec!["one draft layer, however many"]),
        ("deepseek-v4-flash", json!({"ratio": 2.5}), vec!["float token counts"]),
        ("glm-5.3-flash", json!({"ratio": 4}), vec!["an indexer key for each token of a model that pools 4 tokens"]),
        ("glm-5.2", json!({"ratio": 1.5}), vec!["1.5 passes sizing, then raises TypeError"]),
        ("glm-5.2", json!({"ratio": 0}), vec!["0 builds an empty pool"]),
        ("glm-5.2", json!({"ratio": -1}), vec!["-1 raises the token count"]),
        ("glm-5.2", json!({"page_size": 128}), vec!["changes a page size of 128 to 64"]),
        ("glm-5.2", json!({"hot_rows": 40_000}), vec!["recency entries wrap silently"]),
        ("glm-5.2", json!({"kv_bytes": "200MiB"}), vec!["admits nothing, with no error"]),
        ("deepseek-v3.2", json!({"sm": 120, "ratio": 4}), vec!["flashmla_kv on SM120"]),
        ("deepseek-v3.2", json!({"sm": 100, "hisparse": false}), vec!["raw on SM100 with HiSparse off: 576"]),
        ("deepseek-v3.2", json!({"platform": "rocm", "ratio": 4}), vec!["raw on HIP: 576"]),
    ] {
        let warnings = plan(name, options.clone()).unwrap_or_else(|problems| panic!("{options}: {problems}")).warnings;
        for text in texts {
            let found = warnings.iter().any(|warning| warning.contains(text));
            assert!(found, "{name} {options}: no warning says {text:?} in {warnings:#?}");
        }
    }
}

#[test]
fn an_engine_that_dies_over_its_ratio_runs_nothing() {
    for (name, options) in [
        (
            "minimax-m3",
            json!({"ratio": 2.25, "kv_bytes": 12_688_261_626_u64, "kv_dtype": "bfloat16", "context": 41_691}),
        ),
        ("glm-5.2", json!({"ratio": 1.5})),
        ("glm-5.2", json!({"ratio": -1, "sm": 90})),
    ] {
        let plan = plan(name, options.clone()).unwrap();
        assert_eq!(plan.host_bytes, 0, "{options}");
        let runs = plan.concurrency.iter().find(|row| row.hisparse > 0 || row.host_bytes > 0);
        assert_eq!(runs, None, "{options}");
    }
}

#[test]
fn what_the_engine_refuses_on_purpose_is_refused() {
    for (name, options, field) in [
        ("glm-5.2", json!({"hot_rows": 4_100}), "--hot-rows"),
        ("glm-5.2", json!({"hot_rows": 1_024}), "--hot-rows"),
        ("glm-5.2", json!({"mtp": 4}), "--mtp"),
        ("deepseek-v4-flash", json!({"ratio": 0.5}), "--ratio"),
        ("deepseek-v4-flash", json!({"kv_bytes": "1GiB"}), "--kv-bytes"),
        ("glm-5.2", json!({"host_pool": "100GiB"}), "--host-pool"),
        ("glm-5.2", json!({"ratio": 4, "tp": 8, "assume_memory": "256GiB"}), "--ratio"),
    ] {
        let problems =
            plan(name, options.clone()).map_or_else(|problems| problems, |plan| panic!("{options}: {plan:?}"));
        let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, [field], "{name} {options}");
    }
}

#[test]
fn a_request_beyond_the_device_pool_never_runs() {
    let plan = plan("glm-5.2", json!({"ratio": 4, "context": [131_072, 262_144]})).unwrap();
    assert_eq!(plan.max_req_len, plan.device_tokens - 1);
    assert!(plan.concurrency[0].hisparse > 0, "{:?}", plan.concurrency);
    assert_eq!(plan.concurrency[1].hisparse, 0, "{:?}", plan.concurrency);
}
