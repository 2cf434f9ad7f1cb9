//! The ledger's parts and how they are put together.
//!
//! ```text
//!   slots  [record, record, –, record …]  ◄── by_id, by_request, deadlines   (a slot number stands for a lease)
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::books::Books;
use super::deadlines::Deadlines;
use super::lease::{Epoch, Lease, LeaseId, LeaseState};
use super::log::Log;
use super::pools::{Amounts, NodeCapacity, Pool};
use super::record::Record;
use super::refusal::Refusal;
use super::request::{name_problem, tenant_or_default};
use super::salt::TenantSalt;
use super::tenants::{TenantPolicy, Tenants};
use crate::env::{Entropy, Moment};
use crate::error::{Problem, Problems};
use crate::journal::{Entry as Change, NodeKey};
use crate::limits::{MAX_TENANT_BYTES, MAX_TENANTS, QUARANTINE_BOUND, RECLAIM_WINDOW, ROUTER_TTL, UNCOMMITTED_TTL};
use crate::pages::seeded::{Seeded, Serial};
use crate::pages::{Isolation, PagePool, TenantIndex};
use crate::violation::Violation;

/// What a ledger is made from.
#[derive(Clone, Copy, Debug)]
pub struct LedgerConfig {
    /// What the node can hold.
    pub capacity: NodeCapacity,
    /// Whether pages are zeroed between tenants.
    pub isolation: Isolation,
    /// Life of a lease that nobody commits.
    pub uncommitted_ttl: Duration,
    /// Life of a router's lease that nobody renews.
    pub router_ttl: Duration,
    /// How long pages stay quarantined without confirmation.
    pub quarantine_bound: Duration,
    /// How long a dead engine's leases wait for its successor.
    pub reclaim_window: Duration,
}

impl LedgerConfig {
    /// The defaults of `limits.rs` for this node.
    pub const fn new(capacity: NodeCapacity) -> Self {
        Self {
            capacity,
            isolation: Isolation::Scrub,
            uncommitted_ttl: UNCOMMITTED_TTL,
            router_ttl: ROUTER_TTL,
            quarantine_bound: QUARANTINE_BOUND,
            reclaim_window: RECLAIM_WINDOW,
        }
    }
}

/// Live leases by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeaseCounts {
    /// Granted, not yet in use.
    pub reserved: u64,
    /// In use.
    pub committed: u64,
    /// Kept from everyone.
    pub quarantined: u64,
}

impl LeaseCounts {
    fn of(&mut self, state: LeaseState) -> Option<&mut u64> {
        match state {
            LeaseState::Reserved => Some(&mut self.reserved),
            LeaseState::Committed => Some(&mut self.committed),
            LeaseState::Quarantined => Some(&mut self.quarantined),
            LeaseState::Released => None,
        }
    }
}

/// The books of one pool. See the [module's picture](super).
#[derive(Debug)]
pub struct Ledger {
    pub(super) config: LedgerConfig,
    pub(super) epoch: Epoch,
    pub(super) sequence: u64,
    pub(super) draining: bool,
    pub(super) fault: Option<Violation>,
    pub(super) pages: PagePool,
    pub(super) books: Books,
    pub(super) tenants: Tenants,
    pub(super) deadlines: Deadlines,
    pub(super) counts: LeaseCounts,
    pub(super) hasher: Seeded,
    pub(super) log: Log,
    /// What `hasher` and `salt_seed` are made from.
    pub(super) key: NodeKey,
    slots: Vec<Option<Record>>,
    vacant: Vec<u32>,
    by_id: HashMap<LeaseId, u32, BuildHasherDefault<Serial>>,
    by_request: HashMap<(TenantIndex, Arc<str>), u32, Seeded>,
    pub(super) next_serial: u64,
    pub(super) salt_seed: Seeded,
}

impl Ledger {
    /// A ledger in which everything is free.
    ///
    /// # Errors
    /// The capacity figures that are out of range.
    pub fn new(config: LedgerConfig, epoch: Epoch, entropy: &mut dyn Entropy) -> Result<Self, Problems> {
        let pages = config.capacity.checked_pages()?;
        let key = [(); 4].map(|()| entropy.next_u64());
        Ok(Self {
            epoch,
            sequence: 0,
            draining: false,
            fault: None,
            pages: PagePool::new(pages, config.isolation, entropy),
            books: Books::new(config.capacity.totals()),
            tenants: Tenants::new(entropy),
            deadlines: Deadlines::default(),
            counts: LeaseCounts::default(),
            hasher: Seeded::of_key([key[0], key[1]]),
            log: Log::default(),
            key,
            slots: Vec::new(),
            vacant: Vec::new(),
            by_id: HashMap::default(),
            by_request: HashMap::with_hasher(Seeded::new(entropy)),
            next_serial: 0,
            salt_seed: Seeded::of_key([key[2], key[3]]),
            config,
        })
    }

    /// What it was made from.
    pub const fn config(&self) -> &LedgerConfig {
        &self.config
    }

    /// Generation of the pool.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Number of changes so far: it grows with every transition, and two equal numbers mean equal states.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether nothing new is granted.
    pub const fn is_draining(&self) -> bool {
        self.draining
    }

    /// The fault that stopped it from granting, if any.
    pub const fn fault(&self) -> Option<&Violation> {
        self.fault.as_ref()
    }

    /// Live leases by state.
    pub const fn lease_counts(&self) -> LeaseCounts {
        self.counts
    }

    /// The pages, to look at.
    pub const fn pages(&self) -> &PagePool {
        &self.pages
    }

    /// Starts or ends draining. Leases that live go on living.
    pub fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
        self.settle();
    }

    /// Counts a change of what is granted that is none of the books: who waits ahead, or that the node opens.
    pub fn note_change(&mut self) {
        self.settle();
    }

    /// When something next ends by itself: the latest time by which to call [`Ledger::advance`].
    pub fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|(end, _)| end)
    }

    /// Sets what a tenant may hold, and what is kept for it.
    ///
    /// # Errors
    /// A floor above its ceiling, or floors that together are more than the node.
    pub fn set_tenant_policy(&mut self, tenant: &str, policy: TenantPolicy) -> Result<(), Problems> {
        let known = self.tenants.find(tenant);
        let mut problems = Problems::new();
        if let Some(problem) = name_problem("tenant", tenant, MAX_TENANT_BYTES) {
            problems.push(problem);
        }
        for pool in Pool::ALL {
            let floor = policy.floor[pool];
            let left = self.books.totals[pool] - self.tenants.floors_of_others(known, pool);
            if floor > policy.ceiling[pool] || floor > left {
                let most = left.min(policy.ceiling[pool]);
                let rule = format!("must be at most the ceiling and what other floors leave, {most}");
                problems.push(Problem::new(format!("{tenant}.floor.{pool}"), floor, rule, "lower it"));
            }
        }
        if problems.is_empty() {
            match self.intern(tenant) {
                Ok(index) => self.tenants.set_policy(index, policy),
                Err(refusal) => problems.push(Problem::new(tenant, "unknown", refusal.to_string(), "free one first")),
            }
            self.settle();
        }
        problems.into_result(())
    }

    /// Sets what each tenant without a policy of its own may hold at most, whether it is known yet or not.
    pub fn set_other_tenants_ceiling(&mut self, ceiling: Amounts) {
        self.tenants.set_others_ceiling(ceiling);
        self.settle();
    }

    /// What engines hash this tenant's pages with: equal prompts of two tenants have unlike hashes.
    pub fn tenant_salt(&self, tenant: &str) -> TenantSalt {
        match self.tenants.find(tenant) {
            Some(known) => self.tenants.get(known).salt,
            None => self.salt_of(tenant),
        }
    }

    fn salt_of(&self, tenant: &str) -> TenantSalt {
        [0_u8, 1, 2, 3].map(|word| self.salt_seed.hash_one((word, tenant)))
    }

    /// The tenant's number, a new one if it is new.
    pub(super) fn intern(&mut self, name: &str) -> Result<TenantIndex, Refusal> {
        let name = tenant_or_default(name);
        if let Some(known) = self.tenants.find(name) {
            return Ok(known);
        }
        let salt = self.salt_of(name);
        let pages = &self.pages;
        let forgettable = |tenant| pages.left_behind(tenant) == 0;
        let interned = self.tenants.intern(name, salt, forgettable);
        let index = interned.ok_or(Refusal::TooManyTenants { limit: MAX_TENANTS })?;
        self.log.note(|| Change::Tenant { index, name: name.to_owned(), salt });
        Ok(index)
    }

    /// One lease, if it is this tenant's. `None` for the tenant means an administrator asks.
    ///
    /// # Errors
    /// [`Refusal::LeaseNotFound`], [`Refusal::OtherTenant`].
    pub fn get(&self, id: LeaseId, tenant: Option<&str>) -> Result<Lease, Refusal> {
        let slot = self.find(id, tenant)?;
        Ok(self.view(self.record(slot)))
    }

    /// The slot of a lease as it is now: what is over by `now` has ended.
    pub(super) fn find_now(&mut self, id: LeaseId, tenant: Option<&str>, now: Moment) -> Result<u32, Refusal> {
        self.advance(now);
        let slot = self.find(id, tenant)?;
        self.end_if_over(slot, now);
        self.find(id, tenant)
    }

    pub(super) fn find(&self, id: LeaseId, tenant: Option<&str>) -> Result<u32, Refusal> {
        let slot = *self.by_id.get(&id).ok_or(Refusal::LeaseNotFound { id })?;
        let name = &self.tenants.get(self.record(slot).tenant).name;
        match tenant {
            Some(asking) if **name != *(tenant_or_default(asking)) => Err(Refusal::OtherTenant { id }),
            _ => Ok(slot),
        }
    }

    pub(super) fn find_request(&self, tenant: TenantIndex, request_id: &Arc<str>) -> Option<u32> {
        if request_id.is_empty() {
            return None;
        }
        self.by_request.get(&(tenant, Arc::clone(request_id))).copied()
    }

    pub(super) fn record(&self, slot: u32) -> &Record {
        self.slots[slot as usize].as_ref().expect("by_id, by_request and deadlines name live slots only")
    }

    pub(super) fn record_mut(&mut self, slot: u32) -> &mut Record {
        self.slots[slot as usize].as_mut().expect("by_id, by_request and deadlines name live slots only")
    }

    /// How many slots there are, with a lease or without.
    pub(super) fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("request slots bound the leases far below 2^32")
    }

    /// The lease in a slot, where one is.
    pub(super) fn record_at(&self, slot: u32) -> Option<&Record> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// Slots of all live leases.
    pub(super) fn live_slots(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.slots).filter(|(_, record)| record.is_some()).map(|(slot, _)| slot)
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> {
        self.slots.iter().flatten()
    }

    pub(super) fn view(&self, record: &Record) -> Lease {
        record.view(self.epoch, &self.tenants.get(record.tenant).name)
    }

    /// Serial number for the next lease; they run out after 10^12.
    pub(super) fn next_id(&mut self) -> Option<LeaseId> {
        let id = LeaseId::new(self.epoch, self.next_serial)?;
        self.next_serial += 1;
        Some(id)
    }

    /// Enters a new lease everywhere.
    pub(super) fn insert(&mut self, record: Record) -> u32 {
        let slot = self.insert_restored(record, true);
        self.note_granted(slot);
        slot
    }

    /// As [`Ledger::insert`], without a word to the journal it comes from; `answers`: to its request id.
    pub(super) fn insert_restored(&mut self, record: Record, answers: bool) -> u32 {
        self.books.enter(record.state, &record.own_amounts);
        self.tenants.charge(record.tenant, &record.demand, 1);
        self.count(record.state, true);
        let (id, ends) = (record.id, record.ends);
        let name = (answers && !record.request_id.is_empty()).then(|| (record.tenant, Arc::clone(&record.request_id)));
        let slot = if let Some(slot) = self.vacant.pop() {
            self.slots[slot as usize] = Some(record);
            slot
        } else {
            self.slots.push(Some(record));
            u32::try_from(self.slots.len() - 1).expect("request slots bound the leases far below 2^32")
        };
        self.by_id.insert(id, slot);
        if let Some(name) = name {
            self.by_request.entry(name).or_insert(slot);
        }
        self.deadlines.set(slot, ends);
        slot
    }

    /// Takes a lease out everywhere and gives its pages back.
    pub(super) fn remove(&mut self, slot: u32) {
        self.forget_request(slot);
        let record = self.slots[slot as usize].take().expect("callers have just looked the slot up");
        self.note_ended(record.id);
        self.vacant.push(slot);
        self.by_id.remove(&record.id);
        self.deadlines.set(slot, None);
        self.books.leave(record.state, &record.own_amounts);
        self.tenants.discharge(record.tenant, &record.demand);
        self.count(record.state, false);
        self.pages.give_back(record.tenant, &record.shared, &record.own, record.published);
    }

    /// Lets the lease have its request id again, unless a newer lease has it by now.
    pub(super) fn remember_request(&mut self, slot: u32) {
        let record = self.record(slot);
        if !record.request_id.is_empty() {
            let name = (record.tenant, Arc::clone(&record.request_id));
            self.by_request.entry(name).or_insert(slot);
        }
    }

    /// Frees the lease's request id for another.
    pub(super) fn forget_request(&mut self, slot: u32) {
        let record = self.record(slot);
        if record.request_id.is_empty() {
            return;
        }
        let name = (record.tenant, Arc::clone(&record.request_id));
        if let Entry::Occupied(entry) = self.by_request.entry(name)
            && *entry.get() == slot
        {
            entry.remove();
        }
    }

    /// Moves a lease to another state, with a new end.
    pub(super) fn enter_state(&mut self, slot: u32, state: LeaseState, ends: Option<Moment>) {
        let record = self.record_mut(slot);
        let (old, amounts) = (record.state, record.own_amounts);
        record.state = state;
        record.ends = ends;
        self.books.leave(old, &amounts);
        self.books.enter(state, &amounts);
        self.count(old, false);
        self.count(state, true);
        self.deadlines.set(slot, ends);
        self.note_standing(slot);
    }

    fn count(&mut self, state: LeaseState, more: bool) {
        if let Some(count) = self.counts.of(state) {
            *count = if more { *count + 1 } else { *count - 1 };
        }
    }

    /// Ends every transition: one more change, and a look at the conservation law.
    pub(super) fn settle(&mut self) {
        self.sequence += 1;
        if let Err(violation) = self.conserved() {
            self.fault.get_or_insert(violation);
        }
    }

    /// The conservation law: a few additions.
    pub(crate) fn conserved(&self) -> Result<(), Violation> {
        self.books.conserved(self.pages.counts())
    }

    /// What leases have for themselves of a pool, by the books; for checks.
    pub(crate) fn in_leases(&self, pool: Pool) -> u64 {
        self.books.in_leases(pool)
    }

    /// Unused floors as carried and as counted anew; for checks.
    pub(crate) fn set_aside(&self) -> (Amounts, Amounts) {
        self.tenants.recount_set_aside()
    }
}
