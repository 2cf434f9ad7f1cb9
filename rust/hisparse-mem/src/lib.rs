//! The bytes of a host-backed KV node: what this machine allows, and (in time) the shared memory itself.
//!
//! ```text
//!  /proc, /sys ──► meminfo  cgroup  numa  hugepage  memlock  shm      discovery: it never fails,
//!                     │       │      │       │        │       │       what is not known says why
//!                     └───────┴──┬───┴───────┘        │       │
//!                             headroom ◄──────────────┼───────┘       how large a pool is safe here
//!                                └───────► machine ◄──┘               everything above, for `doctor`
//! ```

pub mod cgroup;
pub mod finding;
pub mod headroom;
pub mod hugepage;
pub mod machine;
pub mod meminfo;
pub mod memlock;
pub mod numa;
pub mod root;
pub mod shm;
