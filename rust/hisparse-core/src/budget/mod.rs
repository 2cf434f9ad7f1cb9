//! From a model and a device budget to tokens, seats and bytes.
//!
//! ```text
//!  flags / kwargs / gRPC ──► PlanRequest ─┐
//!                                         ├─► plan ──► Plan (the JSON of `hisparse-svc plan`)
//!  config.json ──► Model ─────────────────┘
//! ```
//! One reader, one planner, one answer: the command line, Python and gRPC hand the same map to
//! [`PlanRequest::from_json`] and print the same [`Plan`].

pub mod gpu;
pub mod plan;
pub mod read;
pub mod request;
pub mod vllm;

pub use plan::Plan;
pub use request::{HostSizing, PlanRequest};
