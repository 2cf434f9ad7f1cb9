//! A fleet in virtual time: many nodes, many routers, and pictures that are old.
//!
//! ```text
//!   trace, seed ─► jobs ─► routers ── Admit ──► nodes: the ledger, or a count of the same pools
//!                            ▲  (core::fleet)     │ every change, `staleness` later
//!                            └────── views ◄──────┘ deaths, slow answers
//!                                        every step ─► books: over-commit, two leases of one request
//! ```
//! The routers are `hisparse_core::fleet`, step by step as the Python fleet drives them. A run is a function of its
//! [`Setup`] and trace.

mod books;
mod event;
mod job;
mod memory;
mod node;
mod report;
mod settle;
mod setup;
mod undoing;
mod watch;
mod workload;
mod world;

#[cfg(test)]
mod tests;

pub use self::memory::Kind;
pub use self::report::{Millis, Report};
pub use self::setup::{Rule, Setup};
pub use self::world::{check, simulate};
