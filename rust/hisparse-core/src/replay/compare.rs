//! The same trace on two nodes: with the host pool, and with the device alone.
//!
//! ```text
//!   model + request ──► plan ──────────────► node ─┐
//!         └── without host pool ─► plan ─► node ───┴─► play, play ─► report
//! ```

use serde::Serialize;

use super::outcome::{Outcome, Sample};
use super::run::{ReplayOptions, play};
use super::trace::TraceRequest;
use crate::budget::{PlanRequest, plan};
use crate::error::Problems;
use crate::ledger::NodeCapacity;
use crate::limits::MAX_SEATS;
use crate::model::Model;

/// Both halves of a comparison: the JSON of `replay`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// With the host pool.
    #[serde(flatten)]
    pub host: Outcome,
    /// With the device pool as the limit.
    pub device_only: Outcome,
}

/// A comparison with its plots' data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The numbers.
    pub report: Report,
    /// The node with the host pool over time.
    pub host_timeline: Vec<Sample>,
    /// The device alone over time.
    pub device_timeline: Vec<Sample>,
}

/// Plays `trace` on the node that `request` plans for this model, and on the same GPU memory without the host pool.
/// The device alone has no hot buffers, so its seats are bounded by the engine's requests at once alone.
/// `progress` counts the arrivals of both halves.
///
/// # Errors
/// What the planner or the replay refuses.
pub fn compare(
    trace: &[TraceRequest],
    model: &Model,
    request: &PlanRequest,
    options: ReplayOptions,
    progress: &mut dyn FnMut(usize),
) -> Result<Comparison, Problems> {
    let host = NodeCapacity::of_plan(&plan(model, request)?, None, None);
    let device = device_only(model, request)?;
    let host = play(trace, &host, options, progress)?;
    let device = play(trace, &device, options, &mut |arrived| progress(trace.len() + arrived))?;
    Ok(Comparison {
        report: Report { host: host.outcome, device_only: device.outcome },
        host_timeline: host.timeline,
        device_timeline: device.timeline,
    })
}

/// The node of the same request without the host pool.
///
/// # Errors
/// What the planner refuses.
pub fn device_only(model: &Model, request: &PlanRequest) -> Result<NodeCapacity, Problems> {
    let without = PlanRequest { hisparse: false, sizing: None, hot_rows: None, ..request.clone() };
    let seats = request.max_seqs.unwrap_or(MAX_SEATS);
    Ok(NodeCapacity::of_plan(&plan(model, &without)?, Some(seats), None))
}
