//! The event loop.
//!
//! ```text
//!   arrive ─► look ── Ask ──► admit (at the node) ─► answered ─► runs ─► finish
//!               ▲  └─ Rest ─┐                           │ late          └─ its node dies ─► lost ─► settled ─► look
//!               └───────────┘◄── refused ◄──────────────┴─► deadline ─► settled ─► look
//! ```

use std::time::Duration;

use hisparse_core::env::Moment;
use hisparse_core::error::Problems;
use hisparse_core::fleet::{Answer, Demand, Placing, Step, Why};
use hisparse_core::limits::{FLEET_ATTEMPT, FLEET_TTL, QUARANTINE_BOUND};
use hisparse_core::replay::TraceRequest;

use super::books::Books;
use super::event::{Agenda, Event};
use super::job::{Job, JobId, NodeIndex, Shape};
use super::memory::Decision;
use super::node::{SimNode, State};
use super::report::{Millis, Report};
use super::setup::Setup;
use super::undoing::Undoing;
use super::watch::{BEAT, Watches, id, index};
use super::workload::{Workload, micros};
use crate::dice::Dice;

/// What a full node says when it might have room: the service's first guess.
const RETRY: Duration = Duration::from_millis(250);

/// What a placing may take beyond its patience: an unknown outcome at a node that is silent until its ttl is over.
const BEYOND_PATIENCE: Duration = Duration::from_secs(15);

/// Between two notes of the load.
const SAMPLE: Duration = Duration::from_secs(1);

/// How long a dead node is away.
const AWAY_US: std::ops::RangeInclusive<u64> = 5_000_000..=15_000_000;

/// Events between two questions whether to go on: far less than a second of work.
const BREATH: u64 = 256;

/// Whether a run can be played: its setup, and how many requests it has with the lengths of a trace.
///
/// # Errors
/// All that is out of range.
pub fn check(setup: &Setup, trace: &[TraceRequest]) -> Result<(), Problems> {
    setup.check()?;
    Workload::of(trace).check(setup)
}

/// Plays one run. `goes_on` is told the virtual time again and again, and ends the run with `false`: then there is no
/// report.
///
/// # Errors
/// As [`check`].
pub fn simulate(
    setup: &Setup,
    trace: &[TraceRequest],
    goes_on: &mut dyn FnMut(Duration) -> bool,
) -> Result<Option<Report>, Problems> {
    check(setup, trace)?;
    let mut world = World::new(*setup, trace)?;
    Ok(world.run(goes_on).then(|| world.report()))
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) setup: Setup,
    pub(super) nodes: Vec<SimNode>,
    pub(super) jobs: Vec<Job>,
    pub(super) agenda: Agenda,
    pub(super) undoing: Vec<Undoing>,
    pub(super) dice: Dice,
    watches: Watches,
    books: Books,
    /// So many of the jobs arrive; the others run from the start.
    arrivals: usize,
    /// The next job to arrive.
    next_job: JobId,
    /// Jobs that have neither a lease nor a refusal yet.
    open: usize,
    waits_ms: Vec<u64>,
    imbalances: Vec<u64>,
    report: Report,
}

impl World {
    fn new(setup: Setup, trace: &[TraceRequest]) -> Result<Self, Problems> {
        let seed = Dice::new(setup.seed);
        let workload = Workload::of(trace);
        let mut chaos = seed.fork(1);
        let mut order: Vec<NodeIndex> = (0..setup.nodes).collect();
        for place in (1..order.len()).rev() {
            order.swap(place, usize::try_from(chaos.below(place as u64 + 1)).unwrap_or(0));
        }
        let share = |milli| usize::try_from(setup.share(milli)).unwrap_or(0);
        let (slow, dying) = (share(setup.slow_milli), share(setup.deaths_milli));
        let nodes = (0..setup.nodes).map(|node| SimNode::new(&setup, order[..slow].contains(&node))).collect();
        let mut jobs = workload.arriving(&setup, &mut seed.fork(2));
        let arrivals = jobs.len();
        let running = workload.running(&setup, &mut seed.fork(3));
        jobs.extend(running.iter().map(|(shape, _)| Job::new(*shape, 0, Moment::ORIGIN)));
        let mut world = Self {
            nodes,
            jobs,
            agenda: Agenda::default(),
            undoing: Vec::new(),
            dice: seed.fork(4),
            watches: Watches::new(&setup, &[], &mut seed.fork(5))?,
            books: Books::new(&setup),
            arrivals,
            next_job: 0,
            open: 0,
            waits_ms: Vec::new(),
            imbalances: Vec::new(),
            report: Report::default(),
            setup,
        };
        let mut places = seed.fork(6);
        for (job, (shape, left)) in (arrivals..).zip(running) {
            world.settle_in(job, shape, left, &mut places);
        }
        world.jobs[arrivals..].iter_mut().zip(0..).for_each(|(job, turn)| job.router = turn % world.setup.routers);
        world.watches = Watches::new(&world.setup, &world.nodes, &mut seed.fork(5))?;
        for node in order.iter().rev().take(dying) {
            let at = world.setup.warm.saturating_add(Duration::from_micros(chaos.below(micros(world.setup.measured))));
            let hung = chaos.chance(500);
            world.agenda.at(Moment::from_origin(at), Event::Die { node: *node, hung });
            let back = at.saturating_add(Duration::from_micros(chaos.within(AWAY_US)));
            world.agenda.at(Moment::from_origin(back), Event::Return(*node));
        }
        world.agenda.at(Moment::from_origin(BEAT), Event::Beat);
        world.agenda.at(Moment::from_origin(world.setup.warm), Event::Sample);
        Ok(world)
    }

    /// A job that runs already when the run begins: on the first node with room from a random one on.
    fn settle_in(&mut self, job: JobId, shape: Shape, left: Duration, dice: &mut Dice) {
        let now = Moment::ORIGIN;
        let first = usize::try_from(dice.below(self.setup.nodes as u64)).unwrap_or(0);
        for node in (first..self.setup.nodes).chain(0..first) {
            if self.nodes[node].memory.admit(job, shape.tokens, now) == Decision::Granted {
                self.nodes[node].memory.commit(job, now);
                self.nodes[node].jobs.insert(job);
                self.books.granted(job, node, shape.tokens);
                self.jobs[job].runs = Some((node, 1));
                self.agenda.at(now.saturating_add(left), Event::Finish { job, node, life: 1 });
                return;
            }
        }
    }

    fn end_of_arrivals(&self) -> Moment {
        Moment::from_origin(self.setup.warm.saturating_add(self.setup.measured))
    }

    /// Whether it came to its end.
    fn run(&mut self, goes_on: &mut dyn FnMut(Duration) -> bool) -> bool {
        for turn in 0_u64.. {
            let arrival = self.jobs[..self.arrivals].get(self.next_job).map(|job| job.arrives);
            let next = [arrival, self.watches.next_at(), self.agenda.next_at()].into_iter().flatten().min();
            let Some(now) = next else { break };
            if arrival.is_none() && self.open == 0 && now >= self.end_of_arrivals() {
                break;
            }
            if turn.is_multiple_of(BREATH) && !goes_on(now.since_origin()) {
                return false;
            }
            self.watches.deliver(now);
            if self.agenda.next_at() == Some(now) {
                if let Some((_, event)) = self.agenda.pop() {
                    self.happen(event, now);
                }
            } else if arrival == Some(now) {
                let job = self.next_job;
                self.next_job += 1;
                self.open += 1;
                self.begin(job, None, now);
            }
        }
        true
    }

    fn happen(&mut self, event: Event, now: Moment) {
        match event {
            Event::Look(job) => self.look(job, now),
            Event::Admit { job, attempt, node, until } => self.admit(job, attempt, node, until, now),
            Event::Answered { job, attempt, answer, view } => {
                if let Some((_, node)) = self.jobs[job].asking.filter(|(current, _)| *current == attempt) {
                    if let Some(view) = view {
                        self.watches.routers[self.jobs[job].router].told(id(node), *view, now);
                    }
                    self.answered(job, node, answer, now);
                }
            }
            Event::Deadline { job, attempt } => {
                if let Some((_, node)) = self.jobs[job].asking.filter(|(current, _)| *current == attempt) {
                    self.report.unknown += 1;
                    self.answered(job, node, Answer::Unknown, now);
                }
            }
            Event::Expire { job, node, life } => {
                if self.nodes[node].life == life && self.nodes[node].is_up() {
                    self.expire(job, node, now);
                }
            }
            Event::Finish { job, node, life } => {
                let lives = self.nodes[node].life == life && self.nodes[node].is_up();
                if lives && self.jobs[job].runs == Some((node, life)) {
                    self.jobs[job].runs = None;
                    self.end(job, node, now);
                }
            }
            Event::Settle(place) => self.settle(place, now),
            Event::Release(place) => self.release(place, now),
            Event::Released { settling, answered } => self.released(settling, answered, now),
            Event::Die { node, hung } => self.die(node, hung, now),
            Event::Return(node) => {
                self.nodes[node].begin_anew(&self.setup);
                self.changed(node, now);
            }
            Event::Broken { router, node } => {
                let rest = self.watches.routers[router].broken(id(node));
                self.agenda.at(now.saturating_add(rest), Event::Probe { router, node });
            }
            Event::Probe { router, node } => {
                if self.nodes[node].is_up() {
                    self.watches.routers[router].watched(id(node), self.nodes[node].memory.view(), true, now);
                } else {
                    self.happen(Event::Broken { router, node }, now);
                }
            }
            Event::Lost(job) => {
                if let Some((node, _)) = self.jobs[job].runs.take() {
                    self.undo(job, node, now);
                }
            }
            Event::Beat => {
                self.watches.beat(&self.nodes, now);
                self.agenda.at(now.saturating_add(BEAT), Event::Beat);
            }
            Event::Sample => self.sample(now),
        }
    }

    /// A job begins to look for a node; not for the one that it has just left.
    pub(super) fn begin(&mut self, job: JobId, left: Option<NodeIndex>, now: Moment) {
        let router = &mut self.watches.routers[self.jobs[job].router];
        let demand = Demand::of_tokens(self.jobs[job].shape.tokens);
        let most = self.setup.patience.saturating_add(BEYOND_PATIENCE);
        let placing = Placing::new(router, demand, self.setup.patience, most, now);
        self.jobs[job].placing = Some(match left {
            Some(node) => placing.avoiding(id(node)),
            None => placing,
        });
        self.look(job, now);
    }

    pub(super) fn look(&mut self, job: JobId, now: Moment) {
        let asked = &mut self.jobs[job];
        let (Some(placing), None) = (&mut asked.placing, asked.asking) else { return };
        self.report.decisions += 1;
        match placing.next(&mut self.watches.routers[asked.router], now) {
            Step::Ask(node) => {
                let (attempt, node) = (placing.attempts(), index(node));
                asked.asking = Some((attempt, node));
                let until = now.saturating_add(FLEET_ATTEMPT);
                self.agenda.at(until, Event::Deadline { job, attempt });
                let way = self.nodes[node].way(&self.setup, &mut self.dice);
                self.note([1, job as u64, node as u64], now);
                self.after(way, Event::Admit { job, attempt, node, until }, now);
            }
            Step::Rest(rest) => self.agenda.at(now.saturating_add(rest), Event::Look(job)),
            Step::Settle(_) => {} // the job is woken when that is done
            Step::Refuse(why) => self.refused(job, why, now),
        }
    }

    fn admit(&mut self, job: JobId, attempt: u32, node: NodeIndex, until: Moment, now: Moment) {
        let asked = &mut self.nodes[node];
        let (answer, view) = match asked.state {
            State::Hung => return,
            State::Gone => (Answer::Unsent, None),
            State::Up if now >= until => return, // past its deadline a node does not touch its ledger
            State::Up => {
                let tokens = self.jobs[job].shape.tokens;
                let answer = match asked.memory.admit(job, tokens, now) {
                    Decision::Granted => Answer::Granted { shared_pages: 0 },
                    Decision::Full => Answer::Full(RETRY),
                    Decision::NeverFits => Answer::NeverFits,
                };
                let view = asked.memory.view();
                if matches!(answer, Answer::Granted { .. }) {
                    let life = asked.life;
                    asked.jobs.insert(job);
                    self.books.granted(job, node, tokens);
                    self.agenda.at(now.saturating_add(FLEET_TTL), Event::Expire { job, node, life });
                    self.changed(node, now);
                }
                (answer, Some(Box::new(view)))
            }
        };
        let way = self.nodes[node].way(&self.setup, &mut self.dice);
        self.after(way, Event::Answered { job, attempt, answer, view }, now);
    }

    fn answered(&mut self, job: JobId, node: NodeIndex, answer: Answer, now: Moment) {
        let asked = &mut self.jobs[job];
        asked.asking = None;
        if let Some(placing) = &mut asked.placing {
            placing.answered(&mut self.watches.routers[asked.router], answer, now);
        }
        match answer {
            Answer::Granted { .. } => self.granted(job, node, now),
            Answer::Unknown => self.undo(job, node, now),
            _ => self.look(job, now),
        }
    }

    fn granted(&mut self, job: JobId, node: NodeIndex, now: Moment) {
        let (asked, at) = (&mut self.jobs[job], &mut self.nodes[node]);
        let attempts = asked.placing.take().map_or(0, |placing| placing.attempts());
        (asked.granted, asked.runs) = (true, Some((node, at.life)));
        if asked.lost {
            self.report.replaced += 1;
        } else if asked.counted {
            self.report.admitted += 1;
            self.report.attempts += u64::from(attempts);
            self.waits_ms.push(micros(now.saturating_since(asked.arrives)) / 1_000);
        }
        self.open -= 1;
        // Commit goes through the engine, which sits at the node: it takes no time of the network.
        if at.is_up() && at.memory.commit(job, now) {
            let finish = Event::Finish { job, node, life: at.life };
            self.agenda.at(now.saturating_add(asked.shape.hold), finish);
            self.changed(node, now);
        } else {
            self.lose(job, now);
        }
    }

    fn refused(&mut self, job: JobId, why: Why, now: Moment) {
        self.note([2, job as u64, u64::from(why.name().as_bytes()[0])], now);
        let asked = &mut self.jobs[job];
        let attempts = asked.placing.take().map_or(0, |placing| placing.attempts());
        if asked.lost {
            *self.report.not_replaced.entry(why.name()).or_default() += 1;
        } else if asked.counted {
            *self.report.refused.entry(why.name()).or_default() += 1;
            self.report.attempts += u64::from(attempts);
        }
        self.open -= 1;
    }

    /// A job's lease at a node ends, where it has one.
    pub(super) fn end(&mut self, job: JobId, node: NodeIndex, now: Moment) {
        if self.nodes[node].memory.release(job, now) && self.nodes[node].jobs.remove(&job) {
            self.books.ended(job, node, self.jobs[job].shape.tokens);
            self.note([3, job as u64, node as u64], now);
            self.changed(node, now);
        }
    }

    /// The ttl of a grant is over, or its quarantine: nothing to do for one that was committed or released.
    fn expire(&mut self, job: JobId, node: NodeIndex, now: Moment) {
        let at = &mut self.nodes[node];
        at.memory.advance(now);
        if !at.jobs.contains(&job) || self.jobs[job].runs == Some((node, at.life)) {
            return;
        }
        if at.memory.holds(job) {
            let life = at.life;
            self.agenda.at(now.saturating_add(QUARANTINE_BOUND), Event::Expire { job, node, life });
        } else {
            at.jobs.remove(&job);
            self.books.ended(job, node, self.jobs[job].shape.tokens);
        }
        self.changed(node, now);
    }

    fn die(&mut self, node: NodeIndex, hung: bool, now: Moment) {
        let dead = &mut self.nodes[node];
        dead.state = if hung { State::Hung } else { State::Gone };
        let life = dead.life;
        let found = self.watches.found_after(hung);
        for job in std::mem::take(&mut self.nodes[node].jobs) {
            self.books.ended(job, node, self.jobs[job].shape.tokens);
            if self.jobs[job].runs == Some((node, life)) {
                self.lose(job, now.saturating_add(found));
            }
        }
        for router in 0..self.setup.routers {
            self.after(found, Event::Broken { router, node }, now);
        }
    }

    /// A job's node has died under it; its router knows at `known`.
    fn lose(&mut self, job: JobId, known: Moment) {
        let asked = &mut self.jobs[job];
        if !asked.lost {
            self.report.lost += 1;
        }
        (asked.lost, asked.granted) = (true, false);
        self.open += 1;
        self.agenda.at(known, Event::Lost(job));
    }

    fn sample(&mut self, now: Moment) {
        let live = (0..self.nodes.len()).filter(|node| self.nodes[*node].is_up());
        let loads: Vec<u64> = live.map(|node| self.books.load_milli(node)).collect();
        let (most, sum) = (loads.iter().max().copied().unwrap_or(0), loads.iter().sum::<u64>());
        self.imbalances.extend((most * 1_000 * loads.len() as u64).checked_div(sum));
        let next = now.saturating_add(SAMPLE);
        if next <= self.end_of_arrivals() {
            self.agenda.at(next, Event::Sample);
        }
    }

    fn changed(&mut self, node: NodeIndex, now: Moment) {
        self.watches.changed(node, self.nodes[node].memory.view(), now);
    }

    /// At once where it takes no time, so that a fleet without delays has no races.
    fn after(&mut self, delay: Duration, event: Event, now: Moment) {
        if delay.is_zero() { self.happen(event, now) } else { self.agenda.at(now.saturating_add(delay), event) }
    }

    fn note(&mut self, what: [u64; 3], now: Moment) {
        for word in what.into_iter().chain([micros(now.since_origin())]) {
            self.report.trace = (self.report.trace ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
    }

    fn report(self) -> Report {
        let counted = || self.jobs.iter().filter(|job| job.counted);
        let samples = self.imbalances.len() as u64;
        Report {
            offered: counted().count() as u64,
            tokens_offered: counted().map(|job| job.shape.tokens).sum(),
            tokens_granted: counted().filter(|job| job.granted).map(|job| job.shape.tokens).sum(),
            wait: Millis::of(self.waits_ms),
            imbalance_milli: self.imbalances.iter().sum::<u64>().checked_div(samples).unwrap_or(0),
            overcommit: self.books.overcommit,
            two_leases: self.books.two_leases,
            ..self.report
        }
    }
}
