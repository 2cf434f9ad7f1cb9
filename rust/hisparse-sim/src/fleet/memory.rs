//! A node's books: the production ledger, or a count of the same pools.
//!
//! ```text
//!   Kind::Ledger    the real one, with its pages      what a test holds the count against
//!   Kind::Counted   sums per pool, no page numbers    ten thousand of them fit in memory
//! ```
//! The count knows what a router sees of a node without prefixes, tenants and isolation: whether a request fits, and the
//! view. A grant that nobody commits is quarantined at the end of its ttl, and gone a bound later, in both.

use std::collections::BTreeMap;

use hisparse_core::env::Moment;
use hisparse_core::fleet::{Demand, View};
use hisparse_core::ledger::{
    AdmitRequest, Amounts, CommitBy, Epoch, LeaseId, Ledger, LedgerConfig, NodeCapacity, Pool, SessionId,
};
use hisparse_core::limits::{FLEET_TTL, QUARANTINE_BOUND};
use hisparse_core::pages::Isolation;
use serde::Serialize;

use super::job::JobId;
use crate::dice::Dice;

/// The engine that holds all leases of a node.
const ENGINE: SessionId = SessionId(1);

/// Which books.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The production ledger.
    Ledger,
    /// Sums per pool.
    Counted,
}

/// What a node decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Granted,
    Full,
    NeverFits,
}

#[derive(Debug)]
pub(super) enum Memory {
    Ledger(Box<Real>),
    Counted(Counted),
}

/// The production ledger, and which lease is whose.
#[derive(Debug)]
pub(super) struct Real {
    ledger: Ledger,
    leases: BTreeMap<JobId, LeaseId>,
}

/// Sums per pool.
#[derive(Debug)]
pub(super) struct Counted {
    node: NodeCapacity,
    used: Amounts,
    leases: BTreeMap<JobId, Held>,
    epoch: u64,
    sequence: u64,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    amounts: Amounts,
    /// When it ends by itself: first it is quarantined, then it is gone. `None` once it is committed.
    ends: Option<Moment>,
    quarantined: bool,
}

impl Memory {
    pub(super) fn new(kind: Kind, node: NodeCapacity, epoch: Epoch) -> Self {
        match kind {
            Kind::Counted => Self::Counted(Counted {
                node,
                used: Amounts::ZERO,
                leases: BTreeMap::new(),
                epoch: epoch.get(),
                sequence: 0,
            }),
            Kind::Ledger => {
                let config = LedgerConfig { isolation: Isolation::Shared, ..LedgerConfig::new(node) };
                let ledger = Ledger::new(config, epoch, &mut Dice::new(epoch.get()));
                let ledger = ledger.expect("a node of a checked setup has a ledger");
                Self::Ledger(Box::new(Real { ledger, leases: BTreeMap::new() }))
            }
        }
    }

    pub(super) fn admit(&mut self, job: JobId, tokens: u64, now: Moment) -> Decision {
        self.advance(now);
        match self {
            Self::Counted(counted) => counted.admit(job, tokens, now),
            Self::Ledger(real) => real.admit(job, tokens, now),
        }
    }

    /// The engine takes it up. Whether it was still there.
    pub(super) fn commit(&mut self, job: JobId, now: Moment) -> bool {
        self.advance(now);
        match self {
            Self::Counted(counted) => {
                let Some(held) = counted.leases.get_mut(&job).filter(|held| !held.quarantined) else { return false };
                held.ends = None;
                counted.sequence += 1;
                true
            }
            Self::Ledger(real) => {
                let Some(id) = real.leases.get(&job) else { return false };
                let epoch = real.ledger.epoch();
                real.ledger.commit(*id, None, epoch, CommitBy::Session(ENGINE), now).is_ok()
            }
        }
    }

    /// It ends. Whether there was anything to end.
    pub(super) fn release(&mut self, job: JobId, now: Moment) -> bool {
        self.advance(now);
        let held = self.holds(job);
        match self {
            Self::Counted(counted) => counted.end(job),
            Self::Ledger(real) => {
                if let Some(id) = real.leases.remove(&job)
                    && held
                {
                    real.ledger.release(id, None, Some(ENGINE), now).expect("it is held");
                }
            }
        }
        held
    }

    /// Ends what nobody committed in time.
    pub(super) fn advance(&mut self, now: Moment) {
        match self {
            Self::Counted(counted) => counted.advance(now),
            Self::Ledger(real) => real.ledger.advance(now),
        }
    }

    /// Whether the job has a lease here, as of the last step.
    pub(super) fn holds(&self, job: JobId) -> bool {
        match self {
            Self::Counted(counted) => counted.leases.contains_key(&job),
            Self::Ledger(real) => real.leases.get(&job).is_some_and(|id| real.ledger.get(*id, None).is_ok()),
        }
    }

    pub(super) fn view(&self) -> View {
        match self {
            Self::Counted(counted) => counted.view(),
            Self::Ledger(real) => {
                let capacity = real.ledger.capacity(None, &[]);
                View::from(&capacity.expect("no lengths were asked about"))
            }
        }
    }
}

impl Real {
    fn admit(&mut self, job: JobId, tokens: u64, now: Moment) -> Decision {
        let request = AdmitRequest { ttl: Some(FLEET_TTL), ..AdmitRequest::new(&format!("job-{job}"), tokens, 0) };
        match self.ledger.admit(&request, now) {
            Ok(granted) => {
                self.leases.extend(granted.lease.id.map(|id| (job, id)));
                Decision::Granted
            }
            Err(refusal) if refusal.passes_with_time() => Decision::Full,
            Err(_) => Decision::NeverFits,
        }
    }
}

impl Counted {
    fn admit(&mut self, job: JobId, tokens: u64, now: Moment) -> Decision {
        if self.leases.contains_key(&job) {
            return Decision::Granted;
        }
        if tokens > self.node.max_request_tokens.get() {
            return Decision::NeverFits;
        }
        let (amounts, totals) = (Demand::of_tokens(tokens).amounts(0), self.node.totals());
        let fits = amounts.iter().all(|(pool, amount)| amount <= totals[pool].saturating_sub(self.used[pool]));
        if !fits {
            return Decision::Full;
        }
        for (pool, amount) in amounts.iter() {
            self.used[pool] += amount;
        }
        self.leases.insert(job, Held { amounts, ends: Some(now.saturating_add(FLEET_TTL)), quarantined: false });
        self.sequence += 1;
        Decision::Granted
    }

    fn end(&mut self, job: JobId) {
        let Some(held) = self.leases.remove(&job) else { return };
        for (pool, amount) in held.amounts.iter() {
            self.used[pool] -= amount;
        }
        self.sequence += 1;
    }

    fn advance(&mut self, now: Moment) {
        let mut over = Vec::new();
        for (job, held) in self.leases.iter_mut().filter(|(_, held)| held.ends.is_some_and(|ends| ends <= now)) {
            if held.quarantined {
                over.push(*job);
            } else {
                (held.quarantined, held.ends) = (true, Some(now.saturating_add(QUARANTINE_BOUND)));
                self.sequence += 1;
            }
        }
        for job in over {
            self.end(job);
        }
    }

    fn view(&self) -> View {
        let node = &self.node;
        let mut view = View {
            epoch: self.epoch,
            sequence: self.sequence,
            max_request_tokens: node.max_request_tokens.get(),
            ..View::default()
        };
        for (pool, total) in node.totals().iter() {
            view.add(pool, total - self.used[pool], total);
        }
        let shut = view.room[Pool::Seats] == 0 || view.room[Pool::RequestSlots] == 0;
        let by_pages = view.room[Pool::HostPages] * node.page_tokens;
        let longest = by_pages.min(view.room[Pool::IndexerTokens]).min(view.max_request_tokens);
        view.largest_grant_tokens = if shut { 0 } else { longest };
        view
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_count_decides_and_shows_what_the_ledger_does() {
        let node = NodeCapacity::of_host_pages(100, 4);
        for seed in 0..40 {
            let mut dice = Dice::new(seed);
            let mut both = [Kind::Ledger, Kind::Counted].map(|kind| Memory::new(kind, node, Epoch::FIRST));
            let mut now = Moment::ORIGIN;
            for step in 0..400 {
                now = now.saturating_add(Duration::from_millis(dice.below(1_500)));
                let action = dice.below(4);
                // An Admit is a new request; the others name an earlier one, which may have ended by itself.
                let back = if action < 2 { 0 } else { usize::try_from(dice.below(8)).unwrap() };
                let (job, tokens) = (usize::saturating_sub(step, back), 1 + dice.below(7_000));
                let came = both.each_mut().map(|memory| match action {
                    0 | 1 => format!("{:?}", memory.admit(job, tokens, now)),
                    2 => format!("committed {}", memory.commit(job, now)),
                    _ => format!("released {}", memory.release(job, now)),
                });
                assert_eq!(came[0], came[1], "seed {seed}, step {step}");
                let seen = both.each_ref().map(|memory| (View { sequence: 0, ..memory.view() }, memory.holds(job)));
                assert_eq!(seen[0], seen[1], "seed {seed}, step {step}");
            }
        }
    }
}
