//! The world: one queue of events in order of time, a network that loses and repeats, and processes that die.
//!
//! ```text
//!  (time, number) ─► event ─► node, actor or fault ─► more events
//! ```
//! Nothing in here looks at a real clock or a real thread, and everything drawn comes from the seed: the same seed is
//! the same run, event for event.

mod chaos;
mod fault;
mod network;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use hisparse_core::env::Moment;
use hisparse_core::ledger::SessionId;

use self::fault::Fault;
use crate::actors::engine::Engine;
use crate::actors::router::Router;
use crate::actors::{Handover, Wake};
use crate::audit::{Auditor, Finding, Step, Terms};
use crate::call::{Answer, Call, CallId, Input, Who};
use crate::clock::NodeClock;
use crate::dice::Dice;
use crate::faults::Faults;
use crate::history::History;
use crate::node::make::make_node;
use crate::node::planted::Bug;
use crate::node::{Node, Seen};
use crate::setup::Setup;
use crate::watcher::Watcher;

/// Time the node takes between two looks at what has ended by itself, as the service does.
const TICK_US: u64 = 100_000;
const MS: u64 = 1_000;

#[derive(Debug)]
enum Event {
    ToNode { call: Call, from: Who, life: u64 },
    ToCaller { to: Who, life: u64, call: CallId, answer: Answer, said: u64 },
    Handover { engine: usize, handover: Handover },
    Wake { who: Who, life: u64, wake: Wake },
    Tick,
    EndScrub { node_life: u64 },
    Fault(Fault),
    WatcherReads(usize),
}

pub(crate) struct World {
    seed: u64,
    at_us: u64,
    number: u64,
    events: BTreeMap<(u64, u64), Event>,
    pub(crate) setup: Setup,
    pub(crate) faults: Faults,
    work: Dice,
    chaos: Dice,
    bug: Option<Bug>,
    /// `None` while it is dead.
    node: Option<Box<dyn Node>>,
    node_life: u64,
    epoch: u64,
    clock: NodeClock,
    paused_until_us: u64,
    seen: Seen,
    routers: Vec<(u64, Router)>,
    engines: Vec<(u64, Engine, bool)>,
    watchers: Vec<Watcher>,
    callers: BTreeMap<CallId, (Who, u64)>,
    next_call: u64,
    next_session: u64,
    audited: bool,
    pub(crate) auditor: Auditor,
    pub(crate) history: History,
    trace: DefaultHasher,
    pub(crate) steps: u64,
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>, audited: bool) -> Self {
        let root = Dice::new(seed);
        let setup = Setup::draw(&mut root.fork(1));
        let faults = Faults::draw(&mut root.fork(2));
        let terms = Terms {
            config: setup.config,
            policies: setup.policies.iter().cloned().collect(),
            tenants: setup.tenants.len(),
        };
        let node = make_node(seed, 1, &setup, bug);
        let first = node.seen();
        let mut world = Self {
            seed,
            at_us: 0,
            number: 0,
            events: BTreeMap::new(),
            faults,
            work: root.fork(3),
            chaos: root.fork(4),
            bug,
            node: Some(node),
            node_life: 0,
            epoch: 1,
            clock: NodeClock::start(0, 0),
            paused_until_us: 0,
            audited,
            auditor: Auditor::new(terms, first.clone()),
            seen: first,
            routers: Vec::new(),
            engines: Vec::new(),
            watchers: (0..setup.watchers).map(|_| Watcher::default()).collect(),
            callers: BTreeMap::new(),
            next_call: 0,
            next_session: 0,
            history: History::default(),
            trace: DefaultHasher::new(),
            steps: 0,
            setup,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        self.start_clock();
        self.history.restarted(self.epoch, self.number);
        for place in 0..self.setup.routers {
            self.routers.push((0, Router::new(place, 0, self.setup.busy_us)));
            self.with_actor(Who::Router(place), |_, out| Router::begin(out));
        }
        for place in 0..self.setup.engines {
            self.next_session += 1;
            self.engines.push((0, Engine::new(SessionId(self.next_session), None), false));
            self.after(0, Event::Fault(Fault::EngineStarts(place)));
        }
        for place in 0..self.watchers.len() {
            self.after(0, Event::WatcherReads(place));
        }
        self.after(TICK_US, Event::Tick);
        self.plan_faults();
    }

    fn after(&mut self, delay_us: u64, event: Event) {
        self.number += 1;
        self.events.insert((self.at_us + delay_us, self.number), event);
    }

    /// Runs to the end.
    pub(crate) fn run(&mut self) -> Result<(), Finding> {
        // After the busy time everything ends by itself: waits, leases, quarantines, retries.
        let longest = self.setup.config.router_ttl.max(self.setup.config.uncommitted_ttl) * 2
            + self.setup.config.quarantine_bound * 2;
        let rest_us = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX) + 40_000 * MS;
        let (quiet, end) = (self.setup.busy_us + rest_us / 2, self.setup.busy_us + rest_us);
        let mut engines_closed = false;
        while let Some(((at_us, _), event)) = self.events.pop_first() {
            if at_us > end {
                break;
            }
            self.at_us = at_us;
            if at_us > quiet && !engines_closed {
                engines_closed = true;
                for place in 0..self.engines.len() {
                    self.close_engine(place, 0);
                }
            }
            self.handle(event)?;
        }
        if self.node.is_none() {
            return Ok(());
        }
        self.at_us = end;
        self.step(&Input::Time)?;
        if self.audited {
            self.auditor.check_empty()?;
        }
        for watcher in &mut self.watchers {
            watcher.read(&self.seen.capacity)?;
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), Finding> {
        match event {
            Event::ToNode { call, from, life } => self.arrive(call, from, life)?,
            Event::ToCaller { to, life, call, answer, said } => self.deliver(to, life, call, &answer, said),
            Event::Handover { engine, handover } => {
                if !self.engines[engine].2 {
                    return Ok(());
                }
                self.with_actor(Who::Engine(engine), |world, out| world.engines[engine].1.handed(handover, out));
            }
            Event::Wake { who, life, wake } => self.wake(who, life, wake)?,
            Event::Tick => {
                if self.node.is_some() && self.at_us >= self.paused_until_us {
                    self.step(&Input::Time)?;
                    self.scrub()?;
                }
                self.after(TICK_US, Event::Tick);
            }
            Event::EndScrub { node_life } if node_life == self.node_life && self.node.is_some() => {
                self.step(&Input::EndScrub)?;
            }
            Event::Fault(fault) => self.strike(fault)?,
            Event::WatcherReads(place) => {
                if self.node.is_some() {
                    self.watchers[place].read(&self.seen.capacity)?;
                }
                let rest = self.chaos.within(0..=self.faults.watcher_rests_ms) * MS + 50 * MS;
                self.after(rest, Event::WatcherReads(place));
            }
            Event::EndScrub { .. } => {}
        }
        Ok(())
    }

    fn wake(&mut self, who: Who, life: u64, wake: Wake) -> Result<(), Finding> {
        if !self.lives(who, life) {
            return Ok(());
        }
        if let Wake::Timeout(call) = wake
            && self.callers.contains_key(&call)
        {
            self.cancel(call)?;
        }
        self.with_actor(who, |world, out| match who {
            Who::Router(place) => world.routers[place].1.wake(wake, out),
            Who::Engine(place) => world.engines[place].1.wake(wake, out),
        });
        Ok(())
    }

    fn scrub(&mut self) -> Result<(), Finding> {
        let jobs = |world: &Self| world.node.as_ref().map_or(0, |node| node.scrub_jobs());
        let before = jobs(self);
        if before == 0 && self.seen.capacity.pools.iter().any(|pool| pool.scrubbing > 0) {
            self.step(&Input::StartScrub)?;
            for _ in before..jobs(self) {
                let takes = self.chaos.within(100..=20_000);
                self.after(takes, Event::EndScrub { node_life: self.node_life });
            }
        }
        Ok(())
    }

    /// One step of the node, witnessed.
    fn step(&mut self, input: &Input) -> Result<(), Finding> {
        let now = self.clock.now(self.at_us);
        let Some(node) = self.node.as_mut() else { return Ok(()) };
        let decided = node.decide(input, now);
        let (after, waiting) = (node.seen(), node.waiting());
        self.number += 1;
        self.steps += 1;
        self.note(input, now, decided.answer.as_ref(), after.capacity.sequence);
        let step = Step { input, decided: &decided, after: &after, now, at_us: self.at_us, waiting: &waiting };
        if self.audited {
            self.auditor.witness(&step)?;
        }
        self.history.stepped(&self.seen, &after, input, &decided, self.number);
        let said = self.number;
        for watcher in &mut self.watchers {
            watcher.changed(&after.capacity);
        }
        self.seen = after;
        let mut answers = decided.served;
        if let (Input::Call { call, .. }, Some(answer)) = (input, decided.answer) {
            answers.push((call.clone(), answer));
        }
        for (call, answer) in answers {
            self.history.executed(call.id, &answer, said);
            let Some((to, life)) = self.callers.get(&call.id).copied() else { continue };
            let delay = self.delay();
            if !self.chaos.chance(self.faults.answer_lost_per_mille) {
                self.after(delay, Event::ToCaller { to, life, call: call.id, answer, said });
            }
        }
        Ok(())
    }

    fn note(&mut self, input: &Input, now: Moment, answer: Option<&Answer>, sequence: u64) {
        let (kind, about) = match input {
            Input::Call { call, .. } => (call.ask.kind(), call.id.0),
            Input::Cancel(call) => (20, call.0),
            Input::Attached(session) => (21, session.0),
            Input::SessionLost(session) => (22, session.0),
            Input::StartScrub => (23, 0),
            Input::EndScrub => (24, 0),
            Input::Time => (25, 0),
        };
        let (said, lease) = answer.map_or((0, 0), Answer::kind);
        let nanos = u64::try_from(now.since_origin().as_nanos()).unwrap_or(u64::MAX);
        for number in [self.at_us, nanos, kind, about, said, lease, sequence] {
            self.trace.write_u64(number);
        }
    }

    pub(crate) fn trace_hash(&self) -> u64 {
        self.trace.finish()
    }

    pub(crate) const fn at_us(&self) -> u64 {
        self.at_us
    }
}
