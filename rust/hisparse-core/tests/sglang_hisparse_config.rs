//! `--hisparse-config` against SGLang 0.5.23's own parser: its values to the letter in its profile, and a reason for
//! every text that it takes by oversight and `native` refuses.

#![allow(clippy::unwrap_used)] // helpers outside a #[test] function are test code too

mod common;

use common::shared;
use hisparse_core::hisparse_config::{Against, HisparseConfig, upstream};
use hisparse_core::ratio::Ratio;
use hisparse_core::validity::{Surroundings, Validation};
use proptest::prelude::*;
use serde_json::{Value, json};

const VECTORS: &str = include_str!("data/sglang_hisparse_config.json");

fn vectors() -> Vec<Value> {
    let vectors: Vec<Value> = serde_json::from_str(VECTORS).unwrap();
    assert_eq!(vectors.len(), 44);
    if let Some(path) = shared("vectors/sglang_hisparse_config.json") {
        let all: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        for (ours, theirs) in vectors.iter().zip(&all) {
            assert_eq!((&ours["inputs"], &ours["expected"]), (&theirs["inputs"], &theirs["expected"]));
        }
    }
    vectors
}

#[test]
fn the_sglang_profile_reads_what_its_parser_reads() {
    for vector in vectors() {
        let text = vector["inputs"]["hisparse_config"].as_str().unwrap();
        let expected = &vector["expected"];
        match upstream::read(Some(text)) {
            Ok(config) => {
                assert_eq!(expected["accepted"], json!(true), "{text}");
                assert_eq!(json!(config.values()), expected["value"], "{text}");
            }
            Err(refusal) => {
                assert_eq!(expected["accepted"], json!(false), "{text}: {refusal:?}");
                assert_eq!(json!(refusal.error_type()), expected["error_type"], "{text}");
                assert_eq!(json!(refusal.is_deliberate()), expected["deliberate"], "{text}");
                assert_eq!(expected["meaning"], json!(meaning(refusal)), "{text}");
            }
        }
    }
}

/// The vectors' words for a refusal.
fn meaning(refusal: upstream::Refusal) -> &'static str {
    match refusal {
        upstream::Refusal::NotJson => "text is not JSON",
        upstream::Refusal::BufferBelowTopK => "buffer is below top_k",
        upstream::Refusal::BlockNotInteger => "block size is not a plain integer",
        upstream::Refusal::BlockOutOfRange => "block size is outside 1..1024",
        upstream::Refusal::TypeError => "Python error, not a check: TypeError",
        upstream::Refusal::AttributeError => "Python error, not a check: AttributeError",
    }
}

/// Texts that SGLang takes by oversight, and the key whose rule native refuses them by.
const OVERSIGHTS: [(&str, &str); 21] = [
    ("buffer 40000", "device_buffer_size"),
    ("buffer float", "device_buffer_size"),
    ("buffer true", "device_buffer_size"),
    ("top_k zero", "top_k"),
    ("top_k true", "top_k"),
    ("ratio negative", "host_to_device_ratio"),
    ("ratio below one", "host_to_device_ratio"),
    ("ratio string", "host_to_device_ratio"),
    ("ratio null", "host_to_device_ratio"),
    ("ratio true", "host_to_device_ratio"),
    ("ratio huge", "host_to_device_ratio"),
    ("ratio Infinity", "host_to_device_ratio"),
    ("block 1", "swap_in_block_size"),
    ("block 32", "swap_in_block_size"),
    ("block 100", "swap_in_block_size"),
    ("block 1000", "swap_in_block_size"),
    ("block 1023", "swap_in_block_size"),
    ("misspelt ratio", "host_to_device_ration"),
    ("misspelt buffer", "device_buffer_sise"),
    ("dashed key", "host-to-device-ratio"),
    ("framework keys", "algorithm"),
];

#[test]
fn native_refuses_every_refusal_and_each_oversight_by_its_own_rule() {
    let mut oversights = 0;
    for vector in vectors() {
        let text = vector["inputs"]["hisparse_config"].as_str().unwrap();
        let (_, problems) = HisparseConfig::read(Some(text), Against::NOTHING);
        if vector["expected"]["accepted"] == json!(false) {
            assert!(!problems.is_empty(), "{text}");
            continue;
        }
        let name = vector["name"].as_str().unwrap();
        match OVERSIGHTS.iter().find(|(oversight, _)| *oversight == name) {
            Some((_, key)) => {
                let field = format!("--hisparse-config.{key}");
                assert!(problems.iter().any(|problem| problem.field == field), "{name}: {problems}");
                oversights += 1;
            }
            None => assert!(problems.is_empty(), "{name}: {problems}"),
        }
    }
    assert_eq!(oversights, 21);
}

#[test]
fn the_sglang_profile_warns_of_each_oversight() {
    for vector in vectors().iter().filter(|vector| vector["expected"]["accepted"] == json!(true)) {
        let text = vector["inputs"]["hisparse_config"].as_str().unwrap();
        let map = json!({"engine": "sglang", "disable_radix_cache": true, "hisparse_config": text});
        let validation = Validation::of_map(map.as_object().unwrap(), Surroundings::default());
        assert!(validation.valid, "{text}: {}", validation.problems);
        assert_eq!(validation.resolved.hot_rows, vector["expected"]["value"]["device_buffer_size"], "{text}");
        let oversight = OVERSIGHTS.iter().any(|(name, _)| json!(name) == vector["name"]);
        let warned = validation.warnings.iter().any(|warning| warning.contains("--hisparse-config"));
        assert_eq!(warned, oversight, "{text}: {:#?}", validation.warnings);
    }
}

/// A value of any kind that a user or a script may write, legal or not.
fn any_value() -> impl Strategy<Value = String> {
    prop_oneof![
        (0_u64..40_000).prop_map(|number| number.to_string()),
        (0_u64..600).prop_map(|pages| (pages * 64).to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        (-5_000..5_000_i32).prop_map(|tenths| format!("{:?}", f64::from(tenths) / 10.0)),
        proptest::sample::select(vec![
            "null",
            "true",
            "false",
            "NaN",
            "Infinity",
            "-Infinity",
            "\"4096\"",
            "[64]",
            "{}",
            "1e999",
            "1e30",
            "-0.0",
            ""
        ])
        .prop_map(str::to_owned),
    ]
}

proptest! {
    #[test]
    fn native_accepts_nothing_that_sglang_refuses_and_means_the_same(
        pairs in proptest::collection::vec(
            (proptest::sample::select(vec![
                "top_k", "device_buffer_size", "host_to_device_ratio", "swap_in_block_size", "page_size", "tok_p"
            ]), any_value()),
            0..4,
        )
    ) {
        let members: Vec<_> = pairs.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
        let text = format!("{{{}}}", members.join(", "));
        let (config, problems) = HisparseConfig::read(Some(&text), Against::NOTHING);
        let theirs = upstream::read(Some(&text));
        if problems.is_empty() {
            let theirs = theirs.map_err(|refusal| TestCaseError::fail(format!("{text}: {refusal:?}")))?;
            prop_assert_eq!(json!(config.top_k), theirs.get("top_k").clone(), "{}", &text);
            prop_assert_eq!(config.ratio.map(Ratio::to_f64), theirs.get("host_to_device_ratio").as_f64(), "{}", &text);
            if text.contains("device_buffer_size") {
                prop_assert_eq!(json!(config.hot_rows), theirs.get("device_buffer_size").clone(), "{}", &text);
            } else {
                let paged = theirs.get("device_buffer_size").as_u64().map(|rows| rows.next_multiple_of(64).min(32_768));
                prop_assert_eq!(config.hot_rows, paged, "{}", &text);
            }
        }
    }
}
