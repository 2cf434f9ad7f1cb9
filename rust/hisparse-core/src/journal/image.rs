//! The state that a journal adds up to: plain tables, changed by one entry at a time.
//!
//! ```text
//!  leases   id → lease               kinds      page → whose bytes it holds
//!  seals    page → hash, holders     scrubbing  page → being zeroed
//!  tenants  number → name, salt
//! ```
//! What an entry says is checked against the tables before it changes them, so that a journal of another pool, or one
//! with a hole in it, is found out and not half believed. [`Ledger::restore`](crate::ledger::Ledger::restore) then
//! checks the sum of it all.

use std::collections::BTreeMap;

use super::entry::{Entry, KeptLease, NodeKey};
use super::hashed::HashedRun;
use super::seals::{KeptSeal, Seals};
use crate::ledger::{LeaseId, LeaseState, NodeCapacity, TenantSalt};
use crate::limits::MAX_TENANTS;
use crate::pages::{Extent, Extents, Isolation};

/// An entry that cannot follow those before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Inconsistent(String);

fn broken<T>(rule: impl Into<String>) -> Result<T, Inconsistent> {
    Err(Inconsistent(rule.into()))
}

/// A tenant, by its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptTenant {
    pub(crate) name: String,
    pub(crate) salt: TenantSalt,
}

/// See the module's picture.
#[derive(Clone, Debug)]
pub struct Image {
    pub(crate) capacity: NodeCapacity,
    pub(crate) isolation: Isolation,
    pub(crate) key: NodeKey,
    pub(crate) tenants: Vec<KeptTenant>,
    pub(crate) leases: BTreeMap<LeaseId, KeptLease>,
    pub(crate) seals: Seals,
    /// Whose bytes a page holds: a tenant's number + 1, or 0.
    pub(crate) kinds: Vec<u16>,
    pub(crate) scrubbing: Vec<bool>,
    turn: u64,
}

impl Image {
    /// The state before any change, from a journal's first entry.
    ///
    /// # Errors
    /// Where the entry says nothing of a node, or of one that cannot be.
    pub fn begin(first: &Entry) -> Result<Self, Inconsistent> {
        let Entry::Node { capacity, isolation, key } = first else { return broken("it does not begin with a node") };
        let Ok(pages) = capacity.checked_pages() else { return broken("its node has impossible figures") };
        Ok(Self {
            capacity: *capacity,
            isolation: *isolation,
            key: *key,
            tenants: Vec::new(),
            leases: BTreeMap::new(),
            seals: Seals::new(pages as usize),
            kinds: vec![0; pages as usize],
            scrubbing: vec![false; pages as usize],
            turn: 0,
        })
    }

    /// What the node holds.
    pub const fn capacity(&self) -> &NodeCapacity {
        &self.capacity
    }

    /// Whether pages are zeroed between tenants.
    pub const fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// How many leases live.
    pub fn leases(&self) -> usize {
        self.leases.len()
    }

    /// One more change.
    ///
    /// # Errors
    /// [`Inconsistent`]; the image is then of no use.
    pub fn apply(&mut self, entry: &Entry) -> Result<(), Inconsistent> {
        match entry {
            Entry::Node { .. } => broken("it begins twice"),
            Entry::Note(_) => Ok(()),
            Entry::Tenant { index, name, salt } => self.tenant(*index, name, *salt),
            Entry::Left { run, kind } => {
                if usize::from(*kind) > self.tenants.len() {
                    return broken(format!("pages were left by tenant {kind}, of whom nothing is known"));
                }
                self.marked(*run, *kind)
            }
            Entry::Cached { tenant, run } => {
                let last = self.turn + run.hashes.len() as u64;
                let turns = (self.turn + 1..=last).rev();
                self.turn = last;
                run.pages(*tenant)
                    .zip(turns)
                    .try_for_each(|((page, seal), turn)| self.seal(page, KeptSeal { turn, ..seal }))
            }
            Entry::Granted(lease) => self.granted(lease),
            Entry::Extended { id, tokens, added } => {
                let lease = self.lease(*id)?;
                lease.tokens = *tokens;
                lease.own.append(added);
                let tenant = lease.tenant;
                self.claim(added, tenant)
            }
            Entry::Stands { id, state, holder, ttl } => {
                if *state == LeaseState::Released {
                    return broken(format!("lease {id} stands released"));
                }
                let lease = self.lease(*id)?;
                (lease.state, lease.holder, lease.ttl) = (*state, *holder, *ttl);
                Ok(())
            }
            Entry::Filled { id, fillers } => {
                self.lease(*id)?.fillers.clone_from(fillers);
                Ok(())
            }
            Entry::Sealed { id, runs } => {
                let lease = self.lease(*id)?;
                lease.published = true;
                let tenant = lease.tenant;
                let mut pages = runs.iter().flat_map(|run| run.pages(tenant));
                pages.try_for_each(|(page, seal)| self.seal(page, KeptSeal { holders: 1, ..seal }))
            }
            Entry::Durable { id, pages } => {
                self.lease(*id)?.durable = *pages;
                Ok(())
            }
            Entry::Ended { id } => self.ended(*id),
            Entry::Scrubbing(run) => {
                self.marked(*run, 0)?;
                for page in run.start..run.end() {
                    self.forget(page)?;
                    self.scrubbing[page as usize] = true;
                }
                Ok(())
            }
            Entry::Scrubbed(run) => {
                self.marked(*run, 0)?;
                self.scrubbing[run.start as usize..run.end() as usize].fill(false);
                Ok(())
            }
        }
    }

    /// The same state in few entries, the first of which begins it.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let node = Entry::Node { capacity: self.capacity, isolation: self.isolation, key: self.key };
        let tenants = (0..).zip(&self.tenants);
        let tenants = tenants.map(|(index, tenant)| {
            let KeptTenant { name, salt } = tenant.clone();
            Entry::Tenant { index, name, salt }
        });
        let left =
            runs(&self.kinds).filter(|(_, kind)| **kind != 0).map(|(run, kind)| Entry::Left { run, kind: *kind });
        let scrubbing = runs(&self.scrubbing).filter(|(_, zeroed)| **zeroed).map(|(run, _)| Entry::Scrubbing(run));
        let cached = self.seals.runs_by_age().into_iter().map(|(pages, seal)| {
            let hashes = (pages.start..pages.end()).filter_map(|page| self.seals.get(page)).map(|seal| seal.hash);
            let (first_page, follows) = (pages.start, self.seals.follows(pages.start));
            let run = HashedRun { first_page, place: seal.place, follows, hashes: hashes.collect() };
            Entry::Cached { tenant: seal.tenant, run }
        });
        let leases = self.leases.values().map(|lease| Entry::Granted(Box::new(lease.clone())));
        std::iter::once(node).chain(tenants).chain(left).chain(scrubbing).chain(cached).chain(leases)
    }

    /// Runs of pages that nobody has, with whose bytes they hold; sealed ones are not among them.
    pub(crate) fn free_runs(&self) -> Vec<(Extent, u16)> {
        let mut taken = self.scrubbing.clone();
        for (page, _) in self.seals.iter() {
            taken[page as usize] = true;
        }
        for extent in self.leases.values().flat_map(|lease| lease.own.iter()) {
            taken[extent.start as usize..extent.end() as usize].fill(true);
        }
        let states: Vec<Option<u16>> =
            taken.iter().zip(&self.kinds).map(|(taken, kind)| (!taken).then_some(*kind)).collect();
        runs(&states).filter_map(|(run, kind)| kind.map(|kind| (run, kind))).collect()
    }

    /// Runs of pages that are being zeroed.
    pub(crate) fn scrub_runs(&self) -> impl Iterator<Item = Extent> + '_ {
        runs(&self.scrubbing).filter(|(_, zeroed)| **zeroed).map(|(run, _)| run)
    }

    fn lease(&mut self, id: LeaseId) -> Result<&mut KeptLease, Inconsistent> {
        self.leases.get_mut(&id).ok_or_else(|| Inconsistent(format!("lease {id} was never granted, or has ended")))
    }

    fn tenant(&mut self, index: u16, name: &str, salt: TenantSalt) -> Result<(), Inconsistent> {
        let tenant = KeptTenant { name: name.to_owned(), salt };
        let place = usize::from(index);
        if place == self.tenants.len() && (place as u64) < MAX_TENANTS {
            self.tenants.push(tenant);
            return Ok(());
        }
        match self.tenants.get_mut(place) {
            Some(old) => *old = tenant,
            None => return broken(format!("tenant {index} comes before its predecessors")),
        }
        Ok(())
    }

    /// Notes whose bytes some pages hold.
    fn marked(&mut self, run: Extent, kind: u16) -> Result<(), Inconsistent> {
        let pages = self.kinds.get_mut(run.start as usize..run.end() as usize);
        let Some(pages) = pages else { return broken(format!("{run:?} is not within the pool")) };
        pages.fill(match self.isolation {
            Isolation::Scrub => kind,
            Isolation::Shared => 0,
        });
        Ok(())
    }

    fn granted(&mut self, lease: &KeptLease) -> Result<(), Inconsistent> {
        if usize::from(lease.tenant) >= self.tenants.len() {
            return broken(format!("lease {} is of tenant {}, of whom nothing is known", lease.id, lease.tenant));
        }
        if self.leases.insert(lease.id, lease.clone()).is_some() {
            return broken(format!("lease {} is granted twice", lease.id));
        }
        self.hold(&lease.shared)?;
        if !lease.published {
            return self.claim(&lease.own, lease.tenant);
        }
        // Part of a whole state: what it has sealed of its own, it holds.
        for page in lease.own.page_numbers() {
            if self.seals.contains(page) {
                self.hold(&Extents::from_iter([Extent::new(page, 1)]))?;
            } else {
                self.claim(&Extents::from_iter([Extent::new(page, 1)]), lease.tenant)?;
            }
        }
        Ok(())
    }

    /// Free pages become a lease's own: what was cached in them is gone.
    fn claim(&mut self, pages: &Extents, tenant: u16) -> Result<(), Inconsistent> {
        for run in pages.iter() {
            self.marked(run, tenant + 1)?;
            for page in run.start..run.end() {
                if self.scrubbing[page as usize] {
                    return broken(format!("page {page} is granted while it is zeroed"));
                }
                self.forget(page)?;
            }
        }
        Ok(())
    }

    fn forget(&mut self, page: u32) -> Result<(), Inconsistent> {
        match self.seals.get_mut(page) {
            Some(seal) if seal.holders > 0 => return broken(format!("page {page} is taken from its holders")),
            Some(_) => {
                self.seals.remove(page);
                if let Some(behind) = self.seals.get_mut(page + 1) {
                    behind.follows = false;
                }
            }
            None => {}
        }
        Ok(())
    }

    fn seal(&mut self, page: u32, seal: KeptSeal) -> Result<(), Inconsistent> {
        if usize::from(seal.tenant) >= self.tenants.len() {
            return broken(format!("page {page} is of tenant {}, of whom nothing is known", seal.tenant));
        }
        self.marked(Extent::new(page, 1), seal.tenant + 1)?;
        if self.seals.insert(page, seal) { Ok(()) } else { broken(format!("page {page} is sealed twice")) }
    }

    fn hold(&mut self, pages: &Extents) -> Result<(), Inconsistent> {
        for page in pages.page_numbers() {
            let Some(seal) = self.seals.get_mut(page) else { return broken(format!("page {page} is not sealed")) };
            seal.holders += 1;
            seal.turn = 0;
        }
        Ok(())
    }

    /// As [`PagePool::give_back`](crate::pages::PagePool): the deepest page goes first, and so is the oldest.
    fn ended(&mut self, id: LeaseId) -> Result<(), Inconsistent> {
        let Some(lease) = self.leases.remove(&id) else { return broken(format!("lease {id} ends, and is none")) };
        if lease.published {
            for page in lease.own.page_numbers().rev() {
                self.let_go(page);
            }
        }
        for page in lease.shared.page_numbers().rev() {
            self.let_go(page);
        }
        Ok(())
    }

    fn let_go(&mut self, page: u32) {
        let Some(seal) = self.seals.get_mut(page) else { return };
        seal.holders = seal.holders.saturating_sub(1);
        if seal.holders == 0 {
            self.turn += 1;
            seal.turn = self.turn;
        }
    }
}

/// An image as a ledger sees itself; see `Ledger::image`.
impl Image {
    pub(crate) fn of_parts(
        (capacity, isolation, key): (NodeCapacity, Isolation, NodeKey),
        tenants: Vec<KeptTenant>,
        leases: BTreeMap<LeaseId, KeptLease>,
        seals: Seals,
        (kinds, scrubbing): (Vec<u16>, Vec<bool>),
    ) -> Self {
        let turn = seals.iter().map(|(_, seal)| seal.turn).max().unwrap_or(0);
        Self { capacity, isolation, key, tenants, leases, seals, kinds, scrubbing, turn }
    }
}

/// Runs of equal neighbours in a table of pages.
fn runs<T: PartialEq>(table: &[T]) -> impl Iterator<Item = (Extent, &T)> {
    let mut start = 0_u32;
    table.chunk_by(|left, right| left == right).map(move |run| {
        let pages = u32::try_from(run.len()).unwrap_or(u32::MAX);
        let extent = Extent::new(start, pages);
        start += pages;
        (extent, &run[0])
    })
}
