//! Pages by number: who has them, whose bytes are in them, and who still moves them.
//!
//! ```text
//!  own pages      of one lease, and nobody's before
//!  shared pages   published under the same hash by the same tenant
//!  bytes          of the last tenant, until the page was zeroed
//!  transfers      a page under one is granted to nobody else
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hisparse_core::ledger::{Lease, LeaseId};

use super::{Auditor, Checked, Step, ensure};
use crate::call::{Answer, Ask, Input};

impl Auditor {
    pub(super) fn check_pages(&mut self, step: &Step<'_>, is: &BTreeMap<LeaseId, &Lease>) -> Checked {
        self.note_published(step, is);
        let held_before: BTreeSet<u32> = self.leases.values().flat_map(|lease| lease.extents.page_numbers()).collect();
        if let Some(zeroed) = step.decided.scrubbed {
            for page in zeroed.start..zeroed.end() {
                ensure(!held_before.contains(&page), "no page is zeroed in use", || format!("page {page}"))?;
                self.pages.bytes_of.remove(&page);
                self.pages.published.remove(&page);
            }
        }
        self.pages.transfers.retain(|transfer| transfer.until_us > step.at_us);
        for (id, lease) in is {
            let old = self.leases.get(id).map_or(0, |was| was.extents.pages());
            if lease.extents.pages() > old {
                self.taken(*id, lease, usize::try_from(old).unwrap_or(0), step, &held_before, is)?;
            }
        }
        self.one_owner(is)
    }

    /// Checks the pages that a lease has from its page `from` on.
    fn taken(
        &mut self,
        id: LeaseId,
        lease: &Lease,
        from: usize,
        step: &Step<'_>,
        held_before: &BTreeSet<u32>,
        is: &BTreeMap<LeaseId, &Lease>,
    ) -> Checked {
        let grants = step.grants();
        let asked = grants.iter().find(|(_, granted)| granted.lease.id == Some(id)).map(|(request, _)| *request);
        for (place, page) in lease.extents.page_numbers().enumerate().skip(from) {
            let describe = || format!("page {page}, place {place} of lease {id}: {lease:?}");
            ensure(page < self.pages.total, "pages exist", describe)?;
            if place < lease.shared_pages as usize {
                let hash = asked.and_then(|request| request.prefix_hashes.get(place).copied());
                let known = self.pages.published.get(&page);
                let same = known.is_some_and(|(tenant, seen)| *tenant == lease.tenant && Some(*seen) == hash);
                ensure(same, "a shared page holds what was asked for", || format!("{}; known {known:?}", describe()))?;
                continue;
            }
            // Within one step a page may pass from a lease that ends to one that waited.
            let still_held =
                || is.iter().any(|(other, held)| *other != id && held.extents.page_numbers().any(|p| p == page));
            ensure(!held_before.contains(&page) || !still_held(), "no page in two leases", describe)?;
            let moved =
                self.pages.transfers.iter().find(|transfer| transfer.lease != id && transfer.pages.contains(&page));
            ensure(moved.is_none(), "no grant under a transfer", || format!("{}; {moved:?}", describe()))?;
            let bytes = self.pages.bytes_of.insert(page, Arc::clone(&lease.tenant));
            let clean = bytes.as_ref().is_none_or(|of| *of == lease.tenant);
            ensure(clean || !self.isolated(), "no bytes go to another tenant", || {
                format!("{}; of {bytes:?}", describe())
            })?;
            self.pages.published.remove(&page);
        }
        Ok(())
    }

    fn note_published(&mut self, step: &Step<'_>, is: &BTreeMap<LeaseId, &Lease>) {
        let Input::Call { call, .. } = step.input else { return };
        let (Ask::Publish { lease: named, first, hashes }, Some(Answer::Published(_))) =
            (&call.ask, &step.decided.answer)
        else {
            return;
        };
        let Some(lease) = is.get(&named.id) else { return };
        let numbered = lease.extents.page_numbers().enumerate().skip(*first as usize).zip(hashes);
        for ((place, page), hash) in numbered {
            if place >= lease.shared_pages as usize {
                // The first hash a page was published under is the one it keeps.
                self.pages.published.entry(page).or_insert_with(|| (Arc::clone(&lease.tenant), *hash));
            }
        }
    }

    fn one_owner(&mut self, is: &BTreeMap<LeaseId, &Lease>) -> Checked {
        let mut owners: BTreeMap<u32, LeaseId> = BTreeMap::new();
        let mut held = BTreeSet::new();
        for (id, lease) in is {
            for (place, page) in lease.extents.page_numbers().enumerate() {
                held.insert(page);
                if place >= lease.shared_pages as usize
                    && let Some(other) = owners.insert(page, *id)
                {
                    return ensure(false, "no page in two leases", || format!("page {page} in {other} and {id}"));
                }
            }
        }
        for (id, lease) in is {
            for page in lease.extents.page_numbers().take(lease.shared_pages as usize) {
                let lent = owners.get(&page).is_none_or(|owner| owner == id || self.pages.is_published(page));
                ensure(lent, "only published pages are shared", || format!("page {page} of {id}"))?;
            }
        }
        self.pages.held = held.len() as u64;
        Ok(())
    }
}
