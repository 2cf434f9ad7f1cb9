//! Admission: one decision over all pools.
//!
//! ```text
//!  malformed? ─► stale epoch? ─► same request? ─► draining? ─► never fits? ─► over quota? ─► every pool ─► lease
//! ```
//! `decide` only looks; `grant` only does. Between them nothing can go wrong, so nothing is ever half granted.

use std::sync::Arc;

use super::core::Ledger;
use super::lease::{Lease, LeaseState};
use super::pools::{Amounts, Pool};
use super::record::Record;
use super::refusal::{Limit, Refusal};
use super::request::{AdmitRequest, DEFAULT_TENANT, Length, tenant_or_default};
use crate::env::Moment;
use crate::error::{Problem, Problems};
use crate::limits::MAX_BATCH_REQUESTS;
use crate::pages::{Extents, Hits, TenantIndex};
use crate::units::Tokens;

/// An admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The lease; that of a validation has no id.
    pub lease: Lease,
    /// The same request had been granted before, and this is that lease.
    pub repeated: bool,
}

/// What a request would get.
#[derive(Clone, Copy, Debug)]
struct Decision {
    tokens: Tokens,
    demand: Amounts,
    hits: Hits,
}

impl Ledger {
    /// Grants a lease, or says why not. A refusal changes nothing, but for pages that begin to be scrubbed for a
    /// tenant that only other tenants' leavings keep from fitting.
    ///
    /// # Errors
    /// Any [`Refusal`] but those about existing leases.
    pub fn admit(&mut self, request: &AdmitRequest, now: Moment) -> Result<Granted, Refusal> {
        self.advance(now);
        let tokens = self.check(request)?;
        let tenant = self.intern(request.tenant_name())?;
        self.end_repeated_if_over(request, Some(tenant), now);
        if let Some(repeated) = self.repeated(request, tenant)? {
            return Ok(repeated);
        }
        let decision = match self.decide(request, tokens, Some(tenant)) {
            Ok(decision) => decision,
            Err(refusal) => {
                self.scrub_for(tenant, &refusal);
                return Err(refusal);
            }
        };
        let lease = self.grant(request, tenant, decision, now)?;
        self.settle();
        Ok(Granted { lease, repeated: false })
    }

    /// What [`Ledger::admit`] would answer now. Reserves nothing; the lease in the answer has no id and no extents.
    ///
    /// # Errors
    /// As [`Ledger::admit`].
    pub fn validate(&mut self, request: &AdmitRequest, now: Moment) -> Result<Granted, Refusal> {
        self.advance(now);
        let tokens = self.check(request)?;
        let tenant = self.tenants.find(request.tenant_name());
        self.end_repeated_if_over(request, tenant, now);
        if let Some(tenant) = tenant
            && let Some(repeated) = self.repeated(request, tenant)?
        {
            return Ok(repeated);
        }
        let decision = self.decide(request, tokens, tenant)?;
        let lease = Lease {
            id: None,
            request_id: Arc::clone(&request.request_id),
            tenant: request.tenant_name().into(),
            state: LeaseState::Reserved,
            epoch: self.epoch,
            priority: request.priority,
            tokens: decision.tokens,
            pages: pages_of(decision.demand),
            shared_pages: decision.hits.pages,
            durable_pages: decision.hits.pages,
            extents: Extents::new(),
            expires_at: None,
        };
        Ok(Granted { lease, repeated: false })
    }

    /// Grants all of several requests, or none. Cached prefixes may have been evicted for those that fitted before
    /// one did not.
    ///
    /// # Errors
    /// The place of the first request that does not fit with those before it, and why.
    pub fn admit_all(&mut self, requests: &[AdmitRequest], now: Moment) -> Result<Vec<Granted>, (usize, Refusal)> {
        if requests.len() as u64 > MAX_BATCH_REQUESTS {
            let rule = format!("must hold at most {MAX_BATCH_REQUESTS} requests");
            let problem = Problem::new("requests", requests.len(), rule, "send them in several batches");
            return Err((0, Refusal::Malformed(Problems::one(problem))));
        }
        let mut granted: Vec<Granted> = Vec::with_capacity(requests.len());
        for (place, request) in requests.iter().enumerate() {
            match self.admit(request, now) {
                Ok(lease) => granted.push(lease),
                Err(refusal) => {
                    let fresh = granted.iter().rev().filter(|granted| !granted.repeated);
                    for slot in fresh.filter_map(|granted| self.find(granted.lease.id?, None).ok()).collect::<Vec<_>>()
                    {
                        self.remove(slot);
                    }
                    self.settle();
                    return Err((place, refusal));
                }
            }
        }
        Ok(granted)
    }

    fn check(&self, request: &AdmitRequest) -> Result<Tokens, Refusal> {
        let tokens = request.checked_tokens(self.config.capacity.page_tokens).map_err(Refusal::Malformed)?;
        match request.epoch {
            Some(given) if given != self.epoch => Err(Refusal::StaleEpoch { given, current: self.epoch }),
            _ => Ok(tokens),
        }
    }

    /// Ends the lease that this request id stands for, if its time is over.
    fn end_repeated_if_over(&mut self, request: &AdmitRequest, tenant: Option<TenantIndex>, now: Moment) {
        if let Some(slot) = tenant.and_then(|tenant| self.find_request(tenant, &request.request_id)) {
            self.end_if_over(slot, now);
        }
    }

    fn repeated(&self, request: &AdmitRequest, tenant: TenantIndex) -> Result<Option<Granted>, Refusal> {
        let Some(slot) = self.find_request(tenant, &request.request_id) else { return Ok(None) };
        let record = self.record(slot);
        if record.digest != request.digest(&self.hasher) {
            return Err(Refusal::RequestIdReused { lease: record.id });
        }
        Ok(Some(Granted { lease: self.view(record), repeated: true }))
    }

    fn decide(&self, request: &AdmitRequest, tokens: Tokens, tenant: Option<TenantIndex>) -> Result<Decision, Refusal> {
        if let Some(fault) = &self.fault {
            return Err(Refusal::Faulted(fault.clone()));
        }
        if self.draining {
            return Err(Refusal::Draining);
        }
        let demand = self.config.capacity.demand(tokens);
        self.check_limits(tokens, &demand, tenant)?;
        self.check_quota(&demand, tenant)?;
        let hits = tenant.map_or(Hits::default(), |tenant| self.pages.probe(tenant, &request.prefix_hashes));
        check_pools(&demand, hits, |pool| self.available(pool, tenant))?;
        Ok(Decision { tokens, demand, hits })
    }

    /// Whether a request of this size can ever fit.
    pub(super) fn check_limits(
        &self,
        tokens: Tokens,
        demand: &Amounts,
        tenant: Option<TenantIndex>,
    ) -> Result<(), Refusal> {
        let longest = self.config.capacity.max_request_tokens;
        if tokens > longest {
            let (value, asked) = (longest.get(), tokens.get());
            return Err(Refusal::NeverFits { limit: Limit::MaxRequestTokens, value, asked });
        }
        for (pool, asked) in demand.iter() {
            let value = self.books.totals[pool] - self.tenants.floors_of_others(tenant, pool);
            if asked > value {
                return Err(Refusal::NeverFits { limit: Limit::Total(pool), value, asked });
            }
            let ceiling = self.tenants.ceiling(tenant, pool);
            if asked > ceiling {
                return Err(Refusal::NeverFits { limit: Limit::TenantCeiling(pool), value: ceiling, asked });
            }
        }
        Ok(())
    }

    /// Whether the tenant may hold this much more.
    pub(super) fn check_quota(&self, more: &Amounts, tenant: Option<TenantIndex>) -> Result<(), Refusal> {
        // One that is not known yet holds nothing.
        let known = tenant.map(|index| self.tenants.get(index));
        for (pool, asked) in more.iter() {
            let ceiling = self.tenants.ceiling(tenant, pool);
            let used = known.map_or(0, |tenant| tenant.used[pool]);
            if used.saturating_add(asked) > ceiling {
                let tenant = known.map_or_else(|| DEFAULT_TENANT.into(), |tenant| Arc::clone(&tenant.name));
                return Err(Refusal::Quota { tenant, pool, asked, ceiling, used });
            }
        }
        Ok(())
    }

    /// What this tenant could have of a pool at once; for `None`, a tenant that holds nothing yet.
    pub(super) fn available(&self, pool: Pool, tenant: Option<TenantIndex>) -> u64 {
        let set_aside = self.tenants.set_aside_for_others(tenant, pool);
        match pool {
            Pool::HostPages => {
                let unheld = self.pages.obtainable_after_scrub().saturating_sub(set_aside);
                self.pages.obtainable(tenant).min(unheld)
            }
            _ => self.books.free(pool).saturating_sub(set_aside),
        }
    }

    /// Whether one more tenant could be known.
    pub(super) fn has_place_for_a_tenant(&self) -> bool {
        self.tenants.has_place(|tenant| self.pages.left_behind(tenant) == 0)
    }

    /// Names of the tenants for which room is kept that they do not use.
    pub(super) fn tenants_with_unused_floors(&self) -> Vec<Arc<str>> {
        self.tenants.with_unused_floors()
    }

    /// Where only other tenants' leavings are in the way, begins to scrub as many pages as are missing.
    pub(super) fn scrub_for(&mut self, tenant: TenantIndex, refusal: &Refusal) {
        let Refusal::PoolBusy { pool: Pool::HostPages, asked, available } = *refusal else { return };
        let set_aside = self.tenants.set_aside_for_others(Some(tenant), Pool::HostPages);
        let in_the_end = self.pages.obtainable_after_scrub().saturating_sub(set_aside);
        let missing = (asked - available).saturating_sub(self.pages.counts().scrubbing);
        if asked <= in_the_end && missing > 0 {
            let runs = self.pages.start_scrub(tenant, missing);
            if !runs.is_empty() {
                self.note_scrubbing(&runs);
                self.settle();
            }
        }
    }

    /// Whether this refusal of a request of this tenant is about pages that are being zeroed, and nothing else is missing.
    pub fn lacks_only_zeroes(&self, tenant: &str, refusal: &Refusal) -> bool {
        let Refusal::PoolBusy { pool: Pool::HostPages, asked, available } = *refusal else { return false };
        let set_aside =
            self.tenants.set_aside_for_others(self.tenants.find(tenant_or_default(tenant)), Pool::HostPages);
        let in_the_end = self.pages.obtainable_after_scrub().saturating_sub(set_aside);
        asked <= in_the_end && asked.saturating_sub(available) <= self.pages.counts().scrubbing
    }

    fn grant(
        &mut self,
        request: &AdmitRequest,
        tenant: TenantIndex,
        decision: Decision,
        now: Moment,
    ) -> Result<Lease, Refusal> {
        let Decision { tokens, demand, hits } = decision;
        let pages = pages_of(demand);
        let id = self.next_id().ok_or(Refusal::Draining)?;
        let shared = self.pages.pin(tenant, &request.prefix_hashes, hits.pages);
        let own_pages = pages - hits.pages;
        // Who states tokens reserves the whole length. Who states pages may want more later.
        let room = match request.length {
            Length::Tokens { .. } => 0,
            Length::Pages(_) => pages / 8,
        };
        let mut own = Extents::new();
        let taken = self.pages.reserve(tenant, own_pages, room, &mut own);
        debug_assert!(taken, "check_pools has just counted these pages");
        let durable = shared.pages();
        let mut own_amounts = demand;
        own_amounts[Pool::HostPages] = u64::from(own_pages);
        let ttl = request.ttl.unwrap_or(self.config.uncommitted_ttl);
        let slot = self.insert(Record {
            id,
            request_id: Arc::clone(&request.request_id),
            digest: request.digest(&self.hasher),
            tenant,
            priority: request.priority,
            state: LeaseState::Reserved,
            holder: None,
            fillers: Vec::new(),
            ttl,
            ends: Some(now.saturating_add(ttl)),
            since: now,
            tokens,
            demand,
            own_amounts,
            shared,
            own,
            published: false,
            durable,
            tip: (0, None),
        });
        Ok(self.view(self.record(slot)))
    }
}

/// Whether every pool has this much more, where `available` says what it has.
pub(super) fn check_pools(more: &Amounts, hits: Hits, available: impl Fn(Pool) -> u64) -> Result<(), Refusal> {
    for (pool, asked) in more.iter() {
        let (asked, available) = match pool {
            Pool::HostPages => {
                let asked = asked.saturating_sub(u64::from(hits.pages));
                (asked, available(pool).saturating_sub(u64::from(hits.evictable)))
            }
            _ => (asked, available(pool)),
        };
        if asked > available {
            return Err(Refusal::PoolBusy { pool, asked, available });
        }
    }
    Ok(())
}

/// Host pages of a demand that fits a pool, and so `u32`.
pub(super) fn pages_of(demand: Amounts) -> u32 {
    u32::try_from(demand[Pool::HostPages]).expect("check_limits bounds it by the pool, which has at most 2^24 pages")
}
