//! The owner of the ledger: one mutex, one decision at a time, in an order that everyone agrees on.
//!
//! ```text
//!  call ──► lock ─► now ─► past its deadline? ─► advance time ─► decide ─► serve the queue ─► unlock ─► tell watchers
//!                                                                  (nothing in here waits, sleeps or awaits)
//! ```
//! A decision takes about a microsecond, so the lock is shorter than any hand-over to another thread would be. What it
//! guards: [`State`]. What may be called while it is held: the ledger, its queue, sending an answer to a waiter; never
//! I/O, never anything that blocks. Room freed by a decision goes to the queue within the same lock, so the next
//! call sees both.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hisparse_core::budget::Plan;
use hisparse_core::env::{Clock, Entropy, Moment};
use hisparse_core::error::Problems;
use hisparse_core::ledger::{
    self, Epoch, Granted, Lease, LeaseId, Ledger, LedgerConfig, Listing, NodeCapacity, SessionId, Ticket, WaitQueue,
    Walk,
};
use hisparse_core::limits::ROUTER_TTL;
use hisparse_core::pages::{Isolation, ScrubJob};
use hisparse_core::size::show_size;
use hisparse_core::units::Bytes;
use tokio::sync::{oneshot, watch};

use crate::beginning::{Beginning, Start};
use crate::env::{MachineClock, MachineEntropy};
use crate::error::Refusal;
use crate::history::History;
use crate::journal::Journal;
use crate::meeting;
use crate::memory::Hosting;
use crate::metrics::{Counters, Exemplars, SwapIn};
use crate::pace::Pace;
use crate::quotas::Quotas;
use crate::remembered::{Note, Remembered, this_boot};
use crate::sessions::Sessions;
use crate::{proto, wire};

/// Time between two looks at what has ended by itself: an expiry is noticed no later than this.
const LONGEST_REST: Duration = Duration::from_millis(100);
/// And no more often than this.
const SHORTEST_REST: Duration = Duration::from_millis(10);

/// What the node is.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Name of the model served.
    pub model: String,
    /// What it can hold.
    pub capacity: NodeCapacity,
    /// The plan that `capacity` comes from; `None` where there was none.
    pub budget: Option<Plan>,
    /// What tenants may hold.
    pub quotas: Quotas,
    /// How long a node that does not know what an earlier start granted grants nothing: until its last lease has ended.
    pub learning: Duration,
    /// Whether the histogram of Admit keeps the callers' traces as exemplars.
    pub exemplars: bool,
}

impl NodeConfig {
    /// A node of these figures, without a plan behind them.
    pub fn of_capacity(model: &str, capacity: NodeCapacity) -> Self {
        Self {
            model: model.to_owned(),
            capacity,
            budget: None,
            quotas: Quotas::default(),
            learning: ROUTER_TTL,
            exemplars: false,
        }
    }

    /// The node that was planned so, and holds so much of it.
    pub fn of_plan(budget: &Plan, capacity: NodeCapacity) -> Self {
        Self { budget: Some(budget.clone()), ..Self::of_capacity(&budget.model.name, capacity) }
    }
}

impl NodeConfig {
    /// Tells the ledger what tenants may hold.
    fn set_quotas(&self, ledger: &mut Ledger) -> Result<(), Problems> {
        let mut problems = Problems::new();
        for (tenant, policy) in &self.quotas.tenants {
            let set = ledger.set_tenant_policy(tenant, policy.usable_on(&self.capacity));
            problems.extend(set.err().unwrap_or_default());
        }
        problems.into_result(())?;
        ledger.set_other_tenants_ceiling(self.quotas.others);
        Ok(())
    }

    /// What its ledger is made from; a node that does not own the bytes of its pages zeroes none.
    pub(crate) fn ledger(&self, owns_bytes: bool, reclaim_window: Duration) -> LedgerConfig {
        let isolation = if owns_bytes { Isolation::Scrub } else { Isolation::Shared };
        LedgerConfig { isolation, reclaim_window, ..LedgerConfig::new(self.capacity) }
    }
}

/// What a waiter is told: a grant with the node as it was right after, or why not.
pub(crate) type Answer = Result<(Granted, proto::Capacity), Refusal>;

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    pub(crate) queue: WaitQueue,
    /// Who is told what comes of a wait.
    pub(crate) waiting: BTreeMap<Ticket, oneshot::Sender<Answer>>,
    pub(crate) pace: Pace,
    /// Leases that are on their way to the caller they were granted to: see [`handover`](crate::handover).
    pub(crate) undelivered: BTreeSet<LeaseId>,
    pub(crate) stopping: bool,
    pub(crate) pool: PoolBytes,
    /// Where all of its bytes lie, where that is one node.
    pub(crate) numa_node: Option<u32>,
    /// How much it knew of the past when it began.
    pub(crate) start: Start,
    /// Until then leases may be in use that this node does not know: it grants nothing, and takes renewals and releases.
    pub(crate) learning_until: Option<Moment>,
    /// Room for the journal's records of one decision.
    records: Vec<u8>,
}

/// Where the pool's bytes stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolBytes {
    /// There, or an engine's own.
    Ready,
    Making,
    /// An engine has them, and the service, restarted, does not yet.
    Elsewhere,
    /// They cannot be had.
    Failed,
}

/// Everything a scrape or an operator wants at a glance.
#[derive(Debug)]
pub(crate) struct Overview {
    pub(crate) capacity: proto::Capacity,
    pub(crate) leases: [(&'static str, u64); 3],
    pub(crate) waiters: usize,
}

/// The node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) config: NodeConfig,
    pub(crate) clock: MachineClock,
    pub(crate) addresses: Vec<String>,
    pub(crate) watches: AtomicUsize,
    pub(crate) sessions: Sessions,
    pub(crate) history: History,
    journal: Option<Journal>,
    hosting: Option<Hosting>,
    /// Tells this run of this node from every other.
    life: u64,
    epoch: Epoch,
    state: Mutex<State>,
    /// The ledger's sequence after the last change, for watchers.
    changes: watch::Sender<u64>,
    /// Why the node grants nothing, for health.
    standing: watch::Sender<Standing>,
    counters: Counters,
}

/// Whether the node grants, and if not why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Granting,
    Draining,
    Stopping,
    /// Leases of an earlier start may be in use, and nobody here knows which.
    Learning,
    /// The pool's bytes are being made.
    Making,
    /// An engine has them.
    Elsewhere,
    /// They cannot be had.
    Failed,
    /// The ledger found a fault in itself.
    Faulted,
    /// A decision failed half-way, and no other is made.
    Broken,
}

impl Standing {
    /// All of them.
    pub(crate) const ALL: [Self; 9] = [
        Self::Granting,
        Self::Draining,
        Self::Stopping,
        Self::Learning,
        Self::Making,
        Self::Elsewhere,
        Self::Failed,
        Self::Faulted,
        Self::Broken,
    ];

    /// Its name in metrics and logs.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Granting => "granting",
            Self::Draining => "draining",
            Self::Stopping => "stopping",
            Self::Learning => "learning",
            Self::Making => "making",
            Self::Elsewhere => "elsewhere",
            Self::Failed => "failed",
            Self::Faulted => "faulted",
            Self::Broken => "broken",
        }
    }
}

impl Node {
    /// A node in which everything is free, and of which nothing is kept.
    ///
    /// # Errors
    /// Figures that the ledger cannot keep books of, tenant policies that contradict each other.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn new(
        config: NodeConfig,
        clock: MachineClock,
        epoch: Epoch,
        addresses: Vec<String>,
        hosting: Option<Hosting>,
    ) -> Result<Self, Problems> {
        let settings = config.ledger(hosting.is_some(), hisparse_core::limits::RECLAIM_WINDOW);
        Self::begun(config, clock, Beginning::unkept(settings, epoch)?, addresses, hosting)
    }

    /// A node that begins so.
    ///
    /// # Errors
    /// Tenant policies that contradict each other; a journal that cannot be written.
    pub(crate) fn begun(
        config: NodeConfig,
        clock: MachineClock,
        beginning: Beginning,
        addresses: Vec<String>,
        hosting: Option<Hosting>,
    ) -> Result<Self, Problems> {
        let Beginning { mut ledger, start, remembered, journal } = beginning;
        let epoch = ledger.epoch();
        config.set_quotas(&mut ledger)?;
        let journal = journal.map(|path| Journal::begin(&path, &ledger.image(), &remembered)).transpose()?;
        if journal.is_some() {
            ledger.keep_log();
        }
        let sessions = Sessions::of_the_past(&remembered);
        let learning_until = (start == Start::Unknown).then(|| clock.now().saturating_add(config.learning));
        let state = State {
            ledger,
            queue: WaitQueue::new(),
            waiting: BTreeMap::new(),
            pace: Pace::default(),
            undelivered: BTreeSet::new(),
            stopping: false,
            pool: if hosting.is_some() { PoolBytes::Making } else { PoolBytes::Ready },
            numa_node: None,
            start,
            learning_until,
            records: Vec::new(),
        };
        let standing = state.standing();
        let swap_in = SwapIn::new(hosting.as_ref().map_or(0, Hosting::layer_groups));
        let counters = Counters::new(swap_in, config.exemplars.then(|| Exemplars::new(clock)));
        Ok(Self {
            config,
            clock,
            addresses,
            watches: AtomicUsize::new(0),
            sessions,
            history: History::default(),
            journal,
            hosting,
            life: MachineEntropy.next_u64(),
            epoch,
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
            standing: watch::Sender::new(standing),
            counters,
        })
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A number that no other run of any node has.
    pub(crate) const fn life(&self) -> u64 {
        self.life
    }

    pub(crate) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Told of every change of the ledger.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Told when the node begins or ceases to grant.
    pub(crate) fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// How it stands now.
    pub(crate) fn stands(&self) -> Standing {
        if self.state.is_poisoned() { Standing::Broken } else { *self.standing.borrow() }
    }

    /// Why only a new start helps; `None` while that is not so.
    pub(crate) fn not_alive(&self) -> Option<Cow<'static, str>> {
        self.not_ready().filter(|_| self.stands() == Standing::Broken)
    }

    /// Why the node grants nothing; `None` while it does.
    pub(crate) fn not_ready(&self) -> Option<Cow<'static, str>> {
        match self.stands() {
            Standing::Broken => Some("a decision failed half-way: restart the service".into()),
            Standing::Granting => None,
            Standing::Draining => Some("draining".into()),
            Standing::Stopping => Some("stopping".into()),
            Standing::Learning => {
                Some("recovering: what an earlier start granted is unknown, and has yet to end".into())
            }
            Standing::Faulted => Some("the ledger found a fault in itself: dump it, then restart the service".into()),
            Standing::Making => Some(format!("making the host pool: {}", self.progress()).into()),
            Standing::Elsewhere => {
                Some("waiting for the engine that has the pool to hand it back; stop that engine to begin anew".into())
            }
            Standing::Failed => Some("the host pool could not be made: see the service's log".into()),
        }
    }

    /// The pool's bytes, where the node owns them.
    pub(crate) const fn hosting(&self) -> Option<&Hosting> {
        self.hosting.as_ref()
    }

    /// The pool's bytes are there, or cannot be had.
    pub(crate) fn pool_settled(&self, pool: PoolBytes, numa_node: Option<u32>) {
        // A poisoned node stays unready whatever its bytes are.
        let _ = self.decide(None, |state, _| (state.pool, state.numa_node) = (pool, numa_node));
    }

    /// What an operator should know of it: of the pool's pages, and of a journal that is not written any more.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = self.hosting().and_then(Hosting::made).map(|made| made.notes.clone()).unwrap_or_default();
        notes.extend(self.journal.as_ref().and_then(Journal::lost));
        notes
    }

    /// Writes of the journal that failed.
    pub(crate) fn journal_failures(&self) -> u64 {
        self.journal.as_ref().map_or(0, Journal::failures)
    }

    /// How far the pool's bytes are, in words.
    fn progress(&self) -> String {
        let shown = |bytes| show_size(Bytes::new(bytes));
        let progress = self.hosting.as_ref().map(Hosting::progress);
        progress.map_or_else(String::new, |now| format!("{} of {}", shown(now.made_bytes), shown(now.total_bytes)))
    }

    /// Pages to zero, at most so many, where there are some.
    pub(crate) fn next_scrub(&self, most: u32) -> Option<ScrubJob> {
        // Not a decision: it changes no count, and must not wake itself.
        self.lock().ok()?.ledger.next_scrub(most)
    }

    /// Begins to scrub up to `most` pages that nobody has asked for, unless some are being scrubbed.
    pub(crate) fn scrub_ahead(&self, most: u32) {
        // Looked at first, so that a node without stale pages decides nothing over and over.
        let wanted = self.lock().is_ok_and(|state| {
            let pages = state.ledger.pages();
            pages.counts().scrubbing == 0 && pages.stale() > 0
        });
        if wanted {
            // A poisoned node has no use for clean pages.
            let _ = self.decide(None, |state, _| state.ledger.scrub_ahead(most));
        }
    }

    /// Makes one decision. `deadline`: after it, nothing is touched.
    ///
    /// # Errors
    /// [`Refusal::Deadline`], [`Refusal::Poisoned`].
    pub(crate) fn decide<T>(
        &self,
        deadline: Option<Moment>,
        decision: impl FnOnce(&mut State, Moment) -> T,
    ) -> Result<T, Refusal> {
        let mut state = self.lock()?;
        let now = self.clock.now();
        if deadline.is_some_and(|deadline| now > deadline) {
            return Err(Refusal::Deadline);
        }
        let (before, outlook) = (state.ledger.sequence(), state.outlook());
        if state.learning_until.is_some_and(|until| until <= now) {
            state.learning_until = None;
        }
        state.ledger.advance(now);
        let decided = decision(&mut state, now);
        state.serve_queue(now, &self.clock);
        if state.ledger.sequence() == before && state.outlook() != outlook {
            state.ledger.note_change();
        }
        let after = state.ledger.sequence();
        let standing = state.standing();
        let scrub = state.ledger.pages().counts().scrubbing > 0;
        let losses = state.ledger.take_losses();
        self.hand_to_journal(&mut state);
        drop(state);
        self.flush_journal();
        if !losses.is_empty() {
            self.sessions.tell(&losses);
        }
        if let (true, Some(hosting)) = (scrub, &self.hosting) {
            hosting.wake();
        }
        meeting::point();
        if after != before {
            self.changes.send_if_modified(|last| {
                let newer = after > *last;
                *last = after.max(*last);
                newer
            });
        }
        meeting::point();
        self.standing.send_if_modified(|last| std::mem::replace(last, standing) != standing);
        Ok(decided)
    }

    /// The records of a decision, in the order of the decisions: the state's lock is held.
    fn hand_to_journal(&self, state: &mut State) {
        if let Some(journal) = &self.journal {
            let State { ledger, records, .. } = state;
            ledger.take_log(records);
            journal.append(records);
        }
    }

    fn flush_journal(&self) {
        if let Some(journal) = &self.journal {
            journal.flush();
        }
    }

    /// Remembers something beside the ledger.
    pub(crate) fn remember(&self, note: &Note) {
        if let Some(journal) = &self.journal {
            journal.note(note);
            journal.flush();
        }
    }

    /// Returns when every decision made so far is written down: a waiter is told of its grant within the decision.
    pub(crate) fn settled(&self) {
        if self.journal.is_some() {
            drop(self.lock());
            self.flush_journal();
        }
    }

    /// The pool that the leases were on is gone: everything is free. Returns how many leases that ended.
    pub(crate) fn begin_anew(&self) -> u64 {
        let ended = self.decide(None, |state, _| {
            let counts = state.ledger.lease_counts();
            state.ledger.begin_anew(&mut MachineEntropy);
            // They were possible when the node began.
            let _set = self.config.set_quotas(&mut state.ledger);
            if let Some(journal) = &self.journal {
                state.ledger.take_log(&mut state.records);
                state.records.clear();
                let epoch = self.epoch.get();
                journal
                    .restart(&state.ledger.image(), &Remembered { epoch, boot: this_boot(), ..Remembered::default() });
            }
            state.start = Start::New;
            counts.reserved + counts.committed + counts.quarantined
        });
        self.sessions.forget();
        // A poisoned node has said what is wrong with it.
        ended.unwrap_or_default()
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>, Refusal> {
        meeting::lock(&self.state).map_err(|_| Refusal::Poisoned)
    }

    /// Starts or ends draining; the leases still held.
    pub(crate) fn drain(&self, resume: bool, deadline: Moment) -> Result<(u64, proto::Capacity), Refusal> {
        self.decide(Some(deadline), |state, now| {
            state.ledger.set_draining(!resume);
            let counts = state.ledger.lease_counts();
            (counts.reserved + counts.committed + counts.quarantined, state.capacity(now, &self.clock))
        })
    }

    /// Grants nothing from now on and sends everyone away who waits: the server is stopping.
    pub(crate) fn stop(&self) {
        if let Some(hosting) = &self.hosting {
            hosting.stop();
        }
        // A poisoned node has nothing left to stop.
        let _ = self.decide(None, |state, _| {
            state.stopping = true;
            for (ticket, answer) in std::mem::take(&mut state.waiting) {
                state.queue.cancel(ticket);
                // A waiter that is gone needs no answer.
                let _ = answer.send(Err(Refusal::Stopping));
            }
        });
    }

    /// The node at a glance.
    pub(crate) fn overview(&self) -> Result<Overview, Refusal> {
        self.decide(None, |state, now| {
            let counts = state.ledger.lease_counts();
            Overview {
                capacity: state.capacity(now, &self.clock),
                leases: [
                    ("reserved", counts.reserved),
                    ("committed", counts.committed),
                    ("quarantined", counts.quarantined),
                ],
                waiters: state.queue.len(),
            }
        })
    }

    /// Ends leases when their time comes, for ever. Every call does the same first, so this only bounds how late it is
    /// done on a node that nobody calls.
    pub(crate) async fn keep_time(self: Arc<Self>) {
        loop {
            if self.journal.as_ref().is_some_and(Journal::is_overlong) {
                let node = Arc::clone(&self);
                // Ends by itself; what it could not do is tried again later.
                drop(tokio::task::spawn_blocking(move || node.journal.as_ref().map(Journal::compact)));
            }
            let Ok(rest) = self.decide(None, |state, now| {
                let ends = [state.ledger.next_deadline(), state.queue.next_deadline()];
                let next = ends.into_iter().flatten().min();
                next.map_or(LONGEST_REST, |end| end.saturating_since(now)).clamp(SHORTEST_REST, LONGEST_REST)
            }) else {
                // Nobody decides any more, so nobody else would tell.
                self.standing.send_replace(Standing::Broken);
                return;
            };
            tokio::time::sleep(rest).await;
        }
    }

    /// These leases reached their callers. No decision: nothing changes for anybody else.
    pub(crate) fn delivered(&self, leases: &[LeaseId]) {
        // A poisoned node keeps no such notes any more.
        if let Ok(mut state) = self.lock() {
            for id in leases {
                state.undelivered.remove(id);
            }
        }
    }

    /// These leases will not reach the caller they were granted to.
    pub(crate) fn take_back(&self, leases: &[LeaseId]) {
        // A poisoned node grants nothing more, so nothing is kept from anyone.
        let _ = self.decide(None, |state, now| leases.iter().for_each(|id| state.take_back(*id, now)));
    }

    /// Hands the next slice of what `dead` left on to `successor`, while it lives, and gives what that one holds of the
    /// slice; `None` at the end.
    ///
    /// # Errors
    /// [`Refusal::NotAttached`]: the successor has gone too; [`Refusal::Deadline`], [`Refusal::Poisoned`].
    pub(crate) fn reclaim_in_part(
        &self,
        dead: SessionId,
        successor: SessionId,
        walk: &mut Walk,
        deadline: Option<Moment>,
    ) -> Result<Option<Vec<Lease>>, Refusal> {
        self.decide(deadline, |state, now| {
            self.sessions.commit_by(successor)?;
            Ok(state.ledger.reclaim_in_part(dead, successor, walk, now))
        })?
    }

    /// What a listing finds. Others decide between its looks.
    ///
    /// # Errors
    /// [`Refusal::Deadline`], [`Refusal::Poisoned`].
    pub(crate) async fn list(&self, mut listing: Listing, deadline: Moment) -> Result<Vec<Lease>, Refusal> {
        while self.decide(Some(deadline), |state, _| listing.look(&state.ledger))? {
            listing.sift();
            tokio::task::yield_now().await;
        }
        Ok(listing.leases())
    }

    /// One more watch, if there is room.
    pub(crate) fn enter_watch(self: &Arc<Self>, most: usize) -> Option<WatchPlace> {
        let entered = self
            .watches
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |watches| (watches < most).then_some(watches + 1));
        entered.is_ok().then(|| WatchPlace(Arc::clone(self)))
    }
}

/// A place among the watches; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct WatchPlace(Arc<Node>);

impl Drop for WatchPlace {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

impl State {
    /// The node now, as the wire shows it.
    pub(crate) fn capacity(&self, now: Moment, clock: &MachineClock) -> proto::Capacity {
        self.seen(None, &[]).map(|seen| wire::capacity(&seen, self.numa_node, clock.wall(now))).unwrap_or_default()
    }

    /// The node now, as a tenant finds it that asks for something: who waits is ahead of it, and where nothing is granted
    /// nothing fits.
    ///
    /// # Errors
    /// Lengths that no node could hold.
    pub(crate) fn seen(&self, tenant: Option<&str>, lengths: &[u64]) -> Result<ledger::Capacity, Problems> {
        let mut seen = self.queue.capacity(&self.ledger, tenant, lengths)?;
        if let Err(closed) = self.grants_at_all() {
            seen.largest_grant_tokens = 0;
            for fit in &mut seen.fits {
                (fit.count, fit.reason) = (0, closed.reason());
            }
        }
        Ok(seen)
    }

    /// What decides over a newcomer beside the books: whether anything is granted, and who waits ahead of it. A stop is
    /// not in it: watches end with it and need no last message.
    fn outlook(&self) -> (PoolBytes, bool, Option<Ticket>) {
        (self.pool, self.learning_until.is_some(), self.queue.head())
    }

    /// A refusal of the ledger as callers are told it: what time may mend comes with a delay and the node as it is.
    pub(crate) fn refused(&self, refusal: ledger::Refusal, now: Moment, clock: &MachineClock) -> Refusal {
        if !refusal.passes_with_time() {
            return Refusal::Ledger(refusal);
        }
        let waiting = self.queue.len();
        let capacity = Box::new(self.capacity(now, clock));
        Refusal::Busy { refusal, waiting, retry: self.pace.retry_delay(waiting), capacity }
    }

    /// Nothing is granted while the server stops, nor before the pool's bytes are there.
    pub(crate) fn grants_at_all(&self) -> Result<(), Refusal> {
        match self.pool {
            _ if self.stopping => Err(Refusal::Stopping),
            _ if self.learning_until.is_some() => Err(Refusal::Learning),
            PoolBytes::Ready => Ok(()),
            PoolBytes::Making | PoolBytes::Elsewhere | PoolBytes::Failed => Err(Refusal::NoPoolYet),
        }
    }

    /// Grants to those who wait what there is for them, and tells them.
    fn serve_queue(&mut self, now: Moment, clock: &MachineClock) {
        if self.queue.is_empty() {
            return;
        }
        for served in self.queue.serve(&mut self.ledger, now) {
            let Some(waiter) = self.waiting.remove(&served.ticket) else { continue };
            let (answer, id) = match served.outcome {
                Ok(granted) => {
                    let id = granted.lease.id.inspect(|id| self.note_taker(*id, granted.repeated));
                    (Ok((granted, self.capacity(now, clock))), id)
                }
                Err(refusal) => (Err(self.refused(refusal, now, clock)), None),
            };
            if waiter.send(answer).is_err()
                && let Some(id) = id
            {
                self.take_back(id, now);
            }
        }
    }

    /// A lease got a taker: one that it is on its way to, or (`repeated`) another that asked for it again, after which
    /// it is no longer the first one's to give back.
    pub(crate) fn note_taker(&mut self, id: LeaseId, repeated: bool) {
        if repeated {
            self.undelivered.remove(&id);
        } else {
            self.undelivered.insert(id);
        }
    }

    /// The caller went away without its lease: nobody has ever seen it, so it is free at once.
    pub(crate) fn take_back(&mut self, id: LeaseId, now: Moment) {
        if self.undelivered.remove(&id) {
            // The only refusal there is names another tenant, and no tenant is named here.
            let _ = self.ledger.release(id, None, None, now);
        }
    }

    fn standing(&self) -> Standing {
        if self.stopping {
            Standing::Stopping
        } else if self.ledger.fault().is_some() {
            Standing::Faulted
        } else if self.pool == PoolBytes::Making {
            Standing::Making
        } else if self.pool == PoolBytes::Elsewhere {
            Standing::Elsewhere
        } else if self.pool == PoolBytes::Failed {
            Standing::Failed
        } else if self.learning_until.is_some() {
            Standing::Learning
        } else if self.ledger.is_draining() {
            Standing::Draining
        } else {
            Standing::Granting
        }
    }
}
