//! What the ledger's tests share: a clock in seconds, randomness from a seed, small nodes.
#![allow(dead_code)] // each test file uses its own part

use std::time::Duration;

use hisparse_core::env::{Entropy, Moment};
use hisparse_core::ledger::{Epoch, Ledger, LedgerConfig, NodeCapacity};

/// Xorshift64*: random enough for tests, and the same on every machine.
#[derive(Debug)]
pub(crate) struct Seed(u64);

impl Seed {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound.max(1)
    }
}

impl Entropy for Seed {
    fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// So many seconds after the origin.
pub(crate) fn at(seconds: u64) -> Moment {
    Moment::from_origin(Duration::from_secs(seconds))
}

/// The first epoch.
pub(crate) fn first_epoch() -> Epoch {
    Epoch::new(1).expect("1 is an epoch")
}

/// A ledger of so many pages and seats, with the defaults of `limits.rs`.
pub(crate) fn ledger(pages: u64, seats: u64) -> Ledger {
    ledger_of(LedgerConfig::new(NodeCapacity::of_host_pages(pages, seats)))
}

/// A ledger of this configuration.
pub(crate) fn ledger_of(config: LedgerConfig) -> Ledger {
    Ledger::new(config, first_epoch(), &mut Seed::new(7)).expect("tests use possible nodes")
}
