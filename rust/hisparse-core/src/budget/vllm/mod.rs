//! What vLLM 0.33.0 allocates, accepts and admits with HiSparse on: pure functions, checked against its own numbers.
//!
//! ```text
//!  hisparse_config ─► config ─► hot rows ─► shared_memory        (may the resolver run at all?)
//!                                 │
//!  layers that index / reuse ─► groups ─► one GPU block ─► pool ─► concurrency   (two figures, both named)
//!                                            │              └──► registration    (pinned host ranges)
//!                                            └──► calculator ─► published table
//!
//!  profile: all of it for one model and request, as the one plan type, with quirks as warnings
//! ```
//! A *block* is vLLM's word for a page of one cache group. All GPU groups (indexer, resident, hot) lease blocks of
//! one size from one pool, so the largest group sets what every block costs.

pub mod allocation;
mod baseline;
pub mod cache;
pub mod calculator;
pub mod concurrency;
pub mod config;
pub mod connector;
pub mod detail;
pub mod groups;
pub mod pool;
pub mod profile;
pub mod published;
pub mod quirks;
pub mod registration;
mod scope;
pub mod shared_memory;

use std::fmt;

pub use profile::profile;

use crate::error::{Problem, Problems};

/// The release whose behaviour this module states.
pub const VERSION: &str = "0.33.0";

/// Pages at the end of a request that vLLM never gives up, per resident group.
pub const ACTIVE_TAIL_PAGES: u64 = 2;

/// Tokens a request may have in flight while it is admitted. vLLM derives it from `max_num_batched_tokens`; this is
/// the value its figures here were recorded with.
pub const DEFAULT_IN_FLIGHT_TOKENS: u64 = 16_384;

/// Bytes in a GiB, as the double that vLLM and its calculator compute with.
pub(crate) const GIB: f64 = 1_073_741_824.0;

/// The result of checked arithmetic, or the problem that `field` makes it overflow.
fn counted<T>(field: &str, value: impl fmt::Display, result: Option<T>) -> Result<T, Problems> {
    result.ok_or_else(|| {
        Problems::one(Problem::new(
            field,
            value,
            "the bytes it leads to do not fit in 64 bits",
            "give a smaller number",
        ))
    })
}

/// A count as the double that the engine divides. Counts here stay far below 2^53, above which Python and this could
/// round differently.
#[allow(clippy::cast_precision_loss)] // see above
pub(crate) fn to_f64(count: u64) -> f64 {
    count as f64
}

/// `floor` of a double as a count: 0 below zero and for NaN, saturating above `u64::MAX`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturation is the documented meaning
pub(crate) fn floor_to_count(value: f64) -> u64 {
    value.floor() as u64
}
