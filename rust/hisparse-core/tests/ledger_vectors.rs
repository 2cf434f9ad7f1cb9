//! SGLang 0.5.23's own capacities, decode admissions and length limits, put through `admit`.
//!
//! The repository carries a sample; the whole list is used where the shared material is. Where that engine is known to
//! be wrong the native answer is asserted beside its own: lengths are bounded by the logical capacity everywhere, and
//! a request that can never fit is refused at once instead of blocking those behind it.

mod common;
mod node;

use hisparse_core::ledger::{AdmitRequest, Ledger, LedgerConfig, Length, Limit, NodeCapacity, Pool, Refusal};
use hisparse_core::units::{Pages, Tokens};
use node::{at, ledger_of};
use serde_json::Value;

const SAMPLE: &str = include_str!("data/sglang_admission_sample.json");

fn vectors(kind: &str) -> Vec<Value> {
    let text = common::shared("vectors/sglang_admission.json")
        .map_or_else(|| SAMPLE.to_owned(), |path| std::fs::read_to_string(path).expect("the vectors are text"));
    let all: Vec<Value> = serde_json::from_str(&text).expect("the vectors are JSON");
    let found: Vec<Value> = all.into_iter().filter(|vector| vector["kind"] == kind).collect();
    assert!(!found.is_empty(), "no vector of kind {kind}");
    found
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// A node of this logical capacity, in whole pages.
fn node_of(logical_tokens: u64, seats: u64, request_slots: u64) -> NodeCapacity {
    let pages = logical_tokens / 64;
    NodeCapacity { host_pages: Pages::new(pages), request_slots, ..NodeCapacity::of_host_pages(pages, seats) }
}

fn logical(inputs: &Value) -> u64 {
    number(&inputs["device_tokens"]) * number(&inputs["ratio"])
}

fn free_tokens(node: &Ledger) -> u64 {
    node.capacity(None, &[]).expect("no length is asked about").pools[0].free * 64
}

#[test]
fn a_node_takes_its_logical_capacity_and_not_one_token_more() {
    for vector in vectors("capacity") {
        if vector["expected"]["accepted"] == false {
            continue; // a ratio that crashes upstream's pools; the planner refuses it before there is a node
        }
        let left = number(&vector["expected"]["logical_available"]);
        let capacity = node_of(logical(&vector["inputs"]), 4, 4);
        if left == 0 {
            assert!(capacity.checked_pages().is_err(), "a node without a page is refused: {vector}");
            continue;
        }
        let mut node = ledger_of(LedgerConfig::new(capacity));
        assert_eq!(free_tokens(&node), left, "{vector}");
        let refusal = node.admit(&AdmitRequest::new("over", left + 1, 0), at(0)).unwrap_err();
        let limit = Limit::MaxRequestTokens;
        assert_eq!(refusal, Refusal::NeverFits { limit, value: left, asked: left + 1 }, "{vector}");
        node.admit(&AdmitRequest::new("all", left, 0), at(0)).unwrap_or_else(|refusal| panic!("{refusal}: {vector}"));
        assert_eq!(free_tokens(&node), 0, "{vector}");
        let refusal = node.admit(&AdmitRequest::new("more", 1, 0), at(0)).unwrap_err();
        assert_eq!(refusal, Refusal::PoolBusy { pool: Pool::HostPages, asked: 1, available: 0 }, "{vector}");
    }
}

#[test]
fn decode_admission_is_bounded_by_seats_and_by_logical_capacity() {
    for vector in vectors("decode_admission") {
        let (inputs, expected) = (&vector["inputs"], &vector["expected"]);
        let hot_buffer = number(&expected["padded_buffer_size"]);
        let gone = number(&expected["spec_scratch"]) + number(&inputs["device_tokens_in_use"]);
        let seats = (number(&inputs["device_tokens"]) - gone) / hot_buffer;
        let seats = seats.saturating_sub(number(&inputs["in_transfer"]));
        let slots = number(&inputs["request_slots"]).min(number(&inputs["metadata_slots"]));
        let capacity = node_of(logical(inputs), seats, slots);
        if seats == 0 {
            assert!(capacity.checked_pages().is_err(), "a node without a seat is refused, not stalled: {vector}");
            assert_eq!(number(&expected["admitted"]), 0, "{vector}");
            continue;
        }
        let mut node = ledger_of(LedgerConfig::new(capacity));
        let max_new = number(&inputs["max_new_tokens"]);
        let lengths: Vec<u64> = inputs["input_lens"].as_array().expect("a list").iter().map(number).collect();
        let (mut admitted, mut pages, mut never) = (0, 0, 0);
        for length in &lengths {
            match node.admit(&AdmitRequest::new("", *length, max_new), at(0)) {
                Ok(granted) => {
                    admitted += 1;
                    pages += u64::from(granted.lease.pages);
                }
                Err(Refusal::NeverFits { .. }) => never += 1,
                Err(refusal) => {
                    assert!(matches!(refusal.binding(), Some("seats" | "request_slots")), "{refusal}: {vector}");
                }
            }
        }
        if never == 0 {
            assert_eq!(admitted, number(&expected["admitted"]), "{vector}");
        } else {
            // Upstream passes the ceiling check, never admits the long one, and blocks everyone behind it.
            assert_eq!((never + admitted, number(&expected["admitted"])), (lengths.len() as u64, 0), "{vector}");
        }
        assert_eq!(free_tokens(&node), logical(inputs) - pages * 64, "{vector}");
        if never == 0 && lengths.iter().all(|length| length % 64 != 0) {
            assert_eq!(
                free_tokens(&node),
                number(&expected["logical_left"]),
                "the output's token takes no page: {vector}"
            );
        }
    }
}

#[test]
fn lengths_are_bounded_by_the_logical_capacity_and_the_context() {
    for vector in vectors("limits") {
        let (inputs, expected) = (&vector["inputs"], &vector["expected"]);
        let logical = logical(inputs);
        assert_eq!(logical, number(&expected["max_token_pool_size"]), "{vector}");
        let longest = logical.min(number(&inputs["context_len"]));
        let capacity = NodeCapacity { max_request_tokens: Tokens::new(longest), ..node_of(logical, 4, 4) };
        for request in expected["requests"].as_array().expect("a list") {
            let input = number(&request["input_len"]);
            let never = refused_for_ever(capacity, Length::Tokens { prompt: input, generated: 0, max_new: 0 });
            assert_eq!(never, input > longest, "{request} of {inputs}");
            if request["decode_prealloc_refused"] == true {
                assert!(never, "{request} of {inputs}");
            }
            // Upstream refuses by the device's size; natively the whole logical capacity is there.
            let upstream_only = request["input_refused"] == true && input <= longest;
            assert!(!(upstream_only && never), "{request} of {inputs}");
            // A re-bootstrap of the same length, in any split, gets the same answer.
            let split = Length::Tokens { prompt: 1, generated: input - 1, max_new: 0 };
            assert_eq!(refused_for_ever(capacity, split), never, "{request} of {inputs}");
            let max_new = number(&request["max_new_tokens"]);
            let whole = Length::Tokens { prompt: input, generated: 0, max_new };
            assert_eq!(refused_for_ever(capacity, whole), input + max_new > longest, "{request} of {inputs}");
        }
    }
}

/// Whether an idle node of this capacity says `NEVER_FITS`.
fn refused_for_ever(capacity: NodeCapacity, length: Length) -> bool {
    let mut node = ledger_of(LedgerConfig::new(capacity));
    match node.admit(&AdmitRequest { length, ..AdmitRequest::new("", 1, 0) }, at(0)) {
        Ok(_) => false,
        Err(Refusal::NeverFits { .. }) => true,
        Err(refusal) => panic!("an idle node says {refusal}"),
    }
}
