//! Whether a configuration is right: the core's verdict, with what this machine says about the host pool.

use hisparse_core::budget::read::flag;
use hisparse_core::error::Problems;
use hisparse_core::units::Bytes;
use hisparse_core::validity::{Resolved, Surroundings, ValidateRequest, Validation};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;

use crate::arguments::Arguments;
use crate::convert::{json_text, serialised, to_python};
use crate::error::to_list;
use crate::machine::discover;
use crate::model::ModelOrProblems;
use crate::view::view;

view!(
    /// The verdict on a configuration.
    PyValidation of Validation, "Validation" {
        /// Whether the engine would take the configuration.
        valid: bool = |it| it.valid;
        /// What it comes to.
        resolved: PyResolved = |it| PyResolved(it.resolved.clone());
        /// What a user should know although it is accepted, each a full sentence.
        warnings: Vec<String> = |it| it.warnings.clone();
    }

    /// Everything that is wrong with it, as `hisparse_svc.Problem`s.
    #[getter]
    fn problems<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_list(py, &self.0.problems)
    }

    /// The document that `hisparse-svc validate --json` prints, as plain data.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        serialised(py, &self.0)
    }

    /// The document that `hisparse-svc validate --json` prints, as text.
    fn to_json(&self) -> String {
        json_text(&self.0)
    }
);

view!(
    /// What a configuration comes to; `None` where it could not be decided.
    PyResolved of Resolved, "Resolved" {
        /// Backend of whole prompts; `None` too for a family that brings its own attention.
        prefill_backend: Option<&'static str> = |it| it.prefill_backend.map(hisparse_core::backends::Backend::name);
        /// Backend of decode steps.
        decode_backend: Option<&'static str> = |it| it.decode_backend.map(hisparse_core::backends::Backend::name);
        /// KV type after `auto`.
        kv_dtype: Option<String> = |it| it.kv_dtype.clone();
        /// Tokens of a page.
        page_size: Option<u64> = |it| it.page_size;
    }

    /// Hot rows per request, as the engine holds them: SGLang may hold text or a float.
    #[getter]
    fn hot_rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0.hot_rows)
    }

    /// Host-to-device ratio, as the engine holds it.
    #[getter]
    fn ratio<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0.ratio)
    }

    /// Tokens attended per step.
    #[getter]
    fn top_k<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0.top_k)
    }
);

/// Validate a configuration; `model` is a model, the problems that reading it gave, or nothing for the bare table. A host
/// pool is measured against this machine, unless the arguments say what memory to assume.
#[pyfunction]
#[pyo3(signature = (arguments, model=None))]
pub(crate) fn validate(arguments: &Bound<'_, PyDict>, model: Option<ModelOrProblems<'_>>) -> PyValidation {
    let mut request = Arguments::read(arguments, flag_of);
    // A mapping comes here only where JSON cannot say all of it; what is left is judged with the rest.
    if let Some(config) = request.object.get_mut("hisparse_config").filter(|config| config.is_object()) {
        *config = Value::String(config.to_string());
    }
    let model = model.map(ModelOrProblems::into_result);
    let mut validation = arguments.py().detach(|| {
        let host_pool = pool_problems(&ValidateRequest::read(&request.object).0);
        Validation::of_map(&request.object, Surroundings { model, host_pool, notes: Vec::new() })
    });
    validation.problems = request.and_problems(validation.problems);
    validation.valid = validation.problems.is_empty();
    PyValidation(validation)
}

/// A key's flag; what follows the key is the configuration's own.
fn flag_of(path: &str) -> String {
    match path.split_once('.') {
        Some((key, inner)) => format!("{}.{inner}", flag(key)),
        None => flag(path),
    }
}

fn pool_problems(request: &ValidateRequest) -> Problems {
    match (request.host_pool_bytes, request.machine_memory_bytes) {
        (Some(wanted), None) => {
            discover(None).check_pool(&flag("host_pool"), Bytes::new(wanted)).err().unwrap_or_default()
        }
        _ => Problems::new(),
    }
}
