//! The node of a run: the honest one, or one with a bug planted in it.

use hisparse_core::ledger::Epoch;

use super::Node;
use super::honest::Honest;
use super::planted::{Bug, Planted};
use crate::dice::Dice;
use crate::setup::Setup;

pub(crate) fn make_node(seed: u64, epoch: u64, setup: &Setup, bug: Option<Bug>) -> Box<dyn Node> {
    let config = bug.map_or(setup.config, |bug| bug.settings(setup.config));
    let epoch = Epoch::new(epoch).expect("a run has few restarts");
    let mut entropy = Dice::new(seed).fork(100 + epoch.get());
    let honest =
        Honest::new(config, epoch, &setup.policies, &mut entropy).expect("setups are drawn within their bounds");
    match bug {
        Some(bug) => Box::new(Planted::new(bug, honest)),
        None => Box::new(honest),
    }
}
