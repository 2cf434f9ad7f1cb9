//! What SGLang 0.5.23 takes a config for, against vectors that its own code produced.

mod common;

use common::shared;
use hisparse_core::model::{Family, Layer, Model, sglang};
use serde_json::{Map, Value, json};

#[test]
fn every_vector_of_index_sharing_is_reproduced() {
    let (Some(vectors), Some(configs)) = (shared("vectors/sglang_index_sharing.json"), shared("model_configs")) else {
        return;
    };
    let vectors: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(vectors).unwrap()).unwrap();
    assert!(vectors.len() >= 20, "only {} vectors", vectors.len());
    for vector in vectors {
        let inputs = &vector["inputs"];
        let expected = &vector["expected"];
        let found = match inputs["model"].as_str() {
            Some(name) => {
                let text = std::fs::read_to_string(configs.join(name).join("config.json")).unwrap();
                what_it_is(&serde_json::from_str(&text).unwrap(), expected)
            }
            None => how_it_shares(inputs.as_object().unwrap()),
        };
        assert_eq!(accepted_values(&found), accepted_values(expected), "{inputs}");
    }
}

/// The expectation without the names of Python's exceptions.
fn accepted_values(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(name, _)| *name != "error_type" && *name != "raised_in")
            .map(|(name, field)| (name.clone(), accepted_values(field)))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

fn how_it_shares(config: &Map<String, Value>) -> Value {
    let Ok(layers) = sglang::index_sharing(config) else {
        return json!({"layers": {"accepted": false}, "prefetch_groups": null});
    };
    let letters: String = layers.iter().map(|layer| if *layer == Layer::Shared { 'S' } else { 'F' }).collect();
    let groups = match sglang::prefetch_groups(&layers) {
        Ok(groups) => {
            let value: Map<String, Value> =
                groups.into_iter().map(|(layer, sharers)| (layer.to_string(), json!(sharers))).collect();
            json!({"accepted": true, "value": value})
        }
        Err(_) => json!({"accepted": false}),
    };
    json!({"layers": {"accepted": true, "value": letters}, "prefetch_groups": groups})
}

/// What SGLang takes a whole config for; fields that the vector leaves out are left out here too.
fn what_it_is(config: &Value, expected: &Value) -> Value {
    let Ok(model) = Model::from_value("", config) else {
        return json!({"accepted": true, "value": {
            "is_dsa": false, "is_dsv4": false, "is_minimax_sparse": false, "hisparse_model": false,
            "context_len": config["max_position_embeddings"],
        }});
    };
    // The vectors stop at SGLang's model configuration, where only DeepSeek-V4 fails; MiniMax M3 fails later.
    if model.family == Family::DeepseekV4 && sglang::unreadable(&model, config).is_some() {
        return json!({"accepted": false});
    }
    let is_dsa = matches!(model.family, Family::DeepseekV32 | Family::GlmMoeDsa);
    let mut value = json!({
        "is_dsa": is_dsa,
        "is_dsv4": model.family == Family::DeepseekV4,
        "is_minimax_sparse": model.family == Family::MinimaxM3,
        "context_len": model.context_tokens.get(),
        "hisparse_model": true,
    });
    if is_dsa {
        value["shared_pattern"] = json!(sglang::prefetch_pattern(&model, 1));
        value["shared_pattern_under_pp2"] = json!(sglang::prefetch_pattern(&model, 2));
        value["index_topk"] = json!(model.top_k);
    }
    assert_eq!(expected["value"].get("index_topk").is_some(), is_dsa);
    json!({"accepted": true, "value": value})
}
