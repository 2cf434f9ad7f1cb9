//! Pages that change tenant are zeroed: those that somebody waits for at once, the others while there is nothing else.
//!
//! ```text
//!  decision leaves pages to scrub ──wake──► job ─► scrubber ─► zero ─► scrubbed ──wake──► next job
//!  nothing to scrub, stale pages ──► a few of them ─► the same way ─► rest seven times as long ─► the next few
//! ```

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use hisparse_core::error::{Problem, Problems};
use hisparse_core::limits::{SCRUB_AHEAD_PAGES, SCRUB_AHEAD_SHARE};
use hisparse_core::pages::ScrubJob;
use hisparse_mem::pool::HostPool;
use hisparse_mem::scrub::Scrubber;

use super::hosting::Hosting;
use crate::node::Node;

/// Pages of one scrub job: some 50 MB of a large model, so that a stop waits a few milliseconds for it.
const SCRUB_JOB_PAGES: u32 = 16;
/// Time between two looks whether there are stale pages.
const AHEAD_LOOK: Duration = Duration::from_millis(50);
/// Shortest rest between two steps of scrubbing ahead.
const SHORTEST_AHEAD_REST: Duration = Duration::from_millis(1);
/// Jobs that wait for the scrubber beside the one in its hands.
const SCRUB_QUEUE: usize = 1;

/// Begins to keep the pages clean.
///
/// # Errors
/// No thread can be started.
pub(super) fn start_scrubber(node: &Arc<Node>, pool: Arc<HostPool>) -> Result<Scrubber<ScrubJob>, Problems> {
    let cleaned = Arc::clone(node);
    let scrubber = Scrubber::start(pool, SCRUB_QUEUE, move |job, took| {
        // A poisoned node grants nothing any more, clean or not.
        let _ = cleaned.decide(None, |state, _| state.ledger.scrubbed(job));
        if let Some(hosting) = cleaned.hosting() {
            hosting.scrubbed_in(took);
        }
    });
    scrubber.map_err(|error| {
        Problems::one(Problem::new("threads", SCRUB_QUEUE, error.to_string(), "raise the limit of processes"))
    })
}

/// Hands the scrubber what there is to scrub, until the end: what somebody waits for at once, and while there is nothing
/// of that, stale pages ahead of the one who will ask, a few at a time with long rests.
#[allow(clippy::disallowed_methods)] // it paces a thread, and decides nothing
pub(super) fn scrub(node: &Node, hosting: &Hosting, scrubber: &Scrubber<ScrubJob>, wakes: &Receiver<()>) {
    let mut held = None;
    let mut next_ahead = Instant::now();
    loop {
        let rest = next_ahead.saturating_duration_since(Instant::now()).clamp(SHORTEST_AHEAD_REST, AHEAD_LOOK);
        let woken = wakes.recv_timeout(rest);
        if woken == Err(RecvTimeoutError::Disconnected) || hosting.stopping() {
            return;
        }
        if held.is_none() && next_ahead <= Instant::now() {
            node.scrub_ahead(SCRUB_AHEAD_PAGES);
            next_ahead = Instant::now() + AHEAD_LOOK; // sooner, once it is known how long it took
        }
        if let Some(took) = hosting.last_scrub() {
            next_ahead = Instant::now() + took * (SCRUB_AHEAD_SHARE - 1);
        }
        while let Some(job) = held.take().or_else(|| node.next_scrub(SCRUB_JOB_PAGES)) {
            if let Err(job) = scrubber.submit(job) {
                // The end of the job in hand wakes us again.
                held = Some(job);
                break;
            }
        }
    }
}
