//! Where threads of this crate meet: its locks, and what one of them sees of another.
//!
//! ```text
//!  production    lock ─► std          point ─► nothing       spawn, rest ─► tokio
//!  model test    lock ─► a choice     point ─► a choice      spawn, rest ─► tasks of the model's scheduler
//! ```
//! A choice: the scheduler may let any other task go on. What runs in a model is the code of production, not a copy of
//! it; between two choices a task runs alone, so each of them stands before something that another task can see.

pub(crate) use at_work::{lock, point, rest, rest_until, spawn};

#[cfg(not(test))]
mod at_work {
    use std::sync::{LockResult, Mutex, MutexGuard};
    use std::time::Duration;

    /// As [`Mutex::lock`].
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> LockResult<MutexGuard<'_, T>> {
        mutex.lock()
    }

    /// Another thread may see what comes next.
    pub(crate) const fn point() {}

    /// Runs it beside the caller.
    pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
        drop(tokio::spawn(work));
    }

    /// Rests for so long.
    pub(crate) async fn rest(time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Rests until then; for ever where that is beyond the clock.
    pub(crate) async fn rest_until(instant: Option<tokio::time::Instant>) {
        match instant {
            Some(instant) => tokio::time::sleep_until(instant).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod at_work {
    use std::sync::{LockResult, Mutex, MutexGuard, TryLockError};
    use std::time::Duration;

    use crate::model::{choice, in_model};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> LockResult<MutexGuard<'_, T>> {
        if !in_model() {
            return mutex.lock();
        }
        choice();
        loop {
            match mutex.try_lock() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Err(poisoned),
                Err(TryLockError::WouldBlock) => shuttle::thread::yield_now(),
            }
        }
    }

    pub(crate) fn point() {
        if in_model() {
            choice();
        }
    }

    pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
        if in_model() {
            drop(shuttle::future::spawn(work));
        } else {
            drop(tokio::spawn(work));
        }
    }

    /// A model has no time: a rest is over whenever the scheduler says so.
    pub(crate) async fn rest(time: Duration) {
        if in_model() {
            shuttle::future::yield_now().await;
        } else {
            tokio::time::sleep(time).await;
        }
    }

    pub(crate) async fn rest_until(instant: Option<tokio::time::Instant>) {
        match instant {
            // What is waited for comes by another task, or never: the model shows which.
            _ if in_model() => std::future::pending().await,
            Some(instant) => tokio::time::sleep_until(instant).await,
            None => std::future::pending().await,
        }
    }
}
