//! Configurations that are wrong: each is refused with its path, all problems at once, and nothing panics.

use hisparse_core::limits::{MAX_HOT_ROWS, MAX_LAYERS};
use hisparse_core::model::{Family, Model};
use proptest::collection::{hash_map, vec};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const V32: &str = include_str!("data/model_configs/deepseek_v32/config.json");
const GLM: &str = include_str!("data/model_configs/glm_5_2/config.json");
const V4: &str = include_str!("data/model_configs/deepseek_v4_flash_checkpoint_keys/config.json");
const M3: &str = include_str!("data/model_configs/minimax_m3/config.json");
const M3_CHECKPOINT: &str = include_str!("data/model_configs/minimax_m3_checkpoint_keys/config.json");
const SAMPLES: [&str; 5] = [V32, GLM, V4, M3, M3_CHECKPOINT];

/// A sample with the value at `path` replaced; `null` there means that the field is missing.
fn changed(sample: &str, changes: &[(&str, Value)]) -> Value {
    let mut config: Value = serde_json::from_str(sample).expect("samples are JSON");
    for (path, value) in changes {
        let mut at = &mut config;
        for name in path.split('.') {
            at = &mut at[name];
        }
        *at = value.clone();
    }
    config
}

fn refusal(config: &Value) -> String {
    Model::from_value("test", config).map_or_else(|problems| problems.to_string(), |_| "accepted".to_owned())
}

#[test]
fn text_that_is_no_config_is_refused() {
    for (text, why) in [
        ("", "config.json is empty: must hold a JSON object"),
        (" \n\t", "config.json is empty"),
        ("not json", "must be JSON"),
        ("{\"a\": NaN}", "a is NaN: must be a finite number: JSON has no NaN"),
        ("[1, 2]", "config.json is [1,2]: must be a JSON object"),
        ("null", "must be a JSON object"),
        ("{}", "lacks kv_lora_rank, qk_rope_head_dim, index_topk, index_n_heads, index_head_dim"),
        (&"[".repeat(100_000), "must be JSON"),
        (&format!("{{\"a\": \"{}\"}}", "x".repeat(5 << 20)), "must be at most 4194304 bytes"),
    ] {
        let problems = Model::from_json_text("test", text).unwrap_err().to_string();
        assert_eq!(problems.lines().count(), 1, "{problems}");
        assert!(problems.contains(why), "{text:.60}: {problems}");
    }
}

#[test]
fn absurd_numbers_are_refused_with_their_range() {
    for value in [json!(0), json!(-1), json!(1e30), json!(1.5), json!(true), json!("61"), json!([61]), json!({})] {
        for name in ["num_hidden_layers", "kv_lora_rank", "num_attention_heads", "index_topk", "index_head_dim"] {
            let problems = refusal(&changed(V32, &[(name, value.clone())]));
            assert!(problems.starts_with(&format!("{name} is {value}: must be a whole number in range")), "{problems}");
        }
    }
    let problems = refusal(&changed(V32, &[("max_position_embeddings", json!(1_000_000_000_000_u64))]));
    assert!(problems.starts_with("max_position_embeddings is 1000000000000: "), "{problems}");
    let problems = refusal(&changed(V32, &[("qk_rope_head_dim", json!(-64))]));
    assert!(problems.starts_with("qk_rope_head_dim is -64: "), "{problems}");
}

#[test]
fn a_whole_number_written_as_a_float_is_read() {
    assert_eq!(refusal(&changed(V32, &[("index_topk", json!(2048.0))])), "accepted");
}

#[test]
fn every_problem_comes_back_at_once_with_its_path() {
    let config = changed(
        M3_CHECKPOINT,
        &[
            ("text_config.head_dim", Value::Null),
            ("text_config.num_key_value_heads", json!("4")),
            ("text_config.dtype", json!("bf17")),
            ("text_config.sparse_attention_config.sparse_block_size", json!(-128)),
            ("text_config.sparse_attention_config.sparse_index_dim", Value::Null),
        ],
    );
    let problems = Model::from_value("test", &config).unwrap_err();
    let mut fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        [
            "text_config.dtype",
            "text_config.head_dim",
            "text_config.num_key_value_heads",
            "text_config.sparse_attention_config.sparse_block_size",
            "text_config.sparse_attention_config.sparse_index_dim",
        ]
    );
}

#[test]
fn an_unknown_dtype_is_refused_with_the_known_ones() {
    let problems = refusal(&changed(V32, &[("dtype", json!("int7"))]));
    assert_eq!(
        problems,
        "dtype is \"int7\": is no known number format; use one of bfloat16, float16, float32, float8_e4m3fn, float8_e5m2"
    );
}

#[test]
fn layers_that_contradict_themselves_are_refused() {
    let shared_first = json!(["linear_attention", "deepseek_sparse_attention"]);
    for (sample, changes, why) in [
        (
            GLM,
            vec![("indexer_types", Value::Null), ("index_topk_pattern", json!("FSS"))],
            "must have one entry for each of the 78 layers, not 3",
        ),
        (GLM, vec![("index_topk_pattern", json!("f".repeat(78)))], "entry 0 must be F or S"),
        (GLM, vec![("index_topk_pattern", json!("S".repeat(78)))], "starts with a shared layer"),
        (GLM, vec![("index_topk_freq", json!(2))], "index_topk_freq is 2: disagrees with indexer_types at layer 4"),
        (
            GLM,
            vec![("layer_types", json!(["deepseek_sparse_attention"]))],
            "must have one entry for each of the 78 layers, not 1",
        ),
        (
            GLM,
            vec![
                ("num_hidden_layers", json!(2)),
                ("layer_types", shared_first),
                ("indexer_types", json!(["full", "shared"])),
                ("index_topk_freq", Value::Null),
            ],
            "layer_types[1] is \"deepseek_sparse_attention\": shares the top-k of an earlier layer",
        ),
        (
            GLM,
            vec![
                ("num_hidden_layers", json!(3)),
                ("layer_types", json!(["linear_attention", "deepseek_sparse_attention", "deepseek_sparse_attention"])),
                ("indexer_types", json!(["full", "shared", "full"])),
                ("index_topk_freq", Value::Null),
            ],
            "layer_types[1] is \"deepseek_sparse_attention\": shares the top-k of an earlier layer",
        ),
        (
            V32,
            vec![("layer_types", json!(vec!["linear_attention"; 61]))],
            "layer_types is dense throughout: one layer at least must be sparse",
        ),
        (
            V32,
            vec![("layer_types", json!(vec!["full_attention"; 61]))],
            "layer_types[0] is \"full_attention\": may be a dense layer, or one with an indexer under an old name",
        ),
        (V4, vec![("compress_ratios", json!(vec![128; 43]))], "dense throughout"),
        (
            M3_CHECKPOINT,
            vec![("text_config.sparse_attention_config.sparse_attention_freq", json!(vec![0; 60]))],
            "text_config.layer_types is dense throughout",
        ),
        (V32, vec![("layer_types", json!(vec!["mamba"; 61]))], "layer_types[0] is \"mamba\": is no layer type"),
        (V4, vec![("compress_ratios", Value::Null)], "compress_ratios is null: is required"),
        (V4, vec![("compress_ratios", json!([4, 4]))], "must have one entry for each of the 43 layers, not 2"),
        (V4, vec![("compress_ratios", json!(vec![8; 43]))], "compress_ratios[42] is 8: is no ratio"),
        (V4, vec![("layer_types", json!(vec!["sliding_attention"; 43]))], "disagrees with compress_ratios[2]"),
        (
            V4,
            vec![
                ("compress_ratios", Value::Null),
                ("layer_types", json!(vec!["sliding_attention"; 43])),
                ("compress_rates", json!({"compressed_sparse_attention": 8})),
            ],
            "compress_rates.compressed_sparse_attention is 8: must be a whole number in range; give a number from 4 to 4\n\
             compress_rates.heavily_compressed_attention is missing",
        ),
        (
            V32,
            vec![("index_kpool", json!(4)), ("index_kpool_compress", json!(false))],
            "must be true where keys are pooled",
        ),
        (V32, vec![("index_kpool", json!(48))], "index_kpool is 48: must divide 64, the tokens of a page"),
        (V32, vec![("index_kpool", json!(128))], "index_kpool is 128: must be a whole number in range"),
        (V4, vec![("qk_rope_head_dim", json!(512))], "must be below head_dim, 512"),
        (M3, vec![("text_config.num_key_value_heads", json!(3))], "must divide num_attention_heads, 64"),
        (M3, vec![("text_config.index_topk_blocks", json!(1000))], "picks 128000 tokens a step"),
        (M3, vec![("text_config.layer_types", Value::Null)], "text_config.layer_types is null: is required"),
        (
            M3_CHECKPOINT,
            vec![("text_config.index_block_size", json!(64))],
            "sparse_block_size is 128: disagrees with index_block_size, 64",
        ),
        (
            M3_CHECKPOINT,
            vec![("text_config.sparse_attention_config.sparse_disable_index_value", json!(vec![0; 60]))],
            "sparse_disable_index_value[3] is 0: must be 1 on a sparse layer",
        ),
        (
            M3_CHECKPOINT,
            vec![("text_config.sparse_attention_config.use_sparse_attention", json!(false))],
            "without it the model is dense",
        ),
    ] {
        let problems = refusal(&changed(sample, &changes));
        assert!(problems.contains(why), "{changes:?}: {problems}");
    }
}

#[test]
fn a_wrapped_language_model_is_known_by_its_own_type() {
    let inner: Value = serde_json::from_str(GLM).unwrap();
    let wrapped = json!({"architectures": ["SomeVisionModel"], "model_type": "some_vision", "text_config": inner});
    let model = Model::from_value("", &wrapped).unwrap();
    assert_eq!((model.family, model.name.as_str()), (Family::GlmMoeDsa, "SomeVisionModel"));
}

#[test]
fn the_draft_layers_ratios_may_follow_the_main_ones() {
    let mut config = changed(V4, &[]);
    let without = Model::from_value("test", &config).unwrap();
    config["compress_ratios"].as_array_mut().unwrap().push(json!(0));
    assert_eq!(Model::from_value("test", &config).unwrap(), without);
}

/// Any JSON, small enough to try thousands.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0_i64..200).prop_map(Value::from),
        prop_oneof!["[FSfs]{0,80}", "full|shared|deepseek_v4|bfloat16", ".{0,8}"].prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 64, 80, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..80).prop_map(Value::from),
            hash_map("[a-z_]{1,12}", inner, 0..4).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Replaces the fields named by `picks`, counted through the object and its nested objects.
fn scramble(object: &mut Map<String, Value>, picks: &mut Vec<(usize, Value)>) {
    for (index, field) in object.values_mut().enumerate() {
        if let Some(found) = picks.iter().position(|(pick, _)| pick % 40 == index) {
            *field = picks.swap_remove(found).1;
        } else if let Value::Object(nested) = field {
            scramble(nested, picks);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_field_makes_the_reader_panic(sample in 0..SAMPLES.len(), mut picks in vec((0_usize..40, any_json()), 1..6)) {
        let mut config = changed(SAMPLES[sample], &[]);
        scramble(config.as_object_mut().unwrap(), &mut picks);
        match Model::from_value("test", &config) {
            Ok(model) => {
                let layers = u64::try_from(model.layers.len()).unwrap();
                prop_assert!((1..=MAX_LAYERS).contains(&layers) && (1..=MAX_HOT_ROWS).contains(&model.top_k));
                prop_assert!(model.indexer_layers() <= model.kv_layers() && model.kv_layers() <= layers);
            }
            Err(problems) => prop_assert!(!problems.is_empty()),
        }
    }

    #[test]
    fn no_document_makes_the_reader_panic(document in any_json(), text in ".{0,40}") {
        let _ = Model::from_value("", &document);
        prop_assert!(Model::from_json_text("", &text).is_err());
    }
}
