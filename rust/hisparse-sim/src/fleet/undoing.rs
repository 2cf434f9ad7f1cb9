//! What a job may hold on a node, until it is certain that it holds nothing.

use hisparse_core::fleet::Settling;

use super::job::{JobId, NodeIndex};

/// One that is being settled.
#[derive(Debug)]
pub(super) struct Undoing {
    pub(super) job: JobId,
    pub(super) node: NodeIndex,
    pub(super) settling: Settling,
    /// Whether the job knows that it is safe.
    pub(super) told: bool,
}
