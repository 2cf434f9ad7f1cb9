//! The obvious prefix index that the real one is compared with: an entry per page, a look-up per hash, a step per page.
//!
//! ```text
//!  (tenant, hash) ──► seal ──► page         holders > 0: held
//!                      │                    holders = 0: warm, on the LRU list; or cold
//! ```

use std::collections::BTreeMap;

use super::content::{PageHash, TenantIndex};

/// What is known of a sealed page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seal {
    pub(super) tenant: TenantIndex,
    pub(super) hash: PageHash,
    pub(super) holders: u32,
    /// When it was let go, where nobody holds it.
    pub(super) turn: u64,
    pub(super) cold: bool,
}

#[derive(Debug, Default)]
pub(super) struct PageByPage {
    pub(super) seals: BTreeMap<u32, Seal>,
    by_hash: BTreeMap<(TenantIndex, PageHash), Vec<u32>>,
    turn: u64,
}

impl PageByPage {
    /// The pages of this prefix: one, but where a chain with a hole was sealed twice.
    pub(super) fn pages_of(&self, tenant: TenantIndex, hash: &PageHash) -> &[u32] {
        self.by_hash.get(&(tenant, *hash)).map_or(&[], Vec::as_slice)
    }

    /// Seals a page that one lease holds.
    pub(super) fn seal(&mut self, page: u32, tenant: TenantIndex, hash: &PageHash) {
        let seal = Seal { tenant, hash: *hash, holders: 1, turn: 0, cold: false };
        assert_eq!(self.seals.insert(page, seal), None, "page {page} is sealed twice");
        self.by_hash.entry((tenant, *hash)).or_default().push(page);
    }

    /// One more lease holds the page. Whether it was cold.
    pub(super) fn hold(&mut self, page: u32) -> bool {
        let seal = self.seals.get_mut(&page).expect("only sealed pages are held");
        seal.holders += 1;
        seal.turn = 0;
        std::mem::take(&mut seal.cold)
    }

    /// One lease less holds the page; the last one makes it the newest evictable page.
    pub(super) fn let_go(&mut self, page: u32) {
        let seal = self.seals.get_mut(&page).expect("only sealed pages are let go");
        seal.holders -= 1;
        if seal.holders == 0 {
            self.turn += 1;
            seal.turn = self.turn;
        }
    }

    /// Warm pages of a tenant, oldest first.
    pub(super) fn warm(&self, tenant: TenantIndex) -> Vec<u32> {
        let warm = |seal: &Seal| seal.tenant == tenant && seal.holders == 0 && !seal.cold;
        let mut pages: Vec<_> =
            self.seals.iter().filter(|(_, seal)| warm(seal)).map(|(page, seal)| (seal.turn, *page)).collect();
        pages.sort_unstable();
        pages.into_iter().map(|(_, page)| page).collect()
    }

    /// Makes the oldest warm page of a tenant cold.
    pub(super) fn chill_oldest(&mut self, tenant: TenantIndex) -> Option<u32> {
        let page = *self.warm(tenant).first()?;
        self.seals.get_mut(&page)?.cold = true;
        Some(page)
    }

    /// Forgets the seal of a cold page that has left the free space; nothing for a page without one.
    pub(super) fn forget(&mut self, page: u32) {
        let Some(seal) = self.seals.remove(&page) else { return };
        assert!(seal.cold, "page {page} is {seal:?}");
        if let Some(pages) = self.by_hash.get_mut(&(seal.tenant, seal.hash)) {
            pages.retain(|other| *other != page);
        }
    }
}
