//! Zeroing pages that change tenant, in the background.
//!
//! ```text
//!  ledger ──job──► bounded queue ──► one thread: zero every layer of the pages ──► done(job) ──► ledger: clean
//! ```
//! Pages are overwritten, never punched out of the file: under a page that a GPU has pinned, a hole leaves the two
//! looking at different memory. A full queue gives the job back, so nothing waits and no job is lost.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hisparse_core::pages::ScrubJob;

use crate::pool::HostPool;

/// Pages to be made zero, in whatever form their owner counts them.
pub trait Job: Send + 'static {
    /// The page numbers.
    fn pages(&self) -> Range<u64>;
}

impl Job for ScrubJob {
    fn pages(&self) -> Range<u64> {
        let extent = self.extent();
        u64::from(extent.start)..u64::from(extent.end())
    }
}

impl Job for Range<u64> {
    fn pages(&self) -> Range<u64> {
        self.clone()
    }
}

/// The thread that zeroes. Dropping it finishes what it was given, then ends.
pub struct Scrubber<J: Job> {
    queue: Option<SyncSender<J>>,
    worker: Option<JoinHandle<()>>,
}

impl<J: Job> fmt::Debug for Scrubber<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrubber").finish_non_exhaustive()
    }
}

impl<J: Job> Scrubber<J> {
    /// Starts it over `pool`, with room for `depth` jobs; `done` gets each job back when its pages are zero, and the
    /// time that took.
    ///
    /// # Errors
    /// Where no thread can be started.
    #[allow(clippy::disallowed_methods)] // how long zeroing took on this machine, for whoever paces it
    pub fn start(
        pool: Arc<HostPool>,
        depth: usize,
        mut done: impl FnMut(J, Duration) + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, jobs) = sync_channel::<J>(depth);
        let worker = std::thread::Builder::new().name("hisparse-scrub".into()).spawn(move || {
            for job in jobs {
                let begun = Instant::now();
                pool.zero_pages(job.pages());
                done(job, begun.elapsed());
            }
        })?;
        Ok(Self { queue: Some(queue), worker: Some(worker) })
    }

    /// Hands a job in.
    ///
    /// # Errors
    /// The job itself, where the queue is full: try again when one is done.
    pub fn submit(&self, job: J) -> Result<(), J> {
        let Some(queue) = &self.queue else { return Err(job) };
        queue.try_send(job).map_err(|error| match error {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    }
}

impl<J: Job> Drop for Scrubber<J> {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(worker) = self.worker.take() {
            // A panic in `done` was reported where it happened.
            let _panicked = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    use hisparse_core::layout::pool::Content;

    use crate::pool::small_pool;
    use crate::rows::PoolMemory;

    #[test]
    fn pages_come_back_zero_and_their_neighbours_keep_their_rows() {
        let pool = Arc::new(small_pool(8));
        for page in 0..8 {
            pool.write_row(Content::Main, 0, page, 1, &[9; 656]).unwrap();
        }
        let (done, finished) = channel();
        let scrubber =
            Scrubber::start(Arc::clone(&pool), 4, move |job: Range<u64>, _| done.send(job).unwrap()).unwrap();
        scrubber.submit(2..5).unwrap();
        assert_eq!(finished.recv().unwrap(), 2..5);
        assert!(pool.pages_are_zero(2..5));
        assert!(!pool.pages_are_zero(1..2) && !pool.pages_are_zero(5..6));
    }

    #[test]
    fn a_full_queue_gives_the_job_back_and_dropping_finishes_the_rest() {
        let pool = Arc::new(small_pool(2));
        let (go, wait) = channel::<()>();
        let (done, finished) = channel();
        let scrubber = Scrubber::start(pool, 1, move |job: Range<u64>, _| {
            let _released = wait.recv();
            done.send(job).unwrap();
        })
        .unwrap();
        let mut taken = 0;
        let refused = loop {
            match scrubber.submit(0..1) {
                Ok(()) => taken += 1,
                Err(job) => break job,
            }
            assert!(taken < 3, "one in hand and one waiting are all there is room for");
        };
        assert_eq!(refused, 0..1);
        drop(go);
        drop(scrubber);
        assert_eq!(finished.iter().count(), taken, "no job is lost");
    }
}
