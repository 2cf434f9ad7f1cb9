//! What routers see: every change of a node `staleness` later, and that a watch is down.
//!
//! ```text
//!   change ─► in flight for `staleness` ─► every router whose watch of the node is up
//!   death  ─► watch broken, found late ─► probes with the core's rests ─► up again: a view anew
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use hisparse_core::env::Moment;
use hisparse_core::error::Problems;
use hisparse_core::fleet::{NodeId, Router, View};
use hisparse_core::limits::{FLEET_ATTEMPT, FLEET_STALE_AFTER};

use super::job::NodeIndex;
use super::node::SimNode;
use super::setup::Setup;
use crate::dice::Dice;

/// Time between two words of a quiet watch, as the Python fleet pings.
pub(super) const BEAT: Duration = FLEET_STALE_AFTER.checked_div(2).expect("2 is not 0");

#[derive(Debug)]
pub(super) struct Watches {
    pub(super) routers: Vec<Router>,
    in_flight: VecDeque<(Moment, NodeIndex, View)>,
    staleness: Duration,
}

pub(super) const fn id(node: NodeIndex) -> NodeId {
    NodeId::new(node as u64)
}

pub(super) fn index(id: NodeId) -> NodeIndex {
    usize::try_from(id.get()).unwrap_or(usize::MAX)
}

impl Watches {
    /// Routers that know every node as it is at the start.
    pub(super) fn new(setup: &Setup, nodes: &[SimNode], dice: &mut Dice) -> Result<Self, Problems> {
        let now = Moment::ORIGIN;
        let views: Vec<View> = nodes.iter().map(|node| node.memory.view()).collect();
        let router = |_| {
            let mut router = Router::new(setup.rule.settings(), now, dice)?;
            for view in &views {
                let id = router.add(now)?;
                router.watched(id, *view, true, now);
            }
            Ok(router)
        };
        let routers = (0..setup.routers).map(router).collect::<Result<_, Problems>>()?;
        Ok(Self { routers, in_flight: VecDeque::new(), staleness: setup.staleness })
    }

    /// A node has changed.
    pub(super) fn changed(&mut self, node: NodeIndex, view: View, now: Moment) {
        self.in_flight.push_back((now.saturating_add(self.staleness), node, view));
        self.deliver(now);
    }

    /// When the next picture arrives.
    pub(super) fn next_at(&self) -> Option<Moment> {
        self.in_flight.front().map(|(at, ..)| *at)
    }

    /// Hands over all that has arrived.
    pub(super) fn deliver(&mut self, now: Moment) {
        while self.next_at().is_some_and(|at| at <= now) {
            let Some((_, node, view)) = self.in_flight.pop_front() else { return };
            for router in &mut self.routers {
                if router.node(id(node)).is_some_and(|known| known.watched) {
                    router.watched(id(node), view, false, now);
                }
            }
        }
    }

    /// Every live node says over its watch that it is there.
    pub(super) fn beat(&mut self, nodes: &[SimNode], now: Moment) {
        for router in &mut self.routers {
            for (node, _) in nodes.iter().enumerate().filter(|(_, node)| node.is_up()) {
                if router.node(id(node)).is_some_and(|known| known.watched) {
                    router.heard(id(node), now);
                }
            }
        }
    }

    /// How long a router takes to find that a node is dead: its stream breaks, or a ping gets no answer.
    pub(super) const fn found_after(&self, hung: bool) -> Duration {
        if hung { self.staleness.saturating_add(BEAT).saturating_add(FLEET_ATTEMPT) } else { self.staleness }
    }
}
