//! What a request takes is counted for every model there is, in every pool that it draws on.

mod node;

use hisparse_core::budget::{PlanRequest, plan};
use hisparse_core::ledger::{AdmitRequest, LedgerConfig, NodeCapacity};
use hisparse_core::model::presets::{ALL, preset};
use node::{at, ledger_of};
use serde_json::json;

#[test]
fn an_admit_moves_every_pool_of_every_preset() {
    let mut checked = 0;
    for known in ALL {
        let model = preset(known.name).expect("a preset is a model");
        let flags = json!({"kv_bytes": "60GiB", "host_pool": "160GiB"});
        let request = PlanRequest::from_json(flags.as_object().expect("it is one")).expect("these are flags");
        let plan = match plan(&model, &request) {
            Ok(plan) => plan,
            Err(problems) => panic!("{}: {problems}", known.name),
        };
        let mut node = ledger_of(LedgerConfig::new(NodeCapacity::of_plan(&plan, None, None)));
        let before = node.capacity(None, &[]).expect("no length is asked about");
        node.admit(&AdmitRequest::new("r", 1_000, 24), at(0)).expect("an empty node has room");
        let after = node.capacity(None, &[]).expect("no length is asked about");
        for (before, after) in before.pools.iter().zip(&after.pools) {
            assert!(before.total > 0 && after.free < before.free, "{}: {} does not move", known.name, after.name);
            checked += 1;
        }
    }
    assert!(checked >= 8, "{checked} pools of all presets");
}
