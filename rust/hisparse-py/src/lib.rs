//! `hisparse_svc._core`: registration only. One file per noun; every rule lives in the crates below.

mod convert;
mod error;
mod machine;
mod model;
mod size;
mod view;

use pyo3::prelude::*;

/// The private native module.
#[pymodule]
mod _core {
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_export]
    use super::machine::{check_host_pool, machine};
    #[pymodule_export]
    use super::model::PyModel;
    #[pymodule_export]
    use super::size::{parse_size, show_size};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
