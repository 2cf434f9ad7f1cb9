//! What SGLang 0.5.23 allocates, accepts and admits with HiSparse, quirks included: pure functions, checked against its
//! own numbers.
//!
//! ```text
//!  cell, v4 ─► pools (N, N × r) ─► tables, maps, host pool ─► Plan
//!                  └─► limits (by N) · admission (by N and N × r) · buffers (grown, not reserved)
//! ```
//! `N` is the engine's device pool in tokens, `r` its `host_to_device_ratio`.

pub mod admission;
pub mod buffers;
pub mod cell;
pub mod detail;
pub mod pools;
mod profile;
mod profile_dsa;
mod profile_v4;
pub mod quirks;
pub mod tables;
pub mod v4;

use crate::budget::plan::Number;
use crate::budget::rank::Rank;
use crate::budget::request::PlanRequest;
use crate::model::Shape;

pub use detail::Detail;
pub use profile::plan;

/// The release whose behaviour this module states.
pub const VERSION: &str = "0.5.23";

/// Bytes per device token for the same model and options; `None` where the engine would not compute one.
pub fn cell_bytes(rank: &Rank<'_>, request: &PlanRequest) -> Option<Number> {
    if matches!(rank.model.shape, Shape::DeepseekV4 { .. }) {
        return v4::token_bytes(rank, &profile::v4_setting(rank, request)).map(|bytes| Number::Float(bytes.full));
    }
    u64::try_from(cell::cell(rank, request)?.with_drafts).ok().map(Number::Whole)
}
