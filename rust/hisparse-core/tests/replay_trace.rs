//! The replay on a real trace: what a GLM-5.2 FP8 node would have taken of it.

mod common;

use hisparse_core::ledger::NodeCapacity;
use hisparse_core::replay::{Outcome, ReplayOptions, parse, play};
use hisparse_core::units::{Pages, Rows, Tokens};

fn node(pages: u64, seats: u64) -> NodeCapacity {
    NodeCapacity {
        host_pages: Pages::new(pages),
        seats,
        indexer_tokens: Tokens::new(pages * 64),
        request_slots: 1_024,
        window: None,
        page_tokens: 64,
        hot_rows: Rows::new(4_096),
        max_request_tokens: Tokens::new(pages * 64),
    }
}

#[test]
fn a_trace_is_taken_mostly_and_never_twice() {
    let Some(path) = common::shared("traces/conversation_trace.jsonl") else { return };
    let text = std::fs::read_to_string(path).unwrap();
    let trace = parse(&text).unwrap();
    let play = |node| play(&trace, &node, ReplayOptions::default(), &mut |_| {}).unwrap();
    let hisparse = play(node(49_764, 59)).outcome;
    let device = play(node(6_219, 1_024)).outcome;
    println!("{hisparse:#?}\n{device:#?}");
}
