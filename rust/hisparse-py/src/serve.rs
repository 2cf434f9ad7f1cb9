//! The service: Python starts it, waits for it and stops it, and has no part in what it answers.
//!
//! ```text
//!  Python thread   Service.start ──► [GIL released: bind, start threads] ──► Service ── wait() [GIL released] ── stop()
//!  Rust threads                          └─► answer calls; they never attach to the interpreter
//! ```
//! So a Python thread that holds the GIL delays no answer. Start it after any fork.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::ledger::NodeCapacity;
use hisparse_core::limits::{RECLAIM_WINDOW, SERVE_THREADS, STOP_GRACE};
use hisparse_core::units::Bytes;
use hisparse_mem::backing::Pages;
use hisparse_mem::bind::Placement;
use hisparse_serve::{
    Access, Config, LogTo, MemoryConfig, NodeConfig, QuotaSetting, Quotas, Running, ServeLimits, Server, TlsFiles,
};
use pyo3::prelude::*;

use crate::convert::serialised;
use crate::error::OrInvalidInput;
use crate::plan::PyPlan;
use crate::pool_layout::PyPoolLayout;

/// A running service. It stops at once when the last reference goes; in a forked child it counts as stopped, and
/// nothing done to it there reaches the parent's.
#[pyclass(frozen, module = "hisparse_svc", name = "Service")]
#[derive(Debug)]
pub(crate) struct PyService(Running);

#[pymethods]
impl PyService {
    /// Bind every address and start answering for a node that was planned so.
    ///
    /// With a `memory` layout it owns the pool's bytes: it answers at once and grants when they are made, see `made`.
    /// With `handle_signals` SIGTERM and SIGINT stop it, gently at first and at once when repeated; Python's own
    /// handlers are put out of the way first, so call it from the main thread. Raises `InvalidInput`.
    #[staticmethod]
    #[pyo3(signature = (
        plan, *, memory = None, pages = "auto", numa = "any", mlock = false, assume_memory_bytes = None,
        allow_uids = Vec::new(), tenants = Vec::new(), socket = None, listen = None, http = None, seats = None, max_requests = None, threads = SERVE_THREADS,
        access = None, tls = None, limits = None, log = "off", exemplars = false, handle_signals = false,
        stop_grace_s = STOP_GRACE.as_secs_f64(), state_dir = None, reclaim_window_s = RECLAIM_WINDOW.as_secs_f64()
    ))]
    #[allow(clippy::too_many_arguments)] // keyword-only in Python, where each has a name
    fn start(
        py: Python<'_>,
        plan: &Bound<'_, PyPlan>,
        memory: Option<&Bound<'_, PyPoolLayout>>,
        pages: &str,
        numa: &str,
        mlock: bool,
        assume_memory_bytes: Option<u64>,
        allow_uids: Vec<u32>,
        tenants: Vec<(String, String, u64, Option<u64>)>,
        socket: Option<PathBuf>,
        listen: Option<String>,
        http: Option<String>,
        seats: Option<u64>,
        max_requests: Option<u64>,
        threads: usize,
        access: Option<&str>,
        tls: Option<(PathBuf, PathBuf, PathBuf)>,
        limits: Option<BTreeMap<String, u64>>,
        log: &str,
        exemplars: bool,
        handle_signals: bool,
        stop_grace_s: f64,
        state_dir: Option<PathBuf>,
        reclaim_window_s: f64,
    ) -> PyResult<Self> {
        let plan = &plan.get().0;
        let setting = |(tenant, pool, floor, ceiling)| QuotaSetting { tenant, pool, floor, ceiling };
        let settings: Vec<_> = tenants.into_iter().map(setting).collect();
        // Read to the end, so that everything wrong comes back together.
        let mut found = Problems::new();
        let quotas = kept(&mut found, Quotas::of(&settings)).unwrap_or_default();
        let capacity = NodeCapacity::of_plan(plan, seats, max_requests);
        let node = NodeConfig { quotas, exemplars, ..NodeConfig::of_plan(plan, capacity) };
        let stop_grace = kept(&mut found, seconds("stop_grace_s", stop_grace_s)).unwrap_or(STOP_GRACE);
        let reclaim_window = kept(&mut found, seconds("reclaim_window_s", reclaim_window_s)).unwrap_or(RECLAIM_WINDOW);
        let pages = Pages::read(pages).ok_or_else(|| {
            let remedy = format!("choose one of {}", Pages::WORDS.join(", "));
            Problems::one(Problem::new("--pages", format!("{pages:?}"), "must be a kind of pages", remedy))
        });
        let (pages, placements) = (kept(&mut found, pages), kept(&mut found, Placement::read("--numa", numa)));
        let memory = memory.map(|layout| {
            let usual = MemoryConfig::new(layout.get().0.clone());
            MemoryConfig {
                pages: pages.unwrap_or(usual.pages),
                placements: placements.unwrap_or(usual.placements),
                uids: allow_uids,
                lock: mlock,
                assume_memory: assume_memory_bytes.map(Bytes::new),
                ..usual
            }
        });
        let log = match log {
            "off" => LogTo::Nowhere,
            "text" => LogTo::Text,
            "json" => LogTo::Json,
            other => {
                found.push(Problem::new("--log", format!("{other:?}"), "must be a kind of log", "use text or json"));
                LogTo::Nowhere
            }
        };
        let access = kept(&mut found, access.map(Access::parse).transpose());
        // Without the list that was meant nothing can be said of who may come with a certificate.
        let tls = tls.filter(|_| access.is_some()).map(|(certificate, key, client_ca)| TlsFiles {
            certificate,
            key,
            client_ca,
        });
        let access = access.flatten().unwrap_or_default();
        let limits = kept(&mut found, self::limits(&limits.unwrap_or_default())).unwrap_or_default();
        let config = Config {
            socket,
            listen,
            tls,
            access,
            limits,
            log,
            http,
            threads,
            handle_signals,
            stop_grace,
            memory,
            state_dir,
            reclaim_window,
            ..Config::new(node)
        };
        found.extend(config.check().err().unwrap_or_default());
        found.into_result(()).or_invalid_input(py)?;
        if handle_signals {
            leave_signals_to_rust(py)?;
        }
        py.detach(|| Server::start(config)).map(Self).or_invalid_input(py)
    }

    /// Where it listens: `unix:/…`, `127.0.0.1:7411`, `http://127.0.0.1:7412`, with the ports it got.
    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.0.addresses().to_vec()
    }

    /// What was amiss at the start and is mended; for the operator to read.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.0.warnings().to_vec()
    }

    /// What peers did that they should not, each once, and what went wrong with the service itself.
    #[getter]
    fn notices(&self) -> Vec<String> {
        self.0.notices()
    }

    /// Whether it grants: false while it drains, stops or has found a fault.
    #[getter]
    fn ready(&self) -> bool {
        self.0.ready()
    }

    /// Wait until the pool's bytes are made, at most so many seconds. Whether they are; `True` at once where there are
    /// none to make. Raises `InvalidInput` where they cannot be had: it then grants nothing, stop it.
    #[pyo3(signature = (timeout_s = 0.0))]
    fn made(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let longest = seconds("timeout_s", timeout_s).or_invalid_input(py)?;
        match py.detach(|| self.0.made(longest)) {
            None => Ok(false),
            Some(made) => made.map(|()| true).or_invalid_input(py),
        }
    }

    /// Bytes of the pool that are made, and all of them; `None` where it owns none.
    #[getter]
    fn progress(&self) -> Option<(u64, u64)> {
        self.0.progress().map(|now| (now.made_bytes, now.total_bytes))
    }

    /// What the pool became, as plain data: `segments` (bytes, backing, placement, nodes) and `notes`; `None` where it
    /// owns none, and until it is made.
    #[getter]
    fn pool<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.pool().map(|report| serialised(py, report)).transpose()
    }

    /// Whether it was told to stop.
    #[getter]
    fn stopping(&self) -> bool {
        self.0.stopping()
    }

    /// Ask it to stop; calls may finish for so many seconds. Asked again, it stops at once. Returns immediately.
    #[pyo3(signature = (grace_s = STOP_GRACE.as_secs_f64()))]
    fn stop(&self, py: Python<'_>, grace_s: f64) -> PyResult<()> {
        self.0.stop(seconds("grace_s", grace_s).or_invalid_input(py)?);
        Ok(())
    }

    /// Wait for its end, at most so many seconds (`None`: for ever). Whether it has ended.
    #[pyo3(signature = (timeout_s = None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        let longest = timeout_s.map(|timeout| seconds("timeout_s", timeout)).transpose().or_invalid_input(py)?;
        Ok(py.detach(|| self.0.wait(longest)))
    }
}

/// What was read; `None` where something is wrong with it, which is kept.
fn kept<T>(found: &mut Problems, read: Result<T, Problems>) -> Option<T> {
    read.map_err(|problems| found.extend(problems)).ok()
}

/// Limits by their names; those that are not given keep their defaults.
fn limits(given: &BTreeMap<String, u64>) -> Result<ServeLimits, Problems> {
    let mut limits = ServeLimits::default();
    let mut problems = Problems::new();
    for (name, value) in given {
        let count = usize::try_from(*value).unwrap_or(usize::MAX);
        match name.as_str() {
            "max_connections" => limits.connections = count,
            "max_connections_per_user" => limits.connections_per_user = count,
            "max_calls_per_peer" => limits.calls_per_peer = count,
            "max_calls" => limits.calls = count,
            "admits_per_second" => limits.admits_per_second = Some(u32::try_from(*value).unwrap_or(u32::MAX)),
            _ => {
                let remedy = "see `hisparse-svc serve --help`";
                problems.push(Problem::new(name, value, "is no limit of a service", remedy));
            }
        }
    }
    problems.into_result(limits)
}

fn seconds(field: &str, seconds: f64) -> Result<Duration, Problems> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        Problems::one(Problem::new(field, seconds, "must be a length of time in seconds", "give 0 or more"))
    })
}

/// The interpreter's handlers would raise `KeyboardInterrupt` beside the stop; the runtime's own are set after this.
fn leave_signals_to_rust(py: Python<'_>) -> PyResult<()> {
    let signal = py.import("signal")?;
    for name in ["SIGINT", "SIGTERM"] {
        signal.call_method1("signal", (signal.getattr(name)?, signal.getattr("SIG_DFL")?))?;
    }
    Ok(())
}
