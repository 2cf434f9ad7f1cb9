//! Whether the node grants, and if not why.

/// Whether the node grants, and if not why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Granting,
    Draining,
    Stopping,
    /// Leases of an earlier start may be in use, and nobody here knows which.
    Learning,
    /// The pool's bytes are being made.
    Making,
    /// An engine has them.
    Elsewhere,
    /// They cannot be had.
    Failed,
    /// The ledger found a fault in itself.
    Faulted,
    /// A decision failed half-way, and no other is made.
    Broken,
}

impl Standing {
    /// All of them.
    pub(crate) const ALL: [Self; 9] = [
        Self::Granting,
        Self::Draining,
        Self::Stopping,
        Self::Learning,
        Self::Making,
        Self::Elsewhere,
        Self::Failed,
        Self::Faulted,
        Self::Broken,
    ];

    /// Its name in metrics and logs.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Granting => "granting",
            Self::Draining => "draining",
            Self::Stopping => "stopping",
            Self::Learning => "learning",
            Self::Making => "making",
            Self::Elsewhere => "elsewhere",
            Self::Failed => "failed",
            Self::Faulted => "faulted",
            Self::Broken => "broken",
        }
    }
}
