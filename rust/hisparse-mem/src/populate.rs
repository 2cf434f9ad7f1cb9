//! Making the pages of a segment before anyone waits for them: several threads, chunk by chunk, first error wins.
//!
//! ```text
//!  ├─chunk─┼─chunk─┼─chunk─┼─…─┤     each thread takes the next chunk, makes its pages, adds to the count
//! ```
//! The kernel does it on request (`MADV_POPULATE_WRITE`, since 5.14) and says where it fails; touching a page that
//! cannot be made would kill the process instead. Older kernels get the touch, after the headroom check.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::map::{Advice, Mapping, PAGE_BYTES};

/// Bytes that one thread makes at a time: long enough to hide the call, short enough for a smooth report.
const CHUNK_BYTES: u64 = 32 << 20;

/// Who makes the pages.
#[derive(Clone, Debug)]
pub struct Workers {
    /// How many threads.
    pub threads: NonZeroUsize,
    /// CPUs they are kept on, where the memory node is chosen by first touch; empty leaves them free.
    pub cpus: Vec<usize>,
    /// Once true they give up with `ECANCELED`: a service that is told to stop does not finish a pool first.
    pub stop: Arc<AtomicBool>,
}

impl Workers {
    /// One thread per CPU this process may use, at most 16: more gain nothing in the measurements.
    pub fn of_this_machine() -> Self {
        const MOST: usize = 16;
        let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self::free(NonZeroUsize::new(cpus.min(MOST)).unwrap_or(NonZeroUsize::MIN))
    }

    /// This many threads, anywhere.
    pub fn free(threads: NonZeroUsize) -> Self {
        Self { threads, cpus: Vec::new(), stop: Arc::default() }
    }
}

/// Makes every page of `mapping`; `made` hears of each chunk's bytes, from any of the threads. Where the pages are there
/// already this process gets its way to them, which page-locking would make one after the other; on kernels that cannot
/// be asked, a mapping that is not written through is left as it is.
///
/// # Errors
/// The first failure: `ENOMEM`, `EFAULT` where a volume or the pool of huge pages ran out, `ECANCELED`. Pages made so far stay
/// until the file is closed.
pub fn populate(mapping: &Mapping, workers: &Workers, made: &(dyn Fn(u64) + Sync)) -> Result<(), Errno> {
    let total = mapping.len() as u64;
    let next = AtomicU64::new(0);
    let failed: Mutex<Option<Errno>> = Mutex::new(None);
    let work = || {
        keep_on(&workers.cpus);
        loop {
            let offset = next.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
            if offset >= total || failed.lock().map_or(true, |failed| failed.is_some()) {
                return;
            }
            let len = CHUNK_BYTES.min(total - offset);
            let stopped = workers.stop.load(Ordering::Relaxed);
            match if stopped { Err(Errno::CANCELED) } else { populate_chunk(mapping, offset, len) } {
                Ok(()) => made(len),
                Err(errno) => {
                    if let Ok(mut failed) = failed.lock() {
                        failed.get_or_insert(errno);
                    }
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..workers.threads.get() {
            scope.spawn(work);
        }
    });
    // A poisoned lock would mean that a worker panicked, and the scope has passed that on already.
    failed.into_inner().ok().flatten().map_or(Ok(()), Err)
}

fn populate_chunk(mapping: &Mapping, offset: u64, len: u64) -> Result<(), Errno> {
    if mapping.is_shared() {
        match mapping.advise(offset, len, Advice::Populate) {
            Err(Errno::INVAL | Errno::NOSYS) => {}
            done => return done,
        }
    }
    if let Some(view) = mapping.writable() {
        view.sub(offset, len).map_err(|_| Errno::INVAL)?.touch(PAGE_BYTES);
    }
    Ok(())
}

/// Keeps the calling thread on `cpus`. Where that is refused the pages may land on another node, and the segment's
/// report of its node will say so.
fn keep_on(cpus: &[usize]) {
    if cpus.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    let _refused = sched_setaffinity(None, &set);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_are_told_to_stop_make_nothing_more() {
        let mapping = Mapping::heap(PAGE_BYTES).unwrap();
        let workers = Workers::free(NonZeroUsize::MIN);
        workers.stop.store(true, Ordering::Relaxed);
        assert_eq!(populate(&mapping, &workers, &|_| panic!("nothing was made")), Err(Errno::CANCELED));
    }

    #[test]
    fn every_byte_is_reported_once_by_any_number_of_threads() {
        for threads in [1, 2, 7] {
            let mapping = Mapping::heap(if cfg!(miri) { 3 * PAGE_BYTES } else { 70 << 20 }).unwrap();
            let made = AtomicU64::new(0);
            let workers = Workers::free(NonZeroUsize::new(threads).unwrap());
            populate(&mapping, &workers, &|bytes| {
                made.fetch_add(bytes, Ordering::Relaxed);
            })
            .unwrap();
            assert_eq!(made.into_inner(), mapping.len() as u64, "{threads} threads");
        }
    }
}
