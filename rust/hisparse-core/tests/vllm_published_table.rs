//! The published concurrency table, recomputed and compared to the request and the GiB.
#![allow(clippy::unwrap_used)] // helpers outside a #[test] function are test code too

use hisparse_core::budget::vllm::calculator::{Blocks, Terms, answer, break_even_context_tokens};
use hisparse_core::budget::vllm::published::{COLUMNS, CONTEXTS_TOKENS, blocks, model, sweep, table};
use hisparse_core::platform::KvDtype;
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

fn published() -> Value {
    serde_json::from_str(include_str!("data/vllm_published_table.json")).unwrap()
}

/// Two published cells, both the 8K baseline on eight H200, say 48 requests. The page's own formula gives 49:
/// 17.846 GiB hold 6,277 blocks, and 49 × 128 = 6,272 of them are taken. The formula stands. Where HiSparse gains
/// nothing its figure is the baseline, and follows it.
const DISPUTED_PUBLISHED: u64 = 48;
const DISPUTED_FORMULA: u64 = 49;

#[test]
fn the_published_table_is_reproduced_to_the_request_and_the_gib() {
    let published = published();
    assert_eq!(published["contexts_tokens"], json!(CONTEXTS_TOKENS));
    let (mut compared, mut disputed) = (0, 0);
    for (column, answers) in table(KvDtype::Fp8Raw).unwrap() {
        let cells = published["columns"][column.name].as_array().unwrap();
        assert_eq!(cells.len(), answers.len(), "{}", column.name);
        for (cell, got) in cells.iter().zip(&answers).filter(|(cell, _)| !cell.is_null()) {
            let mut theirs: Vec<u64> = cell.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect();
            if got.context_tokens == 8_192 && theirs[0] == DISPUTED_PUBLISHED {
                disputed += 1;
                for figure in &mut theirs[..2] {
                    if *figure == DISPUTED_PUBLISHED {
                        *figure = DISPUTED_FORMULA;
                    }
                }
            }
            let ours = vec![got.baseline, got.hisparse, got.minimum_host_bytes.div_ceil(GIB)];
            assert_eq!(ours, theirs, "{} at {} tokens", column.name, got.context_tokens);
            compared += 1;
        }
    }
    assert_eq!((compared, disputed), (4 * 8 + 3, 2));
}

#[test]
fn the_buffer_sweep_and_its_break_even_contexts_are_reproduced() {
    let ours: Vec<Value> = sweep()
        .unwrap()
        .iter()
        .map(|buffer| {
            let tenths = (buffer.break_even_context_tokens + 50) / 100;
            let thousands = format!("{}.{}", tenths / 10, tenths % 10);
            json!({
                "hot_rows": buffer.hot_rows,
                "requests": buffer.requests,
                "break_even_thousand_tokens": thousands,
            })
        })
        .collect();
    assert_eq!(Value::Array(ours), published()["sweep"]);
}

#[test]
fn below_break_even_a_request_costs_more_and_above_it_less() {
    let blocks = blocks(&model().unwrap(), KvDtype::Fp8Raw).unwrap();
    let terms = Terms::new(4_096);
    let even = break_even_context_tokens(&blocks, &terms).unwrap().unwrap();
    let gpu_limits = |context: u64| {
        let got = answer(&COLUMNS[3].node().unwrap(), &blocks, &terms, context).unwrap();
        (got.gpu_limit, got.baseline)
    };
    let (hisparse, baseline) = gpu_limits(even / 2);
    assert!(hisparse < baseline, "{even}: {hisparse} against {baseline}");
    let (hisparse, baseline) = gpu_limits(even * 2);
    assert!(hisparse > baseline, "{even}: {hisparse} against {baseline}");
}

#[test]
fn a_model_whose_block_saves_nothing_never_breaks_even() {
    let blocks = Blocks { baseline_bytes: 1_000, gpu_bytes: 1_000, host_bytes: 900, groups: 1, block_tokens: 64 };
    assert_eq!(break_even_context_tokens(&blocks, &Terms::new(2_048)).unwrap(), None);
}

#[test]
fn one_byte_below_the_least_host_memory_loses_a_request() {
    let blocks = blocks(&model().unwrap(), KvDtype::Fp8Raw).unwrap();
    let node = COLUMNS[0].node().unwrap();
    let mut terms = Terms::new(4_096);
    let unlimited = answer(&node, &blocks, &terms, 131_072).unwrap();
    terms.host_bytes = Some(unlimited.minimum_host_bytes);
    let enough = answer(&node, &blocks, &terms, 131_072).unwrap();
    terms.host_bytes = Some(unlimited.minimum_host_bytes - 1);
    let short = answer(&node, &blocks, &terms, 131_072).unwrap();
    assert_eq!((enough.hisparse, short.hisparse), (unlimited.hisparse, unlimited.hisparse - 1));
}
