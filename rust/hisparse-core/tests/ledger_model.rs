//! Random operations on the ledger and on a plain model: every answer and every pool must agree at every step.

mod node;
#[path = "node/model.rs"]
mod plain;

use hisparse_core::ledger::{
    AdmitRequest, Amounts, CommitBy, LeaseId, LeaseState, Ledger, LedgerConfig, Length, NodeCapacity, Pool, Refusal,
    Released, SessionId, TenantPolicy, WindowCapacity,
};
use hisparse_core::pages::Isolation;
use hisparse_core::units::Tokens;
use node::{Seed, at, first_epoch, ledger_of};
use plain::{Model, PlainLease, ROUTER, UNCOMMITTED, Verdict};

const TENANTS: [&str; 3] = ["default", "floor", "ceiling"];

struct Both {
    node: Ledger,
    model: Model,
    now: u64,
    random: Seed,
    known: Vec<LeaseId>,
}

impl Both {
    fn new(seed: u64) -> Self {
        let mut random = Seed::new(seed);
        let pages = 8 + random.below(60);
        let window = WindowCapacity { total: Tokens::new(64 * (4 + random.below(20))), per_request: Tokens::new(150) };
        let capacity = NodeCapacity {
            seats: 2 + random.below(9),
            indexer_tokens: Tokens::new(64 * (pages / 2 + random.below(pages))),
            request_slots: 3 + random.below(9),
            window: Some(window),
            max_request_tokens: Tokens::new(64 * pages - random.below(64)),
            ..NodeCapacity::of_host_pages(pages, 1)
        };
        let mut node = ledger_of(LedgerConfig { isolation: Isolation::Shared, ..LedgerConfig::new(capacity) });
        let totals = Pool::ALL.map(|pool| capacity.totals()[pool]);
        let (mut floors, mut ceilings) = ([[0; 5]; 3], [[u64::MAX; 5]; 3]);
        floors[1] = totals.map(|total| total / 4);
        ceilings[2] = totals.map(|total| total / 2);
        for tenant in [1, 2] {
            let (mut floor, mut ceiling) = (Amounts::ZERO, Amounts::ZERO);
            for (place, pool) in Pool::ALL.into_iter().enumerate() {
                (floor[pool], ceiling[pool]) = (floors[tenant][place], ceilings[tenant][place]);
            }
            node.set_tenant_policy(TENANTS[tenant], TenantPolicy { floor, ceiling }).expect("a quarter fits");
        }
        let longest = capacity.max_request_tokens.get();
        let leases = std::collections::BTreeMap::new();
        let model = Model { totals, floors, ceilings, longest, window: 150, draining: false, leases };
        Self { node, model, now: 0, random, known: Vec::new() }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..35 => self.admit(),
            35..50 => self.commit(),
            50..60 => self.renew(),
            60..70 => self.extend(),
            70..85 => self.release(),
            85..90 => self.session_ends(),
            90..93 => self.confirm(),
            93..94 => {
                self.model.draining = !self.model.draining && self.random.below(2) == 0;
                self.node.set_draining(self.model.draining);
            }
            _ => {
                self.now += self.random.below(40);
                self.model.advance(self.now);
                self.node.advance(at(self.now));
            }
        }
    }

    fn some_lease(&mut self) -> LeaseId {
        let newest = self.known.len().saturating_sub(12);
        let at = newest + usize::try_from(self.random.below(12)).expect("below 12");
        self.known.get(at).copied().unwrap_or_else(|| "00000000000000000001".parse().expect("it is an id"))
    }

    fn admit(&mut self) {
        let tenant = usize::try_from(self.random.below(3)).expect("below 3");
        let name = match self.random.below(4) {
            0 => String::new(),
            _ => format!("r{}", self.random.below(12)),
        };
        let scale = if self.random.below(20) == 0 { 5_000 } else { 500 };
        let length = (1 + self.random.below(scale), self.random.below(2) * 70, self.random.below(3) * 64);
        let request = AdmitRequest {
            tenant: TENANTS[tenant].into(),
            length: Length::Tokens { prompt: length.0, generated: length.1, max_new: length.2 },
            ..AdmitRequest::new(&name, 1, 0)
        };
        let expected = self.model.admit(tenant, &name, length);
        let validated = self.node.validate(&request, at(self.now));
        let answer = self.node.admit(&request, at(self.now));
        assert_eq!(validated.is_ok(), answer.is_ok(), "a validation answers as the call would");
        let found: Verdict = match &answer {
            Ok(granted) => Ok((granted.lease.id.expect("a grant has an id"), granted.repeated)),
            Err(refusal) => Err((refusal.reason().unwrap_or(""), refusal.binding().unwrap_or(""))),
        };
        if let Some(expected) = expected {
            assert_eq!(found, expected);
            return;
        }
        let (id, repeated) = found.expect("the model has room");
        assert!(!repeated && self.known.last().is_none_or(|last| id > *last));
        self.known.push(id);
        let lease = PlainLease {
            tenant,
            name,
            answers_to_name: true,
            length,
            tokens: length.0 + length.1 + length.2,
            state: LeaseState::Reserved,
            ends: Some(self.now + UNCOMMITTED),
            ttl: UNCOMMITTED,
            holder: None,
        };
        self.model.leases.insert(id, lease);
    }

    /// The refusal that a call on a lease comes to before it does anything.
    fn dead(&self, id: LeaseId) -> Option<&'static str> {
        match self.model.leases.get(&id) {
            Some(lease) if lease.state != LeaseState::Quarantined => None,
            _ => Some("LEASE_NOT_FOUND"),
        }
    }

    fn commit(&mut self) {
        let (id, session) = (self.some_lease(), self.random.below(3));
        let by = if session == 0 { CommitBy::Router { ttl: None } } else { CommitBy::Session(SessionId(session)) };
        let answer = self.node.commit(id, None, first_epoch(), by, at(self.now));
        let holder = self.model.leases.get(&id).and_then(|lease| lease.holder);
        let taken = holder.is_some_and(|holder| session != 0 && holder != 0 && holder != session);
        let refused = self.dead(id).or_else(|| taken.then_some("LEASE_NOT_FOUND"));
        assert_eq!(answer.err().and_then(|refusal| refusal.reason()), refused);
        if refused.is_none() {
            let lease = self.model.leases.get_mut(&id).expect("it lives");
            let kept = if session == 0 { lease.holder.is_some() } else { lease.holder == Some(session) };
            if !kept {
                lease.holder = Some(session);
                lease.state = LeaseState::Committed;
                lease.ttl = ROUTER;
                lease.ends = (session == 0).then_some(self.now + ROUTER);
            }
        }
    }

    fn renew(&mut self) {
        let id = self.some_lease();
        let answer = self.node.renew(id, None, first_epoch(), None, at(self.now));
        assert_eq!(answer.err().and_then(|refusal| refusal.reason()), self.dead(id));
        if self.dead(id).is_none() {
            let lease = self.model.leases.get_mut(&id).expect("it lives");
            lease.ends = lease.ends.map(|_| self.now + lease.ttl);
        }
    }

    fn extend(&mut self) {
        let (id, tokens) = (self.some_lease(), 1 + self.random.below(900));
        let answer = self.node.extend(id, None, first_epoch(), tokens, at(self.now));
        let expected = match (self.dead(id), self.model.leases.get(&id)) {
            (None, Some(lease)) if tokens > lease.tokens => {
                let (before, after) = (self.model.demand(lease.tokens), self.model.demand(tokens));
                let more = std::array::from_fn(|pool| after[pool] - before[pool]);
                self.model.room(lease.tenant, tokens, more).err()
            }
            (dead, _) => dead.map(|reason| (reason, "")),
        };
        let found = answer.err().map(|refusal| (refusal.reason().unwrap_or(""), refusal.binding().unwrap_or("")));
        assert_eq!(found, expected);
        if expected.is_none() {
            let lease = self.model.leases.get_mut(&id).expect("it lives");
            lease.tokens = lease.tokens.max(tokens);
        }
    }

    fn release(&mut self) {
        let (id, session) = (self.some_lease(), self.random.below(3));
        let tenant = usize::try_from(self.random.below(3)).expect("below 3");
        let by = (session > 0).then_some(SessionId(session));
        let answer = self.node.release(id, Some(TENANTS[tenant]), by, at(self.now));
        let expected = match self.model.leases.get(&id) {
            None => Ok(Released::Already),
            Some(lease) if lease.tenant != tenant => Err(Refusal::OtherTenant { id }),
            Some(lease) if lease.holder.is_some_and(|holder| holder > 0 && holder != session) => {
                if lease.state != LeaseState::Quarantined {
                    self.model.quarantine(id, self.now);
                }
                Ok(Released::Quarantined)
            }
            Some(_) => {
                self.model.leases.remove(&id);
                Ok(Released::Freed)
            }
        };
        assert_eq!(answer, expected);
    }

    fn session_ends(&mut self) {
        let (dead, successor) = (1 + self.random.below(2), 1 + self.random.below(2));
        let reclaims = self.random.below(2) == 0;
        let state = if reclaims { LeaseState::Quarantined } else { LeaseState::Committed };
        let held = |lease: &PlainLease| lease.holder == Some(dead) && lease.state == state;
        let ids: Vec<_> = self.model.leases.iter().filter(|(_, lease)| held(lease)).map(|(id, _)| *id).collect();
        if reclaims {
            let back = self.node.reclaim(SessionId(dead), SessionId(successor), at(self.now));
            assert_eq!(back.len(), ids.len());
            for id in ids {
                let (tenant, name) = (self.model.leases[&id].tenant, self.model.leases[&id].name.clone());
                let taken = self.model.named(tenant, &name).is_some();
                let lease = self.model.leases.get_mut(&id).expect("it was listed");
                lease.state = LeaseState::Committed;
                lease.holder = Some(successor);
                lease.ends = None;
                lease.answers_to_name = !taken;
            }
        } else {
            assert_eq!(self.node.session_lost(SessionId(dead), at(self.now)), ids.len());
            for id in ids {
                self.model.quarantine(id, self.now);
            }
        }
    }

    fn confirm(&mut self) {
        let id = self.some_lease();
        let quarantined = self.model.leases.get(&id).is_some_and(|lease| lease.state == LeaseState::Quarantined);
        assert_eq!(self.node.confirm(id, at(self.now)).is_ok(), quarantined);
        if quarantined {
            self.model.leases.remove(&id);
        }
    }

    fn compare(&self) {
        let capacity = self.node.capacity(None, &[]).expect("no length is asked about");
        for (place, found) in capacity.pools.iter().enumerate() {
            let states = [LeaseState::Reserved, LeaseState::Committed, LeaseState::Quarantined];
            let expected = states.map(|state| self.model.in_state(place, state));
            assert_eq!([found.reserved, found.committed, found.quarantined], expected, "{:?}", found.name);
            assert_eq!(found.free, self.model.totals[place] - self.model.used(place, None), "{:?}", found.name);
        }
        assert!(self.node.fault().is_none(), "{:?}", self.node.fault());
    }
}

#[test]
fn the_ledger_answers_as_a_plain_sum_over_all_leases_does() {
    for seed in 0..300 {
        let mut both = Both::new(seed);
        for step in 0..3_000 {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                both.step();
                both.compare();
                if step % 16 == 0 {
                    both.node.audit().expect("every invariant holds");
                }
            }));
            assert!(outcome.is_ok(), "replay with seed {seed}, step {step}");
        }
    }
}
