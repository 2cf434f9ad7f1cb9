//! Bookkeeping of a host-backed KV node. Nothing here touches bytes, files, threads, clocks or randomness.
//!
//! ```text
//!  config.json ──► model ──► layout ──► budget ──► ledger ──► pages
//!                    │                    │
//!                    └──► backends        └──► what `plan`, gRPC and the docs print
//! ```
//!
//! One source for each truth: every formula, bound and table of the product lives in this crate, and Python, the
//! command line, gRPC and the documentation all call it.
#![forbid(unsafe_code)]

pub mod backends;
pub mod budget;
pub mod env;
pub mod error;
pub mod fleet;
pub mod hisparse_config;
pub mod input;
pub mod invariants;
pub mod journal;
pub mod layout;
pub mod ledger;
pub mod limits;
pub mod model;
pub mod pages;
pub mod platform;
pub mod printable;
pub mod ratio;
pub mod replay;
pub mod size;
pub mod units;
pub mod validity;
mod violation;
