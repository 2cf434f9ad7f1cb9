//! The control plane of a node: gRPC `hisparse.v1` in threads of its own.
//!
//! ```text
//!  server ──► listen ──► accept ──► connection ──► layers ──► services ──► node ──► hisparse_core::ledger
//!    │          tls       access, peer                          │           │
//!    ├─ shutdown, epoch                       └─ wire     └─ admit, pace, metrics ──► http, log
//!    └─ memory ──► hisparse_mem (the pool's bytes, its attach socket) ──► sessions ──► node
//!  codec: bytes and messages    error: the one place where a refusal becomes a status    env: the one place that reads the clock
//!  meeting: locks and points where threads meet, which a model test tries in every order
//! ```
//! No Python in here, and no lock that is held while waiting: see `node`.

mod accept;
mod access;
mod admin;
mod admission;
mod admit;
mod beginning;
mod budget;
mod capacity;
mod codec;
mod connection;
mod door;
mod engine;
mod env;
mod epoch;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handover;
mod history;
mod history_keeper;
mod http;
mod journal;
mod layers;
mod listen;
mod load_report;
mod log;
mod look;
mod meeting;
mod memory;
mod metrics;
#[cfg(test)]
mod model;
mod node;
mod notices;
mod overview;
mod pace;
mod page;
mod peer;
mod plain;
mod pool_bytes;
mod probe;
pub mod proto;
mod quotas;
mod remembered;
mod role;
mod server;
mod services;
mod serving_file;
mod sessions;
mod shutdown;
mod tls;
mod trace;
mod watch;
mod wire;

pub use access::Access;
pub use layers::ServeLimits;
pub use log::LogTo;
pub use memory::{MemoryConfig, attach_beside};
pub use node::NodeConfig;
pub use quotas::{QuotaSetting, Quotas};
pub use role::Role;
pub use server::{Config, Running, Server};
pub use tls::TlsFiles;
