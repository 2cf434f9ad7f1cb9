//! What a journal is told of each change of the ledger, and the whole of it at once.

use std::sync::Arc;

use super::core::Ledger;
use super::lease::LeaseId;
use super::log::Loss;
use super::record::Record;
use crate::env::Moment;
use crate::journal::{Entry, Image, KeptLease};
use crate::pages::Extent;

impl Ledger {
    /// Begins to note changes: what [`Ledger::take_log`] yields from now on, appended to a journal of
    /// [`Ledger::image`], restores this ledger.
    pub fn keep_log(&mut self) {
        self.log.records.get_or_insert_default();
    }

    /// Moves the records of all changes since it was last called to `journal`.
    pub fn take_log(&mut self, journal: &mut Vec<u8>) {
        if let Some(bytes) = &mut self.log.records {
            journal.append(bytes);
        }
    }

    /// Leases lost to their holders since it was last called, where a log is kept.
    pub fn take_losses(&mut self) -> Vec<Loss> {
        std::mem::take(&mut self.log.lost)
    }

    pub(super) fn note_loss(&mut self, lease: LeaseId, freed: bool) {
        if self.log.records.is_some() {
            self.log.lost.push(Loss { lease, freed });
        }
    }

    /// Everything that a restart must know, in time linear in the pool.
    pub fn image(&self) -> Image {
        let pages = self.pages.kept();
        let leases = self.records().map(|record| (record.id, record.kept())).collect();
        let (mut kinds, mut scrubbing) = (pages.kinds, pages.elsewhere);
        for record in self.records() {
            for extent in record.own.iter() {
                kinds[extent.start as usize..extent.end() as usize].fill(self.pages.kind_of(record.tenant));
                scrubbing[extent.start as usize..extent.end() as usize].fill(false);
            }
        }
        let about = (self.config.capacity, self.config.isolation, self.key);
        Image::of_parts(about, self.tenants.kept(), leases, pages.seals, (kinds, scrubbing))
    }

    pub(super) fn note_granted(&mut self, slot: u32) {
        let lease = self.record(slot).kept();
        self.log.note(|| Entry::Granted(Box::new(lease)));
    }

    pub(super) fn note_standing(&mut self, slot: u32) {
        let record = self.record(slot);
        let (id, state, holder, ttl) = (record.id, record.state, record.holder, record.ttl);
        self.log.note(|| Entry::Stands { id, state, holder, ttl });
    }

    /// Notes who writes to a lease's pages beside its holder.
    pub(super) fn note_fillers(&mut self, slot: u32) {
        let record = self.record(slot);
        let (id, fillers) = (record.id, record.fillers.clone());
        self.log.note(|| Entry::Filled { id, fillers });
    }

    pub(super) fn note_ended(&mut self, id: LeaseId) {
        self.log.note(|| Entry::Ended { id });
    }

    pub(super) fn note_scrubbing(&mut self, runs: &[Extent]) {
        for run in runs {
            self.log.note(|| Entry::Scrubbing(*run));
        }
    }
}

impl Record {
    /// As a journal remembers it.
    pub(super) fn kept(&self) -> KeptLease {
        KeptLease {
            id: self.id,
            tenant: self.tenant,
            request_id: self.request_id.as_ref().to_owned(),
            digest: self.digest,
            priority: self.priority,
            state: self.state,
            holder: self.holder,
            ttl: self.ttl,
            tokens: self.tokens,
            durable: self.durable,
            published: self.published,
            shared: self.shared.clone(),
            own: self.own.clone(),
            fillers: self.fillers.clone(),
        }
    }

    /// As it was kept; what the books need is counted anew by the caller.
    pub(super) fn of_kept(kept: &KeptLease, capacity: &super::NodeCapacity, sealed: u64) -> Self {
        let demand = capacity.demand(kept.tokens);
        let mut own_amounts = demand;
        own_amounts[super::Pool::HostPages] = u64::from(kept.own.pages()).saturating_sub(sealed);
        Self {
            id: kept.id,
            request_id: Arc::from(kept.request_id.as_str()),
            digest: kept.digest,
            tenant: kept.tenant,
            priority: kept.priority,
            state: kept.state,
            holder: kept.holder,
            fillers: kept.fillers.clone(),
            ttl: kept.ttl,
            ends: None,
            since: Moment::ORIGIN,
            tokens: kept.tokens,
            demand,
            own_amounts,
            shared: kept.shared.clone(),
            own: kept.own.clone(),
            published: kept.published,
            durable: kept.durable,
            tip: (0, None),
        }
    }
}
