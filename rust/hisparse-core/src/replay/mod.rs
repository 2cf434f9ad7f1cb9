//! Plays a trace through the ledger in virtual time: how many of its requests a node would have taken.
//!
//! ```text
//!   arrival ─► wait queue ─► lease ── prompt ÷ prefill rate ──► prefix published ── output × decode time ──► release
//!                 └─ longest wait over ─► refused busy
//! ```
//! Time jumps from event to event, so an hour of trace takes a fraction of a second, and the same trace and node give
//! the same answer every time. Pages found in the prefix index are not prefilled again.

mod auditor;
mod compare;
mod outcome;
mod run;
mod trace;

pub use compare::{Comparison, Report, compare, device_only};
pub use outcome::{Outcome, PerRequest, Percentiles, Sample};
pub use run::{Replay, ReplayOptions, play};
pub use trace::{TraceRequest, parse};
