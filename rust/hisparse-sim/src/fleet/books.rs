//! Who holds what, counted a second time from the grants and ends that happened: the judge of a run.

use std::collections::BTreeMap;

use super::job::{JobId, NodeIndex};
use super::setup::Setup;
use hisparse_core::fleet::Demand;

/// Leases as an observer of all nodes sees them.
#[derive(Debug)]
pub(super) struct Books {
    leases: BTreeMap<JobId, Vec<NodeIndex>>,
    pages: Vec<u64>,
    requests: Vec<u64>,
    most_pages: u64,
    most_requests: u64,
    /// Grants beyond what a node has.
    pub(super) overcommit: u64,
    /// Grants to a request that held a lease already.
    pub(super) two_leases: u64,
}

impl Books {
    pub(super) fn new(setup: &Setup) -> Self {
        Self {
            leases: BTreeMap::new(),
            pages: vec![0; setup.nodes],
            requests: vec![0; setup.nodes],
            most_pages: setup.host_pages,
            most_requests: setup.seats,
            overcommit: 0,
            two_leases: 0,
        }
    }

    pub(super) fn granted(&mut self, job: JobId, node: NodeIndex, tokens: u64) {
        let held = self.leases.entry(job).or_default();
        if held.contains(&node) {
            return; // the same Admit again
        }
        self.two_leases += u64::from(!held.is_empty());
        held.push(node);
        self.pages[node] += Demand::of_tokens(tokens).pages();
        self.requests[node] += 1;
        let over = self.pages[node] > self.most_pages || self.requests[node] > self.most_requests;
        self.overcommit += u64::from(over);
    }

    pub(super) fn ended(&mut self, job: JobId, node: NodeIndex, tokens: u64) {
        let Some(held) = self.leases.get_mut(&job) else { return };
        let Some(place) = held.iter().position(|holder| *holder == node) else { return };
        held.swap_remove(place);
        if held.is_empty() {
            self.leases.remove(&job);
        }
        self.pages[node] -= Demand::of_tokens(tokens).pages();
        self.requests[node] -= 1;
    }

    /// Thousandths of a node's fullest pool that are held.
    pub(super) fn load_milli(&self, node: NodeIndex) -> u64 {
        (self.pages[node] * 1_000 / self.most_pages).max(self.requests[node] * 1_000 / self.most_requests)
    }
}
