//! A random node on a random walk: tenants with floors and ceilings, a window or none, pages that are zeroed or not, cached
//! prefixes, requests that wait.

use std::time::Duration;

use hisparse_core::ledger::{
    AdmitRequest, Amounts, CommitBy, LeaseId, Ledger, LedgerConfig, Length, NodeCapacity, Offer, Pool, SessionId,
    TenantPolicy, WaitQueue, WindowCapacity,
};
use hisparse_core::pages::{Isolation, PageHash};
use hisparse_core::units::Tokens;

use crate::node::{Seed, at, first_epoch, ledger_of};

const TENANTS: [&str; 4] = ["default", "floor", "ceiling", "plain"];

/// A node in a random state, and how it got there.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) seed: u64,
    pub(crate) ledger: Ledger,
    pub(crate) queue: WaitQueue,
    pub(crate) random: Seed,
    pub(crate) now: u64,
    pub(crate) leases: Vec<LeaseId>,
}

impl Walk {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Seed::new(seed);
        let pages = 8 + random.below(60);
        let window = WindowCapacity { total: Tokens::new(64 * (4 + random.below(20))), per_request: Tokens::new(150) };
        let capacity = NodeCapacity {
            seats: 2 + random.below(9),
            indexer_tokens: Tokens::new(64 * (pages / 2 + random.below(pages))),
            request_slots: 3 + random.below(9),
            window: (random.below(2) == 0).then_some(window),
            max_request_tokens: Tokens::new(64 * pages - random.below(64)),
            ..NodeCapacity::of_host_pages(pages, 1)
        };
        let isolation = if random.below(2) == 0 { Isolation::Scrub } else { Isolation::Shared };
        let mut ledger = ledger_of(LedgerConfig { isolation, ..LedgerConfig::new(capacity) });
        if random.below(2) == 0 {
            let (mut floor, mut ceiling) = (TenantPolicy::default(), TenantPolicy::default());
            for (pool, total) in capacity.totals().iter() {
                floor.floor[pool] = total / 4;
                ceiling.ceiling[pool] = total / 2;
            }
            ledger.set_tenant_policy("floor", floor.usable_on(&capacity)).ok();
            ledger.set_tenant_policy("ceiling", ceiling).expect("a ceiling alone is always possible");
        }
        if random.below(4) == 0 {
            let mut others = Amounts::UNBOUNDED;
            others[Pool::Seats] = 1 + random.below(4);
            ledger.set_other_tenants_ceiling(others);
        }
        Self { seed, ledger, queue: WaitQueue::new(), random, now: 0, leases: Vec::new() }
    }

    fn request(&mut self, tenant: &str) -> AdmitRequest {
        let length =
            Length::Tokens { prompt: 1 + self.random.below(700), generated: 0, max_new: self.random.below(64) };
        AdmitRequest { tenant: tenant.into(), length, ..AdmitRequest::new("", 1, 0) }
    }

    pub(crate) fn step(&mut self) {
        let tenant = TENANTS[usize::try_from(self.random.below(4)).expect("below 4")];
        match self.random.below(100) {
            0..50 => {
                let request = AdmitRequest { priority: i32::from(self.random.below(8) == 0), ..self.request(tenant) };
                let wait = Duration::from_secs(20 * u64::from(self.random.below(3) == 0));
                if let Ok(Offer::Granted(granted)) = self.queue.offer(&mut self.ledger, request, wait, at(self.now)) {
                    self.leases.extend(granted.lease.id);
                }
            }
            50..65 => {
                let by = if self.random.below(2) == 0 {
                    CommitBy::Router { ttl: None }
                } else {
                    CommitBy::Session(SessionId(1))
                };
                if let Some(id) = self.some_lease()
                    && self.ledger.commit(id, None, first_epoch(), by, at(self.now)).is_ok()
                    && let Ok(lease) = self.ledger.get(id, None)
                {
                    let hashes: Vec<PageHash> = (0..lease.tokens.get() / 64)
                        .map(|page| [u8::try_from((id.get() + u128::from(page)) % 251).expect("below 251"); 32])
                        .collect();
                    let _ = self.ledger.publish(id, first_epoch(), 0, &hashes, at(self.now));
                }
            }
            65..85 => {
                if let Some(id) = self.some_lease() {
                    let _ = self.ledger.release(id, None, Some(SessionId(1)), at(self.now));
                }
            }
            85..88 => self.ledger.set_draining(self.random.below(4) == 0),
            88..93 => self.scrub(),
            _ => self.now += self.random.below(12),
        }
        for served in self.queue.serve(&mut self.ledger, at(self.now)) {
            self.leases.extend(served.outcome.ok().and_then(|granted| granted.lease.id));
        }
    }

    fn some_lease(&mut self) -> Option<LeaseId> {
        let newest = self.leases.len().saturating_sub(10);
        self.leases.get(newest + usize::try_from(self.random.below(10)).expect("below 10")).copied()
    }

    pub(crate) fn scrub(&mut self) {
        while let Some(job) = self.ledger.next_scrub(1_000) {
            self.ledger.scrubbed(job);
        }
    }
}
