//! What this machine is, and whether a pool fits it.

use hisparse_core::units::Bytes;
use hisparse_mem::machine::Machine;
use hisparse_mem::root::Root;
use pyo3::prelude::*;

use crate::convert::serialised;
use crate::error::OrInvalidInput;

/// The report of `doctor` on memory, as plain data.
#[pyfunction]
#[pyo3(signature = (assume_memory_bytes = None))]
pub(crate) fn machine(py: Python<'_>, assume_memory_bytes: Option<u64>) -> PyResult<Bound<'_, PyAny>> {
    let machine = py.detach(|| discover(assume_memory_bytes));
    serialised(py, &machine)
}

/// Refuse a host pool of `wanted_bytes` that does not fit here; `field` is how the user named it.
#[pyfunction]
#[pyo3(signature = (field, wanted_bytes, assume_memory_bytes = None))]
pub(crate) fn check_host_pool(
    py: Python<'_>,
    field: &str,
    wanted_bytes: u64,
    assume_memory_bytes: Option<u64>,
) -> PyResult<()> {
    py.detach(|| discover(assume_memory_bytes).check_pool(field, Bytes::new(wanted_bytes))).or_invalid_input(py)
}

pub(crate) fn discover(assume_memory_bytes: Option<u64>) -> Machine {
    Machine::discover(&Root::machine(), assume_memory_bytes.map(Bytes::new))
}
