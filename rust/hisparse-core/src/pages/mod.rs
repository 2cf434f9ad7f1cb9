//! Pages of the host pool: contiguous runs for the kernel, prefixes for sharing, zeroes between tenants.
//!
//! ```text
//!  ledger ──► PagePool ──► FreeSpace (extents, boundary tags) ──► Bins (best fit by length)
//!                 └──────► PrefixIndex (hash → page) ──► Runs (holders, LRU)
//! ```

mod bins;
mod extent;
mod free_space;
#[cfg(test)]
mod page_by_page;
mod pool;
mod prefix;
#[cfg(test)]
mod prefix_compared;
#[cfg(test)]
mod reference;
mod runs;
pub(crate) mod seeded;
mod starts;

pub use extent::{Extent, Extents};
pub(crate) use pool::Standing;
pub use pool::{Hits, Isolation, PageCounts, PagePool, ScrubJob};
pub use prefix::PageHash;
pub(crate) use prefix::TenantIndex;
