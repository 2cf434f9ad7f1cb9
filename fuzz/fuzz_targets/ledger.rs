//! Sequences of operations on the books of a small node, audited after each.
//!
//! ```text
//!  bytes ─► a node, and operations on it in any order, by anybody ─► after each: every invariant, the conservation law
//!                                                                 └─► at the end: all given back, nothing is missing
//! ```

#![no_main]

use std::time::Duration;

use hisparse_core::env::{Entropy, Moment};
use hisparse_core::ledger::{
    AdmitRequest, CommitBy, Epoch, Ledger, LedgerConfig, Lease, LeaseId, Length, NodeCapacity, Offer, SessionId, Ticket,
    WaitQueue,
};
use hisparse_core::limits::{MAX_TTL, QUARANTINE_BOUND, RECLAIM_WINDOW};
use hisparse_core::pages::{Isolation, PageHash};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

/// Pages of the node, and seats.
const PAGES: u64 = 48;
const SEATS: u64 = 6;
const PAGE_TOKENS: u64 = 64;

#[derive(Arbitrary, Debug)]
enum Op {
    Admit { name: u8, tenant: u8, tokens: u16, ttl_ms: Option<u16>, hashes: u8, wait_ms: u16, priority: i8 },
    AdmitAll { name: u8, tenant: u8, tokens: [u16; 3] },
    Commit { lease: u8, session: Option<u8>, ttl_ms: Option<u16>, stale: bool },
    Renew { lease: u8, ttl_ms: Option<u16>, tenant: u8 },
    Extend { lease: u8, tokens: u32 },
    Publish { lease: u8, first: u8, hashes: u8 },
    Release { lease: u8, session: Option<u8>, tenant: Option<u8> },
    ReleaseRequest { name: u8, tenant: u8 },
    SessionLost { session: u8 },
    Reclaim { dead: u8, successor: u8 },
    Confirm { lease: u8 },
    Cancel { ticket: u8 },
    Pass { ms: u16 },
    Drain(bool),
    Scrub { most: u8 },
}

#[derive(Arbitrary, Debug)]
struct Run {
    seed: u64,
    scrub: bool,
    ops: Vec<Op>,
}

struct Seeded(u64);

impl Entropy for Seeded {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0
    }
}

fn hashes(count: u8, tenant: u8) -> Vec<PageHash> {
    let hash = |page: u8| PageHash::try_from([page, tenant].repeat(16).as_slice()).expect("32 bytes");
    (0..count % 40).map(hash).collect()
}

fn tenant(number: u8) -> String {
    format!("t{}", number % 4)
}

fn ms(ms: u16) -> Duration {
    Duration::from_millis(ms.into())
}

struct World {
    ledger: Ledger,
    queue: WaitQueue,
    now: Moment,
    leases: Vec<LeaseId>,
    tickets: Vec<Ticket>,
}

impl World {
    fn new(run: &Run) -> Self {
        let isolation = if run.scrub { Isolation::Scrub } else { Isolation::Shared };
        let config = LedgerConfig { isolation, ..LedgerConfig::new(NodeCapacity::of_host_pages(PAGES, SEATS)) };
        let ledger = Ledger::new(config, Epoch::FIRST, &mut Seeded(run.seed)).expect("a node of these figures");
        let now = Moment::from_origin(Duration::from_secs(1));
        Self { ledger, queue: WaitQueue::new(), now, leases: Vec::new(), tickets: Vec::new() }
    }

    fn keep(&mut self, lease: &Lease) {
        self.leases.extend(lease.id);
    }

    /// One of the leases there ever were.
    fn lease(&self, number: u8) -> Option<LeaseId> {
        self.leases.get(usize::from(number) % self.leases.len().max(1)).copied()
    }

    fn request(name: u8, of: u8, tokens: u16, hashed: u8) -> AdmitRequest {
        AdmitRequest {
            request_id: if name == 0 { "".into() } else { format!("r{}", name % 16).into() },
            tenant: tenant(of).into(),
            length: Length::Tokens { prompt: tokens.into(), generated: 0, max_new: 7 },
            prefix_hashes: hashes(hashed, of),
            ..AdmitRequest::new("", 1, 0)
        }
    }

    #[allow(clippy::too_many_lines)] // one arm per operation
    fn apply(&mut self, op: &Op) {
        let now = self.now;
        // Refusals are answers: what must hold is looked at after every operation.
        match *op {
            Op::Admit { name, tenant, tokens, ttl_ms, hashes, wait_ms, priority } => {
                let mut request = Self::request(name, tenant, tokens, hashes);
                request.ttl = ttl_ms.map(ms);
                request.priority = priority.into();
                match self.queue.offer(&mut self.ledger, request, ms(wait_ms), now) {
                    Ok(Offer::Granted(granted)) => self.keep(&granted.lease),
                    Ok(Offer::Waiting(ticket)) => self.tickets.push(ticket),
                    Err(_) => {}
                }
            }
            Op::AdmitAll { name, tenant, tokens } => {
                let names = [name, name.wrapping_add(1), name.wrapping_add(2)];
                let all: Vec<_> =
                    names.iter().zip(tokens).map(|(name, tokens)| Self::request(*name, tenant, tokens, 0)).collect();
                for granted in self.ledger.admit_all(&all, now).unwrap_or_default() {
                    self.keep(&granted.lease);
                }
            }
            Op::Commit { lease, session, ttl_ms, stale } => {
                let by = match session {
                    Some(session) => CommitBy::Session(SessionId(u64::from(session % 3))),
                    None => CommitBy::Router { ttl: ttl_ms.map(ms) },
                };
                let epoch = if stale { Epoch::new(9).unwrap_or(Epoch::FIRST) } else { Epoch::FIRST };
                let committed = self.lease(lease).map(|id| self.ledger.commit(id, None, epoch, by, now));
                assert!(!stale || committed.is_none_or(|done| done.is_err()), "a stale epoch was accepted");
            }
            Op::Renew { lease, ttl_ms, tenant: of } => {
                let _ = self
                    .lease(lease)
                    .map(|id| self.ledger.renew(id, Some(&tenant(of)), Epoch::FIRST, ttl_ms.map(ms), now));
            }
            Op::Extend { lease, tokens } => {
                let _ = self.lease(lease).map(|id| self.ledger.extend(id, None, Epoch::FIRST, tokens.into(), now));
            }
            Op::Publish { lease, first, hashes: count } => {
                let hashes = hashes(count, first);
                let _ = self.lease(lease).map(|id| self.ledger.publish(id, Epoch::FIRST, first.into(), &hashes, now));
            }
            Op::Release { lease, session, tenant: of } => {
                let named = of.map(tenant);
                let session = session.map(|session| SessionId(u64::from(session % 3)));
                let _ = self.lease(lease).map(|id| self.ledger.release(id, named.as_deref(), session, now));
            }
            Op::ReleaseRequest { name, tenant: of } => {
                let name = format!("r{}", name % 16).into();
                self.ledger.release_request(&name, &tenant(of), None, now);
            }
            Op::SessionLost { session } => {
                self.ledger.session_lost(SessionId(u64::from(session % 3)), now);
            }
            Op::Reclaim { dead, successor } => {
                let session = |number: u8| SessionId(u64::from(number % 3));
                self.ledger.reclaim(session(dead), session(successor), now);
            }
            Op::Confirm { lease } => {
                let _ = self.lease(lease).map(|id| self.ledger.confirm(id, now));
            }
            Op::Cancel { ticket } => {
                if !self.tickets.is_empty() {
                    let place = usize::from(ticket) % self.tickets.len();
                    self.queue.cancel(self.tickets.swap_remove(place));
                }
            }
            Op::Pass { ms: time } => self.now = now.saturating_add(ms(time) * 4),
            Op::Drain(draining) => self.ledger.set_draining(draining),
            Op::Scrub { most } => {
                if let Some(job) = self.ledger.next_scrub(most.into()) {
                    self.ledger.scrubbed(job);
                }
            }
        }
        self.settle();
    }

    /// Time, then the queue; then everything that must hold.
    fn settle(&mut self) {
        self.ledger.advance(self.now);
        for served in self.queue.serve(&mut self.ledger, self.now) {
            if let Ok(granted) = served.outcome {
                self.keep(&granted.lease);
            }
        }
        if let Err(violation) = self.ledger.audit() {
            panic!("{violation:?}");
        }
        assert!(self.ledger.fault().is_none(), "{:?}", self.ledger.fault());
        for pool in self.ledger.capacity(None, &[PAGE_TOKENS]).expect("a length that can be asked about").pools {
            let parts = [pool.free, pool.reserved, pool.committed, pool.evictable, pool.scrubbing, pool.quarantined];
            assert_eq!(parts.iter().sum::<u64>(), pool.total, "{pool:?}");
        }
    }

    /// Everybody gives everything back and time passes: then all is there again.
    fn end(mut self) {
        for ticket in std::mem::take(&mut self.tickets) {
            self.queue.cancel(ticket);
        }
        self.settle();
        for id in std::mem::take(&mut self.leases) {
            let _ = self.ledger.release(id, None, None, self.now); // one that has ended is no error
        }
        for session in 0..3 {
            self.ledger.session_lost(SessionId(session), self.now);
        }
        for rest in [RECLAIM_WINDOW, QUARANTINE_BOUND, MAX_TTL, QUARANTINE_BOUND] {
            self.now = self.now.saturating_add(rest).saturating_add(Duration::from_millis(1));
            self.settle();
        }
        while let Some(job) = self.ledger.next_scrub(u32::MAX) {
            self.ledger.scrubbed(job);
        }
        self.settle();
        assert_eq!(self.ledger.lease_counts(), hisparse_core::ledger::LeaseCounts::default());
        for pool in self.ledger.capacity(None, &[]).expect("no length was asked about").pools {
            assert_eq!(pool.free + pool.evictable, pool.total, "something is missing: {pool:?}");
        }
    }
}

fuzz_target!(|run: Run| {
    let mut world = World::new(&run);
    for op in &run.ops {
        world.apply(op);
    }
    world.end();
});
