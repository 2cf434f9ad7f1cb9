//! A hash-table hasher keyed by this node's own randomness: runs replay from a seed, and no caller can choose
//! colliding keys.

use std::hash::{BuildHasher, DefaultHasher, Hasher};

use crate::env::Entropy;

/// The standard hasher (a keyed SipHash) with a secret prefix.
#[derive(Clone, Debug)]
pub(crate) struct Seeded(DefaultHasher);

impl Seeded {
    pub(crate) fn new(entropy: &mut dyn Entropy) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(entropy.next_u64());
        hasher.write_u64(entropy.next_u64());
        Self(hasher)
    }
}

impl BuildHasher for Seeded {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        self.0.clone()
    }
}
