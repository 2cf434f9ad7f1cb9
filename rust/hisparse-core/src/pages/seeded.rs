//! Hash-table hashers whose runs replay from a seed and whose collisions no caller can choose: one keyed by this node's
//! own randomness for names from outside, a quick one, keyed too, for pages' hashes, and a cheap one for numbers that the
//! node gives out itself.

use std::hash::{BuildHasher, DefaultHasher, Hasher};

use super::content::PageHash;
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

/// A hasher for pages' hashes: two multiplications, where a [`Seeded`] takes ten times as long. So short a computation
/// lets the processor begin the next page's look-up while the memory of this one is on its way, and an admission looks
/// up thousands.
///
/// Both factors of each multiplication are hidden by secret words, so who writes the hashes cannot tell which of them
/// meet in the table; and the answer is never shown to anybody.
#[derive(Clone, Debug)]
pub(crate) struct Folding([u64; 4]);

impl Folding {
    pub(crate) fn new(entropy: &mut dyn Entropy) -> Self {
        let secret = Seeded::new(entropy);
        Self([0, 1, 2, 3].map(|word: u64| secret.hash_one(word)))
    }

    /// Where this tenant's hash of the page at a place of its chain stands.
    pub(crate) fn place(&self, tenant: u16, place: u32, hash: &PageHash) -> u64 {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(hash.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let ([a, b, c, d], [first, second, third, fourth]) = (words, self.0);
        let half = folded(a ^ first, b ^ second ^ (u64::from(tenant) << 32 | u64::from(place)));
        folded(c ^ third ^ half, d ^ fourth)
    }
}

/// Both halves of the product, one on the other: each bit depends on all bits of both factors.
#[allow(clippy::cast_possible_truncation)] // the halves are meant
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
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
