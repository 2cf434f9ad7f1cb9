//! The world: one queue of events in order of time, a network that loses and repeats, and processes that die.
//!
//! ```text
//!  (time, number) ─► event ─► node, actor or fault ─► more events
//! ```
//! Nothing in here looks at a real clock or a real thread, and everything drawn comes from the seed: the same seed is
//! the same run, event for event.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use hisparse_core::env::Moment;
use hisparse_core::ledger::{Epoch, SessionId};

use crate::actors::engine::Engine;
use crate::actors::router::Router;
use crate::actors::{Handover, Out, Wake};
use crate::audit::{Auditor, Finding, Step, Terms};
use crate::call::{Answer, Call, CallId, Input, Who};
use crate::clock::NodeClock;
use crate::dice::Dice;
use crate::faults::Faults;
use crate::history::History;
use crate::node::honest::Honest;
use crate::node::planted::{Bug, Planted};
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
    NodeDies,
    NodeStarts,
    NodePauses,
    ClockSteps,
    EngineDies(usize),
    EngineStarts(usize),
    SessionLost { session: SessionId, node_life: u64 },
    RouterDies(usize),
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
            self.after(0, Event::EngineStarts(place));
        }
        for place in 0..self.watchers.len() {
            self.after(0, Event::WatcherReads(place));
        }
        self.after(TICK_US, Event::Tick);
        let f = self.faults;
        self.recur(f.node_dies_every_ms, |_| Event::NodeDies);
        self.recur(f.node_pauses_every_ms, |_| Event::NodePauses);
        self.recur(f.clock_steps_every_ms, |_| Event::ClockSteps);
        let (engines, routers) = (self.setup.engines as u64, self.setup.routers as u64);
        self.recur(f.engine_dies_every_ms, |dice| Event::EngineDies(place_of(dice, engines)));
        self.recur(f.router_dies_every_ms, |dice| Event::RouterDies(place_of(dice, routers)));
    }

    /// Faults of one kind, spread over the busy time. No two are closer than half their mean distance.
    fn recur(&mut self, every_ms: u64, event: impl Fn(&mut Dice) -> Event) {
        if every_ms == 0 {
            return;
        }
        let mut at = 0;
        loop {
            at += self.chaos.within(every_ms / 2..=every_ms * 3 / 2) * MS;
            if at > self.setup.busy_us {
                break;
            }
            let event = event(&mut self.chaos);
            self.after(at, event);
        }
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
            Event::NodeDies => {
                self.node = None;
                self.node_life += 1;
                let down = self.chaos.within(100..=5_000) * MS;
                self.after(down, Event::NodeStarts);
                // Every session dies with it, and is told at once.
                for place in 0..self.engines.len() {
                    self.engines[place].2 = false;
                    let back = down + self.chaos.within(1..=500) * MS;
                    self.after(back, Event::EngineStarts(place));
                }
            }
            Event::NodeStarts => self.node_starts()?,
            Event::NodePauses => {
                let pause = self.chaos.within(1..=self.faults.pause_ms.max(1)) * MS;
                self.paused_until_us = self.paused_until_us.max(self.at_us + pause);
            }
            Event::ClockSteps => {
                let step = self.chaos.within(1..=self.faults.clock_step_ms.max(1)) * MS;
                let step = i64::try_from(step).unwrap_or(0);
                self.clock.step(if self.chaos.chance(500) { step } else { -step });
            }
            Event::EngineDies(place) => {
                if self.engines.get(place).is_some_and(|(.., lives)| *lives) {
                    let notice = self.chaos.within(0..=self.faults.death_noticed_after_ms) * MS;
                    self.close_engine(place, notice);
                    let back = self.chaos.within(50..=5_000) * MS;
                    self.after(back, Event::EngineStarts(place));
                }
            }
            Event::EngineStarts(place) => self.engine_starts(place)?,
            Event::SessionLost { session, node_life } if node_life == self.node_life && self.node.is_some() => {
                self.step(&Input::SessionLost(session))?;
            }
            Event::RouterDies(place) => {
                let life = self.routers[place].0 + 1;
                self.routers[place] = (life, Router::new(place, life, self.setup.busy_us));
                let gone: Vec<CallId> =
                    self.callers.iter().filter(|(_, (who, _))| *who == Who::Router(place)).map(|(id, _)| *id).collect();
                for call in gone {
                    self.cancel(call)?;
                }
                self.with_actor(Who::Router(place), |_, out| Router::begin(out));
            }
            Event::WatcherReads(place) => {
                if self.node.is_some() {
                    self.watchers[place].read(&self.seen.capacity)?;
                }
                let rest = self.chaos.within(0..=self.faults.watcher_rests_ms) * MS + 50 * MS;
                self.after(rest, Event::WatcherReads(place));
            }
            Event::EndScrub { .. } | Event::SessionLost { .. } => {}
        }
        Ok(())
    }

    fn node_starts(&mut self) -> Result<(), Finding> {
        if self.node.is_some() {
            return Ok(());
        }
        self.epoch += self.chaos.within(1..=3);
        let node = make_node(self.seed, self.epoch, &self.setup, self.bug);
        self.seen = node.seen();
        self.node = Some(node);
        self.node_life += 1;
        self.start_clock();
        self.number += 1;
        self.history.restarted(self.epoch, self.number);
        if self.audited { self.auditor.restarted(self.seen.clone()) } else { Ok(()) }
    }

    fn start_clock(&mut self) {
        let ppm = i64::try_from(self.chaos.within(0..=self.faults.clock_drift_ppm)).unwrap_or(0);
        self.clock = NodeClock::start(self.at_us, if self.chaos.chance(500) { ppm } else { -ppm });
    }

    fn engine_starts(&mut self, place: usize) -> Result<(), Finding> {
        if self.engines[place].2 || self.node.is_none() {
            return Ok(());
        }
        let life = self.engines[place].0 + 1;
        let first = life == 1;
        self.next_session += 1;
        let session = SessionId(self.next_session);
        let engine = Engine::new(session, Some(&self.engines[place].1).filter(|_| !first));
        self.engines[place] = (life, engine, true);
        self.step(&Input::Attached(session))?;
        self.with_actor(Who::Engine(place), |world, out| world.engines[place].1.begin(out));
        Ok(())
    }

    fn close_engine(&mut self, place: usize, notice_us: u64) {
        let Some((_, engine, lives)) = self.engines.get_mut(place).filter(|(.., lives)| *lives) else { return };
        *lives = false;
        let breath = u64::try_from(Engine::last_breath().as_micros()).unwrap_or(0);
        self.auditor.transfers_end(&engine.leases(), self.at_us + breath);
        let event = Event::SessionLost { session: engine.session, node_life: self.node_life };
        self.after(notice_us, event);
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

    fn lives(&self, who: Who, life: u64) -> bool {
        match who {
            Who::Router(place) => self.routers[place].0 == life,
            Who::Engine(place) => self.engines[place].0 == life && self.engines[place].2,
        }
    }

    /// A call's stream is reset. A waiting call hears of it; what the network still carries does not.
    fn cancel(&mut self, call: CallId) -> Result<(), Finding> {
        self.callers.remove(&call);
        if self.node.as_ref().is_some_and(|node| node.waiting().contains(&call)) {
            self.step(&Input::Cancel(call))?;
        }
        Ok(())
    }

    /// Lets an actor act, and carries out what it wants.
    fn with_actor(&mut self, who: Who, act: impl FnOnce(&mut Self, &mut Out<'_>)) {
        let (setup, faults) = (self.setup.clone(), self.faults);
        let (mut dice, mut next_call) = (self.work.clone(), self.next_call);
        let mut out = Out {
            dice: &mut dice,
            faults: &faults,
            setup: &setup,
            now_us: self.at_us,
            next_call: &mut next_call,
            calls: Vec::new(),
            wakes: Vec::new(),
            handovers: Vec::new(),
            transfers: Vec::new(),
        };
        act(self, &mut out);
        let Out { calls, wakes, handovers, transfers, .. } = out;
        (self.work, self.next_call) = (dice, next_call);
        let life = match who {
            Who::Router(place) => self.routers[place].0,
            Who::Engine(place) => self.engines[place].0,
        };
        for (lease, for_us) in transfers {
            self.auditor.transfer_begins(&lease, self.at_us + for_us);
        }
        for call in calls {
            self.send(&call, who, life);
        }
        for (delay, wake) in wakes {
            self.after(delay, Event::Wake { who, life, wake });
        }
        for (engine, handover) in handovers {
            let delay = self.delay();
            self.after(delay, Event::Handover { engine, handover });
        }
    }

    fn delay(&mut self) -> u64 {
        let slow = self.chaos.chance(self.faults.slow_per_mille);
        let usual = self.chaos.within(50..=1_000);
        if slow { usual + self.chaos.within(0..=self.faults.slow_ms * MS) } else { usual }
    }

    fn send(&mut self, call: &Call, from: Who, life: u64) {
        self.number += 1;
        self.history.sent(call, self.number);
        self.callers.insert(call.id, (from, life));
        let copies = 1 + u64::from(self.chaos.chance(self.faults.duplicated_per_mille));
        for _ in 0..copies {
            let delay = self.delay();
            if !self.chaos.chance(self.faults.call_lost_per_mille) {
                self.after(delay, Event::ToNode { call: call.clone(), from, life });
            }
        }
    }

    /// A call reaches the node's socket. It is looked at when the node is not paused.
    fn arrive(&mut self, call: Call, from: Who, life: u64) -> Result<(), Finding> {
        if self.node.is_none() {
            return Ok(());
        }
        if self.at_us < self.paused_until_us {
            // It keeps its patience: the node counts from when it reads a call.
            let delay = self.paused_until_us - self.at_us;
            self.after(delay, Event::ToNode { call, from, life });
            return Ok(());
        }
        let arrived = self.clock.now(self.at_us);
        self.step(&Input::Call { call, arrived })?;
        self.scrub()
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
        let (after, waiting) = (node.seen(), node.waiting().len());
        self.number += 1;
        self.steps += 1;
        self.note(input, now, decided.answer.as_ref(), after.capacity.sequence);
        let step = Step { input, decided: &decided, after: &after, now, at_us: self.at_us, waiting };
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

    fn deliver(&mut self, to: Who, life: u64, call: CallId, answer: &Answer, said: u64) {
        if !self.lives(to, life) || self.callers.remove(&call).is_none() {
            return;
        }
        self.number += 1;
        self.history.answered(call, said, self.number);
        self.with_actor(to, |world, out| match to {
            Who::Router(place) => world.routers[place].1.answered(call, answer, out),
            Who::Engine(place) => world.engines[place].1.answered(call, answer, out),
        });
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

fn place_of(dice: &mut Dice, of: u64) -> usize {
    usize::try_from(dice.below(of)).unwrap_or(0)
}

fn make_node(seed: u64, epoch: u64, setup: &Setup, bug: Option<Bug>) -> Box<dyn Node> {
    let config = bug.map_or(setup.config, |bug| bug.settings(setup.config));
    let epoch = Epoch::new(epoch).expect("a run has few restarts");
    let mut entropy = Dice::new(seed).fork(100 + epoch.get());
    let honest =
        Honest::new(config, epoch, &setup.policies, &mut entropy).expect("setups are drawn within their bounds");
    match bug {
        Some(bug) => Box::new(Planted::new(bug, honest)),
        None => Box::new(honest),
    }
}
