//! From the text of a `config.json` to a [`Model`]: find the object that describes the language model, name its
//! family, let that family's file read it.
//!
//! ```text
//!  text ──► root object ──► text_config? ──► family by model_type, else by architecture, else by DSA fields
//!                                               │
//!                                               └──► dsa.rs, deepseek_v4.rs, minimax_m3.rs
//! ```

use serde_json::{Map, Value};

use super::source::Source;
use super::{Family, Model, deepseek_v4, dsa, minimax_m3};
use crate::error::{Problem, Problems};
use crate::hisparse_config::python_numbers;
use crate::input::{Fields, shown};
use crate::limits::MAX_CONFIG_BYTES;

/// Number formats a checkpoint may declare in `dtype` (older files: `torch_dtype`).
const KNOWN_DTYPES: [&str; 5] = ["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"];

/// Fields that make a model sparse in the manner of DeepSeek-V3.2.
const DSA_FIELDS: [&str; 3] = ["index_topk", "index_n_heads", "index_head_dim"];

/// Fields that a row of MLA needs beside them.
const MLA_FIELDS: [&str; 2] = ["kv_lora_rank", "qk_rope_head_dim"];

/// What GLM-5.3-Flash's class is called, by `model_type` and by architecture.
const GLM5_NEXT: [&str; 3] = ["glm5_next", "glm5_next_text", "Glm5NextForConditionalGeneration"];

/// Qwen4-Exp's sparse attention is no DSA; its checkpoints have this field.
const QSA_FIELD: &str = "indexer_budget";

impl Model {
    /// Reads the text of a `config.json`. `name` labels the model in plans; where it is empty, the architecture does.
    ///
    /// # Errors
    /// Everything that is wrong with the text, each problem with the path of its field.
    pub fn from_json_text(name: &str, text: &str) -> Result<Self, Problems> {
        let refuse = |value: String, rule: String| {
            Problems::one(Problem::new(
                "config.json",
                value,
                rule,
                "give the config.json that comes with the checkpoint",
            ))
        };
        if text.len() > MAX_CONFIG_BYTES {
            return Err(refuse(format!("{} bytes", text.len()), format!("must be at most {MAX_CONFIG_BYTES} bytes")));
        }
        if text.trim().is_empty() {
            return Err(refuse("empty".to_owned(), "must hold a JSON object".to_owned()));
        }
        let value: Value = serde_json::from_str(text).map_err(|error| {
            let non_finite = non_finite_fields(text);
            if non_finite.is_empty() {
                refuse(shown(&Value::from(text)), format!("must be JSON: {error}"))
            } else {
                non_finite
            }
        })?;
        Self::from_value(name, &value)
    }

    /// As [`Model::from_json_text`], for JSON that is parsed already.
    ///
    /// # Errors
    /// Everything that is wrong with the value, each problem with the path of its field.
    pub fn from_value(name: &str, value: &Value) -> Result<Self, Problems> {
        let Some(root) = value.as_object() else {
            return Err(Problems::one(Problem::new(
                "config.json",
                shown(value),
                "must be a JSON object",
                "give the config.json that comes with the checkpoint",
            )));
        };
        let (mut source, family) = Source::find(name, root);
        let model = match family {
            Some(Family::DeepseekV4) => deepseek_v4::read(&mut source),
            Some(Family::MinimaxM3) => minimax_m3::read(&mut source),
            Some(family) => dsa::read(&mut source, family),
            None => {
                refuse_dense(&mut source);
                None
            }
        };
        let field = source.fields.path_of("layer_types");
        let mut problems = source.fields.finish();
        let Some(model) = model else { return Err(problems) };
        if model.sparse_layers() == 0 {
            let rule = "one layer at least must be sparse";
            problems.push(Problem::new(field, "dense throughout", rule, "give a sparse-attention model"));
        }
        problems.into_result(model)
    }
}

/// Every number of a text that would be JSON but for Python's `NaN` and `Infinity`; none where more than that is wrong.
fn non_finite_fields(text: &str) -> Problems {
    let mut problems = Problems::new();
    for (path, word) in python_numbers(text) {
        let rule = "must be a finite number: JSON has no NaN and no Infinity";
        problems.push(Problem::new(path, word, rule, "give a number, or remove the field"));
    }
    problems
}

impl<'a> Source<'a> {
    /// Descends to `text_config` where there is one, and names the family.
    ///
    /// The outer architecture is the one that engines go by; the inner `model_type` is the language model's own.
    fn find(name: &str, root: &'a Map<String, Value>) -> (Self, Option<Family>) {
        let mut outer = Fields::new(root, "");
        let inner = outer.object("text_config");
        let (mut architecture, mut model_type) = identity(&mut outer);
        let mut fields = outer;
        if let Some(mut inner) = inner {
            let (inner_architecture, inner_type) = identity(&mut inner);
            architecture = architecture.or(inner_architecture);
            model_type = inner_type.or(model_type);
            inner.absorb(fields);
            fields = inner;
        }
        let architecture = architecture.unwrap_or_default().to_owned();
        let name = if name.is_empty() { architecture.clone() } else { name.to_owned() };
        let family = family_of(model_type, &architecture, &fields);
        let glm5_next = GLM5_NEXT.contains(&model_type.unwrap_or(&architecture));
        (Self { fields, name, architecture, glm5_next }, family)
    }
}

/// Architecture and `model_type` that an object declares, its number format checked on the way.
fn identity<'a>(fields: &mut Fields<'a>) -> (Option<&'a str>, Option<&'a str>) {
    check_dtype(fields);
    (first_architecture(fields), fields.text("model_type"))
}

/// The first entry of `architectures`, where there is one.
fn first_architecture<'a>(fields: &mut Fields<'a>) -> Option<&'a str> {
    let first = fields.list("architectures")?.first()?;
    if !first.is_string() {
        fields.problem_at("architectures", 0, "must be text", "name the model's class");
    }
    first.as_str()
}

/// `model_type` decides, then the architecture's name, then the presence of DSA fields.
fn family_of(model_type: Option<&str>, architecture: &str, fields: &Fields<'_>) -> Option<Family> {
    let by_type = match model_type.unwrap_or_default() {
        "deepseek_v32" => Some(Family::DeepseekV32),
        "glm_moe_dsa" | "glm5_next" | "glm5_next_text" => Some(Family::GlmMoeDsa),
        "deepseek_v4" => Some(Family::DeepseekV4),
        "minimax_m3" | "minimax_m3_vl" | "minimax_m3_text" | "minimax_m3_vl_text" => Some(Family::MinimaxM3),
        _ => None,
    };
    let by_architecture = || match architecture {
        "DeepseekV32ForCausalLM" => Some(Family::DeepseekV32),
        "GlmMoeDsaForCausalLM" | "Glm5NextForConditionalGeneration" => Some(Family::GlmMoeDsa),
        "DeepseekV4ForCausalLM" => Some(Family::DeepseekV4),
        "MiniMaxM3SparseForConditionalGeneration" | "MiniMaxM3SparseForCausalLM" => Some(Family::MinimaxM3),
        _ => None,
    };
    let by_fields = || DSA_FIELDS.iter().any(|field| fields.raw(field).is_some()).then_some(Family::GenericDsa);
    by_type.or_else(by_architecture).or_else(by_fields)
}

/// What to give in the place of a model that is refused as a whole.
const REMEDY: &str =
    "give a sparse-attention model: DeepSeek-V3.2, GLM-5, DeepSeek-V4, MiniMax M3, or another with MLA and DSA fields";

/// One problem for a model without an indexer that is known here: which fields it lacks.
fn refuse_dense(source: &mut Source<'_>) {
    if source.fields.raw(QSA_FIELD).is_some() {
        let rule = "belongs to the sparse attention of Qwen4-Exp (pooled indexer keys over grouped-query KV), which is \
                    not known here";
        source.fields.problem(QSA_FIELD, rule, REMEDY);
        return;
    }
    let missing: Vec<&str> =
        MLA_FIELDS.iter().chain(&DSA_FIELDS).filter(|field| source.fields.raw(field).is_none()).copied().collect();
    let subject = if source.architecture.is_empty() {
        "the model".to_owned()
    } else {
        format!("{}'s config", source.architecture)
    };
    source.fields.problem(
        DSA_FIELDS[0],
        format!("{subject} has no sparse attention: it lacks {}", missing.join(", ")),
        REMEDY,
    );
}

/// A declared number format must be one that exists; its value is not needed, as the KV format is the engine's choice.
fn check_dtype(fields: &mut Fields<'_>) {
    for name in ["dtype", "torch_dtype"] {
        if let Some(dtype) = fields.text(name)
            && !KNOWN_DTYPES.contains(&dtype)
        {
            fields.problem(name, "is no known number format", format!("use one of {}", KNOWN_DTYPES.join(", ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_json_cannot_write_are_named_by_their_fields() {
        let text = r#"{"note": "NaN", "index_topk": NaN, "rope": {"factors": [1, -Infinity]}}"#;
        let problems = Model::from_json_text("", text).unwrap_err();
        let told: Vec<_> = problems.iter().map(|p| format!("{} is {}: {}", p.field, p.value, p.rule)).collect();
        let rule = "must be a finite number: JSON has no NaN and no Infinity";
        assert_eq!(told, [format!("index_topk is NaN: {rule}"), format!("rope.factors[1] is -Infinity: {rule}")]);
    }

    #[test]
    fn a_text_with_more_wrong_than_that_is_told_where_it_breaks() {
        let problems = Model::from_json_text("", r#"{"index_topk": NaN"#).unwrap_err();
        assert!(problems.iter().all(|p| p.field == "config.json" && p.rule.contains("line 1 column")), "{problems}");
    }
}
