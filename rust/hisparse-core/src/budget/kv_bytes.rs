//! How many bytes of a GPU are left for KV.
//!
//! ```text
//!  --kv-bytes                                                    as given
//!  --gpu h200 --tp 8 --ep   141 GB × 0.92 − weights of the rank − 15 GiB
//!  neither                                                       20 GiB, and the plan says so
//! ```
//! The sum is the published concurrency calculator's. It needs the size of the weights, which a config.json does not
//! give: it is known for GLM-5 models of 78 layers, and `--weights` gives it for any other.

use crate::budget::request::{LayerSpan, PlanRequest};
use crate::budget::vllm::calculator::{Node, Weights};
use crate::budget::vllm::published::{GLM_5_3_WEIGHTS, RESERVE_GIB, UTILISATION};
use crate::budget::vllm::{GIB, floor_to_count, to_f64};
use crate::error::Problem;
use crate::limits::{DEFAULT_KV_BYTES, MIN_KV_BYTES};
use crate::model::{Family, Model};
use crate::size::show_size;
use crate::units::Bytes;

/// Main layers of the models whose weights are known.
const GLM_5_LAYERS: usize = 78;

/// Device memory for KV, in bytes, and what to say about where it came from.
///
/// # Errors
/// A GPU without known weights, or weights that leave no room.
pub fn kv_bytes(model: &Model, request: &PlanRequest) -> Result<(u64, Option<String>), Problem> {
    if let Some(bytes) = request.kv_bytes {
        return Ok((bytes, None));
    }
    let Some(gpu) = request.gpu else {
        let shown = show_size(Bytes::new(DEFAULT_KV_BYTES));
        let text = format!("Neither --gpu nor --kv-bytes was given: this plan is for {shown} of device memory for KV.");
        return Ok((DEFAULT_KV_BYTES, Some(text)));
    };
    let stages = to_f64(request.pp);
    let weights = match (request.weight_bytes, known_weights(model)) {
        (Some(_), _) => Weights { shared_gib: 0.0, routed_experts_gib: 0.0 },
        (None, Some(weights)) if matches!(request.layers, LayerSpan::All) => {
            Weights { shared_gib: weights.shared_gib / stages, routed_experts_gib: weights.routed_experts_gib / stages }
        }
        (None, _) => {
            return Err(Problem::new(
                "--gpu",
                gpu,
                format!("needs the size of the weights, which is not known for this part of {}", model.name),
                "give --weights with the bytes of one rank, or --kv-bytes",
            ));
        }
    };
    let node = Node {
        gpu_bytes: gpu.memory_bytes,
        utilisation: UTILISATION,
        reserve_gib: RESERVE_GIB,
        weights,
        data_parallel: request.dp,
        tensor_parallel: request.tp,
        expert_parallel: request.ep,
        kv_bytes: None,
    };
    let left = floor_to_count(node.kv_gib() * GIB).saturating_sub(request.weight_bytes.unwrap_or(0));
    if left >= MIN_KV_BYTES {
        return Ok((left, None));
    }
    let usable = show_size(Bytes::new(floor_to_count(to_f64(gpu.memory_bytes) * UTILISATION)));
    Err(Problem::new(
        "--gpu",
        gpu,
        format!("has no room for KV: weights and a reserve of {RESERVE_GIB} GiB fill its usable {usable}"),
        "raise --tp, spread the experts with --ep, name a larger GPU, or give --kv-bytes",
    ))
}

fn known_weights(model: &Model) -> Option<Weights> {
    (model.family == Family::GlmMoeDsa && model.layers.len() == GLM_5_LAYERS).then_some(GLM_5_3_WEIGHTS)
}
