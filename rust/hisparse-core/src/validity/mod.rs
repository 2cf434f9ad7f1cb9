//! Whether a configuration is right, before anything is allocated: every check of one engine, all problems together.
//!
//! ```text
//!  flags / kwargs / gRPC ─► ValidateRequest ─┐            ┌─ native   what this project takes
//!  config.json ──► Model or its problems ────┼─► validate ┼─ sglang   what SGLang 0.5.23 takes, native's view as warnings
//!  machine ──► problems of the host pool ────┘            └─ vllm     what vLLM 0.33.0 is known to refuse
//! ```
//! Without a model it is the bare backend table.

mod host_pool;
mod native;
mod outcome;
mod request;
pub mod sglang;
mod vllm;

pub use outcome::Resolved;
pub use request::{KEYS, ValidateRequest};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::Problems;
use crate::model::Model;
use crate::platform::Engine;

/// The answer of `hisparse-svc validate`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Validation {
    /// Whether the engine would take the configuration.
    pub valid: bool,
    /// What it comes to.
    pub resolved: Resolved,
    /// Everything that is wrong with it.
    pub problems: Problems,
    /// What a user should know although it is accepted, each a full sentence.
    pub warnings: Vec<String>,
}

/// What the caller found out besides the request itself.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The model as it was read, or why it was refused; `None` for the bare table.
    pub model: Option<Result<Model, Problems>>,
    /// What is wrong with the host pool on this machine (`hisparse-mem` knows), empty where nothing or not asked.
    pub host_pool: Problems,
    /// Notes on the machine, each a full sentence; they never make a configuration invalid.
    pub notes: Vec<String>,
}

impl Validation {
    fn new(resolved: Resolved, problems: Problems, warnings: Vec<String>) -> Self {
        Self { valid: problems.is_empty(), resolved, problems, warnings }
    }

    /// Validates a map of [`KEYS`] in its surroundings. What cannot be read is a problem like any other, and the
    /// rest is still checked, with the default in its place.
    pub fn of_map(map: &Map<String, Value>, surroundings: Surroundings) -> Self {
        let (request, mut problems) = ValidateRequest::read(map);
        let validation = validate(&request, surroundings);
        problems.extend(validation.problems);
        Self::new(validation.resolved, problems, validation.warnings)
    }
}

/// Every check of the engine that `request` names.
pub fn validate(request: &ValidateRequest, surroundings: Surroundings) -> Validation {
    let Surroundings { model, host_pool: on_this_machine, notes } = surroundings;
    let (resolved, mut problems, mut warnings) = match request.engine {
        Engine::Native => native::validate(request, model.as_ref()),
        Engine::Sglang => sglang::validate(request, model.as_ref()),
        Engine::Vllm => vllm::validate(request, model.as_ref()),
    };
    problems.extend(host_pool::fits_machine(request));
    problems.extend(on_this_machine);
    if let Some(Ok(model)) = model {
        warnings.extend(model.warnings);
    }
    warnings.extend(notes);
    Validation::new(resolved, problems, warnings)
}
