//! A plan, and the question that leads to it.

use hisparse_core::budget;
use hisparse_core::budget::plan::{Concurrency, DeviceBytes, Number, Plan, PlanLayout, PlanModel};
use hisparse_core::budget::read::flag;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::Arguments;
use crate::convert::{json_text, serialised, word};
use crate::error::OrInvalidInput;
use crate::model::ModelOrProblems;
use crate::view::view;

view!(
    /// What a model needs on one rank, and how many requests run. Sizes are bytes, lengths are tokens.
    PyPlan of Plan, "Plan" {
        /// Whose allocation this describes: `native`, `sglang`, `vllm`.
        engine: &'static str = |plan| plan.engine.name();
        /// The model planned for.
        model: PyPlanModel = |plan| PyPlanModel(plan.model.clone());
        /// Bytes of one token in one layer.
        layout: PyLayout = |plan| PyLayout(plan.layout);
        /// Whether the host pool is in use.
        hisparse: bool = |plan| plan.hisparse;
        /// Tokens in one page.
        page_tokens: u64 = |plan| plan.page_tokens;
        /// Device memory the plan may use.
        kv_bytes: u64 = |plan| plan.kv_bytes;
        /// Logical tokens per device token.
        ratio: PyNumber = |plan| plan.ratio.into();
        /// Bytes per device token on the GPU.
        cell_bytes: PyNumber = |plan| plan.cell_bytes.into();
        /// Rows of main KV per layer that fit on the GPU.
        device_tokens: u64 = |plan| plan.device_tokens;
        /// Tokens that fit counting host memory.
        logical_tokens: u64 = |plan| plan.logical_tokens;
        /// Bytes of the host pool, pad page included.
        host_bytes: u64 = |plan| plan.host_bytes;
        /// Host memory of all pools of the deployment.
        physical_host_bytes: u64 = |plan| plan.physical_host_bytes;
        /// GPU rows one running request holds per layer.
        hot_rows: u64 = |plan| plan.hot_rows;
        /// Requests that can run at once.
        seats: u64 = |plan| plan.seats;
        /// Longest request that can ever be admitted.
        max_request_tokens: u64 = |plan| plan.max_request_tokens;
        /// Longest prompt plus output the engine lets through.
        max_req_len: u64 = |plan| plan.max_req_len;
        /// Tokens that per-token side buffers must be sized for.
        side_buffer_tokens: u64 = |plan| plan.side_buffer_tokens;
        /// Tokens of the sliding-window pool, all seats together, for models that have one.
        window_tokens: Option<u64> = |plan| plan.window_tokens;
        /// Context below which a hot buffer takes more GPU memory than it saves; none without a host pool.
        break_even_tokens: Option<u64> = |plan| plan.break_even_tokens;
        /// Device memory by use.
        device_bytes: PyDeviceBytes = |plan| PyDeviceBytes(plan.device_bytes);
        /// What stops one more request in the concurrency table, shortest context first.
        binding: Vec<String> = |plan| plan.binding.iter().map(word).collect();
        /// What a reader should know, each a full sentence.
        warnings: Vec<String> = |plan| plan.warnings.clone();
        /// Requests at once for each context asked for.
        concurrency: Vec<PyConcurrency> = |plan| plan.concurrency.iter().copied().map(PyConcurrency).collect();
    }

    /// Figures under SGLang's own names, as plain data; none for another engine's plan.
    #[getter]
    fn sglang<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.sglang.as_ref().map(|detail| serialised(py, detail)).transpose()
    }

    /// Figures under vLLM's own names, as plain data; none for another engine's plan.
    #[getter]
    fn vllm<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.vllm.as_ref().map(|detail| serialised(py, detail)).transpose()
    }

    /// The document that `hisparse-svc plan --json` prints, as plain data.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        serialised(py, &self.0)
    }

    /// The document that `hisparse-svc plan --json` prints, as text.
    fn to_json(&self) -> String {
        json_text(&self.0)
    }
);

view!(
    /// The model of a plan.
    PyPlanModel of PlanModel, "PlanModel" {
        /// Preset or folder name.
        name: &str = |model| &model.name;
        /// Its family.
        family: String = |model| word(&model.family);
        /// Main layers this rank holds.
        layers: u64 = |model| model.layers;
        /// Those of them that have an indexer cache.
        indexer_layers: u64 = |model| model.indexer_layers;
        /// Draft layers budgeted.
        draft_layers: u64 = |model| model.draft_layers;
        /// Tokens the indexer keeps per step.
        top_k: u64 = |model| model.top_k;
        /// Most tokens that one query row attends to: the top-k, and those of a pool of indexer keys that is not full.
        picks_per_row: u64 = |model| model.picks_per_row;
        /// Tokens that one indexer key stands for: 1 but where keys are pooled or rows compressed.
        tokens_per_index_key: u64 = |model| model.tokens_per_index_key;
        /// Layers of each group that shares one top-k, in order; empty for vLLM's plans.
        layer_groups: Vec<u64> = |model| model.layer_groups.clone();
    }
);

view!(
    /// Bytes of one row, and of one indexer key, in one layer.
    PyLayout of PlanLayout, "Layout" {
        /// How main KV is stored.
        kv_dtype: &'static str = |layout| layout.kv_dtype.name();
        /// Bytes of one row of main KV.
        row_bytes: u64 = |layout| layout.row_bytes;
        /// Bytes from one row to the next.
        row_stride: u64 = |layout| layout.row_stride;
        /// Bytes of one indexer key with its scale.
        indexer_bytes: u64 = |layout| layout.indexer_bytes;
    }
);

view!(
    /// Device memory by use, in bytes.
    PyDeviceBytes of DeviceBytes, "DeviceBytes" {
        /// Hot rows of main KV.
        hot: u64 = |bytes| bytes.hot;
        /// Indexer keys at logical size.
        indexer: u64 = |bytes| bytes.indexer;
        /// Per-seat state of the hot cache.
        tables: u64 = |bytes| bytes.tables;
        /// Request position to host page.
        maps: u64 = |bytes| bytes.maps;
        /// Buffers of one step at fixed addresses.
        side: u64 = |bytes| bytes.side;
        /// Draft layers.
        draft: u64 = |bytes| bytes.draft;
        /// KV that has no host copy and stays on the GPU at full size.
        resident: u64 = |bytes| bytes.resident;
    }
);

view!(
    /// Requests of one length that run at once, per data-parallel replica.
    PyConcurrency of Concurrency, "Concurrency" {
        /// Tokens of each request.
        context: u64 = |row| row.context;
        /// Requests at once with everything on the GPU.
        baseline: u64 = |row| row.baseline;
        /// Requests at once with the host pool.
        hisparse: u64 = |row| row.hisparse;
        /// Host bytes those requests need; 0 where the host pool brings nothing.
        host_bytes: u64 = |row| row.host_bytes;
        /// What stops one more.
        binding: String = |row| word(&row.binding);
    }
);

/// A count as Python's `int`, or `float` where an engine computes with one.
#[derive(IntoPyObject)]
enum PyNumber {
    Whole(u64),
    Float(f64),
}

impl From<Number> for PyNumber {
    fn from(number: Number) -> Self {
        match number {
            Number::Whole(whole) => Self::Whole(whole),
            Number::Float(float) => Self::Float(float),
        }
    }
}

/// Plan; `model` is a model or the problems that reading it gave.
#[pyfunction]
pub(crate) fn plan(arguments: &Bound<'_, PyDict>, model: ModelOrProblems<'_>) -> PyResult<PyPlan> {
    let py = arguments.py();
    let request = Arguments::read(arguments, flag);
    let model = model.into_result();
    let planned = py.detach(|| budget::plan_of_map(model.as_ref().map_err(Clone::clone), &request.object));
    request.with_unsayable(planned).map(PyPlan).or_invalid_input(py)
}
