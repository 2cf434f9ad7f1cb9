//! What keeps tenants' hashes apart.

/// What a tenant hashes its pages with, so that hashes of equal prompts differ between tenants.
pub type TenantSalt = [u64; 4];
