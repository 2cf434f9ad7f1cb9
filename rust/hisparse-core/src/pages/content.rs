//! Whose content a page has, and which.

use crate::limits::PAGE_HASH_BYTES;

/// Keyed content hash of one full page and all pages before it.
pub type PageHash = [u8; PAGE_HASH_BYTES];

/// Number of a tenant; the ledger keeps their names.
pub(crate) type TenantIndex = u16;

/// Who last used a free page: 0 for nobody since it was zeroed.
pub(super) type Kind = u16;

/// The clean pages' kind.
pub(super) const CLEAN: Kind = 0;
