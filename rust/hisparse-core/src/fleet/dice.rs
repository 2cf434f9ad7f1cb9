//! Chance for samples and jitter: a cheap sequence, seeded through the one door of [`Entropy`].

use std::time::Duration;

use crate::env::Entropy;

/// `SplitMix64` (Steele, Lea, Flood 2014): good enough to spread load, and no secret.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// A sequence of its own.
    pub fn new(entropy: &mut dyn Entropy) -> Self {
        Self(entropy.next_u64())
    }

    /// The sequence of a seed.
    pub const fn of_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`, or 0 where the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// `time`, up to a fifth shorter or longer, so that those who were refused together do not come back together.
    pub fn jittered(&mut self, time: Duration) -> Duration {
        let thousandths = 800 + self.below(401);
        let nanos = time.as_nanos().saturating_mul(u128::from(thousandths)) / 1_000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Entropy for Dice {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_stays_within_a_fifth_and_a_draw_below_its_bound() {
        let mut dice = Dice::of_seed(7);
        for _ in 0..1_000 {
            let rest = dice.jittered(Duration::from_millis(100));
            assert!((80..=120).contains(&rest.as_millis()), "{rest:?}");
            assert!(dice.below(3) < 3);
            assert_eq!(dice.below(0), 0);
        }
    }
}
