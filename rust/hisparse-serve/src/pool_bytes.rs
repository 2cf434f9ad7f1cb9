//! Where the pool's bytes stand: what decides whether anything is granted, and what a refusal says.

/// Where the pool's bytes stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolBytes {
    /// There, or an engine's own.
    Ready,
    Making,
    /// An engine has them, and the service, restarted, does not yet.
    Elsewhere,
    /// They cannot be had.
    Failed,
}
