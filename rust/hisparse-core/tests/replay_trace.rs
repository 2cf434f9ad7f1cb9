//! The replay on a real trace: what a GLM-5.2 FP8 node would have taken of it.

mod common;

use hisparse_core::budget::PlanRequest;
use hisparse_core::ledger::NodeCapacity;
use hisparse_core::model::Model;
use hisparse_core::model::presets::preset;
use hisparse_core::replay::{Replay, ReplayOptions, TraceRequest, compare, parse, play};
use hisparse_core::units::Tokens;
use serde_json::json;

/// The defaults of `replay`: GLM-5.2 FP8, 20 GiB of GPU memory for KV, a host pool of 160 GiB, hot buffers of 4,096.
fn default_request() -> PlanRequest {
    let flags = json!({"kv_bytes": "20GiB", "host_pool": "160GiB", "hot_rows": 4096});
    PlanRequest::from_json(flags.as_object().expect("an object")).expect("the defaults are valid")
}

fn glm() -> Model {
    preset("glm-5.2").expect("it is bundled")
}

fn real_trace() -> Option<Vec<TraceRequest>> {
    let text = std::fs::read_to_string(common::shared("traces/conversation_trace.jsonl")?).expect("the trace is text");
    Some(parse(&text).expect("the trace is well formed"))
}

fn replay(trace: &[TraceRequest], node: &NodeCapacity) -> Replay {
    play(trace, node, ReplayOptions::default(), &mut |_| {}).expect("the node is possible")
}

#[test]
fn the_host_pool_admits_far_more_of_the_trace_than_the_device_alone_and_in_one_extent_each() {
    let Some(trace) = real_trace() else { return };
    let mut arrived = 0;
    let comparison = compare(&trace, &glm(), &default_request(), ReplayOptions::default(), &mut |done| arrived = done);
    let comparison = comparison.expect("the defaults can be planned");
    let (host, device) = (&comparison.report.host, &comparison.report.device_only);
    for outcome in [host, device] {
        assert_eq!((outcome.requests, outcome.overcommit), (12_031, 0));
        let ended = outcome.admitted + outcome.refused_busy + outcome.refused_never_fits;
        assert_eq!(ended, outcome.requests, "every request comes to one end");
        assert!(outcome.peak_pages <= outcome.total_pages && outcome.wait_ms.max <= 30_000);
    }
    assert!(host.admitted > 10_860, "a model without prefix reuse admits 10,860: {}", host.admitted);
    assert!((7_000..7_400).contains(&device.admitted), "that model: 7,143; here {}", device.admitted);
    assert!(host.new_extents_per_request.mean <= 1.5 && host.new_extents_per_request.p99 <= 8, "{host:?}");
    assert!(host.prefix_hit_pages > 280_000, "contiguity must not cost the cache: {host:?}");
    assert_eq!(arrived, 2 * trace.len());
    assert!(comparison.host_timeline.len() >= 700);
    assert!(comparison.host_timeline.iter().all(|sample| sample.used_pages <= host.total_pages));
}

#[test]
fn the_same_replay_gives_the_same_numbers() {
    let trace: Vec<_> = (0..400).map(|n| made_up(n * 20, 500 + n * 37 % 9_000, n % 300, n % 7)).collect();
    let node = NodeCapacity::of_host_pages(800, 12);
    assert_eq!(replay(&trace, &node), replay(&trace, &node));
}

fn made_up(at_ms: u64, input_tokens: u64, output_tokens: u64, family: u64) -> TraceRequest {
    let blocks = (0..input_tokens.div_ceil(512)).map(|block| family * 1_000 + block).collect();
    TraceRequest { at_ms, input_tokens, output_tokens, blocks }
}

#[test]
fn waiting_ends_at_its_bound_and_what_never_fits_does_not_wait() {
    let node = NodeCapacity { max_request_tokens: Tokens::new(640), ..NodeCapacity::of_host_pages(10, 1) };
    let trace = [
        made_up(0, 640, 0, 1),
        TraceRequest { output_tokens: 600, ..made_up(1_000, 40, 0, 2) }, // runs 30.002 s
        made_up(1_001, 641, 0, 3),
        made_up(1_001, 64, 0, 4), // waits 30 s and is refused
        made_up(1_003, 64, 0, 5), // waits 29.999 s and is admitted
    ];
    let outcome = replay(&trace, &node).outcome;
    assert_eq!((outcome.admitted, outcome.refused_never_fits, outcome.refused_busy), (3, 1, 1));
    assert_eq!((outcome.waited, outcome.wait_ms.max), (1, 29_999));
}

#[test]
fn a_prefix_that_is_there_is_not_prefilled_again() {
    let node = NodeCapacity::of_host_pages(100, 1);
    let trace = [made_up(0, 2_000, 0, 1), made_up(1_000, 2_000, 0, 1), made_up(1_003, 64, 0, 2)];
    let outcome = replay(&trace, &node).outcome;
    assert_eq!(outcome.prefix_hit_pages, 31);
    // 2,000 tokens take 100 ms; the 16 tokens of the partial page 0.8 ms: the third request finds the seat free.
    assert_eq!(outcome.waited, 0);
}

#[test]
fn options_out_of_range_are_refused() {
    let options = ReplayOptions { prefill_tokens_per_second: 0, ..ReplayOptions::default() };
    assert!(play(&[], &NodeCapacity::of_host_pages(1, 1), options, &mut |_| {}).is_err());
}
