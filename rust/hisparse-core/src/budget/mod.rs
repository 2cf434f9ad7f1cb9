//! From a model and a device budget to tokens, seats and bytes.
//!
//! ```text
//!  flags / kwargs / gRPC ──► PlanRequest ─┐
//!                                         ├─► plan ──► Plan (the JSON of `hisparse-svc plan`)
//!  config.json ──► Model ─────────────────┘
//! ```
//! One reader, one planner, one answer: the command line, Python and gRPC hand the same map to
//! [`PlanRequest::from_json`] and print the same [`Plan`].

pub mod compressor;
pub mod concurrency;
pub mod device_bytes;
pub mod gpu;
pub mod kv_bytes;
pub mod native;
pub mod plan;
pub mod pool_shape;
pub mod rank;
pub mod read;
pub mod request;
pub mod sglang;
pub mod vllm;

use crate::error::Problems;
use crate::model::Model;
use crate::platform::Engine;

pub use plan::Plan;
pub use request::{HostSizing, PlanRequest};

/// Answers `request` for `model`, as the engine it names would.
///
/// # Errors
/// Everything wrong with the two together, each with its remedy.
pub fn plan(model: &Model, request: &PlanRequest) -> Result<Plan, Problems> {
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
