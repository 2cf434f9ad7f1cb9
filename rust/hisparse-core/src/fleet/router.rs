//! The nodes of a fleet as one router sees them, and the choice among them.
//!
//! ```text
//!   every node ─► standing: Fits, Full, TooLong, Draining, Resting, Silent, Unseen
//!                    └─► of those that fit: the ones with the prefix, and a few of the rest ─► ranked ─► the best
//! ```
//! A choice looks at every node once and compares a few: linear in nodes, and below a millisecond for ten thousand.
//! The few are drawn by place: a node where five such requests fit is five times as likely as one with room for one, so
//! that routers with one picture, each drawing for itself, fill all places evenly.
//! What was asked for and is not answered yet is held back from the node's room, so that requests of one moment do not
//! all see the same free seat.

use std::time::Duration;

use super::breaker::{Backoff, Breaker};
use super::budget::RetryBudget;
use super::demand::Demand;
use super::dice::Dice;
use super::gate::Gate;
use super::node_id::NodeId;
use super::prefixes::Prefixes;
use super::rank::{Candidate, Policy, sort};
use super::view::View;
use crate::env::{Entropy, Moment};
use crate::error::{Problem, Problems};
use crate::ledger::{Amounts, Pool};
use crate::limits::{FLEET_CHOICES, FLEET_STALE_AFTER, FLEET_VAIN_PREFIXES, MAX_FLEET_CHOICES, MAX_FLEET_NODES};
use crate::pages::PageHash;

/// How a router chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What makes one fitting node better than another.
    pub policy: Policy,
    /// How many fitting nodes are compared.
    pub choices: usize,
    /// Age from which a view is used only where no fresher one fits.
    pub stale_after: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { policy: Policy::default(), choices: FLEET_CHOICES, stale_after: FLEET_STALE_AFTER }
    }
}

/// One node of the fleet.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// As it was last seen; `None` before its first word.
    pub view: Option<View>,
    /// When its last word arrived, by the router's own clock: the node's may be wrong.
    pub heard_at: Moment,
    /// Whether its watch is up. A node without one is not asked.
    pub watched: bool,
    failed: bool,
    breaker: Breaker,
    probes: Backoff,
    held_back: Amounts,
    vain: u32,
}

/// What a node is to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It would take it.
    Fits(Candidate),
    /// It has no room now.
    Full,
    /// It could never hold it.
    TooLong,
    /// It grants nothing new.
    Draining,
    /// It failed several calls, and is left alone for a while.
    Resting,
    /// Its watch is down.
    Silent,
    /// It has said nothing yet.
    Unseen,
}

impl Standing {
    /// Its word in JSON and tables.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Fits(_) => "fits",
            Self::Full => "full",
            Self::TooLong => "too_long",
            Self::Draining => "draining",
            Self::Resting => "resting",
            Self::Silent => "silent",
            Self::Unseen => "unseen",
        }
    }
}

/// A node and its standing, in the order in which a router would ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// Which node.
    pub node: NodeId,
    /// What it is to the request.
    pub standing: Standing,
    /// Age of the view; zero where there is none.
    pub age: Duration,
}

/// How many nodes stand where, for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All there are.
    pub nodes: u64,
    /// Would take it, or have no room now: could hold it, and answer.
    pub could: u64,
    /// Could hold it, and drain.
    pub draining: u64,
    /// Could hold it for all that is known, and do not answer.
    pub silent: u64,
    /// Of those, have said nothing yet and have not failed either.
    pub connecting: u64,
    /// Could never hold it.
    pub too_long: u64,
    /// Longest request that any node could ever hold, in tokens.
    pub most_tokens: u64,
}

/// Whom to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The best node; `None` where none is worth asking now.
    pub best: Option<Candidate>,
    /// All of them.
    pub tally: Tally,
}

/// A node that one request does not ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Which node.
    pub node: NodeId,
    /// Until when; `None` for good.
    pub until: Option<Moment>,
    /// It said that it could never hold the request, for a reason that its view does not show.
    pub never: bool,
}

/// The nodes.
#[derive(Debug)]
pub struct Router {
    settings: Settings,
    nodes: Vec<Node>,
    next_id: u64,
    pub(super) prefixes: Prefixes,
    pub(super) budget: RetryBudget,
    pub(super) gate: Gate,
    pub(super) dice: Dice,
}

impl Router {
    /// A router without nodes.
    ///
    /// # Errors
    /// A setting that is out of range.
    pub fn new(settings: Settings, now: Moment, entropy: &mut dyn Entropy) -> Result<Self, Problems> {
        let mut problems = Problems::new();
        if !(1..=MAX_FLEET_CHOICES).contains(&settings.choices) {
            let remedy = format!("give a number from 1 to {MAX_FLEET_CHOICES}");
            problems.push(Problem::new("choices", settings.choices, "must be in range", remedy));
        }
        problems.into_result(Self {
            settings,
            nodes: Vec::new(),
            next_id: 0,
            prefixes: Prefixes::default(),
            budget: RetryBudget::new(now),
            gate: Gate::default(),
            dice: Dice::new(entropy),
        })
    }

    /// Takes a node in.
    ///
    /// # Errors
    /// There are [`MAX_FLEET_NODES`] already.
    pub fn add(&mut self, now: Moment) -> Result<NodeId, Problems> {
        if self.nodes.len() >= MAX_FLEET_NODES {
            let rule = format!("must have at most {MAX_FLEET_NODES}");
            let problem = Problem::new("nodes", self.nodes.len(), rule, "split the fleet");
            return Err(Problems::one(problem));
        }
        let id = NodeId::new(self.next_id);
        self.next_id = self.next_id.saturating_add(1);
        self.nodes.push(Node {
            id,
            view: None,
            heard_at: now,
            watched: false,
            failed: false,
            breaker: Breaker::default(),
            probes: Backoff::default(),
            held_back: Amounts::ZERO,
            vain: 0,
        });
        Ok(id)
    }

    /// Lets a node go; of one that is gone already nothing happens.
    pub fn remove(&mut self, id: NodeId) {
        if let Some(place) = self.place(id) {
            self.nodes.remove(place);
        }
    }

    /// The nodes, in the order they were taken in.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.place(id).map(|place| &self.nodes[place])
    }

    /// A watch brought a view. `anew` where the watch says that what was known before is void.
    pub fn watched(&mut self, id: NodeId, view: View, anew: bool, now: Moment) {
        if let Some(node) = self.node_mut(id) {
            node.take(view, anew);
        }
        self.heard(id, now);
    }

    /// A call's answer brought a view.
    pub fn told(&mut self, id: NodeId, view: View, now: Moment) {
        if let Some(node) = self.node_mut(id) {
            node.heard_at = now;
            node.take(view, false);
        }
    }

    /// The node's watch is up, and says that its view still holds.
    pub fn heard(&mut self, id: NodeId, now: Moment) {
        if let Some(node) = self.node_mut(id) {
            if !node.watched {
                node.breaker.answered();
                node.probes.reset();
            }
            (node.watched, node.failed, node.heard_at) = (true, false, now);
        }
    }

    /// The node's watch broke, or could not be opened: the rest before the next try, which is the probe.
    pub fn broken(&mut self, id: NodeId) -> Duration {
        let Some(place) = self.place(id) else { return Duration::ZERO };
        let node = &mut self.nodes[place];
        (node.watched, node.failed) = (false, true);
        node.probes.rest(&mut self.dice)
    }

    /// Whom a request asks next.
    pub fn choose(&mut self, demand: &Demand, bars: &[Bar], now: Moment) -> Choice {
        let (shared, crowd_milli) = (self.prefixes.find(&demand.prefix), self.gate.crowd_milli());
        let choices = self.gate.choices(self.settings.choices);
        let (mut tally, mut fresh, mut stale) = (Tally::default(), Sample::default(), Sample::default());
        for node in &self.nodes {
            let bar = bars.iter().find(|bar| bar.node == node.id);
            let standing = match bar {
                Some(bar) if bar.never => Standing::TooLong,
                _ => node.standing(demand, &shared, crowd_milli, now),
            };
            tally.add(node, &standing, demand);
            let barred = bar.is_some_and(|bar| bar.until.is_none_or(|until| now < until));
            if let (Standing::Fits(candidate), false) = (standing, barred) {
                let old = now.saturating_since(node.heard_at) > self.settings.stale_after;
                let sample = if old { &mut stale } else { &mut fresh };
                sample.offer(candidate, choices, &mut self.dice);
            }
        }
        let sample = if fresh.seen > 0 { fresh } else { stale };
        let best = sample.chosen.into_iter().max_by_key(|candidate| candidate.key(self.settings.policy));
        Choice { best, tally }
    }

    /// Every node, the one that would be asked first in front: those that fit, fresh ones before stale ones; then the
    /// others as they were taken in.
    pub fn rank(&mut self, demand: &Demand, now: Moment) -> Vec<Ranked> {
        let (shared, crowd_milli) = (self.prefixes.find(&demand.prefix), self.gate.crowd_milli());
        let (mut fresh, mut stale, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for node in &self.nodes {
            let age = node.view.map_or(Duration::ZERO, |_| now.saturating_since(node.heard_at));
            match node.standing(demand, &shared, crowd_milli, now) {
                Standing::Fits(candidate) => {
                    let of_age = if age > self.settings.stale_after { &mut stale } else { &mut fresh };
                    of_age.push(Candidate { lot: self.dice.next_u64(), ..candidate });
                }
                standing => rest.push(Ranked { node: node.id, standing, age }),
            }
        }
        for fitting in [&mut fresh, &mut stale] {
            sort(fitting, self.settings.policy);
        }
        let fitting = fresh.into_iter().chain(stale).map(|candidate| Ranked {
            node: candidate.node,
            standing: Standing::Fits(candidate),
            age: self.node(candidate.node).map_or(Duration::ZERO, |node| now.saturating_since(node.heard_at)),
        });
        fitting.chain(rest).collect()
    }

    /// A call goes out: what it may take is held back until it has ended.
    pub(super) fn asked(&mut self, id: NodeId, amounts: &Amounts) {
        if let Some(node) = self.node_mut(id) {
            node.breaker.asked();
            for (pool, amount) in amounts.iter() {
                node.held_back[pool] = node.held_back[pool].saturating_add(amount);
            }
        }
    }

    /// A request was granted there: its prefix is there from now on, unless the node keeps none. A node that shared
    /// nothing several times where it should have is no longer preferred for a prefix.
    pub(super) fn placed(&mut self, id: NodeId, prefix: &[PageHash], expected_pages: u64, shared_pages: u64) {
        let Some(node) = self.node_mut(id) else { return };
        if shared_pages > 0 {
            node.vain = 0;
        } else if expected_pages > 0 {
            node.vain = node.vain.saturating_add(1);
        }
        let epoch = node.view.map_or(0, |view| view.epoch);
        self.prefixes.went(prefix, id, epoch);
    }

    /// It has ended: answered, failed, or (`None`) given up without telling anything of the node.
    pub(super) fn ended(&mut self, id: NodeId, amounts: &Amounts, answered: Option<bool>, now: Moment) {
        let Some(place) = self.place(id) else { return };
        let node = &mut self.nodes[place];
        for (pool, amount) in amounts.iter() {
            node.held_back[pool] = node.held_back[pool].saturating_sub(amount);
        }
        match answered {
            Some(true) => {
                node.heard_at = node.heard_at.max(now);
                node.breaker.answered();
            }
            Some(false) => node.breaker.failed(now, &mut self.dice),
            None => node.breaker.abandoned(),
        }
    }

    fn place(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok() // ids are given out in order
    }

    fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.place(id).map(|place| &mut self.nodes[place])
    }
}

impl Node {
    fn take(&mut self, view: View, anew: bool) {
        if anew || self.view.is_none_or(|known| view.is_newer_than(&known)) {
            if self.view.is_some_and(|known| known.epoch != view.epoch) {
                self.vain = 0;
            }
            self.view = Some(view);
        }
    }

    /// Whether it may hold the request for all that is known.
    fn could_hold(&self, demand: &Demand) -> bool {
        self.view.is_none_or(|view| demand.tokens <= view.max_request_tokens)
    }

    fn standing(&self, demand: &Demand, shared: &[(NodeId, u64, u64)], crowd_milli: u64, now: Moment) -> Standing {
        let Some(view) = self.view else {
            return if self.failed { Standing::Silent } else { Standing::Unseen };
        };
        if !self.could_hold(demand) {
            return Standing::TooLong;
        }
        if !self.watched {
            return Standing::Silent;
        }
        if view.draining {
            return Standing::Draining;
        }
        if !self.breaker.allows(now) {
            return Standing::Resting;
        }
        let there = |(id, epoch, _): &&(NodeId, u64, u64)| *id == self.id && *epoch == view.epoch;
        let shared_pages = shared.iter().find(there).filter(|_| self.vain < FLEET_VAIN_PREFIXES);
        let shared_pages = shared_pages.map_or(0, |(.., pages)| *pages).min(demand.pages());
        let amounts = demand.amounts(shared_pages);
        let own_tokens = Demand::of_pages(amounts[Pool::HostPages]).tokens.min(demand.tokens);
        let Some(left_milli) = view.left_after(&amounts, &self.held_back) else { return Standing::Full };
        if own_tokens > view.largest_grant_tokens || view.largest_grant_tokens == 0 {
            return Standing::Full;
        }
        let slots = Pool::RequestSlots;
        let taken = view.total[slots].saturating_sub(view.room[slots]);
        Standing::Fits(Candidate {
            node: self.id,
            shared_pages,
            pages: demand.pages(),
            left_milli,
            tight: view.left_after(&amounts.scaled(1_000 + crowd_milli), &self.held_back.scaled(crowd_milli)).is_none(),
            places: view.places(&amounts, &self.held_back),
            free_pages: view.room[Pool::HostPages].saturating_sub(self.held_back[Pool::HostPages]),
            requests: taken.saturating_add(self.held_back[slots]),
            lot: 0,
        })
    }
}

impl Tally {
    fn add(&mut self, node: &Node, standing: &Standing, demand: &Demand) {
        self.nodes += 1;
        self.most_tokens = self.most_tokens.max(node.view.map_or(0, |view| view.max_request_tokens));
        match standing {
            Standing::Fits(_) | Standing::Full => self.could += 1,
            Standing::TooLong => self.too_long += 1,
            Standing::Draining => self.draining += u64::from(node.could_hold(demand)),
            Standing::Resting | Standing::Silent => self.silent += 1,
            Standing::Unseen => {
                self.silent += 1;
                self.connecting += 1;
            }
        }
    }
}

/// A few of many: those that have part of the prefix, and `most` of the rest, each as likely as it has places.
///
/// A reservoir with weights (Chao 1982): the k-th of weight w replaces a random one of `most` with probability
/// most · w / (all weights so far). The first `most` count as if each had the mean weight of them.
#[derive(Debug, Default)]
struct Sample {
    seen: u64,
    places_seen: u64,
    chosen: Vec<Candidate>,
    plain: Vec<usize>,
}

impl Sample {
    fn offer(&mut self, candidate: Candidate, most: usize, dice: &mut Dice) {
        let candidate = Candidate { lot: dice.next_u64(), ..candidate };
        self.seen += 1;
        if candidate.shared_pages > 0 {
            self.chosen.push(candidate);
            return;
        }
        self.places_seen = self.places_seen.saturating_add(candidate.places);
        if self.plain.len() < most {
            self.plain.push(self.chosen.len());
            self.chosen.push(candidate);
            return;
        }
        let lot = dice.below(self.places_seen) / candidate.places;
        if let Some(at) = usize::try_from(lot).ok().and_then(|at| self.plain.get(at)) {
            self.chosen[*at] = candidate;
        }
    }
}

#[cfg(test)]
#[path = "router_tests.rs"]
mod tests;
