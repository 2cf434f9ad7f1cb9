//! What a node is told to be.

use std::time::Duration;

use hisparse_core::budget::Plan;
use hisparse_core::error::Problems;
use hisparse_core::ledger::{Ledger, LedgerConfig, NodeCapacity};
use hisparse_core::limits::ROUTER_TTL;
use hisparse_core::pages::Isolation;

use crate::quotas::Quotas;

/// What the node is.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Name of the model served.
    pub model: String,
    /// What it can hold.
    pub capacity: NodeCapacity,
    /// The plan that `capacity` comes from; `None` where there was none.
    pub budget: Option<Plan>,
    /// What tenants may hold.
    pub quotas: Quotas,
    /// How long a node that does not know what an earlier start granted grants nothing: until its last lease has ended.
    pub learning: Duration,
    /// Whether the histogram of Admit keeps the callers' traces as exemplars.
    pub exemplars: bool,
}

impl NodeConfig {
    /// A node of these figures, without a plan behind them.
    pub fn of_capacity(model: &str, capacity: NodeCapacity) -> Self {
        Self {
            model: model.to_owned(),
            capacity,
            budget: None,
            quotas: Quotas::default(),
            learning: ROUTER_TTL,
            exemplars: false,
        }
    }

    /// The node that was planned so, and holds so much of it.
    pub fn of_plan(budget: &Plan, capacity: NodeCapacity) -> Self {
        Self { budget: Some(budget.clone()), ..Self::of_capacity(&budget.model.name, capacity) }
    }

    /// Tells the ledger what tenants may hold.
    pub(super) fn set_quotas(&self, ledger: &mut Ledger) -> Result<(), Problems> {
        let mut problems = Problems::new();
        for (tenant, policy) in &self.quotas.tenants {
            let set = ledger.set_tenant_policy(tenant, policy.usable_on(&self.capacity));
            problems.extend(set.err().unwrap_or_default());
        }
        problems.into_result(())?;
        ledger.set_other_tenants_ceiling(self.quotas.others);
        Ok(())
    }

    /// What its ledger is made from; a node that does not own the bytes of its pages zeroes none.
    pub(crate) fn ledger(&self, owns_bytes: bool, reclaim_window: Duration) -> LedgerConfig {
        let isolation = if owns_bytes { Isolation::Scrub } else { Isolation::Shared };
        LedgerConfig { isolation, reclaim_window, ..LedgerConfig::new(self.capacity) }
    }
}
