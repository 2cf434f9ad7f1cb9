//! Pages of the host pool: contiguous runs for the kernel, prefixes for sharing, zeroes between tenants.
//!
//! ```text
//!  ledger ──► PagePool ──► FreeSpace (extents, boundary tags) ──► Bins (best fit by length)
//!                 └──────► PrefixIndex (hash → page) ──► Runs (holders, LRU)
//! ```

mod bins;
mod content;
mod extent;
mod free_space;
mod isolation;
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

pub use content::PageHash;
pub(crate) use content::TenantIndex;
pub use extent::{Extent, Extents};
pub use isolation::Isolation;
pub(crate) use pool::Standing;
pub use pool::{Hits, PageCounts, PagePool, ScrubJob};
