//! Sizes as people write them.

use hisparse_core::error::{Problem, Problems};
use hisparse_core::size::{self, SIZE_RULE};
use hisparse_core::units::Bytes;
use pyo3::prelude::*;

use crate::error::OrInvalidInput;

/// Bytes that `text` (`512MiB`, `1.5GiB`, `1048576`) stands for; `field` names it in the error.
#[pyfunction]
#[pyo3(signature = (text, field="size"))]
pub(crate) fn parse_size(py: Python<'_>, text: &str, field: &str) -> PyResult<u64> {
    size::parse_size(text)
        .map(Bytes::get)
        .ok_or_else(|| Problems::one(Problem::new(field, format!("\"{text}\""), SIZE_RULE, size::size_remedy(text))))
        .or_invalid_input(py)
}

/// `count` bytes as a person reads them: `1.50 GiB`.
#[pyfunction]
pub(crate) fn show_size(count: u64) -> String {
    size::show_size(Bytes::new(count))
}
