//! What is simulated: the fleet, its faults, and how its routers choose.
//!
//! ```text
//!   arrivals   │▁▁▁▁█▁▁▁▁▁▁▁▁▁█▁▁▁▁▁▁▁▁▁█     three times the rate for a tenth of the time
//!              └ warm ┴── measured ──┘ └ until the last request knows ┘
//! ```

use std::time::Duration;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::fleet::{Policy, Settings};
use hisparse_core::ledger::NodeCapacity;
use hisparse_core::limits::{
    FLEET_CHOICES, FLEET_STALE_AFTER, MAX_FLEET_CHOICES, MAX_SIMULATED_NODES, MAX_SIMULATED_ROUTERS, MAX_SIMULATED_TIME,
};

use super::memory::Kind;

/// Most seats of one node, and most pages; more than any has.
const MOST_OF_A_NODE: u64 = 1 << 24;

/// Ten times what the fleet holds.
const MOST_LOAD_MILLI: u64 = 10_000;

/// How routers choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What makes one fitting node better than another.
    pub policy: Policy,
    /// How many fitting nodes are compared.
    pub choices: usize,
}

impl Rule {
    /// The rules that are compared: every policy over all nodes (the largest sample a router takes), and samples.
    pub const COMPARED: [Self; 9] = [
        Self { policy: Policy::Random, choices: 1 },
        Self { policy: Policy::LeastRequests, choices: MAX_FLEET_CHOICES },
        Self { policy: Policy::MostFree, choices: MAX_FLEET_CHOICES },
        Self { policy: Policy::MostLeft, choices: MAX_FLEET_CHOICES },
        Self { policy: Policy::BestFit, choices: MAX_FLEET_CHOICES },
        Self { policy: Policy::LeastRequests, choices: FLEET_CHOICES },
        Self { policy: Policy::BestFit, choices: FLEET_CHOICES },
        Self { policy: Policy::MostLeft, choices: 2 * FLEET_CHOICES },
        Self { policy: Policy::MostLeft, choices: FLEET_CHOICES },
    ];

    /// Its policy's name.
    pub fn policy_name(&self) -> &'static str {
        Policy::ALL.into_iter().find(|(policy, _)| *policy == self.policy).map_or("", |(_, name)| name)
    }

    pub(super) fn settings(&self) -> Settings {
        Settings { policy: self.policy, choices: self.choices, stale_after: FLEET_STALE_AFTER }
    }
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// It replays the run.
    pub seed: u64,
    /// Nodes.
    pub nodes: usize,
    /// Routers; each sends an equal part of the requests.
    pub routers: usize,
    /// Seats of one node.
    pub seats: u64,
    /// Host pages of one node.
    pub host_pages: u64,
    /// Age of what a router sees of a node, apart from the answers to its own calls.
    pub staleness: Duration,
    /// How routers choose.
    pub rule: Rule,
    /// What keeps a node's books.
    pub memory: Kind,
    /// Thousandths of the fleet's seats or pages, whichever binds, that the requests take on average.
    pub load_milli: u64,
    /// Arrivals that are played and not counted.
    pub warm: Duration,
    /// Arrivals that are counted.
    pub measured: Duration,
    /// Thousandths of the nodes that die once; at least one node where it is not zero.
    pub deaths_milli: u64,
    /// Thousandths of the nodes that answer late; at least one where it is not zero.
    pub slow_milli: u64,
    /// Whether arrivals come in bursts.
    pub bursts: bool,
    /// A call's way, and its answer's.
    pub call: Duration,
    /// How long a request waits for room.
    pub patience: Duration,
}

impl Setup {
    /// A fleet with every fault, at 90 % load.
    pub const fn new(seed: u64, nodes: usize, routers: usize, staleness: Duration, rule: Rule) -> Self {
        Self {
            seed,
            nodes,
            routers,
            seats: 8,
            host_pages: 2_048,
            staleness,
            rule,
            memory: Kind::Counted,
            load_milli: 900,
            warm: Duration::from_secs(20),
            measured: Duration::from_secs(30),
            deaths_milli: 10,
            slow_milli: 20,
            bursts: true,
            call: Duration::from_micros(500),
            patience: Duration::from_secs(5),
        }
    }

    pub(super) const fn capacity(&self) -> NodeCapacity {
        NodeCapacity::of_host_pages(self.host_pages, self.seats)
    }

    /// How many nodes a share is.
    pub(super) fn share(&self, milli: u64) -> u64 {
        let nodes = self.nodes as u64;
        if milli == 0 { 0 } else { (nodes * milli / 1_000).clamp(1, nodes) }
    }

    /// Whether it can be played.
    ///
    /// # Errors
    /// Every field that is out of range.
    pub fn check(&self) -> Result<(), Problems> {
        let mut problems = Problems::new();
        let mut within = |field: &str, value: u64, most: u64, why: &str| {
            if !(1..=most).contains(&value) {
                let remedy = format!("give a number from 1 to {most}");
                problems.push(Problem::new(field, value, format!("must be in range{why}"), remedy));
            }
        };
        let picture = ": every router keeps a picture of every node";
        within("nodes", self.nodes as u64, MAX_SIMULATED_NODES as u64, picture);
        within("routers", self.routers as u64, MAX_SIMULATED_ROUTERS as u64, picture);
        within("choices", self.rule.choices as u64, MAX_FLEET_CHOICES as u64, "");
        within("seats", self.seats, MOST_OF_A_NODE, "");
        within("pages", self.host_pages, MOST_OF_A_NODE, "");
        within("load_milli", self.load_milli, MOST_LOAD_MILLI, "");
        for (field, value) in [("deaths_milli", self.deaths_milli), ("slow_milli", self.slow_milli)] {
            if value > 1_000 {
                problems.push(Problem::new(field, value, "must be a share", "give thousandths, up to 1000"));
            }
        }
        let times = [
            ("staleness", self.staleness),
            ("warm", self.warm),
            ("seconds", self.measured),
            ("patience", self.patience),
            ("call", self.call),
        ];
        for (field, time) in times {
            if time > MAX_SIMULATED_TIME {
                let rule = format!("must be at most {} s", MAX_SIMULATED_TIME.as_secs());
                problems.push(Problem::new(field, format!("{} s", time.as_secs_f64()), rule, "simulate less"));
            }
        }
        problems.into_result(())
    }
}
