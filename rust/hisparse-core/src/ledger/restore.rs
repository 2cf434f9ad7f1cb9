//! A ledger from what a journal adds up to: the same leases on the same pages, in a new epoch.
//!
//! ```text
//!  Image ─► figures fit? ─► every page in one state? holders counted? ─► books, tenants, pages ─► conservation ─► Ledger
//!              └─ no: NotRestored, which says what does not add up
//! ```
//! Time starts anew: a lease that ends by itself gets its whole life again, since no lease may end before it was
//! promised. What nobody could have kept alive meanwhile, a session's lease, waits for its engine:
//! [`Ledger::await_sessions`].

use std::collections::BTreeSet;

use super::core::{Ledger, LedgerConfig};
use super::lease::{Epoch, Holder, LeaseState};
use super::pools::Pool;
use super::record::Record;
use crate::env::{Entropy, Moment};
use crate::error::Problems;
use crate::journal::{Image, KeptLease};
use crate::pages::seeded::Seeded;
use crate::violation::Violation;

/// Why a journal is not a ledger.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NotRestored {
    /// The figures of this node are out of range.
    #[error("{0}")]
    Figures(Problems),
    /// It was written by a node of other figures.
    #[error("it was written for a node of other figures")]
    OtherNode,
    /// It contradicts itself.
    #[error("it does not add up: {0}")]
    DoesNotAddUp(String),
    /// The ledger that it describes breaks a rule.
    #[error("it does not add up: {0}")]
    Broken(Violation),
}

fn wrong<T>(detail: String) -> Result<T, NotRestored> {
    Err(NotRestored::DoesNotAddUp(detail))
}

impl Ledger {
    /// The ledger that `image` describes, under `epoch`: its leases carry that epoch, and keep their names.
    ///
    /// # Errors
    /// [`NotRestored`]; whatever it is, the journal is of no use to this node.
    pub fn restore(
        config: LedgerConfig,
        image: &Image,
        epoch: Epoch,
        now: Moment,
        entropy: &mut dyn Entropy,
    ) -> Result<Self, NotRestored> {
        if config.capacity != image.capacity || config.isolation != image.isolation {
            return Err(NotRestored::OtherNode);
        }
        let mut ledger = Self::new(config, epoch, entropy).map_err(NotRestored::Figures)?;
        check_owners(image)?;
        ledger.set_key(image.key);
        for tenant in &image.tenants {
            if !ledger.tenants.restore(&tenant.name, tenant.salt) {
                return wrong(format!("two tenants are called {:?}", tenant.name));
            }
        }
        let private = image.leases.values().map(|lease| u64::from(lease.own.pages()) - sealed_of(image, lease)).sum();
        ledger.pages.restore(image, private);
        // The newest first: of two leases with one request id, the newer one answers to it.
        for kept in image.leases.values().rev() {
            let mut record = Record::of_kept(kept, &config.capacity, sealed_of(image, kept));
            check_lease(&record, epoch)?;
            let life = match (kept.state, kept.holder) {
                (LeaseState::Quarantined, _) => Some(config.reclaim_window.max(config.quarantine_bound)),
                (_, Some(Holder::Session(_))) => None,
                _ => Some(kept.ttl),
            };
            record.ends = life.map(|life| now.saturating_add(life));
            record.since = now;
            let answers = kept.state != LeaseState::Quarantined;
            ledger.insert_restored(record, answers);
        }
        ledger.settle();
        match ledger.fault.take() {
            Some(violation) => Err(NotRestored::Broken(violation)),
            None => Ok(ledger),
        }
    }

    /// After a restart: the leases of every session are kept until its engine comes back, or a successor reclaims them,
    /// or the reclaim window is over. Returns how many there are.
    pub fn await_sessions(&mut self, now: Moment) -> usize {
        let held = |record: &Record| match (record.state, record.holder) {
            (LeaseState::Committed, Some(Holder::Session(session))) => Some(session),
            _ => None,
        };
        let sessions: BTreeSet<_> = self.records().filter_map(held).collect();
        sessions.into_iter().map(|session| self.session_lost(session, now)).sum()
    }

    /// Everything is free from now on: the pages that the leases were on are gone. Tenants and their policies go too.
    pub fn begin_anew(&mut self, entropy: &mut dyn Entropy) {
        // Its own figures were possible when it was made.
        if let Ok(fresh) = Self::new(self.config, self.epoch, entropy) {
            let (sequence, serial, log) = (self.sequence, self.next_serial, std::mem::take(&mut self.log));
            *self = fresh;
            (self.sequence, self.next_serial, self.log) = (sequence, serial, log);
            self.settle();
        }
    }

    pub(super) fn set_key(&mut self, key: crate::journal::NodeKey) {
        self.key = key;
        self.hasher = Seeded::of_key([key[0], key[1]]);
        self.salt_seed = Seeded::of_key([key[2], key[3]]);
    }
}

fn sealed_of(image: &Image, lease: &KeptLease) -> u64 {
    if !lease.published {
        return 0;
    }
    lease.own.page_numbers().filter(|page| image.seals.contains(*page)).count() as u64
}

/// Every page is in one state, and shared pages have as many holders as hold them. The tables were filled within their
/// bounds by `Image::apply`.
fn check_owners(image: &Image) -> Result<(), NotRestored> {
    let mut taken = image.scrubbing.clone();
    let mut holders = vec![0_u32; image.kinds.len()];
    for (page, _) in image.seals.iter() {
        if std::mem::replace(&mut taken[page as usize], true) {
            return wrong(format!("page {page} is sealed while it is zeroed"));
        }
    }
    for lease in image.leases.values() {
        for page in lease.shared.page_numbers() {
            holders[page as usize] += 1;
        }
        for page in lease.own.page_numbers() {
            if lease.published && image.seals.contains(page) {
                holders[page as usize] += 1;
            } else if std::mem::replace(&mut taken[page as usize], true) {
                return wrong(format!("page {page} of lease {} is another's too", lease.id));
            }
        }
    }
    for (page, seal) in image.seals.iter() {
        let counted = holders[page as usize];
        if seal.holders != counted {
            return wrong(format!("page {page} has {} holders, and {counted} leases hold it", seal.holders));
        }
    }
    Ok(())
}

fn check_lease(record: &Record, epoch: Epoch) -> Result<(), NotRestored> {
    let id = record.id;
    if id.parts().0 >= epoch.get() {
        return wrong(format!("lease {id} is not older than epoch {epoch}"));
    }
    let pages = u64::from(record.own.pages()) + u64::from(record.shared.pages());
    if pages != record.demand[Pool::HostPages] {
        return wrong(format!("lease {id} of {} tokens has {pages} pages", record.tokens));
    }
    if u64::from(record.durable) > pages {
        return wrong(format!("lease {id} of {pages} pages has {} durable ones", record.durable));
    }
    match (record.state, record.holder) {
        (LeaseState::Reserved, Some(_)) | (LeaseState::Committed, None) => {
            wrong(format!("lease {id} is {:?} and held by {:?}", record.state, record.holder))
        }
        _ => Ok(()),
    }
}
