//! Traces, and playing them in virtual time.

use std::time::Duration;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::ledger::NodeCapacity;
use hisparse_core::replay::{self, PerRequest, Percentiles, ReplayOptions, TraceRequest};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::serialised;
use crate::error::OrInvalidInput;
use crate::plan::PyPlan;
use crate::progress::tell;

/// Requests between two reports of progress.
const PROGRESS_STEP: usize = 256;

/// Requests with their arrivals, lengths and prefix blocks.
#[pyclass(frozen, module = "hisparse_svc", name = "Trace")]
#[derive(Debug)]
pub(crate) struct PyTrace(pub(crate) Vec<TraceRequest>);

#[pymethods]
impl PyTrace {
    /// Read a Mooncake trace, one JSON object per line; every bad line is named by its number.
    #[staticmethod]
    fn parse(py: Python<'_>, text: &str) -> PyResult<Self> {
        py.detach(|| replay::parse(text)).map(Self).or_invalid_input(py)
    }

    /// The first `count` requests.
    fn first(&self, count: usize) -> Self {
        Self(self.0.iter().take(count).cloned().collect())
    }

    /// Each request as `(at_ms, input_tokens, output_tokens)`.
    fn requests(&self) -> Vec<(u64, u64, u64)> {
        self.0.iter().map(|request| (request.at_ms, request.input_tokens, request.output_tokens)).collect()
    }

    /// One 32-byte hash per full page of a request's prompt.
    fn page_hashes<'py>(&self, py: Python<'py>, place: usize, page_tokens: u64) -> Vec<Bound<'py, PyBytes>> {
        let hashes = self.0.get(place).map(|request| request.page_hashes(page_tokens.max(1))).unwrap_or_default();
        hashes.iter().map(|hash| PyBytes::new(py, hash)).collect()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!("Trace({} requests)", self.0.len())
    }
}

/// Play a trace on the node of a plan, in virtual time; `progress` is told how many requests have arrived.
#[pyfunction]
#[pyo3(signature = (trace, plan, *, request_slots, max_wait_s, decode_ms, prefill_tps, progress=None))]
#[allow(clippy::too_many_arguments)] // each is a flag of `replay`
pub(crate) fn replay_trace<'py>(
    py: Python<'py>,
    trace: &PyTrace,
    plan: &PyPlan,
    request_slots: u64,
    max_wait_s: f64,
    decode_ms: f64,
    prefill_tps: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = read_options(max_wait_s, decode_ms, prefill_tps).or_invalid_input(py)?;
    let node = NodeCapacity::of_plan(&plan.0, None, Some(request_slots));
    let requests = &trace.0;
    let mut interrupted = None;
    let kept = &mut interrupted;
    let played = py.detach(move || {
        replay::play(requests, &node, options, &mut |arrived| {
            if let Some(progress) = progress.as_ref().filter(|_| arrived % PROGRESS_STEP == 0) {
                let told = Python::attach(|py| tell(py, progress, arrived));
                *kept = kept.take().or(told.err());
            }
        })
    });
    if let Some(interrupted) = interrupted {
        return Err(interrupted);
    }
    let played = played.or_invalid_input(py)?;
    serialised(py, &played)
}

/// Median, 99th percentile and largest of times in milliseconds, as `replay --json` gives them.
#[pyfunction]
pub(crate) fn percentiles(py: Python<'_>, values: Vec<u64>) -> PyResult<Bound<'_, PyAny>> {
    serialised(py, &Percentiles::of(values))
}

/// Mean and 99th percentile of counts, as `replay --json` gives them.
#[pyfunction]
pub(crate) fn per_request(py: Python<'_>, values: Vec<u64>) -> PyResult<Bound<'_, PyAny>> {
    serialised(py, &PerRequest::of(values))
}

fn read_options(max_wait_s: f64, decode_ms: f64, prefill_tps: u64) -> Result<ReplayOptions, Problems> {
    let mut problems = Problems::new();
    let mut time = |field: &str, seconds: f64, value: f64| {
        Duration::try_from_secs_f64(seconds).unwrap_or_else(|_| {
            problems.push(Problem::new(field, value, "must be a length of time", "give a number from 0"));
            Duration::ZERO
        })
    };
    let max_wait = time("--max-wait", max_wait_s, max_wait_s);
    let decode = time("--decode-ms", decode_ms / 1_000.0, decode_ms);
    problems.into_result(ReplayOptions { max_wait, decode, prefill_tokens_per_second: prefill_tps })
}
