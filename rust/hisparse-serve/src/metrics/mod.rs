//! Metrics, and the [page](page()) that shows them: gauges read from the ledger at scrape time, [`counters`] kept.
//!
//! ```text
//!  ledger ──snapshot──► hisparse_pages, _seats, _leases, _epoch …      cannot drift: there is no second copy
//!  Admit, gates ──────► hisparse_admit_total, _admit_seconds, _turned_away_total
//!  engines ───────────► hisparse_swap_in_rows_total{layer_group, result}, _swap_in_bytes_total, …
//! ```
//! Every label has a fixed set of values; no tenant, no request id, nothing a caller writes.

mod counters;
mod exposition;
mod page;
mod swap_in;

pub(crate) use counters::{Admitted, Counters, Exemplars, Gate, OUTCOMES};
pub(crate) use exposition::Dialect;
pub(crate) use page::page;
pub(crate) use swap_in::SwapIn;
