//! What must hold for every plan of this project, whatever the numbers.

#![allow(clippy::unwrap_used)] // helpers of tests: a broken preset must stop them

use hisparse_core::budget::device_bytes::{SeatBytes, device_bytes, host_bytes};
use hisparse_core::budget::plan::{Binding, DeviceBytes, Number};
use hisparse_core::budget::rank::Rank;
use hisparse_core::budget::{self, Plan, PlanRequest};
use hisparse_core::model::Model;
use hisparse_core::model::presets::preset;
use hisparse_core::ratio::Ratio;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const MODELS: [&str; 5] = ["glm-5", "glm-5.2", "deepseek-v3.2", "deepseek-v4-flash", "minimax-m3"];

fn request(options: &Value) -> Option<PlanRequest> {
    PlanRequest::from_json(options.as_object()?).ok()
}

fn plan(model: &Model, options: &Value) -> Option<Plan> {
    budget::plan(model, &request(options)?).ok()
}

fn cell(plan: &Plan) -> u64 {
    let Number::Whole(bytes) = plan.cell_bytes else { panic!("native cells are whole: {plan:?}") };
    bytes
}

/// Options that most often make a plan.
fn options() -> impl Strategy<Value = Value> {
    let format = prop_oneof![Just("fp8_e4m3"), Just("bfloat16")];
    let ranks = prop_oneof![Just(1_u64), Just(4), Just(8)];
    (format, ranks, 1_u64..=40, 0_u64..=3, 33_u64..=512, any::<bool>(), 1_u64 << 30..=1 << 38).prop_map(
        |(format, tp, ratio_quarters, mtp, hot_pages, hot_given, kv_bytes)| {
            let quarters = u32::try_from(ratio_quarters + 3).unwrap();
            let mut options = json!({
                "kv_dtype": format, "tp": tp, "ratio": f64::from(quarters) / 4.0, "mtp": mtp, "kv_bytes": kv_bytes
            });
            if hot_given {
                options["hot_rows"] = json!(hot_pages * 64);
            }
            options
        },
    )
}

fn with(options: &Value, key: &str, value: Value) -> Value {
    let mut changed = options.clone();
    changed[key] = value;
    changed
}

fn host_pool(options: &Value, bytes: u64) -> Value {
    let mut changed = with(options, "host_pool", json!(bytes));
    changed.as_object_mut().unwrap().remove("ratio");
    changed
}

/// Bytes of a plan's pools by the formulas that allocation uses, with `more` pages of device pool.
fn allocated(model: &Model, options: &Value, plan: &Plan, more: u64) -> (DeviceBytes, u64) {
    let request = request(options).unwrap();
    let rank = Rank::new(model, &request).unwrap();
    let seat = SeatBytes::new(&rank, plan.hot_rows, request.query_len(), model.context_tokens.get()).unwrap();
    let device_pages = plan.device_tokens / rank.page_tokens + more;
    let ratio = options["ratio"].as_f64().unwrap();
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let logical_pages = (device_pages as f64 * ratio).floor() as u64; // quarters are exact
    let seats = device_pages * 64 / (plan.hot_rows + 64);
    (device_bytes(&rank, &seat, device_pages, logical_pages, seats).unwrap(), host_bytes(&rank, logical_pages).unwrap())
}

proptest! {
    #[test]
    fn what_is_planned_can_be_allocated_and_one_page_more_cannot(index in 0..MODELS.len(), options in options()) {
        let model = preset(MODELS[index]).unwrap();
        let Some(plan) = plan(&model, &options) else { return Ok(()) };
        let (device, host) = allocated(&model, &options, &plan, 0);
        prop_assert_eq!((device, host), (plan.device_bytes, plan.host_bytes));
        prop_assert!(device.total().unwrap() <= plan.kv_bytes);
        let (larger, _) = allocated(&model, &options, &plan, 1);
        prop_assert!(larger.total().unwrap() > plan.kv_bytes, "{:?} would fit too", larger);
    }

    #[test]
    fn more_device_memory_never_means_less(index in 0..MODELS.len(), options in options(), more in 0_u64..=1 << 36) {
        let model = preset(MODELS[index]).unwrap();
        let kv_bytes = options["kv_bytes"].as_u64().unwrap();
        for (by_ratio, options) in [(true, options.clone()), (false, host_pool(&options, 200 << 30))] {
            let Some(small) = plan(&model, &options) else { continue };
            let large = plan(&model, &with(&options, "kv_bytes", json!(kv_bytes + more))).unwrap();
            // Of an explicit host pool more becomes useful, and its indexer keys may take the place of device rows that
            // no seat needed; what users get, below, does not fall.
            prop_assert!(!by_ratio || large.device_tokens >= small.device_tokens);
            prop_assert!(large.logical_tokens >= small.logical_tokens);
            prop_assert!(large.seats >= small.seats);
            for (large, small) in large.concurrency.iter().zip(&small.concurrency) {
                prop_assert!(large.hisparse >= small.hisparse && large.baseline >= small.baseline);
            }
        }
    }

    #[test]
    fn a_larger_ratio_never_means_a_smaller_cell(index in 0..MODELS.len(), options in options(), more in 1_u32..=40) {
        let model = preset(MODELS[index]).unwrap();
        let ratio = options["ratio"].as_f64().unwrap() + f64::from(more) / 4.0;
        let Some(small) = plan(&model, &options) else { return Ok(()) };
        let Some(large) = plan(&model, &with(&options, "ratio", json!(ratio))) else { return Ok(()) };
        prop_assert!(cell(&large) >= cell(&small));
        prop_assert!(large.device_tokens <= small.device_tokens);
        prop_assert!(large.seats <= small.seats);
    }

    #[test]
    fn a_larger_host_pool_never_holds_fewer_tokens(
        index in 0..MODELS.len(), options in options(), bytes in 1_u64 << 30..=1 << 39, more in 0_u64..=1 << 38
    ) {
        let model = preset(MODELS[index]).unwrap();
        let Some(small) = plan(&model, &host_pool(&options, bytes)) else { return Ok(()) };
        let large = plan(&model, &host_pool(&options, bytes + more)).unwrap();
        prop_assert!(large.logical_tokens >= small.logical_tokens);
        prop_assert!(small.host_bytes <= bytes && large.host_bytes <= bytes + more);
    }

    #[test]
    fn what_takes_memory_never_gives_any_and_what_allows_requests_never_takes_any(
        index in 0..MODELS.len(), options in options(), more in 1_u64..=3, requests in 1_u64..=4_096
    ) {
        let model = preset(MODELS[index]).unwrap();
        let mut options = options;
        options["hot_rows"] = json!(32_768); // so that a deeper draft does not ask for another buffer
        let drafts = |mtp: u64, layers: u64| with(&with(&options, "mtp", json!(mtp)), "draft_layers", json!(layers));
        for (less, more) in [(drafts(0, 1), drafts(more, 1)), (drafts(1, 0), drafts(1, more))] {
            let (Some(less), Some(more)) = (plan(&model, &less), plan(&model, &more)) else { continue };
            prop_assert!(more.device_tokens <= less.device_tokens && more.seats <= less.seats);
            prop_assert!(more.logical_tokens <= less.logical_tokens);
        }
        for (key, least) in [("max_seqs", requests), ("dp", more), ("tp", 1)] {
            let few = plan(&model, &with(&options, key, json!(least)));
            let many = plan(&model, &with(&options, key, json!(least * 2)));
            let (Some(few), Some(many)) = (few, many) else { continue };
            prop_assert!(many.seats >= few.seats, "{key} {least}");
            prop_assert!(many.physical_host_bytes >= few.physical_host_bytes || key != "dp", "{key} {least}");
        }
    }

    #[test]
    fn more_hot_rows_never_mean_more_seats(index in 0..MODELS.len(), options in options(), pages in 33_u64..=512) {
        let model = preset(MODELS[index]).unwrap();
        let Some(small) = plan(&model, &with(&options, "hot_rows", json!(pages * 64))) else { return Ok(()) };
        if let Some(large) = plan(&model, &with(&options, "hot_rows", json!((pages + 8) * 64))) {
            prop_assert!(large.seats <= small.seats);
        }
    }

    #[test]
    fn more_layers_never_cost_less(options in options(), layers in 1_u64..=77) {
        let model = preset("glm-5.2").unwrap();
        let Some(few) = plan(&model, &with(&options, "num_layers", json!(layers))) else { return Ok(()) };
        if let Some(many) = plan(&model, &with(&options, "num_layers", json!(layers + 1))) {
            prop_assert!(cell(&many) > cell(&few));
            prop_assert!(many.device_tokens <= few.device_tokens);
        }
    }

    #[test]
    fn auto_is_never_beaten(
        index in 0..MODELS.len(), options in options(), host_gib in 4_u64..=512, context in 10_u32..=20
    ) {
        let model = preset(MODELS[index]).unwrap();
        let context = json!(1_u64 << context);
        let manual = with(&host_pool(&options, host_gib << 30), "context", context);
        let Some(manual_plan) = plan(&model, &manual) else { return Ok(()) };
        let mut wish = with(&manual, "auto", json!(true));
        wish.as_object_mut().unwrap().remove("hot_rows");
        let best = plan(&model, &wish).map_or(0, |best| best.concurrency[0].hisparse);
        prop_assert!(best >= manual_plan.concurrency[0].hisparse, "{} < {:?}", best, manual_plan.concurrency[0]);
    }

    #[test]
    fn no_row_of_a_host_pool_falls_with_more_memory(
        index in 0..MODELS.len(), options in options(), auto in any::<bool>(), bytes in 1_u64 << 30..=1 << 39,
        more_host in 0_u64..=1 << 38, more_device in 0_u64..=1 << 36, pages in any::<bool>()
    ) {
        let model = preset(MODELS[index]).unwrap();
        let kv_bytes = options["kv_bytes"].as_u64().unwrap();
        // Less than a page more, too: the steps are where a split could go wrong.
        let scale = if pages { 1 } else { 1 << 16 };
        let mut small = host_pool(&options, bytes);
        if auto {
            small["auto"] = json!(true);
        }
        let large = with(&small, "host_pool", json!(bytes + more_host / scale));
        let large = with(&large, "kv_bytes", json!(kv_bytes + more_device / scale));
        let Some(small) = plan(&model, &small) else { return Ok(()) };
        let large = plan(&model, &large).unwrap();
        prop_assert_eq!(large.concurrency.len(), small.concurrency.len());
        for (large, small) in large.concurrency.iter().zip(&small.concurrency) {
            prop_assert!(large.hisparse >= small.hisparse, "{:?} < {:?}", large, small);
        }
    }

    #[test]
    fn a_row_is_what_a_plan_for_its_length_runs(
        index in 0..MODELS.len(), options in options(), auto in any::<bool>(), bytes in 1_u64 << 30..=1 << 39
    ) {
        let model = preset(MODELS[index]).unwrap();
        let mut all = host_pool(&options, bytes);
        if auto {
            all["auto"] = json!(true);
        }
        let Some(whole) = plan(&model, &all) else { return Ok(()) };
        for row in &whole.concurrency {
            let Some(own) = plan(&model, &with(&all, "context", json!(row.context))) else {
                prop_assert_eq!(row.hisparse, 0);
                continue;
            };
            let page = own.page_tokens;
            let runs = own.seats.min(own.logical_tokens / page / row.context.div_ceil(page));
            prop_assert_eq!(row.hisparse, if row.context > own.max_req_len { 0 } else { runs }, "{:?}", row);
        }
    }

    #[test]
    fn a_ratio_that_comes_out_goes_in_again(
        index in 0..MODELS.len(), options in options(), auto in any::<bool>(), bytes in 1_u64 << 30..=1 << 39,
        context in prop::option::of(10_u32..=20)
    ) {
        let model = preset(MODELS[index]).unwrap();
        let mut options = host_pool(&options, bytes);
        options["auto"] = json!(auto);
        options["context"] = json!(context.map(|bits| 1_u64 << bits));
        let Some(plan) = plan(&model, &options) else { return Ok(()) };
        let printed = serde_json::to_value(plan.ratio).unwrap();
        let ratio = Ratio::from_json(&printed);
        prop_assert!(ratio.is_some(), "{} is no ratio", printed);
        prop_assert_eq!(
            ratio.unwrap().scale_floor(plan.device_tokens / plan.page_tokens),
            Some(plan.logical_tokens / plan.page_tokens)
        );
        let again = request(&json!({"ratio": printed}));
        prop_assert!(again.is_some());
    }

    #[test]
    fn a_row_longer_than_what_is_let_through_is_none(
        index in 0..MODELS.len(), options in options(), sglang in any::<bool>(), hisparse in any::<bool>(),
        bits in 10_u32..=24
    ) {
        let model = preset(MODELS[index]).unwrap();
        let mut options = with(&options, "engine", json!(if sglang { "sglang" } else { "native" }));
        if !hisparse {
            options = json!({"hisparse": false, "kv_bytes": options["kv_bytes"], "tp": options["tp"]});
        }
        let lengths = |plan: &Plan| vec![1 << bits, plan.max_req_len.max(1), plan.max_req_len + 1, 1 << 25];
        let Some(first) = plan(&model, &options) else { return Ok(()) };
        let plan = plan(&model, &with(&options, "context", json!(lengths(&first)))).unwrap();
        for row in plan.concurrency.iter().filter(|row| row.context > plan.max_req_len) {
            prop_assert_eq!((row.hisparse, row.host_bytes), (0, 0), "{:?}", row);
        }
        prop_assert_eq!(plan.concurrency[3].binding, Binding::Context);
    }

    #[test]
    fn no_map_makes_the_reader_or_the_planner_panic(
        index in 0..MODELS.len(), engine in 0..3_usize, entries in prop::collection::vec((0..budget::read::KEYS.len(), value()), 0..8)
    ) {
        let model = preset(MODELS[index]).unwrap();
        let mut map: Map<String, Value> =
            entries.into_iter().map(|(key, value)| (budget::read::KEYS[key].to_owned(), value)).collect();
        map.insert("engine".to_owned(), json!(["native", "sglang", "vllm"][engine]));
        match PlanRequest::from_json(&map) {
            Ok(request) => {
                if let Err(problems) = budget::plan(&model, &request) {
                    prop_assert!(!problems.is_empty(), "refused without a reason: {:?}", map);
                }
            }
            Err(problems) => prop_assert!(!problems.is_empty()),
        }
    }
}

/// Values at the edges of every option.
fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(|number| json!(number)),
        any::<i64>().prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number)),
        (0_u64..=64).prop_map(|number| json!(number)),
        (0_u32..=50).prop_map(|shift| json!(1_u64 << shift)),
        any::<bool>().prop_map(Value::Bool),
        Just(Value::Null),
        Just(json!([1, 1 << 20])),
        prop_oneof![
            Just("rocm"),
            Just("h200"),
            Just("mi300x"),
            Just("bfloat16"),
            Just("fp8_raw"),
            Just("0:3"),
            Just("1TiB")
        ]
        .prop_map(|text| json!(text)),
    ]
}
