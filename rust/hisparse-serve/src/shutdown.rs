//! Ending: asked for by a caller or a signal, gentle for a grace, hard after it.
//!
//! ```text
//!  running ──stop, SIGTERM, SIGINT──► stopping: nothing new is granted, waiters go, GOAWAY, calls finish
//!                                        │ all done, or the grace is over, or asked again
//!                                        ▼
//!                                     stopped: sockets removed, threads joined
//! ```
//! A server may hang on one idle stream for an hour (a known fault of graceful stops), hence the hard end.

use std::io;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How hard a stop is asked for; each is stronger than those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ask {
    /// Go on.
    Run,
    /// Stop, and let calls finish for so long.
    Gently(Duration),
    /// Stop at once.
    Now,
}

/// Where stops are asked for.
#[derive(Debug)]
pub(crate) struct StopSwitch(watch::Sender<Ask>);

impl StopSwitch {
    pub(crate) fn new() -> (Self, watch::Receiver<Ask>) {
        let (sender, receiver) = watch::channel(Ask::Run);
        (Self(sender), receiver)
    }

    /// The first ask is gentle, a second one is not.
    pub(crate) fn ask(&self, grace: Duration) {
        self.0.send_modify(|ask| *ask = if *ask == Ask::Run { Ask::Gently(grace) } else { Ask::Now });
    }
}

/// The two signals that mean stop.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes both signals over from here on, within a runtime.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(crate) fn take_over() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Passes every signal on to the switch, for ever.
    pub(crate) async fn forward(mut self, switch: &StopSwitch, grace: Duration) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
            switch.ask(grace);
        }
    }
}

/// Whether the server has ended, for threads that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    ended: Mutex<bool>,
    news: Condvar,
}

impl Ended {
    /// Says so.
    pub(crate) fn set(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.news.notify_all();
    }

    /// Waits for it, at most so long (`None`: for ever); whether it has ended.
    pub(crate) fn wait(&self, longest: Option<Duration>) -> bool {
        let guard = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        match longest {
            None => *self.news.wait_while(guard, |ended| !*ended).unwrap_or_else(PoisonError::into_inner),
            Some(longest) => {
                let waited = self.news.wait_timeout_while(guard, longest, |ended| !*ended);
                *waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}
