//! One request on its way to a node: the steps, without the calls.
//!
//! ```text
//!   next ─► Ask(node) ─► answered ─┬─ Granted: done
//!    ▲                             ├─ Full, Unready, NeverFits, Unsent, Failed: not this node, for a while or for good
//!    │                             └─ Unknown ─► Settle(node) ─► settled
//!    ├─ Rest: nobody has room, or a node had none against its view; look again (no call is made)
//!    └─ Refuse: nobody ever can, patience is over, or no further attempt is left in the budget
//! ```
//! One step at a time, and one node at a time: a request never holds two leases.

use std::time::Duration;

use super::breaker::Backoff;
use super::demand::Demand;
use super::node_id::NodeId;
use super::router::{Bar, Choice, Router, Tally};
use crate::env::Moment;
use crate::ledger::Amounts;
use crate::limits::{FLEET_LOOK_FIRST, FLEET_LOOK_MOST, FLEET_PROBE_FIRST, MAX_RETRY_DELAY, MIN_RETRY_DELAY};

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call Admit there, and say how it went.
    Ask(NodeId),
    /// Make certain that nothing is held there, and say so.
    Settle(NodeId),
    /// Wait so long, then look again.
    Rest(Duration),
    /// Give up.
    Refuse(Why),
}

/// Why nobody takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The fleet has no node.
    Empty,
    /// Too long for every node.
    NeverFits,
    /// Nodes that could hold it have no room.
    Busy,
    /// All nodes that could hold it and answer are draining.
    Draining,
    /// No node that could hold it answers.
    Unreachable,
    /// A node might take it, but this router has made as many further attempts as it may.
    NoRetries,
    /// What a node made of an attempt is still unknown.
    Unsettled(NodeId),
}

impl Why {
    /// Its word in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::NeverFits => "never_fits",
            Self::Busy => "busy",
            Self::Draining => "draining",
            Self::Unreachable => "unreachable",
            Self::NoRetries => "no_retries",
            Self::Unsettled(_) => "unsettled",
        }
    }
}

/// How an attempt went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The lease is here, with so many pages that were in host memory already.
    Granted {
        /// As the lease says.
        shared_pages: u64,
    },
    /// No room, or the tenant has its quota; ask again after so long.
    Full(Duration),
    /// Not now for another reason: draining, recovering, overloaded, decided nothing in time.
    Unready(Duration),
    /// It can never hold this request.
    NeverFits,
    /// The call did not leave: nothing is held there.
    Unsent,
    /// It answered what only its operator can mend: no right to call, a call it does not know.
    Failed,
    /// Whether it granted is not known.
    Unknown,
    /// The caller gave up, and has taken back what it may have got.
    Abandoned,
}

/// An attempt under way.
#[derive(Clone, Copy, Debug)]
struct Asking {
    node: NodeId,
    amounts: Amounts,
    expected_pages: u64,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Placing {
    demand: Demand,
    patience_ends: Moment,
    ends: Moment,
    bars: Vec<Bar>,
    attempts: u32,
    asking: Option<Asking>,
    unsettled: Option<NodeId>,
    looks: Backoff,
    waited: bool,
    claim: Option<Moment>,
    called_last: bool,
    refusals: Backoff,
    rests_until: Moment,
    tally: Tally,
}

impl Placing {
    /// Begins: `patience` for room, and `most` for everything together.
    pub fn new(router: &mut Router, demand: Demand, patience: Duration, most: Duration, now: Moment) -> Self {
        router.budget.request();
        Self {
            demand,
            patience_ends: now.saturating_add(patience),
            ends: now.saturating_add(most.max(patience)),
            bars: Vec::new(),
            attempts: 0,
            asking: None,
            unsettled: None,
            looks: Backoff::default(),
            waited: false,
            claim: None,
            called_last: false,
            refusals: Backoff::default(),
            rests_until: now,
            tally: Tally::default(),
        }
    }

    /// A request that does not ask this node: it has just left it.
    #[must_use]
    pub fn avoiding(mut self, node: NodeId) -> Self {
        self.bars.push(Bar { node, until: None, never: false });
        self
    }

    /// Attempts so far.
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Where the nodes stood at the last look.
    pub const fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The next step.
    pub fn next(&mut self, router: &mut Router, now: Moment) -> Step {
        if let Some(node) = self.unsettled {
            return if now < self.ends { Step::Settle(node) } else { Step::Refuse(Why::Unsettled(node)) };
        }
        let left = self.patience_ends.saturating_since(now);
        let rest = self.rests_until.saturating_since(now).min(left);
        if !rest.is_zero() {
            self.waited = true;
            return Step::Rest(rest);
        }
        let Choice { best, tally } = router.choose(&self.demand, &self.bars, now);
        self.tally = tally;
        let Some(candidate) = best else { return self.nobody(router, now) };
        if (self.waited || candidate.tight) && !left.is_zero() {
            let claim = *self.claim.get_or_insert_with(|| router.gate.claim(now, &mut router.dice));
            let held = claim.saturating_since(now);
            if !held.is_zero() {
                self.waited = true;
                return Step::Rest(held.min(left));
            }
            self.claim = None;
        }
        if left.is_zero() && self.waited && self.attempts > 0 && std::mem::replace(&mut self.called_last, true) {
            return Step::Refuse(Why::Busy); // who waited has asked; to go through all nodes now would find few
        }
        if self.attempts > 0 && !router.budget.take(now) {
            return self.rest_or(Why::NoRetries, router, now);
        }
        let amounts = self.demand.amounts(candidate.shared_pages);
        router.asked(candidate.node, &amounts);
        self.attempts = self.attempts.saturating_add(1);
        let expected_pages = candidate.shared_pages;
        self.asking = Some(Asking { node: candidate.node, amounts, expected_pages });
        Step::Ask(candidate.node)
    }

    /// How the attempt that [`Step::Ask`] named went. Without one nothing happens.
    pub fn answered(&mut self, router: &mut Router, answer: Answer, now: Moment) {
        let Some(Asking { node, amounts, expected_pages }) = self.asking.take() else { return };
        let answers = match answer {
            Answer::Unsent | Answer::Unknown | Answer::Failed => Some(false),
            Answer::Abandoned => None,
            Answer::Granted { .. } | Answer::Full(_) | Answer::Unready(_) | Answer::NeverFits => Some(true),
        };
        router.ended(node, &amounts, answers, now);
        match answer {
            Answer::Granted { .. } => router.gate.won(),
            Answer::Full(_) => {
                // The picture showed room that is gone. Whoever looks again at once sees more of the same picture.
                let rest = self.refusals.rest_within(FLEET_LOOK_FIRST, FLEET_LOOK_MOST, &mut router.dice);
                self.rests_until = now.saturating_add(rest);
                router.gate.lost();
            }
            _ => {}
        }
        let mut until = |rest: Duration| {
            let rest = router.dice.jittered(rest.clamp(MIN_RETRY_DELAY, MAX_RETRY_DELAY));
            Some(Some(now.saturating_add(rest)))
        };
        let bar = match answer {
            Answer::Granted { shared_pages } => {
                router.placed(node, &self.demand.prefix, expected_pages, shared_pages);
                None
            }
            Answer::Full(rest) | Answer::Unready(rest) => until(rest),
            Answer::Unsent => until(FLEET_PROBE_FIRST),
            Answer::NeverFits | Answer::Failed => Some(None),
            Answer::Unknown => {
                self.unsettled = Some(node);
                Some(None) // for good: a release that follows would end a later grant of the same request there
            }
            Answer::Abandoned => None,
        };
        if let Some(until) = bar {
            self.bars.retain(|bar| bar.node != node);
            self.bars.push(Bar { node, until, never: answer == Answer::NeverFits });
        }
    }

    /// Nothing is held any more at the node that [`Step::Settle`] named.
    pub fn settled(&mut self) {
        self.unsettled = None;
    }

    fn nobody(&mut self, router: &mut Router, now: Moment) -> Step {
        self.claim = self.claim.filter(|at| *at > now); // the room was gone before this request went for it
        let tally = self.tally;
        let why = if tally.nodes == 0 {
            Why::Empty
        } else if tally.could > 0 {
            Why::Busy
        } else if tally.draining > 0 && tally.connecting == 0 {
            Why::Draining
        } else if tally.silent > 0 {
            Why::Unreachable
        } else {
            return Step::Refuse(Why::NeverFits);
        };
        // A node whose first word is on its way is waited for, also by who has no patience for room.
        if why == Why::Unreachable && tally.connecting > 0 && now < self.ends {
            return Step::Rest(router.dice.jittered(FLEET_LOOK_FIRST));
        }
        self.rest_or(why, router, now)
    }

    fn rest_or(&mut self, why: Why, router: &mut Router, now: Moment) -> Step {
        let left = self.patience_ends.saturating_since(now);
        if left.is_zero() {
            return Step::Refuse(why);
        }
        self.waited = true;
        Step::Rest(self.looks.rest_within(FLEET_LOOK_FIRST, FLEET_LOOK_MOST, &mut router.dice).min(left))
    }
}

#[cfg(test)]
#[path = "placing_tests.rs"]
mod tests;
