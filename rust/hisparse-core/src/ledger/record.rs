//! What the ledger remembers of one lease.

use std::sync::Arc;
use std::time::Duration;

use super::lease::{Epoch, Holder, Lease, LeaseId, LeaseState, SessionId};
use super::pools::{Amounts, Pool};
use crate::env::Moment;
use crate::pages::{Extents, PagePool, TenantIndex};
use crate::units::Tokens;

#[derive(Debug)]
pub(crate) struct Record {
    pub(super) id: LeaseId,
    pub(super) request_id: Arc<str>,
    /// Digest of the request's parameters.
    pub(super) digest: u64,
    pub(super) tenant: TenantIndex,
    pub(super) priority: i32,
    pub(super) state: LeaseState,
    pub(super) holder: Option<Holder>,
    /// Sessions that write to its pages beside the holder.
    pub(super) fillers: Vec<SessionId>,
    /// Life without a word from the holder; that of the current state.
    pub(super) ttl: Duration,
    pub(super) ends: Option<Moment>,
    /// When it was granted, or taken over from an earlier start.
    pub(super) since: Moment,
    pub(super) tokens: Tokens,
    /// What it holds, shared pages included: what its tenant is charged.
    pub(super) demand: Amounts,
    /// What it holds for itself: what the books carry.
    pub(super) own_amounts: Amounts,
    pub(super) shared: Extents,
    pub(super) own: Extents,
    /// Whether any of its own pages was published.
    pub(super) published: bool,
    /// Pages from the first on that are durable in host memory.
    pub(super) durable: u32,
    /// How far its chain was published last, and the page that stands for its last place: another lease's where that one
    /// was first.
    pub(super) tip: (u32, Option<u32>),
}

impl Record {
    /// The page that was last known to stand for the place before this one of its chain.
    pub(super) fn place_before(&self, place: u32) -> Option<u32> {
        match self.tip {
            (tip, Some(page)) if tip == place => Some(page),
            _ => {
                let (before, shared) = (place.checked_sub(1)?, self.shared.pages());
                before.checked_sub(shared).map_or_else(|| self.shared.page_at(before), |own| self.own.page_at(own))
            }
        }
    }

    pub(super) fn view(&self, epoch: Epoch, tenant: &Arc<str>) -> Lease {
        let mut extents = self.shared.clone();
        extents.append(&self.own);
        let shared_pages = self.shared.pages();
        Lease {
            id: Some(self.id),
            request_id: Arc::clone(&self.request_id),
            tenant: Arc::clone(tenant),
            state: self.state,
            epoch,
            priority: self.priority,
            tokens: self.tokens,
            pages: shared_pages + self.own.pages(),
            shared_pages,
            durable_pages: self.durable,
            extents,
            expires_at: self.ends,
        }
    }
}

/// What the invariants look at.
impl Record {
    pub(crate) fn own_pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.own.page_numbers()
    }

    pub(crate) fn shared_pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.shared.page_numbers()
    }

    pub(crate) fn own_amount(&self, pool: Pool) -> u64 {
        self.own_amounts[pool]
    }

    /// Whether its lists of pages have the lengths its amounts say.
    pub(crate) fn pages_match_amounts(&self, pages: &PagePool) -> bool {
        let sealed = self.own_pages().filter(|page| pages.is_sealed(*page)).count() as u64;
        let own = u64::from(self.own.pages());
        self.own_amounts[Pool::HostPages] + sealed == own
            && own + u64::from(self.shared.pages()) == self.demand[Pool::HostPages]
            && (self.published || sealed == 0)
    }
}
