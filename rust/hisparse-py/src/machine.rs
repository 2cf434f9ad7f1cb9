//! What this machine is and whether a pool fits it, as JSON text.

use hisparse_core::units::Bytes;
use hisparse_mem::machine::Machine;
use hisparse_mem::root::Root;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde::Serialize;

/// The report of `doctor` on memory: `hisparse_mem::machine::Machine` as JSON.
#[pyfunction]
#[pyo3(signature = (assume_memory_bytes = None))]
pub(crate) fn machine_report(py: Python<'_>, assume_memory_bytes: Option<u64>) -> PyResult<String> {
    json(&py.detach(|| discover(assume_memory_bytes)))
}

/// Why a host pool of `wanted_bytes` does not fit here: a JSON list of problems, empty where it fits.
#[pyfunction]
#[pyo3(signature = (field, wanted_bytes, assume_memory_bytes = None))]
pub(crate) fn host_pool_problems(
    py: Python<'_>,
    field: &str,
    wanted_bytes: u64,
    assume_memory_bytes: Option<u64>,
) -> PyResult<String> {
    let machine = py.detach(|| discover(assume_memory_bytes));
    json(&machine.check_pool(field, Bytes::new(wanted_bytes)).err().unwrap_or_default())
}

fn discover(assume_memory_bytes: Option<u64>) -> Machine {
    Machine::discover(&Root::machine(), assume_memory_bytes.map(Bytes::new))
}

fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|e| PyRuntimeError::new_err(e.to_string()))
}
