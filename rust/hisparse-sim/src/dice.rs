//! The simulation's only randomness: one seed, one stream.
//!
//! ```text
//!  seed ──► SplitMix64 ──► below, within, chance, pick        fork(label) ──► a stream of its own
//! ```
//! A fork keeps one part of a run (the workload) the same when another (the network) draws more often than before.

use std::ops::RangeInclusive;

use hisparse_core::env::Entropy;

/// A seeded stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A stream that depends on this one's seed and on the label, and on nothing drawn meanwhile.
    pub(crate) fn fork(&self, label: u64) -> Self {
        let mut mixed = Self(self.0 ^ label.wrapping_mul(0xa076_1d64_78bd_642f));
        Self(mixed.roll())
    }

    fn roll(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014): every seed is a good one.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 where the bound is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The bias of the remainder is below 2^-32 for the small bounds used here.
        self.roll().checked_rem(bound).unwrap_or(0)
    }

    pub(crate) fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// True in `per_mille` of a thousand draws.
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// One of these; `None` of nothing.
    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let place = usize::try_from(self.below(from.len() as u64)).ok()?;
        from.get(place)
    }

    /// A time around `mean` µs, from a tenth of it to twice it.
    pub(crate) fn around(&mut self, mean: u64) -> u64 {
        self.within(mean / 10..=mean * 2)
    }
}

impl Entropy for Dice {
    fn next_u64(&mut self) -> u64 {
        self.roll()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_stream_and_a_fork_another_that_ignores_later_draws() {
        let draw = |mut dice: Dice| [dice.roll(), dice.roll(), dice.roll()];
        assert_eq!(draw(Dice::new(7)), draw(Dice::new(7)));
        assert_ne!(draw(Dice::new(7)), draw(Dice::new(8)));
        let dice = Dice::new(7);
        assert_eq!(draw(dice.fork(1)), draw(dice.fork(1)));
        assert_ne!(draw(dice.fork(1)), draw(dice.fork(2)));
    }

    #[test]
    fn draws_stay_within_their_bounds_and_reach_both_ends() {
        let mut dice = Dice::new(1);
        let drawn: std::collections::BTreeSet<_> = (0..1_000).map(|_| dice.within(3..=6)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert_eq!((dice.below(0), dice.pick::<u8>(&[])), (0, None));
        assert!(!dice.chance(0) && dice.chance(1_000));
    }
}
