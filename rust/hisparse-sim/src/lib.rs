//! The judge. It depends on everything, and nothing depends on it but the binding, for [`fleet`].
//!
//! ```text
//!  seed ─► dice ─► faults, setup
//!                     │
//!   routers ─┐        ▼
//!   engines ─┼─ network (lost, late, twice) ─► node (a ledger behind the service's rules)
//!  watchers ─┘                                   │ every step, as seen from outside
//!                                                ▼
//!                         audit: conservation, leases, pages, answers        linear: histories of callers
//! ```
//! A run is a function of its seed: [`run`](fn@run) with the same seed gives the same [`Run`], trace and all.
#![forbid(unsafe_code)]

mod actors;
mod audit;
mod call;
mod clock;
mod dice;
pub mod faults;
pub mod fleet;
mod history;
pub mod linear;
mod node;
mod run;
mod setup;
mod watcher;
mod world;

pub use audit::Finding;
pub use node::planted::Bug;
pub use run::{Judges, Run, Summary, run};
