//! Hash-table hashers whose runs replay from a seed and whose collisions no caller can choose: one keyed by this node's
//! own randomness for names from outside, a cheap one for numbers that the node gives out itself.

use std::hash::{BuildHasher, DefaultHasher, Hasher};

use crate::env::Entropy;

/// The standard hasher (a keyed SipHash) with a secret prefix.
#[derive(Clone, Debug)]
pub(crate) struct Seeded(DefaultHasher);

impl Seeded {
    pub(crate) fn new(entropy: &mut dyn Entropy) -> Self {
        Self::of_key([entropy.next_u64(), entropy.next_u64()])
    }

    /// The hasher of this secret.
    pub(crate) fn of_key(key: [u64; 2]) -> Self {
        let mut hasher = DefaultHasher::new();
        for word in key {
            hasher.write_u64(word);
        }
        Self(hasher)
    }
}

impl BuildHasher for Seeded {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        self.0.clone()
    }
}

/// A hasher for the node's own numbers, which no caller can choose: one multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Serial(u64);

impl Hasher for Serial {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // The golden ratio spreads neighbours; the swap brings the well-mixed upper half to where tables look.
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}
