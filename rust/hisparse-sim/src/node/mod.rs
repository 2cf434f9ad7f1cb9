//! The node under test, as the rest of the simulation sees it: one input at a time, at a time it is told.
//!
//! ```text
//!  input ──► decide ──► answer to this call, answers to those who waited
//!                └────► seen: what GetCapacity and ListLeases would show now
//! ```

pub(crate) mod honest;
pub(crate) mod make;
pub(crate) mod planted;

use hisparse_core::env::Moment;
use hisparse_core::ledger::{Capacity, Lease};
use hisparse_core::pages::Extent;

use crate::call::{Answer, Call, CallId, Input};

/// What an input came to.
#[derive(Debug, Default)]
pub(crate) struct Decided {
    /// The answer to the call; `None` where it waits, or where the input was no call.
    pub(crate) answer: Option<Answer>,
    /// Calls whose wait has ended, with their answers.
    pub(crate) served: Vec<(Call, Answer)>,
    /// Pages that are zeroed by now.
    pub(crate) scrubbed: Option<Extent>,
}

/// A node seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) capacity: Capacity,
    /// Live leases in order of grant.
    pub(crate) leases: Vec<Lease>,
    /// What the node says is wrong with itself.
    pub(crate) fault: Option<String>,
}

pub(crate) trait Node {
    fn decide(&mut self, input: &Input, now: Moment) -> Decided;
    fn seen(&self) -> Seen;
    /// Calls that wait for room.
    fn waiting(&self) -> Vec<CallId>;
    /// Runs of pages that are being zeroed.
    fn scrub_jobs(&self) -> usize;
}
