//! The router's rules of `hisparse_core::fleet`, for the two Python shells that make the calls. Times are seconds of the
//! caller's own monotonic clock.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hisparse_core::env::Moment;
use hisparse_core::error::{Problem, Problems};
use hisparse_core::fleet::{
    Answer, Demand, Dice, NodeId, Placing, Policy, Router, Settings, Settle, Settling, Standing, Step, View, Why,
};
use hisparse_core::ledger::Pool;
use hisparse_core::limits;
use hisparse_core::pages::PageHash;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::OrInvalidInput;

fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

fn moment(now_s: f64) -> Moment {
    Moment::from_origin(span(now_s))
}

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner) // no rule of the core panics half-way
}

/// A node as a message of the service shows it; pools as `(name, room, total)`, one entry per NUMA node.
fn view(
    epoch: u64,
    sequence: u64,
    pools: &[(String, u64, u64)],
    largest_grant_tokens: u64,
    max_request_tokens: u64,
    draining: bool,
) -> View {
    let mut view = View { epoch, sequence, largest_grant_tokens, max_request_tokens, draining, ..View::default() };
    for (name, room, total) in pools {
        if let Ok(pool) = name.parse::<Pool>() {
            view.add(pool, *room, *total); // a pool that a newer node has is counted in its largest grant
        }
    }
    view
}

fn demand(tokens: u64, pages: u64, prefix_hashes: &[Vec<u8>]) -> Demand {
    let length = if pages > 0 { Demand::of_pages(pages) } else { Demand::of_tokens(tokens) };
    let prefix = prefix_hashes.iter().map_while(|hash| PageHash::try_from(hash.as_slice()).ok()).collect();
    Demand { prefix, ..length }
}

/// A router's picture of its nodes.
#[pyclass(frozen, module = "hisparse_svc.fleet", name = "Router")]
#[derive(Debug)]
pub(crate) struct PyRouter(Mutex<Router>);

#[pymethods]
impl PyRouter {
    /// A router without nodes; `seed` is the start of its chance.
    #[new]
    #[pyo3(signature = (*, policy=None, choices=None, stale_after_s=None, seed, now_s))]
    fn new(
        py: Python<'_>,
        policy: Option<&str>,
        choices: Option<usize>,
        stale_after_s: Option<f64>,
        seed: u64,
        now_s: f64,
    ) -> PyResult<Self> {
        let mut problems = Problems::new();
        let mut settings = Settings::default();
        if let Some(name) = policy {
            if let Some(policy) = Policy::of_name(name) {
                settings.policy = policy;
            } else {
                let rule = format!("must be one of {}", Policy::ALL.map(|(_, name)| name).join(", "));
                problems.push(Problem::new("policy", format!("\"{name:.40}\""), rule, "name one of them"));
            }
        }
        settings.choices = choices.unwrap_or(settings.choices);
        settings.stale_after = stale_after_s.map_or(settings.stale_after, span);
        match Router::new(settings, moment(now_s), &mut Dice::of_seed(seed)) {
            Ok(router) if problems.is_empty() => return Ok(Self(Mutex::new(router))),
            Ok(_) => {}
            Err(more) => problems.extend(more),
        }
        Err(problems).or_invalid_input(py)
    }

    /// Take a node in; gives its number.
    fn add(&self, py: Python<'_>, now_s: f64) -> PyResult<u64> {
        locked(&self.0).add(moment(now_s)).map(NodeId::get).or_invalid_input(py)
    }

    /// Let a node go.
    fn remove(&self, node: u64) {
        locked(&self.0).remove(NodeId::new(node));
    }

    /// A watch brought a view; `anew` where what was known before is void.
    #[pyo3(signature = (
        node, *, epoch, sequence, pools, largest_grant_tokens, max_request_tokens, draining, anew, now_s
    ))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // the fields of a message; lists are extracted by value
    fn watched(
        &self,
        node: u64,
        epoch: u64,
        sequence: u64,
        pools: Vec<(String, u64, u64)>,
        largest_grant_tokens: u64,
        max_request_tokens: u64,
        draining: bool,
        anew: bool,
        now_s: f64,
    ) {
        let view = view(epoch, sequence, &pools, largest_grant_tokens, max_request_tokens, draining);
        locked(&self.0).watched(NodeId::new(node), view, anew, moment(now_s));
    }

    /// A call's answer brought a view.
    #[pyo3(signature = (node, *, epoch, sequence, pools, largest_grant_tokens, max_request_tokens, draining, now_s))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // as above
    fn told(
        &self,
        node: u64,
        epoch: u64,
        sequence: u64,
        pools: Vec<(String, u64, u64)>,
        largest_grant_tokens: u64,
        max_request_tokens: u64,
        draining: bool,
        now_s: f64,
    ) {
        let view = view(epoch, sequence, &pools, largest_grant_tokens, max_request_tokens, draining);
        locked(&self.0).told(NodeId::new(node), view, moment(now_s));
    }

    /// The node's watch is up, and says that its view still holds.
    fn heard(&self, node: u64, now_s: f64) {
        locked(&self.0).heard(NodeId::new(node), moment(now_s));
    }

    /// The node's watch broke, or could not be opened; gives the seconds to rest before the next try.
    fn broken(&self, node: u64) -> f64 {
        locked(&self.0).broken(NodeId::new(node)).as_secs_f64()
    }

    /// Age in seconds of what is known of a node, and whether its watch is up; `None` before its first word.
    fn freshness(&self, node: u64, now_s: f64) -> Option<(f64, bool)> {
        let router = locked(&self.0);
        let node = router.node(NodeId::new(node))?;
        node.view.map(|_| (moment(now_s).saturating_since(node.heard_at).as_secs_f64(), node.watched))
    }

    /// Every node, the one that would be asked first in front: `(node, standing, shared pages, thousandths left)`.
    #[pyo3(signature = (*, tokens, pages=0, prefix_hashes=Vec::new(), now_s))]
    #[allow(clippy::needless_pass_by_value)] // lists are extracted by value
    fn rank(
        &self,
        py: Python<'_>,
        tokens: u64,
        pages: u64,
        prefix_hashes: Vec<Vec<u8>>,
        now_s: f64,
    ) -> Vec<(u64, &'static str, u64, u64)> {
        let demand = demand(tokens, pages, &prefix_hashes);
        let ranked = py.detach(|| locked(&self.0).rank(&demand, moment(now_s)));
        let entry = |ranked: &hisparse_core::fleet::Ranked| {
            let (shared, left) = match ranked.standing {
                Standing::Fits(candidate) => (candidate.shared_pages, candidate.left_milli),
                _ => (0, 0),
            };
            (ranked.node.get(), ranked.standing.name(), shared, left)
        };
        ranked.iter().map(entry).collect()
    }

    /// Begin to place a request.
    #[pyo3(signature = (*, tokens, pages=0, prefix_hashes=Vec::new(), patience_s, most_s, avoiding=Vec::new(), now_s))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // each is a keyword; lists are extracted by value
    fn place(
        slf: Bound<'_, Self>,
        tokens: u64,
        pages: u64,
        prefix_hashes: Vec<Vec<u8>>,
        patience_s: f64,
        most_s: f64,
        avoiding: Vec<u64>,
        now_s: f64,
    ) -> PyPlacing {
        let demand = demand(tokens, pages, &prefix_hashes);
        let placing = Placing::new(&mut locked(&slf.get().0), demand, span(patience_s), span(most_s), moment(now_s));
        let placing = avoiding.into_iter().fold(placing, |placing, node| placing.avoiding(NodeId::new(node)));
        PyPlacing { router: slf.unbind(), placing: Mutex::new(placing) }
    }
}

/// One request on its way to a node.
#[pyclass(frozen, module = "hisparse_svc.fleet", name = "Placing")]
#[derive(Debug)]
pub(crate) struct PyPlacing {
    router: Py<PyRouter>,
    placing: Mutex<Placing>,
}

#[pymethods]
impl PyPlacing {
    /// The next step as `(word, node, seconds)`: `ask` or `settle` with a node, `rest` with seconds, or why it is
    /// refused.
    fn next(&self, py: Python<'_>, now_s: f64) -> (&'static str, Option<u64>, f64) {
        let step = py.detach(|| locked(&self.placing).next(&mut locked(&self.router.get().0), moment(now_s)));
        match step {
            Step::Ask(node) => ("ask", Some(node.get()), 0.0),
            Step::Settle(node) => ("settle", Some(node.get()), 0.0),
            Step::Rest(rest) => ("rest", None, rest.as_secs_f64()),
            Step::Refuse(why) => {
                let node = if let Why::Unsettled(node) = why { Some(node.get()) } else { None };
                (why.name(), node, 0.0)
            }
        }
    }

    /// How the attempt went: `granted`, `full`, `unready`, `never_fits`, `unsent`, `failed`, `unknown`, `abandoned`.
    #[pyo3(signature = (answer, *, retry_s=0.0, shared_pages=0, now_s))]
    fn answered(&self, answer: &str, retry_s: f64, shared_pages: u64, now_s: f64) -> PyResult<()> {
        let answer = match answer {
            "granted" => Answer::Granted { shared_pages },
            "full" => Answer::Full(span(retry_s)),
            "unready" => Answer::Unready(span(retry_s)),
            "never_fits" => Answer::NeverFits,
            "unsent" => Answer::Unsent,
            "failed" => Answer::Failed,
            "unknown" => Answer::Unknown,
            "abandoned" => Answer::Abandoned,
            other => return Err(PyValueError::new_err(format!("{other} is no answer"))),
        };
        locked(&self.placing).answered(&mut locked(&self.router.get().0), answer, moment(now_s));
        Ok(())
    }

    /// Nothing is held any more at the node that was to be settled.
    fn settled(&self) {
        locked(&self.placing).settled();
    }

    /// Where the nodes stood at the last look, by count.
    fn tally<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let tally = *locked(&self.placing).tally();
        let counts = PyDict::new(py);
        counts.set_item("nodes", tally.nodes)?;
        counts.set_item("could", tally.could)?;
        counts.set_item("draining", tally.draining)?;
        counts.set_item("silent", tally.silent)?;
        counts.set_item("too_long", tally.too_long)?;
        counts.set_item("most_tokens", tally.most_tokens)?;
        Ok(counts)
    }
}

/// One attempt whose outcome is unknown, until it is certain that it holds nothing.
#[pyclass(frozen, module = "hisparse_svc.fleet", name = "Settling")]
#[derive(Debug)]
pub(crate) struct PySettling(Mutex<Settling>);

#[pymethods]
impl PySettling {
    /// Begin with the attempt's own deadline and the ttl it asked for.
    #[new]
    #[pyo3(signature = (*, deadline_s, ttl_s, seed))]
    fn new(deadline_s: f64, ttl_s: f64, seed: u64) -> Self {
        Self(Mutex::new(Settling::new(moment(deadline_s), span(ttl_s), Dice::of_seed(seed))))
    }

    /// The next step as `(word, seconds)`: `release`, `rest` with seconds, or `done`.
    fn next(&self, now_s: f64) -> (&'static str, f64) {
        match locked(&self.0).next(moment(now_s)) {
            Settle::Release => ("release", 0.0),
            Settle::Rest(rest) => ("rest", rest.as_secs_f64()),
            Settle::Done => ("done", 0.0),
        }
    }

    /// Note one release: whether the node answered.
    fn released(&self, answered: bool, now_s: f64) {
        locked(&self.0).released(answered, moment(now_s));
    }

    /// Whether another node may be asked.
    fn is_safe(&self, now_s: f64) -> bool {
        locked(&self.0).is_safe(moment(now_s))
    }
}

/// The defaults of a router, from the core's limits; times in seconds.
#[pyfunction]
pub(crate) fn fleet_defaults(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let defaults = PyDict::new(py);
    defaults.set_item("policies", Policy::ALL.map(|(_, name)| name).to_vec())?;
    defaults.set_item("choices", limits::FLEET_CHOICES)?;
    defaults.set_item("attempt_s", limits::FLEET_ATTEMPT.as_secs_f64())?;
    defaults.set_item("ttl_s", limits::FLEET_TTL.as_secs_f64())?;
    defaults.set_item("stale_after_s", limits::FLEET_STALE_AFTER.as_secs_f64())?;
    defaults.set_item("router_ttl_s", limits::ROUTER_TTL.as_secs_f64())?;
    Ok(defaults)
}
