//! From the core's [`Problems`] to `hisparse_svc.InvalidInput`, the one way bad input reaches Python.
//!
//! The exception classes are Python's own (`hisparse_svc/errors.py`, the floor of the package), so that callers can
//! make, pickle and extend them.

use hisparse_core::error::Problems;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyType};

const MODULE: &str = "hisparse_svc.errors";

/// The exception that carries `problems`, ready to be raised.
pub(crate) fn invalid_input(py: Python<'_>, problems: &Problems) -> PyErr {
    build(py, problems).unwrap_or_else(|error| error)
}

fn build(py: Python<'_>, problems: &Problems) -> PyResult<PyErr> {
    static INVALID_INPUT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let list = to_list(py, problems)?;
    Ok(PyErr::from_value(INVALID_INPUT.import(py, MODULE, "InvalidInput")?.call1((list,))?))
}

/// Problems as a list of `hisparse_svc.Problem`.
pub(crate) fn to_list<'py>(py: Python<'py>, problems: &Problems) -> PyResult<Bound<'py, PyAny>> {
    static PROBLEM: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let problem_type = PROBLEM.import(py, MODULE, "Problem")?;
    let list = PyList::empty(py);
    for problem in problems {
        list.append(problem_type.call1((&problem.field, &problem.value, &problem.rule, &problem.remedy))?)?;
    }
    Ok(list.into_any())
}

/// Turns a core result into a Python one.
pub(crate) trait OrInvalidInput<T> {
    /// The value, or `InvalidInput` with every problem.
    fn or_invalid_input(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrInvalidInput<T> for Result<T, Problems> {
    fn or_invalid_input(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|problems| invalid_input(py, &problems))
    }
}
