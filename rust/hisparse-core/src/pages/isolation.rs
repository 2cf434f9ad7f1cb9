//! Whether tenants are kept from each other's bytes.

use serde::Serialize;

use super::content::{CLEAN, Kind, TenantIndex};

/// Whether pages are zeroed before another tenant gets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// A page that changes tenant is scrubbed first.
    #[default]
    Scrub,
    /// Pages go from tenant to tenant as they are: bookkeeping for engines that own their memory.
    Shared,
}

impl Isolation {
    /// What pages are in a tenant's eyes once it has used them.
    pub(super) const fn kind_of(self, tenant: TenantIndex) -> Kind {
        match self {
            Self::Scrub => tenant + 1,
            Self::Shared => CLEAN,
        }
    }
}
