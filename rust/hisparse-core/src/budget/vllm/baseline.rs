//! The same engine without HiSparse: every row of every layer on the GPU.
//!
//! ```text
//!  block = 64 × (layers × row + indexed layers × indexer key)      requests = ⌊⌊KV / block⌋ / pages⌋
//! ```

use crate::budget::concurrency::{bindings, contexts};
use crate::budget::plan::{Binding, Concurrency, DeviceBytes, Number, Plan, PlanLayout, PlanModel};
use crate::budget::rank::draft_layers;
use crate::budget::request::PlanRequest;
use crate::error::{Problem, Problems};
use crate::layout::{RowLayout, default_index_dtype};
use crate::model::{Layer, Model, Shape};
use crate::platform::Engine;

use super::calculator::DEFAULT_MAX_SEQUENCES;
use super::scope::{layers_kept, max_model_len_tokens};
use super::{counted, quirks};

/// The plan without a host pool.
///
/// # Errors
/// DeepSeek-V4 and linear layers, for which vLLM's blocks are not recorded, and rows that `--tp` cannot divide.
pub(super) fn plan(model: &Model, request: &PlanRequest, kv_bytes: u64) -> Result<Plan, Problems> {
    let mut problems = Problems::new();
    if matches!(model.shape, Shape::DeepseekV4 { .. }) || model.layers.contains(&Layer::Linear) {
        problems.push(Problem::new(
            "model",
            &model.name,
            "has caches for which vLLM's answer is not recorded",
            "plan it with --engine native or sglang",
        ));
    }
    let row = RowLayout::main(model, request.kv_dtype, request.tp).map_err(|problem| problems.push(problem));
    let indexer = RowLayout::indexer(model, default_index_dtype(model)).map_err(|problem| problems.push(problem));
    let kept = layers_kept(model, request.layers).map_err(|found| problems.extend(found));
    let (Ok(row), Ok(indexer), Ok(kept), true) = (row, indexer, kept, problems.is_empty()) else {
        return Err(problems);
    };

    let draft_layers = draft_layers(model, request);
    let layers = kept as u64;
    let indexed_layers = model.layers.iter().take(kept).filter(|layer| layer.has_indexer()).count() as u64;
    let cell = || {
        let rows = row.row_bytes().checked_mul(layers.checked_add(draft_layers)?)?;
        rows.checked_add(indexer.row_bytes().checked_mul(indexed_layers.checked_add(draft_layers)?)?)
    };
    let cell_bytes = counted("model", layers, cell().filter(|bytes| *bytes > 0))?;
    let page_tokens = request.page_tokens.max(1);
    let block_bytes = counted("--page-size", page_tokens, cell_bytes.checked_mul(page_tokens))?;
    let blocks = kv_bytes / block_bytes;
    // At most `kv_bytes`, since a block has at least as many bytes as tokens.
    let device_tokens = blocks * page_tokens;
    let max_seqs = request.max_seqs.unwrap_or(DEFAULT_MAX_SEQUENCES);
    let longest = max_model_len_tokens(model, request);
    let mut warnings = model.warnings.clone();
    if request.hisparse {
        warnings.push(quirks::NOT_APPLIED.to_owned());
    }
    warnings.extend(quirks::beyond_the_model(model.context_tokens.get(), longest));
    if device_tokens < longest {
        warnings.push(quirks::too_long_to_admit(device_tokens, longest));
    }
    let concurrency: Vec<Concurrency> = contexts(model, &request.contexts)
        .iter()
        .map(|context| row_of(*context, blocks / context.div_ceil(page_tokens).max(1), max_seqs))
        .collect();
    let draft_cell = row.row_bytes().saturating_add(indexer.row_bytes()).saturating_mul(draft_layers);
    Ok(Plan {
        engine: Engine::Vllm,
        model: PlanModel {
            name: model.name.clone(),
            family: model.family,
            layers,
            indexer_layers: indexed_layers,
            draft_layers,
            top_k: model.top_k,
            picks_per_row: model.picks_per_row(),
            tokens_per_index_key: model.index_pooling,
            layer_groups: Vec::new(),
        },
        layout: PlanLayout {
            kv_dtype: request.kv_dtype,
            row_bytes: row.row_bytes(),
            row_stride: row.row_bytes(),
            indexer_bytes: indexer.row_bytes(),
        },
        hisparse: false,
        page_tokens,
        kv_bytes,
        ratio: Number::Whole(1),
        cell_bytes: Number::Whole(cell_bytes),
        device_tokens,
        logical_tokens: device_tokens,
        host_bytes: 0,
        physical_host_bytes: 0,
        hot_rows: 0,
        seats: blocks.min(max_seqs),
        max_request_tokens: device_tokens.min(longest),
        max_req_len: device_tokens.min(longest),
        side_buffer_tokens: 0,
        window_tokens: None,
        break_even_tokens: None,
        sglang: None,
        vllm: None,
        device_bytes: DeviceBytes {
            indexer: indexer.row_bytes() * indexed_layers * device_tokens,
            draft: draft_cell * device_tokens,
            resident: row.row_bytes() * layers * device_tokens,
            ..DeviceBytes::default()
        },
        binding: bindings(&concurrency),
        warnings,
        concurrency,
    })
}

fn row_of(context: u64, fit: u64, max_seqs: u64) -> Concurrency {
    let requests = fit.min(max_seqs);
    let binding = if fit < max_seqs { Binding::DeviceTokens } else { Binding::RequestSlots };
    Concurrency { context, baseline: requests, hisparse: requests, host_bytes: 0, binding }
}
