//! Plans of this project: the figures of the design, and what is refused.

#![allow(clippy::unwrap_used)] // helpers of tests: a broken preset must stop them

use hisparse_core::budget::plan::{Binding, Number};
use hisparse_core::budget::{self, Plan, PlanRequest};
use hisparse_core::error::Problems;
use hisparse_core::model::presets::preset;
use hisparse_core::model::{Layer, Model};
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

fn plan(model: &Model, options: &Value) -> Result<Plan, Problems> {
    budget::plan(model, &PlanRequest::from_json(options.as_object().unwrap())?)
}

fn toy() -> Model {
    Model::from_json_text("toy", include_str!("data/model_configs/toy_dsa_2layer/config.json")).unwrap()
}

fn cell(model: &Model, options: &Value) -> u64 {
    match plan(model, options).unwrap_or_else(|problems| panic!("{options}: {problems}")).cell_bytes {
        Number::Whole(bytes) => bytes,
        Number::Float(bytes) => panic!("{options}: a cell of {bytes} bytes"),
    }
}

fn refused(model: &Model, options: &Value) -> Vec<(String, String)> {
    match plan(model, options) {
        Ok(plan) => panic!("{options} was planned: {plan:?}"),
        Err(problems) => problems.into_iter().map(|problem| (problem.field, problem.rule)).collect(),
    }
}

#[test]
fn two_layers_cost_what_the_published_vectors_say() {
    let toy = toy();
    for (options, bytes) in [
        (json!({"kv_dtype": "bfloat16", "hisparse": false}), 2_568),
        (json!({"kv_dtype": "fp8_e4m3", "hisparse": false}), 1_576),
        (json!({"kv_dtype": "fp8_e4m3", "ratio": 2}), 1_840),
        (json!({"kv_dtype": "fp8_e4m3", "ratio": 4}), 2_368),
    ] {
        assert_eq!(cell(&toy, &options), bytes, "{options}");
    }
}

#[test]
fn every_model_costs_what_the_table_of_ratios_says() {
    // Ratio, then GLM with an indexer in 78 layers, in 21, both in BF16, V3.2 in both formats.
    for (ratio, figures) in [
        (1, [61_464, 53_940, 100_152, 92_628, 48_068, 78_324]),
        (2, [71_760, 56_712, 110_448, 95_400, 56_120, 86_376]),
        (4, [92_352, 62_256, 131_040, 100_944, 72_224, 102_480]),
        (5, [102_648, 65_028, 141_336, 103_716, 80_276, 110_532]),
        (10, [154_128, 78_888, 192_816, 117_576, 120_536, 150_792]),
    ] {
        let columns = [
            ("glm-5", "fp8_e4m3"),
            ("glm-5.2", "fp8_e4m3"),
            ("glm-5", "bfloat16"),
            ("glm-5.2", "bfloat16"),
            ("deepseek-v3.2", "fp8_e4m3"),
            ("deepseek-v3.2", "bfloat16"),
        ];
        for ((name, dtype), bytes) in columns.into_iter().zip(figures) {
            let options = json!({"kv_dtype": dtype, "ratio": ratio});
            assert_eq!(cell(&preset(name).unwrap(), &options), bytes, "{name} {options}");
        }
    }
}

#[test]
fn everything_on_the_gpu_is_inside_the_budget() {
    for name in ["glm-5.2", "deepseek-v3.2", "deepseek-v4-flash", "minimax-m3"] {
        let model = preset(name).unwrap();
        for options in [json!({"tp": 4}), json!({"tp": 4, "mtp": 3}), json!({"tp": 4, "host_pool": "100GiB"})] {
            let plan = plan(&model, &options).unwrap_or_else(|problems| panic!("{name} {options}: {problems}"));
            let total = plan.device_bytes.total().unwrap();
            assert!(total <= plan.kv_bytes, "{name} {options}: {total} of {}", plan.kv_bytes);
            assert!(plan.seats > 0 && plan.device_bytes.tables > 0 && plan.device_bytes.maps > 0, "{name} {options}");
        }
    }
}

#[test]
fn host_bytes_are_all_layers_rows_and_keys_and_one_page() {
    let plan = plan(&preset("glm-5.2").unwrap(), &json!({"ratio": 4})).unwrap();
    assert_eq!(plan.logical_tokens, 4 * plan.device_tokens);
    assert_eq!(plan.host_bytes, (plan.logical_tokens + 64) * (78 * 656 + 21 * 132));
}

#[test]
fn every_length_limit_uses_the_logical_size() {
    let plan = plan(&preset("glm-5.2").unwrap(), &json!({"ratio": 10, "kv_bytes": 4 * GIB})).unwrap();
    assert!(plan.logical_tokens < 1_048_576, "the model's own limit would hide the pool's");
    assert_eq!(plan.max_request_tokens, plan.logical_tokens);
    assert_eq!(plan.max_req_len, plan.logical_tokens - 1);
    assert_eq!(plan.side_buffer_tokens, plan.logical_tokens + 64);
    assert!(plan.warnings.iter().any(|text| text.contains("The longest request is")), "{:?}", plan.warnings);
}

#[test]
fn a_models_own_context_bounds_the_length_too() {
    let plan = plan(&preset("deepseek-v3.2").unwrap(), &json!({"ratio": 10})).unwrap();
    assert!(plan.logical_tokens > 163_840);
    assert_eq!(plan.max_req_len, 163_840);
}

#[test]
fn a_seat_is_a_hot_buffer_and_a_page() {
    let plan = plan(&preset("glm-5.2").unwrap(), &json!({"hot_rows": 6_144})).unwrap();
    assert_eq!(plan.seats, plan.device_tokens / (6_144 + 64));
}

#[test]
fn the_smallest_buffer_holds_the_tail_beside_the_top_k() {
    let flash = preset("glm-5.3-flash").unwrap();
    let rules = refused(&flash, &json!({"hot_rows": 2_048}));
    assert_eq!(rules, [("--hot-rows".into(), "must be at least 2112: the 2051 picks of the one query row".into())]);
    let smallest = plan(&flash, &json!({"hot_rows": 2_112})).unwrap();
    assert_eq!((smallest.hot_rows, smallest.model.top_k, smallest.model.picks_per_row), (2_112, 2_048, 2_051));
    assert_eq!(plan(&flash, &json!({})).unwrap().hot_rows, 4_096, "the default has room for it");
    let plain = Model { tail_picks: 0, ..flash };
    assert_eq!(plan(&plain, &json!({"hot_rows": 2_048})).unwrap().model.picks_per_row, 2_048);
}

#[test]
fn speculation_needs_a_top_k_of_hot_rows_for_each_query_row() {
    let model = preset("glm-5.2").unwrap();
    for (mtp, rows) in [(0, 4_096), (1, 6_144), (3, 10_240), (4, 12_288)] {
        assert_eq!(plan(&model, &json!({"mtp": mtp})).unwrap().hot_rows, rows, "--mtp {mtp}");
    }
    let rules = refused(&model, &json!({"mtp": 3, "hot_rows": 4_096}));
    assert_eq!(rules[0].0, "--hot-rows");
    assert!(rules[0].1.contains("at least 8192"), "{rules:?}");
}

#[test]
fn draft_layers_cost_a_row_and_their_own_keys() {
    let model = preset("glm-5.2").unwrap();
    let without = cell(&model, &json!({"ratio": 4}));
    assert_eq!(cell(&model, &json!({"ratio": 4, "mtp": 1})), without + 656 + 4 * 132);
    assert_eq!(cell(&model, &json!({"ratio": 4, "mtp": 1, "draft_layers": 3})), without + 3 * (656 + 4 * 132));
}

#[test]
fn a_stage_keeps_its_own_layers() {
    let model = preset("glm-5.2").unwrap();
    let stage = |span: &str| plan(&model, &json!({"ratio": 1, "stage": span})).unwrap();
    assert_eq!((stage("0:39").model.layers, stage("0:39").model.indexer_layers), (39, 12));
    assert_eq!(stage("39:78").cell_bytes, Number::Whole(39 * 656 + 9 * 132));
    assert!(stage("39:78").warnings.iter().any(|text| text.contains("reuse a top-k of the stage before")));
    let pipelined = plan(&model, &json!({"ratio": 1, "pp": 2})).unwrap();
    assert_eq!(pipelined.cell_bytes, stage("0:39").cell_bytes, "the heavier stage binds");
    assert_eq!(refused(&model, &json!({"stage": "39:79"}))[0].0, "--stage");
}

#[test]
fn layers_without_rows_do_not_make_a_stage_heavy() {
    let mut model = preset("glm-5.3-flash").unwrap();
    model.layers = [vec![Layer::Indexed; 4], vec![Layer::Linear; 5]].concat();
    let halves = plan(&model, &json!({"ratio": 1, "pp": 2})).unwrap();
    assert_eq!((halves.model.layers, halves.model.indexer_layers), (4, 4), "the other has five layers and no KV");
}

#[test]
fn pooled_keys_cost_a_key_for_each_pool() {
    let model = preset("glm-5.3-flash").unwrap();
    let plan = plan(&model, &json!({"ratio": 4})).unwrap();
    let pages = plan.logical_tokens / plan.page_tokens;
    assert_eq!((plan.model.tokens_per_index_key, plan.layout.indexer_bytes), (4, 132));
    assert_eq!(plan.device_bytes.indexer, 11 * pages * (64 / 4) * 132);
    assert_eq!(plan.host_bytes, 11 * (pages + 1) * (64 * plan.layout.row_bytes + (64 / 4) * 132));
    assert!(plan.warnings.iter().any(|text| text.contains("one per 4 tokens")), "{:?}", plan.warnings);
}

#[test]
fn an_explicit_host_pool_is_filled_and_never_passed() {
    let model = preset("glm-5.2").unwrap();
    let plan = plan(&model, &json!({"host_pool": "160GiB", "kv_bytes": "20GiB"})).unwrap();
    let page = 64 * (78 * 656 + 21 * 132);
    assert!(plan.host_bytes <= 160 * GIB && 160 * GIB - plan.host_bytes < page, "{}", plan.host_bytes);
    assert_eq!(plan.binding, [Binding::Seats, Binding::HostPages]);
}

#[test]
fn a_host_pool_beyond_what_the_seats_can_use_is_used_in_part() {
    let model = preset("glm-5.2").unwrap();
    let options = |bytes: &str| json!({"host_pool": bytes, "context": 131_072});
    let (large, huge) = (plan(&model, &options("384GiB")).unwrap(), plan(&model, &options("100TiB")).unwrap());
    assert_eq!(large.concurrency, huge.concurrency);
    assert!(large.concurrency[0].hisparse >= 30, "{:?}", large.concurrency);
    assert!(large.host_bytes < 384 * GIB);
    assert!(large.warnings.iter().any(|text| text.starts_with("Of the host pool,")), "{:?}", large.warnings);
}

#[test]
fn the_table_of_a_host_pool_is_not_bound_to_the_length_that_the_plan_is_split_for() {
    let model = preset("glm-5.2").unwrap();
    let node = json!({"gpu": "h200", "tp": 8, "ep": true, "host_pool": "400GiB"});
    let with_context = |contexts: Value| {
        let mut options = node.clone();
        options["context"] = contexts;
        plan(&model, &options).unwrap()
    };
    let (short, usual) = (with_context(json!(8_192)), plan(&model, &node).unwrap());
    assert_eq!(short.seats, short.concurrency[0].hisparse);
    assert_eq!(usual.concurrency[0].hisparse, short.concurrency[0].hisparse);
    assert!(usual.seats < short.seats, "one allocation, for the longest: {} and {}", usual.seats, short.seats);
    let says_so = |plan: &Plan| plan.warnings.iter().any(|text| text.contains("for requests of 1048576 tokens"));
    assert!(says_so(&usual), "{:?}", usual.warnings);
    assert!(says_so(&with_context(json!([8_192, 1_048_576]))));
    assert!(!short.warnings.iter().any(|text| text.contains("split for")), "{:?}", short.warnings);
}

#[test]
fn a_ratio_whose_keys_leave_no_room_is_named() {
    let model = preset("glm-5.2").unwrap();
    let rules = refused(&model, &json!({"ratio": 10_000}));
    assert_eq!(rules[0].0, "--ratio");
    // 65 pages of hot rows, and 650,000 of indexer keys.
    assert!(rules[0].1.contains("41600000 logical tokens, 107.6"), "{rules:?}");
    assert_eq!(refused(&model, &json!({"ratio": 10_000, "kv_bytes": "20GiB"}))[0].0, "--kv-bytes");
}

#[test]
fn auto_finds_the_most_requests_and_then_the_most_hot_rows() {
    let model = preset("glm-5.2").unwrap();
    let wish = json!({"auto": true, "host_pool": "160GiB", "context": 65_536});
    let best = plan(&model, &wish).unwrap();
    let runs = best.concurrency[0].hisparse;
    assert_eq!(best.seats, runs, "no seat without room for its context");
    for hot_rows in [2_048, 4_096, 6_144, 8_192] {
        let other = plan(&model, &json!({"host_pool": "160GiB", "context": 65_536, "hot_rows": hot_rows})).unwrap();
        assert!(other.concurrency[0].hisparse <= runs, "{hot_rows} hot rows run {:?}", other.concurrency[0]);
    }
    assert!(best.hot_rows > 2_048, "the host pool binds, so hot rows are free");
    assert!(best.warnings.iter().any(|text| text.contains("; host memory bounds it")), "{:?}", best.warnings);
    let ample = plan(&model, &json!({"auto": true, "host_pool": "2TiB", "context": 65_536})).unwrap();
    assert!(ample.warnings.iter().any(|text| text.contains("; GPU memory bounds it")), "{:?}", ample.warnings);
}

#[test]
fn a_budget_that_admits_nothing_says_so() {
    let model = preset("glm-5.2").unwrap();
    for options in [
        json!({"kv_bytes": "100MiB"}),
        json!({"kv_bytes": "100MiB", "host_pool": "1GiB"}),
        json!({"kv_bytes": "2MiB", "hisparse": false}),
        json!({"host_pool": "10MiB"}),
        json!({"auto": true, "host_pool": "1GiB", "context": 1_048_576}),
    ] {
        let rules = refused(&model, &options);
        assert!(rules[0].1.contains("admits nothing") || rules[0].1.contains("cannot run one"), "{options}: {rules:?}");
    }
}

#[test]
fn problems_of_model_and_request_come_back_together() {
    let found =
        refused(&preset("glm-5.2").unwrap(), &json!({"hot_rows": 100, "tp": 7, "stage": "0:99", "gpu": "h100"}));
    let fields: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
    assert_eq!(fields, ["--tp", "--stage", "--hot-rows", "--gpu"]);
}

#[test]
fn hot_rows_are_whole_pages_of_at_least_one_top_k() {
    let model = preset("glm-5.2").unwrap();
    for (rows, rule) in [(2_047, "at least 2048"), (4_100, "multiple of 64"), (40_000, "in range")] {
        let found = refused(&model, &json!({"hot_rows": rows}));
        assert!(found.len() == 1 && found[0].0 == "--hot-rows" && found[0].1.contains(rule), "{rows}: {found:?}");
    }
}

#[test]
fn a_pool_larger_than_the_machine_is_refused() {
    let model = preset("glm-5.2").unwrap();
    let found = refused(&model, &json!({"host_pool": "160GiB", "assume_memory": "128GiB"}));
    assert!(found[0].0 == "--host-pool" && found[0].1.contains("machine allows 128 GiB"), "{found:?}");
    assert!(plan(&model, &json!({"host_pool": "120GiB", "assume_memory": "128GiB"})).is_ok());
}

#[test]
fn a_gpu_gives_what_the_published_calculator_leaves() {
    let model = preset("glm-5.2").unwrap();
    let on = |options: Value| plan(&model, &options).unwrap().kv_bytes;
    let h200 = on(json!({"gpu": "h200", "tp": 8, "ep": true}));
    assert!((17 * GIB..18 * GIB).contains(&h200), "{h200}");
    assert_eq!(on(json!({"gpu": "h200", "tp": 8, "kv_bytes": "5GiB"})), 5 * GIB);
    assert_eq!(refused(&model, &json!({"gpu": "h200"}))[0].0, "--gpu", "its weights fill one GPU");
    let unknown = preset("deepseek-v3.2").unwrap();
    assert!(refused(&unknown, &json!({"gpu": "h200", "tp": 8}))[0].1.contains("not known"));
    assert!(plan(&unknown, &json!({"gpu": "h200", "tp": 8, "weights": "80GiB"})).is_ok());
}

#[test]
fn a_losing_plan_says_where_it_loses() {
    let plan = plan(&preset("glm-5.2").unwrap(), &json!({"mtp": 3, "context": [1_024, 65_536]})).unwrap();
    let short = plan.concurrency[0];
    assert!(short.hisparse < short.baseline && short.host_bytes == 0, "{short:?}");
    assert!(plan.concurrency[1].hisparse > plan.concurrency[1].baseline);
    for text in ["This plan loses up to contexts of 1024", "Below 103", "SGLang 0.5.23 budgets 95504"] {
        assert!(plan.warnings.iter().any(|warning| warning.contains(text)), "{text}: {:?}", plan.warnings);
    }
}

#[test]
fn without_hisparse_everything_is_resident() {
    let plan = plan(&preset("glm-5.2").unwrap(), &json!({"hisparse": false})).unwrap();
    assert_eq!((plan.host_bytes, plan.hot_rows, plan.device_bytes.hot), (0, 0, 0));
    assert_eq!(plan.logical_tokens, plan.device_tokens);
    assert!(plan.concurrency.iter().all(|row| row.baseline == row.hisparse), "{:?}", plan.concurrency);
}

#[test]
fn heads_that_differ_by_rank_need_a_pool_each() {
    let m3 = preset("minimax-m3").unwrap();
    let copies = |tp: u64| {
        let plan = plan(&m3, &json!({"tp": tp, "kv_dtype": "bfloat16"})).unwrap();
        plan.physical_host_bytes / plan.host_bytes
    };
    assert_eq!((copies(1), copies(4), copies(8)), (1, 4, 4));
    let mla = plan(&preset("glm-5.2").unwrap(), &json!({"tp": 8, "dp": 2})).unwrap();
    assert_eq!(mla.physical_host_bytes, 2 * mla.host_bytes, "one copy for all ranks of a replica");
}

#[test]
fn minimax_m3_keeps_dense_layers_and_keys_at_logical_size() {
    let m3 = preset("minimax-m3").unwrap();
    for (ratio, bytes) in [(1, 45_312), (2, 61_440), (4, 93_696)] {
        assert_eq!(cell(&m3, &json!({"tp": 4, "kv_dtype": "bfloat16", "ratio": ratio})), bytes, "ratio {ratio}");
    }
}

#[test]
fn the_document_has_the_fields_of_the_contract() {
    let plan = plan(&preset("glm-5.2").unwrap(), &json!({})).unwrap();
    let document = serde_json::to_value(&plan).unwrap();
    for field in [
        "/model/name",
        "/model/family",
        "/model/layers",
        "/model/indexer_layers",
        "/model/top_k",
        "/layout/kv_dtype",
        "/layout/row_bytes",
        "/layout/row_stride",
        "/layout/indexer_bytes",
        "/cell_bytes",
        "/device_tokens",
        "/logical_tokens",
        "/host_bytes",
        "/hot_rows",
        "/seats",
        "/max_request_tokens",
        "/max_req_len",
        "/side_buffer_tokens",
        "/device_bytes/hot",
        "/device_bytes/indexer",
        "/device_bytes/tables",
        "/device_bytes/maps",
        "/device_bytes/side",
        "/device_bytes/draft",
        "/device_bytes/resident",
        "/binding/0",
        "/warnings/0",
        "/concurrency/0/context",
        "/concurrency/0/baseline",
        "/concurrency/0/hisparse",
        "/concurrency/0/host_bytes",
        "/concurrency/0/binding",
    ] {
        assert!(document.pointer(field).is_some_and(|value| !value.is_null()), "{field} is missing");
    }
}
