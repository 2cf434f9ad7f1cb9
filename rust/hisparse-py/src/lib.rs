//! `hisparse_svc._core`: registration only. One file per noun; every rule lives in the crates below.

mod machine;

use pyo3::prelude::*;

/// The private native module.
#[pymodule]
mod _core {
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_export]
    use super::machine::{host_pool_problems, machine_report};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
