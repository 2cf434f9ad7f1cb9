//! What goes wrong in a run, and how badly at most: every range in one table.
//!
//! ```text
//!  seed ──► each fault off (one time in three), or drawn from its range
//! ```
//! Faults that are always at their worst hide each other: a node that dies every second is never full.

use std::ops::RangeInclusive;

use serde::Serialize;

use crate::dice::Dice;

/// One kind of fault, with its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Range {
    /// Its name, with its unit.
    pub name: &'static str,
    /// Least, where it happens at all.
    pub min: u64,
    /// Most.
    pub max: u64,
    /// What it is.
    pub what: &'static str,
}

macro_rules! faults {
    ($($(#[doc = $doc:literal])+ $name:ident: $range:expr;)+) => {
        /// The faults of one run; zero is off.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Faults {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Faults {
            pub(crate) fn draw(dice: &mut Dice) -> Self {
                Self { $($name: draw(dice, $range),)+ }
            }
        }

        /// Every fault there is.
        pub const RANGES: &[Range] = &[$(Range {
            name: stringify!($name),
            min: *$range.start(),
            max: *$range.end(),
            what: concat!($($doc),+).trim_ascii(),
        }),+];
    };
}

fn draw(dice: &mut Dice, range: RangeInclusive<u64>) -> u64 {
    let (on, amount) = (dice.below(3) > 0, dice.within(range));
    if on { amount } else { 0 }
}

faults! {
    /// Calls that never reach the node.
    call_lost_per_mille: 5..=100;
    /// Answers that never reach their caller.
    answer_lost_per_mille: 5..=100;
    /// Messages that arrive a second time, later.
    duplicated_per_mille: 5..=100;
    /// Messages held up for up to `slow_ms`, and so overtaken by others.
    slow_per_mille: 10..=200;
    /// How long a slow message takes at most.
    slow_ms: 50..=5_000;
    /// Mean time between deaths of the node; it starts again empty, in a new epoch.
    node_dies_every_ms: 10_000..=60_000;
    /// Mean time between deaths of an engine process.
    engine_dies_every_ms: 5_000..=60_000;
    /// How late the node learns of an engine's death at most.
    death_noticed_after_ms: 1..=2_000;
    /// Mean time between deaths of a router; it forgets everything.
    router_dies_every_ms: 5_000..=60_000;
    /// Mean time between pauses of the node process, during which calls pile up.
    node_pauses_every_ms: 5_000..=60_000;
    /// How long a pause lasts at most.
    pause_ms: 10..=3_000;
    /// Mean time between steps of the node's clock, as after a suspended machine.
    clock_steps_every_ms: 5_000..=60_000;
    /// How far the clock steps at most, forward or back; the door that the node reads it through never goes back.
    clock_step_ms: 1..=1_000;
    /// How much faster or slower the node's clock runs at most, in parts per million.
    clock_drift_ppm: 1..=10_000;
    /// How long a watcher rests between two reads at most.
    watcher_rests_ms: 1..=10_000;
    /// Callers that send the epoch before the one they should.
    stale_epoch_per_mille: 5..=100;
    /// Callers that use another tenant's name for a lease.
    wrong_tenant_per_mille: 5..=50;
}

/// Longest transfer of an engine. The quarantine bound is at least four times as long, so that neither drift nor a
/// step of the clock makes pages free under a transfer: what a deployment must see to as well.
pub(crate) const LONGEST_TRANSFER_MS: u64 = 500;
/// Range of the quarantine bound.
pub(crate) const QUARANTINE_BOUND_MS: RangeInclusive<u64> = 2_000..=10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_at_times_off_and_at_times_on() {
        let runs: Vec<Faults> = (0..200).map(|seed| Faults::draw(&mut Dice::new(seed))).collect();
        for range in RANGES {
            let drawn = |run: &Faults| serde_json::to_value(run).unwrap()[range.name].as_u64().unwrap();
            assert!(runs.iter().any(|run| drawn(run) == 0), "{range:?}");
            assert!(runs.iter().any(|run| (range.min..=range.max).contains(&drawn(run))), "{range:?}");
        }
    }

    #[test]
    fn no_clock_makes_a_quarantine_shorter_than_a_transfer() {
        let step = RANGES.iter().find(|range| range.name == "clock_step_ms").unwrap().max;
        assert!(QUARANTINE_BOUND_MS.start() - step > LONGEST_TRANSFER_MS);
    }
}
