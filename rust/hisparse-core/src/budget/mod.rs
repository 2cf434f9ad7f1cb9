//! From a model and a device budget to tokens, seats and bytes.
//!
//! ```text
//!  flags / kwargs / gRPC ──► PlanRequest ─┐
//!                                         ├─► plan ──► Plan (the JSON of `hisparse-svc plan`)
//!  config.json ──► Model ─────────────────┘
//! ```
//! One reader, one planner, one answer: the command line, Python and gRPC hand the same map to [`plan_of_map`] and
//! print the same [`Plan`].

pub mod compressor;
pub mod concurrency;
pub mod device_bytes;
pub mod gpu;
pub mod kv_bytes;
pub mod native;
mod number;
pub mod plan;
pub mod pool_shape;
pub mod rank;
pub mod read;
pub mod request;
pub mod sglang;
pub mod vllm;

use serde_json::{Map, Value};

use crate::error::{Problem, Problems};
use crate::model::Model;
use crate::platform::Engine;

pub use plan::Plan;
pub use request::{HostSizing, PlanRequest};

/// Reads `map` and answers it for a model that may have been refused. Every front end calls this, so that what is wrong
/// with the model, with single values, and with values that do not suit the model comes back as one list.
///
/// # Errors
/// Everything wrong. A value that could not be read is replaced by its default for the rest of the checks, and what
/// those then say is kept only where it is about another value that was given.
pub fn plan_of_map(model: Result<&Model, Problems>, map: &Map<String, Value>) -> Result<Plan, Problems> {
    let (request, mut problems) = PlanRequest::read(map);
    let planned = match model {
        Ok(model) => plan(model, &request),
        Err(mut refused) => {
            refused.extend(problems);
            return Err(refused);
        }
    };
    if problems.is_empty() {
        return planned;
    }
    let named: Vec<String> = problems.iter().map(|problem| problem.field.clone()).collect();
    let given: Vec<String> = map.keys().map(|key| read::flag(key)).collect();
    for problem in planned.err().into_iter().flatten() {
        if given.contains(&problem.field) && !named.contains(&problem.field) {
            problems.push(problem);
        }
    }
    Err(problems)
}

/// Answers `request` for `model`, as the engine it names would.
///
/// # Errors
/// Everything wrong with the two together, each with its remedy.
pub fn plan(model: &Model, request: &PlanRequest) -> Result<Plan, Problems> {
    let plan = of_engine(model, request)?;
    // Of all figures the largest: those who read the JSON hold whole numbers in 64 bits with a sign.
    if i64::try_from(plan.physical_host_bytes).is_err() {
        let pools = request.tp.saturating_mul(request.dp).saturating_mul(request.pp);
        let rule =
            format!("leads to {} bytes of host memory over up to {pools} ranks, beyond 2^63", plan.physical_host_bytes);
        let remedy = "plan for fewer ranks, less GPU memory or a smaller ratio";
        return Err(Problems::one(if request.dp > 1 {
            Problem::new("--dp", request.dp, rule, remedy)
        } else {
            Problem::new("--kv-bytes", plan.kv_bytes, rule, remedy)
        }));
    }
    Ok(plan)
}

fn of_engine(model: &Model, request: &PlanRequest) -> Result<Plan, Problems> {
    match request.engine {
        Engine::Native => native::plan(model, request),
        Engine::Sglang => sglang::plan(model, request),
        Engine::Vllm => {
            let (kv_bytes, note) = kv_bytes::kv_bytes(model, request).map_err(Problems::one)?;
            let mut plan = vllm::profile::profile(model, request, kv_bytes)?;
            plan.warnings.extend(note);
            Ok(plan)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::presets::preset;
    use serde_json::json;

    fn refused(model: Result<&Model, Problems>, map: &Value) -> Vec<String> {
        plan_of_map(model, map.as_object().unwrap()).unwrap_err().into_iter().map(|problem| problem.field).collect()
    }

    #[test]
    fn unreadable_values_and_values_that_do_not_suit_the_model_come_together() {
        let model = preset("glm-5.2").unwrap();
        assert_eq!(refused(Ok(&model), &json!({"ratio": 0, "hot_rows": 1024})), ["--ratio", "--hot-rows"]);
    }

    #[test]
    fn host_memory_beyond_a_signed_number_is_refused() {
        let model = preset("glm-5.2").unwrap();
        let over = json!({"dp": 1024, "kv_bytes": 1_u64 << 50, "ratio": 20});
        assert_eq!(refused(Ok(&model), &over), ["--dp"]);
        let under = json!({"dp": 64, "kv_bytes": 1_u64 << 50, "ratio": 10});
        assert!(plan_of_map(Ok(&model), under.as_object().unwrap()).is_ok());
    }

    #[test]
    fn a_default_that_stands_in_is_not_blamed() {
        let model = preset("glm-5.2").unwrap();
        assert_eq!(refused(Ok(&model), &json!({"kv_bytes": "lots", "tp": 8})), ["--kv-bytes"]);
    }

    #[test]
    fn a_refused_model_does_not_hide_what_else_is_wrong() {
        let model = Problems::one(Problem::new("MODEL", "x", "is no preset", "give one"));
        assert_eq!(refused(Err(model), &json!({"ratio": 0})), ["MODEL", "--ratio"]);
    }
}
