//! The ledger: who holds how much of a node, decided in one place and one step at a time.
//!
//! ```text
//!   Admit ─► request (length rule) ─► decide: every pool, quota, floor ─► lease ─► books, tenants, PagePool
//!   time  ─► deadlines ─► quarantine ─► free                              │
//!   wait  ─► waiting (FIFO by priority, retried when capacity frees)      └─► sequence + 1, conservation checked
//! ```
//! Pure: the caller hands in the time ([`Moment`](crate::env::Moment)) with every call, and randomness once, when the
//! ledger is made. One ledger is used by one thread at a time; a decision is atomic because nothing else runs.

mod admit;
mod ahead;
mod books;
mod capacity;
mod changes;
mod core;
mod deadlines;
mod endings;
mod filling;
mod lease;
mod log;
mod of_plan;
mod pools;
mod record;
mod refusal;
mod remembering;
mod request;
mod restore;
mod salt;
mod survey;
mod tenants;
mod waiting;
mod walk;

pub use self::admit::Granted;
pub use self::books::PoolState;
pub use self::capacity::{Capacity, Fit, Quota};
pub use self::changes::{CommitBy, Released};
pub use self::core::{LeaseCounts, Ledger, LedgerConfig};
pub use self::lease::{Epoch, Holder, Lease, LeaseId, LeaseState, SessionId};
pub use self::log::Loss;
pub use self::pools::{Amounts, NodeCapacity, Pool, WindowCapacity};
pub use self::refusal::{Limit, Refusal};
pub use self::request::{AdmitRequest, DEFAULT_TENANT, Length, tenant_or_default};
pub use self::restore::NotRestored;
pub use self::salt::TenantSalt;
pub use self::survey::{Glance, PageMap, Survey};
pub use self::tenants::TenantPolicy;
pub use self::waiting::{Offer, Served, Ticket, WaitQueue};
pub use self::walk::{Listing, Walk};
