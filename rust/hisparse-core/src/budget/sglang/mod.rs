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

pub use cell::cell_bytes;
pub use detail::Detail;
pub use profile::plan;

/// The release whose behaviour this module states.
pub const VERSION: &str = "0.5.23";
