//! The replay on a real trace: what a GLM-5.2 FP8 node would have taken of it.

mod common;

use hisparse_core::ledger::NodeCapacity;
use hisparse_core::replay::{Replay, ReplayOptions, TraceRequest, parse, play};
use hisparse_core::units::Tokens;

/// GLM-5.2 FP8 with 160 GiB of host pool and 20 GiB of GPU memory: 53,940 B a token in the pool; the indexer keys of
/// all of it (2,772 B a token) leave room for 59 hot buffers of 4,096 + 64 rows (51,168 B each).
const HOST_PAGES: u64 = 49_764;
const SEATS: u64 = 59;

/// The same 20 GiB without the host pool: every token's KV and indexer keys on the GPU, and no hot buffers.
const DEVICE_PAGES: u64 = 6_220;
const REQUEST_SLOTS: u64 = 1_024;

fn real_trace() -> Option<Vec<TraceRequest>> {
    let text = std::fs::read_to_string(common::shared("traces/conversation_trace.jsonl")?).expect("the trace is text");
    Some(parse(&text).expect("the trace is well formed"))
}

fn replay(trace: &[TraceRequest], node: &NodeCapacity) -> Replay {
    play(trace, node, ReplayOptions::default(), &mut |_| {}).expect("the node is possible")
}

#[test]
fn the_host_pool_admits_far_more_of_the_trace_than_the_device_alone() {
    let Some(trace) = real_trace() else { return };
    let host = replay(&trace, &NodeCapacity::of_host_pages(HOST_PAGES, SEATS));
    let device = replay(&trace, &NodeCapacity::of_host_pages(DEVICE_PAGES, REQUEST_SLOTS));
    for outcome in [&host.outcome, &device.outcome] {
        assert_eq!((outcome.requests, outcome.overcommit), (12_031, 0));
        let ended = outcome.admitted + outcome.refused_busy + outcome.refused_never_fits;
        assert_eq!(ended, outcome.requests, "every request comes to one end");
        assert!(outcome.peak_pages <= outcome.total_pages && outcome.wait_ms.max <= 30_000);
    }
    assert!(host.outcome.admitted > 10_860, "a model without prefix reuse admits 10,860: {}", host.outcome.admitted);
    assert!((7_000..7_400).contains(&device.outcome.admitted), "that model: 7,143; here {}", device.outcome.admitted);
    assert!(host.outcome.peak_running <= SEATS);
    assert!(host.timeline.len() >= 700 && host.timeline.iter().all(|sample| sample.used_pages <= HOST_PAGES));
}

#[test]
fn a_request_gets_one_extent_or_nearly_so() {
    let Some(trace) = real_trace() else { return };
    let host = replay(&trace, &NodeCapacity::of_host_pages(HOST_PAGES, SEATS)).outcome;
    assert!(host.new_extents_per_request.mean <= 1.5 && host.new_extents_per_request.p99 <= 8, "{host:?}");
    assert!(host.prefix_hit_pages > 280_000, "contiguity must not cost the cache: {host:?}");
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
