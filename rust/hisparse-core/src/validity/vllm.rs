//! What vLLM 0.33.0 is known to refuse. It chooses its attention backends itself, so none is checked or resolved.

use serde_json::json;

use super::outcome::{Outcome, Resolved};
use super::request::ValidateRequest;
use crate::backends::{Phase, has_choice};
use crate::budget::read::flag;
use crate::budget::vllm::config;
use crate::error::{Problem, Problems};
use crate::hisparse_config::{FIELD, object};
use crate::limits::{DEFAULT_TOP_K, PAGE_TOKENS};
use crate::model::{Family, Model};
use crate::platform::Platform;

pub(super) fn validate(request: &ValidateRequest, model: Option<&Result<Model, Problems>>) -> Outcome {
    let mut problems = Problems::new();
    let mut warnings = Vec::new();
    let known = model.and_then(|model| model.as_ref().ok());
    if let Some(Err(refused)) = model {
        problems.extend(refused.clone());
    }
    if request.platform == Platform::Rocm {
        problems.push(Problem::new(flag("platform"), "rocm", "is not supported by vLLM's HiSparse", "use cuda"));
    }
    if request.pp_size > 1 {
        let rule = "must be 1: vLLM's HiSparse excludes pipeline parallelism";
        problems.push(Problem::new(flag("pp_size"), request.pp_size, rule, "use 1"));
    }
    match known.map(|model| model.family) {
        Some(Family::DeepseekV4) => problems.push(Problem::new(
            "model_type",
            "deepseek_v4",
            "is not supported by vLLM's HiSparse",
            "use --engine sglang or native",
        )),
        Some(family) if !has_choice(family) => {
            warnings.push("vLLM finds no MLA layer here and silently does not apply HiSparse.".to_owned());
        }
        _ => {}
    }
    for phase in Phase::ALL.iter().filter(|phase| request.backend(**phase).is_some()) {
        warnings.push(format!("{} is not checked: vLLM chooses its backend itself.", phase.flag()));
    }
    let top_k = known.map_or(DEFAULT_TOP_K, |model| model.top_k);
    let resolved = Resolved {
        hot_rows: json!(hot_rows(request, top_k, &mut problems, &mut warnings)),
        top_k: json!(top_k),
        kv_dtype: Some(request.kv_dtype.clone()),
        page_size: Some(PAGE_TOKENS),
        ..Resolved::default()
    };
    (resolved, problems, warnings)
}

fn hot_rows(request: &ValidateRequest, top_k: u64, problems: &mut Problems, warnings: &mut Vec<String>) -> Option<u64> {
    let mut note = |refused: Problems| {
        for mut problem in refused {
            problem.field = format!("{FIELD}.{}", problem.field);
            problems.push(problem);
        }
    };
    let buffer = match request.hisparse_config.as_deref().map(object).transpose() {
        Err(problem) => {
            problems.push(problem);
            return None;
        }
        Ok(object) => match config::read_config(&object.unwrap_or_default()) {
            Ok(read) => {
                warnings.extend(read.warnings);
                read.device_buffer_size
            }
            Err(refused) => {
                note(refused);
                return None;
            }
        },
    };
    match config::resolve(top_k, request.query_tokens() - 1, buffer) {
        Ok(rows) => Some(rows.hot_rows),
        // No buffer was given: it follows from the draft depth, which is then what is wrong.
        Err(refused) if buffer.is_none() && request.query_tokens() > 1 => {
            let (key, value) = request.draft_depth();
            for Problem { value: rows, rule, remedy, .. } in refused {
                problems.push(Problem::new(
                    flag(key),
                    value,
                    format!("needs a buffer of {rows} rows, which {rule}"),
                    remedy,
                ));
            }
            None
        }
        Err(refused) => {
            note(refused);
            None
        }
    }
}
