//! The bytes of a host-backed KV node: what this machine allows, and the shared memory itself.
//!
//! ```text
//!  /proc, /sys ──► meminfo  cgroup  numa  hugepage  memlock  shm      discovery: it never fails,
//!                     │       │      │       │        │       │       what is not known says why
//!                     └───────┴──┬───┴───────┘        │       │
//!                             headroom ◄──────────────┼───────┘       how large a pool is safe here
//!                                └───────► machine ◄──┘               everything above, for `doctor`
//!
//!  memfd, state_dir ──► map ──► bind, populate ──► segment            a file, finished before it is handed out
//!                        └──► view                 │                  the only way to its bytes
//!                             pin (cuts)           └──► pool ◄── scrub   all segments of one engine group
//!                                                     attach                a pool's descriptors, to its engine's ranks
//!  whole_file, beside                                                       small files, replaced whole or not at all
//! ```
//! This is the only crate with `unsafe`, but for the buffers that the Python binding hands out; each block says why it is needed and why it is sound.

pub mod attach;
pub mod backing;
pub mod beside;
pub mod bind;
pub mod cgroup;
pub mod finding;
pub mod headroom;
pub mod hugepage;
pub mod machine;
pub mod map;
pub mod memfd;
pub mod meminfo;
pub mod memlock;
pub mod numa;
pub mod pin;
pub mod pool;
pub mod populate;
pub mod report;
pub mod rlimit;
pub mod root;
pub mod rows;
pub mod scrub;
pub mod segment;
pub mod session_lock;
pub mod shm;
pub mod state_dir;
pub mod view;
pub mod whole_file;
