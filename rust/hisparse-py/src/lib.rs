//! `hisparse_svc._core`: registration only. One file per noun; every rule lives in the crates below.

mod arguments;
mod attached;
mod convert;
mod error;
mod fleet;
mod machine;
mod model;
mod plan;
mod pool_layout;
mod progress;
mod replay;
mod serve;
mod simulated_fleet;
mod size;
mod tables;
mod validate;
mod view;

use hisparse_core::limits;
use pyo3::prelude::*;

/// The private native module.
#[pymodule]
mod _core {
    use super::{Bound, PyModule, PyModuleMethods, PyResult, limits};

    #[pymodule_export]
    use super::attached::{PyAttachedPool, PyLayer};
    #[pymodule_export]
    use super::fleet::{PyPlacing, PyRouter, PySettling, fleet_defaults};
    #[pymodule_export]
    use super::machine::{check_host_pool, machine};
    #[pymodule_export]
    use super::model::{PyModel, PyPreset, all_presets};
    #[pymodule_export]
    use super::plan::{PyConcurrency, PyDeviceBytes, PyLayout, PyPlan, PyPlanModel, plan};
    #[pymodule_export]
    use super::pool_layout::PyPoolLayout;
    #[pymodule_export]
    use super::replay::{PyTrace, per_request, percentiles, replay_trace};
    #[pymodule_export]
    use super::serve::PyService;
    #[pymodule_export]
    use super::simulated_fleet::PySimulatedFleet;
    #[pymodule_export]
    use super::size::{parse_size, show_size};
    #[pymodule_export]
    use super::tables::{choices, tables};
    #[pymodule_export]
    use super::validate::{PyResolved, PyValidation, validate};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("MAX_CONFIG_BYTES", limits::MAX_CONFIG_BYTES)?;
        module.add("MAX_CONTEXT_TOKENS", limits::MAX_CONTEXT_TOKENS)?;
        module.add("MAX_LENGTHS_ASKED", limits::MAX_LENGTHS_ASKED)?;
        module.add("MAX_SEGMENT_BYTES", limits::MAX_SEGMENT_BYTES)?;
        module.add("MAX_SETTINGS_BYTES", limits::MAX_SETTINGS_BYTES)?;
        module.add("MAX_TRACE_BYTES", limits::MAX_TRACE_BYTES)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
