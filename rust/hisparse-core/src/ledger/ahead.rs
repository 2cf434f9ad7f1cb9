//! What a request that waits leaves to those who come after it.
//!
//! ```text
//!   pool          ├── what the head waits for ──┤── left beside it ──┤── kept for the newcomer's own tenant ──┤
//!                        lacked: nothing is left                              is the newcomer's in any case
//! ```
//! A newcomer that stays within what is left in every pool overtakes nobody: the head is as near to its own as before.

use super::core::Ledger;
use super::pools::{Amounts, Pool};
use super::refusal::Refusal;
use super::request::AdmitRequest;
use crate::pages::TenantIndex;

/// A request that waits, as those who come after it meet it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    tenant: Option<TenantIndex>,
    pub(super) awaited: Amounts,
    /// The pool that it waits for.
    pub(super) waits_for: Pool,
    /// Whether all it waits for is that pages are zeroed.
    pub(super) lacks_only_zeroes: bool,
}

impl Ledger {
    /// What a request takes where no page of it is shared; `None` for one that is malformed.
    fn demand_of(&self, request: &AdmitRequest) -> Option<Amounts> {
        let tokens = request.checked_tokens(self.config.capacity.page_tokens).ok()?;
        Some(self.config.capacity.demand(tokens))
    }

    /// This request as one that waits because of `refusal`; `None` where it is not a pool that it waits for.
    pub(super) fn as_head(&self, waiting: &AdmitRequest, refusal: &Refusal) -> Option<Head> {
        let Refusal::PoolBusy { pool, .. } = *refusal else { return None };
        Some(Head {
            tenant: self.tenants.find(waiting.tenant_name()),
            awaited: self.demand_of(waiting)?,
            waits_for: pool,
            lacks_only_zeroes: self.lacks_only_zeroes(waiting.tenant_name(), refusal),
        })
    }

    /// What requests of this tenant may take of each pool, one after another, that leaves `head` as near to its own as
    /// it is: every pool that `head` lacks is taken from what is kept for the tenant, and of every other there is enough
    /// for both.
    pub(super) fn beside(&self, tenant: Option<TenantIndex>, head: &Head) -> Amounts {
        let lacked = |pool: Pool| self.available(pool, head.tenant) < head.awaited[pool];
        let mut most = Amounts::ZERO;
        if tenant == head.tenant || !Pool::ALL.into_iter().any(lacked) {
            return most;
        }
        for pool in Pool::ALL {
            let left = self.available(pool, head.tenant).saturating_sub(head.awaited[pool].max(1));
            most[pool] = self.tenants.unused_floor(tenant, pool).saturating_add(left);
        }
        most
    }

    /// Whether a grant of `request` takes nothing that `head` waits for.
    pub(super) fn takes_nothing_from(&self, request: &AdmitRequest, head: &Head) -> bool {
        let most = self.beside(self.tenants.find(request.tenant_name()), head);
        self.demand_of(request).is_some_and(|asked| asked.iter().all(|(pool, asked)| asked <= most[pool]))
    }
}
