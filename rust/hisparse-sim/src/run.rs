//! One seed, run and judged; and many, added up.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::audit::Finding;
use crate::faults::Faults;
use crate::linear::check::{Verdict, check};
use crate::node::planted::Bug;
use crate::world::World;

/// Configurations that the linearizability search may look at before it gives up.
const MOST_CONFIGURATIONS: usize = 200_000;

/// What came of a seed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// The seed: it replays the run.
    pub seed: u64,
    /// What went wrong around the node.
    pub faults: Faults,
    /// Hash of everything that happened at the node, in order.
    pub trace: u64,
    /// Steps of the node.
    pub steps: u64,
    /// Simulated time, in µs.
    pub simulated_us: u64,
    /// The rule that was broken, if any.
    pub finding: Option<Finding>,
    /// Calls of the history that was checked for linearizability; 0 where none was.
    pub history_calls: u64,
    /// Whether that search was cut short.
    pub undecided: bool,
    /// How often each thing happened.
    pub counts: BTreeMap<&'static str, u64>,
}

/// Who judges a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judges {
    /// The auditor at every step, then the linearizability checker.
    All,
    /// The checker alone, which sees only what callers saw: proof that it needs no help.
    HistoriesAlone,
}

/// Runs a seed against the real ledger, or against one with a planted bug.
pub fn run(seed: u64, bug: Option<Bug>, judges: Judges) -> Run {
    let mut world = World::new(seed, bug, judges == Judges::All);
    let mut finding = world.run().err();
    let (mut history_calls, mut undecided) = (0, false);
    if world.setup.plain && finding.is_none() {
        let page_tokens = world.setup.config.capacity.page_tokens;
        let entries = std::mem::take(&mut world.history).into_entries(page_tokens);
        history_calls = entries.len() as u64;
        match check(&world.setup.room(), &entries, MOST_CONFIGURATIONS) {
            Verdict::Linearizable => {}
            Verdict::Undecided => undecided = true,
            Verdict::NotLinearizable { stuck_at } => {
                let calls: Vec<_> = stuck_at.iter().map(|at| &entries[*at]).collect();
                finding = Some(Finding { rule: "linearizable", detail: format!("no order explains {calls:?}") });
            }
        }
    }
    Run {
        seed,
        faults: world.faults,
        trace: world.trace_hash(),
        steps: world.steps,
        simulated_us: world.at_us(),
        finding,
        history_calls,
        undecided,
        counts: std::mem::take(&mut world.auditor.counts),
    }
}

/// Many runs, added up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Seeds run.
    pub seeds: u64,
    /// Runs that broke a rule, with it.
    pub findings: Vec<(u64, Finding)>,
    /// Steps of all nodes.
    pub steps: u64,
    /// Simulated time, in seconds.
    pub simulated_s: u64,
    /// Histories checked for linearizability.
    pub histories: u64,
    /// Calls in them.
    pub history_calls: u64,
    /// Histories whose search was cut short.
    pub undecided: u64,
    /// How often each thing happened.
    pub counts: BTreeMap<&'static str, u64>,
    #[serde(skip)]
    simulated_us: u64,
}

impl Summary {
    /// Adds a run.
    pub fn add(&mut self, run: Run) {
        self.seeds += 1;
        self.steps += run.steps;
        self.simulated_us += run.simulated_us;
        self.simulated_s = self.simulated_us / 1_000_000;
        self.histories += u64::from(run.history_calls > 0);
        self.history_calls += run.history_calls;
        self.undecided += u64::from(run.undecided);
        self.findings.extend(run.finding.map(|finding| (run.seed, finding)));
        for (what, times) in run.counts {
            *self.counts.entry(what).or_default() += times;
        }
    }
}
