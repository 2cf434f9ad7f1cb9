//! One look at the node: for a call, for a watch, and for the page.

use hisparse_core::env::Moment;
use hisparse_core::ledger;

use crate::error::Refusal;
use crate::node::Node;
use crate::{proto, wire};

/// The node now, as this tenant sees it (empty: one without settings that holds nothing).
pub(crate) fn look(
    node: &Node,
    tenant: &str,
    lengths: &[u64],
    deadline: Option<Moment>,
) -> Result<(proto::Capacity, Vec<proto::Fit>), Refusal> {
    let tenant = (!tenant.is_empty()).then_some(tenant);
    node.decide(deadline, |state, now| {
        let seen = state.seen(tenant, lengths).map_err(ledger::Refusal::Malformed)?;
        Ok((wire::capacity(&seen, state.numa_node, node.clock.wall(now)), wire::fits(&seen)))
    })?
}
