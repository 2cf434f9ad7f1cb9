//! The closed lists and tables of the core, for help texts, shell completion and the generated docs.

use hisparse_core::backends::{Backend, Phase, TABLE};
use hisparse_core::budget::gpu::GPUS;
use hisparse_core::budget::read::KEYS;
use hisparse_core::budget::vllm::published;
use hisparse_core::platform::{Engine, KvDtype, Platform};
use hisparse_core::validity;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::convert::to_python;
use crate::error::OrInvalidInput;

/// The words that `key` (`engine`, `platform`, `kv_dtype`, `backend`, `phase`, `gpu`) accepts, in the order offered.
#[pyfunction]
pub(crate) fn choices(key: &str) -> PyResult<Vec<&'static str>> {
    match key {
        "engine" => Ok(Engine::NAMES.to_vec()),
        "platform" => Ok(Platform::NAMES.to_vec()),
        "kv_dtype" => Ok(KvDtype::NAMES.to_vec()),
        "backend" => Ok(Backend::NAMES.to_vec()),
        "phase" => Ok(Phase::NAMES.to_vec()),
        "gpu" => Ok(GPUS.iter().map(|gpu| gpu.name).collect()),
        other => Err(PyKeyError::new_err(other.to_owned())),
    }
}

/// The tables behind the planner: `plan_keys`, `validate_keys`, `gpus`, `backends`, and the published `calculator` with its `sweep`.
#[pyfunction]
pub(crate) fn tables(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let columns: Vec<Value> = published::table(KvDtype::Fp8Raw)
        .or_invalid_input(py)?
        .into_iter()
        .map(|(column, answers)| json!({ "column": column, "answers": answers }))
        .collect();
    let sweep = published::sweep().or_invalid_input(py)?;
    let calculator = json!({ "contexts": published::CONTEXTS_TOKENS, "columns": columns, "sweep": sweep });
    to_python(
        py,
        &json!({ "plan_keys": KEYS, "validate_keys": validity::KEYS, "gpus": GPUS, "backends": TABLE, "calculator": calculator }),
    )
}
