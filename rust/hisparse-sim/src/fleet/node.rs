//! One node: its books, whether it lives, and how long its network takes.

use std::collections::BTreeSet;
use std::time::Duration;

use hisparse_core::ledger::Epoch;

use super::job::JobId;
use super::memory::Memory;
use super::setup::Setup;
use crate::dice::Dice;

/// Longest that a slow node's calls take on their way, and its answers; together they may pass an attempt's deadline.
const SLOW_WAY: Duration = Duration::from_millis(700);

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It answers.
    Up,
    /// Its machine is there, its process is not: a call comes back at once.
    Gone,
    /// Nothing comes back.
    Hung,
}

#[derive(Debug)]
pub(super) struct SimNode {
    pub(super) memory: Memory,
    pub(super) state: State,
    /// Which life of it this is, from 1.
    pub(super) life: u64,
    pub(super) slow: bool,
    /// Jobs that were granted room in this life.
    pub(super) jobs: BTreeSet<JobId>,
}

impl SimNode {
    pub(super) fn new(setup: &Setup, slow: bool) -> Self {
        let memory = Memory::new(setup.memory, setup.capacity(), Epoch::FIRST);
        Self { memory, state: State::Up, life: 1, slow, jobs: BTreeSet::new() }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// How long a call is under way.
    pub(super) fn way(&self, setup: &Setup, dice: &mut Dice) -> Duration {
        let late = if self.slow { dice.within(0..=u64::try_from(SLOW_WAY.as_micros()).unwrap_or(0)) } else { 0 };
        setup.call.saturating_add(Duration::from_micros(late))
    }

    /// It comes back, empty, in a new epoch.
    pub(super) fn begin_anew(&mut self, setup: &Setup) {
        self.life += 1;
        let epoch = Epoch::new(self.life).unwrap_or(Epoch::FIRST);
        self.memory = Memory::new(setup.memory, setup.capacity(), epoch);
        (self.state, self.jobs) = (State::Up, BTreeSet::new());
    }
}
