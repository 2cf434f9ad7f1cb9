//! Where every row of a planned host pool lies.

use hisparse_core::budget::pool_shape::pool_layout_of_map;
use hisparse_core::budget::read::flag;
use hisparse_core::layout::StrideAlign;
use hisparse_core::layout::pool::PoolLayout;
use hisparse_core::platform::LayerGroups;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::Arguments;
use crate::convert::serialised;
use crate::error::OrInvalidInput;
use crate::model::ModelOrProblems;
use crate::plan::PyPlan;

/// The layout of a whole pool.
#[pyclass(frozen, module = "hisparse_svc", name = "PoolLayout")]
#[derive(Clone, Debug)]
pub(crate) struct PyPoolLayout(pub(crate) PoolLayout);

#[pymethods]
impl PyPoolLayout {
    /// Lay out the pool that `plan` is the answer for; `arguments` is what was asked then. Raises `InvalidInput`.
    #[staticmethod]
    #[pyo3(signature = (arguments, model, plan, *, groups = true))]
    fn of_plan(
        arguments: &Bound<'_, PyDict>,
        model: ModelOrProblems<'_>,
        plan: &Bound<'_, PyPlan>,
        groups: bool,
    ) -> PyResult<Self> {
        let py = arguments.py();
        let request = Arguments::read(arguments, flag);
        let model = model.into_result().or_invalid_input(py)?;
        let groups = if groups { LayerGroups::Auto } else { LayerGroups::Off };
        let laid_out = pool_layout_of_map(&model, &request.object, &plan.get().0, StrideAlign::Packed, groups);
        request.with_unsayable(laid_out).map(Self).or_invalid_input(py)
    }

    /// Pages, the one that takes what must go nowhere included.
    #[getter]
    fn pages(&self) -> u64 {
        self.0.pages()
    }

    /// Sizes of its segments in bytes, in order.
    #[getter]
    fn segment_bytes(&self) -> Vec<u64> {
        self.0.segment_bytes().to_vec()
    }

    /// Everything, as plain data.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        serialised(py, &self.0)
    }
}
