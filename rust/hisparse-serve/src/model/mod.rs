//! Model tests of what threads do to each other: the code of production, in every order that a scheduler comes to.
//!
//! ```text
//!   task A   lock ── point ── lock ──┐
//!   task B   lock ── point ──────────┼─► one at a time; which goes on at each is the scheduler's choice
//!   task C   await ──────────────────┘       │
//!                                            └─► 200 runs in `cargo test`, HISPARSE_MODEL_RUNS of them in `make check-deep`
//! ```
//! Half of the runs choose at random, half give the tasks priorities and change them at three points, which finds races
//! that need few changes soonest. A run in which nobody can go on fails: that is how a lost wake-up shows. Each model
//! comes with a planted race of its own kind, which has to be found. A failure prints the schedule that replays it.

mod handover;
mod queue;
mod sessions;
mod watch;

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hisparse_core::ledger::{AdmitRequest, Epoch, LeaseCounts, LeaseId, Length, NodeCapacity};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};

use crate::env::MachineClock;
use crate::layers::deadline::{CallTime, call_time};
use crate::node::{Node, NodeConfig};

/// Runs of one model in `cargo test`.
const RUNS: usize = 200;
/// Runs in which a planted race has to show.
const RUNS_TO_FIND: usize = 4_000;
/// Points at which priorities change.
const CHANGES: usize = 3;
/// Of one task: the default of 32 KiB is too little for unoptimised futures.
const STACK_BYTES: usize = 256 << 10;
const SEED: u64 = 6;

thread_local! {
    static IN_MODEL: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a model. All tasks of a model share one thread.
pub(crate) fn in_model() -> bool {
    IN_MODEL.get()
}

/// Any task may go on from here.
pub(crate) fn choice() {
    shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
}

/// Runs the model in many orders.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let runs = std::env::var("HISPARSE_MODEL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    let model = Arc::new(model);
    run(RandomScheduler::new_from_seed(SEED, runs / 2), FailurePersistence::Print, &model);
    run(PctScheduler::new_from_seed(SEED, CHANGES, runs / 2), FailurePersistence::Print, &model);
}

/// Whether some order makes the model fail.
fn fails(model: impl Fn() + Send + Sync + 'static) -> bool {
    let model = Arc::new(model);
    let found = std::panic::catch_unwind(AssertUnwindSafe(|| {
        run(RandomScheduler::new_from_seed(SEED, RUNS_TO_FIND), FailurePersistence::None, &model);
    }));
    found.is_err()
}

fn run(
    scheduler: impl Scheduler + 'static,
    failures: FailurePersistence,
    model: &Arc<impl Fn() + Send + Sync + 'static>,
) {
    struct Ended;
    impl Drop for Ended {
        fn drop(&mut self) {
            IN_MODEL.set(false);
        }
    }
    // Timers are made and never fire: a model has no time.
    let timers = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = timers.enter();
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.failure_persistence = failures;
    let model = Arc::clone(model);
    IN_MODEL.set(true);
    let _ended = Ended;
    Runner::new(scheduler, config).run(move || model());
}

/// A node of so many pages, of which nothing is kept.
fn node(pages: u64) -> Arc<Node> {
    let config = NodeConfig::of_capacity("model", NodeCapacity::of_host_pages(pages, 16));
    Arc::new(Node::new(config, MachineClock::start(), Epoch::FIRST, Vec::new(), None).unwrap())
}

fn asking(request_id: &str, pages: u64) -> AdmitRequest {
    AdmitRequest { request_id: request_id.into(), length: Length::Pages(pages), ..AdmitRequest::new("", 0, 0) }
}

/// A call that has just come.
fn now() -> CallTime {
    call_time(&tonic::Request::new(()))
}

fn all_end(tasks: impl IntoIterator<Item = shuttle::thread::JoinHandle<()>>) {
    for task in tasks {
        task.join().unwrap();
    }
}

fn release(node: &Node, lease: LeaseId) {
    node.decide(None, |state, now| state.ledger.release(lease, None, None, now)).unwrap().unwrap();
}

/// Nobody waits, nothing is on its way, the books add up; these leases are there.
fn assert_settled(node: &Node, leases: LeaseCounts) {
    node.decide(None, |state, _| {
        state.ledger.audit().unwrap();
        assert_eq!(state.ledger.lease_counts(), leases);
        assert_eq!((state.queue.len(), state.waiting.len(), state.undelivered.len()), (0, 0, 0));
    })
    .unwrap();
}
