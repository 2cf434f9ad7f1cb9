//! What of a plan request vLLM takes: the layers and the length that it settles, and the flags that it refuses.
//!
//! ```text
//!  PlanRequest ─┬─► layers kept, longest request
//!               └─► refused: ROCm, pipeline stages, a ratio, a pool above the machine, a buffer above shared memory
//! ```

use crate::budget::request::{HostSizing, LayerSpan, PlanRequest};
use crate::error::{Problem, Problems};
use crate::model::Model;
use crate::platform::Platform;

use super::allocation::Allocation;
use super::pool::check_host_memory;
use super::shared_memory;

/// Longest request the engine is started for (`--max-model-len`): the longest context asked about, else the model's own.
pub(super) fn max_model_len_tokens(model: &Model, request: &PlanRequest) -> u64 {
    request.contexts.iter().copied().max().unwrap_or(model.context_tokens.get()).max(1)
}

/// Layers of `model` that `span` keeps.
pub(super) fn layers_kept(model: &Model, span: LayerSpan) -> Result<usize, Problems> {
    let all = model.layers.len();
    match span {
        LayerSpan::All => Ok(all),
        LayerSpan::First(first) => match usize::try_from(first) {
            Ok(first) if first <= all => Ok(first),
            _ => Err(Problems::one(Problem::new(
                "--num-layers",
                first,
                format!("must be at most the model's {all} layers"),
                "give a smaller number",
            ))),
        },
        LayerSpan::Stage(from, to) => Err(Problems::one(Problem::new(
            "--stage",
            format!("{from}:{to}"),
            "is a pipeline stage, and vLLM refuses HiSparse with pipeline parallelism",
            "leave it out",
        ))),
    }
}

/// Whether the machine, where its memory is given, can pin the pools of one replica.
pub(super) fn check_host(request: &PlanRequest, allocation: &Allocation) -> Result<(), Problems> {
    let Some(memory) = request.machine_memory_bytes else { return Ok(()) };
    let copies = if allocation.host.shared { 1 } else { request.tp };
    let pools = allocation.host.blocks.saturating_mul(allocation.host.block_stride_bytes).saturating_mul(copies);
    check_host_memory(pools, memory)
}

/// Whether the resolver runs on the GPU, where its shared memory is known.
pub(super) fn check_resolver(request: &PlanRequest, allocation: &Allocation) -> Result<(), Problems> {
    shared_memory::device_limit_bytes(request.sm)
        .map_or(Ok(()), |limit_bytes| shared_memory::check(allocation.hot_rows, limit_bytes))
}

/// Flags that vLLM refuses with HiSparse, whatever the model.
pub(super) fn refused_flags(request: &PlanRequest) -> Problems {
    let mut problems = Problems::new();
    if request.platform == Platform::Rocm {
        problems.push(Problem::new(
            "--platform",
            request.platform,
            "is refused: vLLM 0.33.0 has HiSparse on CUDA only",
            "use --platform cuda, or plan with --engine native or sglang",
        ));
    }
    if request.pp > 1 {
        problems.push(Problem::new(
            "--pp",
            request.pp,
            "is refused: vLLM's HiSparse has no pipeline parallelism",
            "use --pp 1",
        ));
    }
    if let Some(HostSizing::Ratio(_) | HostSizing::UncheckedRatio(_) | HostSizing::Auto(_)) = request.sizing {
        problems.push(Problem::new(
            "--ratio",
            "given",
            "is not how vLLM sizes its host pool",
            "give --host-pool, or leave both out to learn how much is needed",
        ));
    }
    problems
}

/// Problems of the engine's own fields under the names of the flags that set them here.
pub(super) fn under_flag_names(problems: Problems) -> Problems {
    let mut renamed = Problems::new();
    for mut problem in problems {
        let flag = match problem.field.as_str() {
            "device_buffer_size" | "hot_rows" => "--hot-rows",
            "speculative_tokens" => "--mtp",
            "host_pool_gib" => "--host-pool",
            "max_model_len" | "context_tokens" => "--context",
            "block_size" => "--page-size",
            _ => "",
        };
        if !flag.is_empty() {
            flag.clone_into(&mut problem.field);
        }
        renamed.push(problem);
    }
    renamed
}
