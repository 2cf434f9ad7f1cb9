//! How far the pool's bytes are: told by those who make them, asked by everyone else.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hisparse_core::error::Problems;
use hisparse_mem::pool::Progress;
use hisparse_mem::report::PoolReport;

/// How far the bytes are, for everyone who asks.
#[derive(Debug)]
pub(crate) struct Hosting {
    pub(super) made_bytes: AtomicU64,
    pub(super) total_bytes: AtomicU64,
    pub(super) outcome: Mutex<Option<Result<(), Problems>>>,
    pub(super) report: OnceLock<PoolReport>,
    pub(super) news: Condvar,
    /// Shared with the threads that make pages.
    pub(super) stop: Arc<AtomicBool>,
    pub(super) wake: SyncSender<()>,
    /// Nanoseconds that the last scrub took, until they are read; 0 for none.
    pub(super) scrub_ns: AtomicU64,
    pub(super) layer_groups: usize,
}

impl Hosting {
    /// Bytes made, and to be made.
    pub(crate) fn progress(&self) -> Progress {
        let read = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        Progress { made_bytes: read(&self.made_bytes), total_bytes: read(&self.total_bytes) }
    }

    /// Layer groups of the pool, by which engines report.
    pub(crate) const fn layer_groups(&self) -> usize {
        self.layer_groups
    }

    /// Waits until they are made or cannot be, at most so long; `None` while they are being made.
    pub(crate) fn outcome(&self, longest: Duration) -> Option<Result<(), Problems>> {
        let guard = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.news.wait_timeout_while(guard, longest, |outcome| outcome.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// What the pool became; `None` until it is made.
    pub(crate) fn made(&self) -> Option<&PoolReport> {
        self.report.get()
    }

    /// There are pages to scrub. Never waits: one call that is not yet answered stands for all that follow it.
    pub(crate) fn wake(&self) {
        let _awake = self.wake.try_send(());
    }

    pub(super) fn scrubbed_in(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.scrub_ns.store(ns, Ordering::Relaxed);
        self.wake();
    }

    /// How long the last scrub took, where one has ended since this was asked.
    pub(super) fn last_scrub(&self) -> Option<Duration> {
        let ns = self.scrub_ns.swap(0, Ordering::Relaxed);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// Nothing more is to be made.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake();
    }

    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn report(&self, progress: Progress) {
        self.total_bytes.store(progress.total_bytes, Ordering::Relaxed);
        self.made_bytes.fetch_max(progress.made_bytes, Ordering::Relaxed);
    }

    pub(super) fn settled(&self, outcome: Result<(), Problems>) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.news.notify_all();
    }
}
