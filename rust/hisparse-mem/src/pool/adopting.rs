//! Taking over the segments of a pool that outlived its service: the very files that are remembered, or none.

use std::os::fd::{AsFd, OwnedFd};

use hisparse_core::layout::pool::PoolLayout;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::HostPool;
use crate::backing::Backing;
use crate::memfd::Identity;
use crate::segment::{Segment, SegmentError};

/// A segment as a journal remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSegment {
    /// What the kernel knows it by.
    pub identity: Identity,
    /// What its pages are.
    pub backing: Backing,
}

/// Why segments were not taken over.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// Not as many as there were.
    #[error("{found} segments were found of {wanted}")]
    Count {
        /// How many there were.
        wanted: usize,
        /// How many there are.
        found: usize,
    },
    /// One is another file than it was.
    #[error("segment {index} is not the file that it was")]
    Other {
        /// Which.
        index: usize,
    },
    /// One cannot be mapped.
    #[error(transparent)]
    Segment(#[from] SegmentError),
}

impl HostPool {
    /// Takes over the segments of a pool that outlived its service, if they are the ones that are remembered.
    ///
    /// # Errors
    /// [`AdoptError`]; the files are left as they are.
    pub fn adopt(
        layout: PoolLayout,
        remembered: &[KeptSegment],
        files: &[OwnedFd],
        lock: bool,
    ) -> Result<Self, AdoptError> {
        if files.len() != remembered.len() || layout.segment_bytes().len() != files.len() {
            return Err(AdoptError::Count { wanted: remembered.len(), found: files.len() });
        }
        let mut segments = Vec::with_capacity(files.len());
        for (index, ((kept, file), bytes)) in remembered.iter().zip(files).zip(layout.segment_bytes()).enumerate() {
            let found = Identity::of(file.as_fd()).map_err(|_| AdoptError::Other { index })?;
            if found != kept.identity || found.size_bytes < *bytes {
                return Err(AdoptError::Other { index });
            }
            segments.push(Segment::adopt(file.as_fd(), kept.backing, lock)?);
        }
        Ok(Self { layout, segments, declined: Vec::new() })
    }

    /// What its segments are known by after a restart.
    ///
    /// # Errors
    /// As [`Segment::identity`].
    pub fn kept(&self) -> Result<Vec<KeptSegment>, Errno> {
        let kept = |segment: &Segment| Ok(KeptSegment { identity: segment.identity()?, backing: segment.backing() });
        self.segments.iter().map(kept).collect()
    }
}
