//! Callables that are told how far something is.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

/// Tells one. A bar that cannot be drawn is no reason to stop, but what is no `Exception` is: a Ctrl-C that comes while the
/// bar is drawn is raised there.
///
/// # Errors
/// An interruption.
pub(crate) fn tell<'py>(py: Python<'py>, progress: &Py<PyAny>, far: impl IntoPyObject<'py>) -> PyResult<()> {
    match progress.call1(py, (far,)) {
        Err(error) if !error.is_instance_of::<PyException>(py) => Err(error),
        _ => Ok(()),
    }
}
