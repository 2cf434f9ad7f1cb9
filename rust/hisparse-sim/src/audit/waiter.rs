//! One call that waits.

use hisparse_core::env::Moment;

use crate::call::CallId;

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) call: CallId,
    /// When it came, in steps. A call that the network repeated waits once for each copy.
    pub(super) first_copy: u64,
    pub(super) last_copy: u64,
    pub(super) priority: i32,
    pub(super) until: Moment,
    /// Its tenant has a ceiling.
    pub(super) capped: bool,
}
