//! The owner of the ledger: one mutex, one decision at a time, in an order that everyone agrees on.
//!
//! ```text
//!  call ──► lock ─► now ─► past its deadline? ─► advance time ─► decide ─► serve the queue ─► unlock ─► tell watchers
//!                                                                  (nothing in here waits, sleeps or awaits)
//! ```
//! A decision takes about a microsecond, so the lock is shorter than any hand-over to another thread would be. What it
//! guards: [`State`]. What may be called while it is held: the ledger, its queue, sending an answer to a waiter; never
//! I/O, never anything that blocks, but where the pool is gone and the journal begins anew with it
//! ([`Node::begin_anew`]): no decision may fall between the two. Room freed by a decision goes to the queue within the same lock, so the next
//! call sees both.

mod config;
mod duties;
mod grants;
mod standing;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hisparse_core::env::{Clock, Entropy, Moment};
use hisparse_core::error::Problems;
use hisparse_core::ledger::{Epoch, LeaseId, WaitQueue};
use tokio::sync::watch;

pub use self::config::NodeConfig;
pub(crate) use self::duties::{Overview, WatchPlace};
pub(crate) use self::standing::Standing;
pub(crate) use self::state::{Answer, State};
use crate::beginning::{Beginning, Start};
use crate::env::{MachineClock, MachineEntropy};
use crate::error::Refusal;
use crate::history::History;
use crate::journal::Journal;
use crate::meeting;
use crate::memory::Hosting;
use crate::metrics::{Counters, Exemplars, SwapIn};
use crate::notices::Notices;
#[cfg(any(test, feature = "fuzzing"))]
use crate::notices::Sink;
use crate::pace::Pace;
use crate::pool_bytes::PoolBytes;
use crate::remembered::{Note, Remembered, this_boot};
use crate::sessions::Sessions;

/// Time between two looks at what has ended by itself: an expiry is noticed no later than this.
const LONGEST_REST: Duration = Duration::from_millis(100);
/// And no more often than this.
const SHORTEST_REST: Duration = Duration::from_millis(10);

/// The node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) config: NodeConfig,
    pub(crate) clock: MachineClock,
    pub(crate) addresses: Vec<String>,
    pub(crate) watches: AtomicUsize,
    pub(crate) sessions: Sessions,
    pub(crate) history: History,
    /// What the operator should know.
    pub(crate) notices: Arc<Notices>,
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
        let notices = Arc::new(Notices::new(Sink::Nowhere));
        Self::begun(config, clock, Beginning::unkept(settings, epoch)?, addresses, hosting, notices)
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
        notices: Arc<Notices>,
    ) -> Result<Self, Problems> {
        let Beginning { mut ledger, start, learning, mut remembered, journal } = beginning;
        let epoch = ledger.epoch();
        config.set_quotas(&mut ledger)?;
        remembered.since_boot_ms = since_boot_ms(clock, clock.now());
        let journal = journal.map(|path| Journal::begin(&path, &ledger.image(), &remembered)).transpose()?;
        if journal.is_some() {
            ledger.keep_log();
        }
        let sessions = Sessions::of_the_past(&remembered);
        let learning_until = learning.map(|wait| clock.now().saturating_add(wait));
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
            notices,
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

    /// The pool's bytes, where the node owns them.
    pub(crate) const fn hosting(&self) -> Option<&Hosting> {
        self.hosting.as_ref()
    }

    /// The pool's bytes are there, or cannot be had.
    pub(crate) fn pool_settled(&self, pool: PoolBytes, numa_node: Option<u32>) {
        // A poisoned node stays unready whatever its bytes are.
        let _ = self.decide(None, |state, _| (state.pool, state.numa_node) = (pool, numa_node));
    }

    /// Writes of the journal that failed.
    pub(crate) fn journal_failures(&self) -> u64 {
        self.journal.as_ref().map_or(0, Journal::failures)
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
        self.hand_to_journal(&mut state, now);
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
    fn hand_to_journal(&self, state: &mut State, now: Moment) {
        if let Some(journal) = &self.journal {
            let State { ledger, records, .. } = state;
            ledger.take_log(records);
            journal.append(records, since_boot_ms(self.clock, now));
        }
    }

    fn flush_journal(&self) {
        if let Some(lost) = self.journal.as_ref().and_then(Journal::flush) {
            self.notices.of_service(lost);
        }
    }

    /// Remembers something beside the ledger.
    pub(crate) fn remember(&self, note: &Note) {
        if let Some(journal) = &self.journal {
            journal.note(note);
            self.flush_journal();
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
        let ended = self.decide(None, |state, now| {
            let counts = state.ledger.lease_counts();
            state.ledger.begin_anew(&mut MachineEntropy);
            // They were possible when the node began.
            let _set = self.config.set_quotas(&mut state.ledger);
            if let Some(journal) = &self.journal {
                state.ledger.take_log(&mut state.records);
                state.records.clear();
                let (epoch, since_boot_ms) = (self.epoch.get(), since_boot_ms(self.clock, now));
                let remembered = Remembered { epoch, boot: this_boot(), since_boot_ms, ..Remembered::default() };
                journal.restart(&state.ledger.image(), &remembered);
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
}

/// A moment as the journal tells it.
fn since_boot_ms(clock: MachineClock, moment: Moment) -> u64 {
    u64::try_from(clock.since_boot(moment).as_millis()).unwrap_or(u64::MAX)
}
