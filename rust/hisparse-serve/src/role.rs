//! Roles: what an access list gives to peers, what calls need, and what a refusal names.

/// What a peer is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Places requests: Admit, and everything on a lease.
    Router,
    /// Runs them: Commit, Extend, Renew, Release, `EngineService`.
    Engine,
    /// Operates the node: Drain, Dump, a look at leases.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Router, Self::Engine, Self::Admin];

    /// Its name in an access list.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Engine => "engine",
            Self::Admin => "admin",
        }
    }
}
