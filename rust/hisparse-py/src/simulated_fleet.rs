//! A fleet in virtual time: one run, with the routers that `hisparse_svc.fleet` has.

use std::time::Duration;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::fleet::Policy;
use hisparse_core::limits::FLEET_CHOICES;
use hisparse_sim::fleet::{Report, Rule, Setup, check, simulate};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::serialised;
use crate::error::OrInvalidInput;
use crate::progress::tell;
use crate::replay::PyTrace;

/// What one run plays. Shares are thousandths.
#[pyclass(frozen, module = "hisparse_svc", name = "SimulatedFleet")]
#[derive(Debug)]
pub(crate) struct PySimulatedFleet(Setup);

#[pymethods]
impl PySimulatedFleet {
    /// Read a setup; all that is wrong with it comes at once.
    #[new]
    #[pyo3(signature = (*, nodes, routers, staleness_s, policy, choices, seed, load_milli, warm_s, measured_s,
        deaths_milli, slow_milli, bursts, seats, host_pages, patience_s))]
    #[allow(clippy::too_many_arguments)] // each is a flag of `simulate-fleet`
    fn new(
        py: Python<'_>,
        nodes: usize,
        routers: usize,
        staleness_s: f64,
        policy: &str,
        choices: usize,
        seed: u64,
        load_milli: u64,
        warm_s: f64,
        measured_s: f64,
        deaths_milli: u64,
        slow_milli: u64,
        bursts: bool,
        seats: u64,
        host_pages: u64,
        patience_s: f64,
    ) -> PyResult<Self> {
        let mut problems = Problems::new();
        let mut time = |field: &str, seconds: f64| {
            Duration::try_from_secs_f64(seconds).unwrap_or_else(|_| {
                problems.push(Problem::new(field, seconds, "must be a length of time", "give a number from 0"));
                Duration::ZERO
            })
        };
        let times = [("staleness", staleness_s), ("warm", warm_s), ("seconds", measured_s), ("patience", patience_s)];
        let [staleness, warm, measured, patience] = times.map(|(field, seconds)| time(field, seconds));
        let policy = Policy::of_name(policy).unwrap_or_else(|| {
            let names = Policy::ALL.map(|(_, name)| name).join(", ");
            problems.push(Problem::new("policy", format!("\"{policy}\""), "is no policy", format!("use {names}")));
            Policy::default()
        });
        let setup = Setup {
            seats,
            host_pages,
            load_milli,
            warm,
            measured,
            deaths_milli,
            slow_milli,
            bursts,
            patience,
            ..Setup::new(seed, nodes, routers, staleness, Rule { policy, choices })
        };
        if let Err(found) = setup.check() {
            problems.extend(found);
        }
        problems.into_result(Self(setup)).or_invalid_input(py)
    }

    /// Whether it can be played with the lengths of a trace.
    fn check(&self, py: Python<'_>, trace: &PyTrace) -> PyResult<()> {
        check(&self.0, &trace.0).or_invalid_input(py)
    }

    /// The values of a run that is told nothing, and the rules that the documentation compares.
    #[staticmethod]
    fn defaults(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let rule = Rule { policy: Policy::default(), choices: FLEET_CHOICES };
        let setup = Setup::new(1, 100, 100, Duration::ZERO, rule);
        let values = PyDict::new(py);
        values.set_item("routers", setup.routers)?;
        values.set_item("load_milli", setup.load_milli)?;
        values.set_item("warm_s", setup.warm.as_secs_f64())?;
        values.set_item("measured_s", setup.measured.as_secs_f64())?;
        values.set_item("deaths_milli", setup.deaths_milli)?;
        values.set_item("slow_milli", setup.slow_milli)?;
        values.set_item("seats", setup.seats)?;
        values.set_item("host_pages", setup.host_pages)?;
        values.set_item("patience_s", setup.patience.as_secs_f64())?;
        values.set_item("choices", rule.choices)?;
        values.set_item("rules", Rule::COMPARED.map(|rule| (rule.policy_name(), rule.choices)).to_vec())?;
        Ok(values)
    }

    /// Play it; `progress` is told the virtual seconds. An interruption ends it.
    #[pyo3(signature = (trace, progress=None))]
    #[allow(clippy::needless_pass_by_value)] // a callable is extracted by value
    fn play<'py>(&self, py: Python<'py>, trace: &PyTrace, progress: Option<Py<PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let (mut interrupted, mut told) = (None, Duration::ZERO);
        let mut goes_on = |now: Duration| {
            let look = |py: Python<'_>| {
                py.check_signals()?;
                if let Some(progress) = progress.as_ref().filter(|_| now.as_secs() > told.as_secs()) {
                    tell(py, progress, now.as_secs_f64())?;
                }
                PyResult::Ok(())
            };
            let looked = Python::attach(look);
            told = now;
            interrupted = looked.err();
            interrupted.is_none()
        };
        let played: Result<Option<Report>, Problems> = py.detach(|| simulate(&self.0, &trace.0, &mut goes_on));
        let report = played.or_invalid_input(py)?;
        if let Some(interrupted) = interrupted {
            return Err(interrupted);
        }
        let document = serialised(py, &report)?;
        if let Some(report) = report {
            document.set_item("goodput", report.goodput())?;
            document.set_item("attempts_per_admit", report.attempts_per_admit())?;
        }
        Ok(document)
    }

    fn __repr__(&self) -> String {
        let Setup { seed, nodes, routers, .. } = self.0;
        format!("SimulatedFleet({nodes} nodes, {routers} routers, seed {seed})")
    }
}
