//! A router: asks for room, gives the lease to an engine or uses it itself, gives it back. Being a caller of a network,
//! it repeats itself, gives up, forgets, and releases twice.
//!
//! ```text
//!  ask ─► granted ─┬─► handed to an engine ──────────────┬─► release ─► (again)
//!   ▲ │            ├─► committed, renewed, extended ─────┤
//!   └─┘ again      └─► forgotten, or released at once ───┘
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hisparse_core::ledger::{AdmitRequest, Capacity, CommitBy, Epoch, Lease, Length};

use super::{Handover, JobStep, Out, Own, Wake};
use crate::call::{Answer, Ask, CallId, Named};
use crate::setup;

/// Tries before a router gives a call up.
const TRIES: u32 = 4;

#[derive(Debug)]
pub(crate) struct Router {
    name: String,
    jobs: BTreeMap<u64, Job>,
    open: BTreeMap<CallId, (u64, Purpose)>,
    next_job: u64,
    epoch: Option<Epoch>,
    until_us: u64,
}

#[derive(Debug)]
struct Job {
    request: AdmitRequest,
    wait: Duration,
    lease: Option<Named>,
    tokens: u64,
    tries: u32,
    /// Whether it committed the lease itself.
    own: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Admit,
    Batch,
    Commit,
    Keep,
    Release,
    Look,
}

impl Router {
    pub(crate) fn new(place: usize, life: u64, until_us: u64) -> Self {
        let (jobs, open) = (BTreeMap::new(), BTreeMap::new());
        Self { name: format!("r{place}.{life}"), jobs, open, next_job: 0, epoch: None, until_us }
    }

    pub(crate) fn begin(out: &mut Out<'_>) {
        let first = out.dice.below(out.setup.job_every_us);
        out.wake(first, Own::NewJob);
        out.wake(first / 2, Own::Look);
    }

    pub(crate) fn wake(&mut self, wake: Wake, out: &mut Out<'_>) {
        match wake {
            Wake::Timeout(call) => {
                let Some((job, purpose)) = self.open.remove(&call) else { return };
                self.unanswered(job, purpose, out);
            }
            Wake::Own(Own::NewJob) if out.now_us < self.until_us => {
                self.new_job(out);
                let next = out.dice.around(out.setup.job_every_us);
                out.wake(next, Own::NewJob);
            }
            Wake::Own(Own::Look) if out.now_us < self.until_us => {
                let ask = if !out.setup.plain && out.dice.chance(20) {
                    let resume = out.dice.chance(800);
                    Ask::Drain { resume }
                } else {
                    Ask::GetCapacity
                };
                self.call(0, Purpose::Look, ask, out);
                let next = out.dice.around(2_000_000);
                out.wake(next, Own::Look);
            }
            Wake::Own(Own::Job(job, step)) => self.step(job, step, out),
            Wake::Own(_) => {}
        }
    }

    fn call(&mut self, job: u64, purpose: Purpose, ask: Ask, out: &mut Out<'_>) {
        let id = out.call(ask, None);
        self.open.insert(id, (job, purpose));
    }

    fn request(&self, serial: u64, out: &mut Out<'_>) -> AdmitRequest {
        let node = &out.setup.config.capacity;
        let longest = node.max_request_tokens.get();
        // Mostly a part of the node, at times more than there is.
        let most = if out.dice.chance(30) { longest * 2 } else { longest.div_ceil(out.dice.within(1..=6)) };
        let tokens = out.dice.within(1..=most.max(1));
        let prompt = out.dice.within(1..=tokens);
        let tenant = out.dice.pick(&out.setup.tenants).cloned().unwrap_or_default();
        let document = out.dice.below(4);
        let shared = if out.setup.plain || out.dice.chance(400) { 0 } else { prompt / node.page_tokens };
        let name = format!("{}.{serial}", self.name);
        AdmitRequest {
            tenant: tenant.clone(),
            prefix_hashes: setup::prefix(&tenant, document, shared),
            priority: if out.setup.plain { 0 } else { i32::from(out.dice.chance(200)) },
            epoch: self.epoch.filter(|_| out.dice.chance(300)),
            ttl: out.dice.chance(200).then(|| Duration::from_millis(out.dice.within(100..=4_000))),
            ..AdmitRequest {
                length: Length::Tokens { prompt, generated: 0, max_new: tokens - prompt },
                ..AdmitRequest::new(&name, 1, 0)
            }
        }
    }

    fn new_job(&mut self, out: &mut Out<'_>) {
        if !out.setup.plain && out.dice.chance(60) {
            let size = out.dice.within(2..=4);
            let batch: Vec<_> = (0..size)
                .map(|_| {
                    self.next_job += 1;
                    self.request(self.next_job, out)
                })
                .collect();
            let ask = if out.dice.chance(800) { Ask::AdmitAll(batch) } else { Ask::Validate(batch[0].clone()) };
            return self.call(0, Purpose::Batch, ask, out);
        }
        self.next_job += 1;
        let request = self.request(self.next_job, out);
        let waits = !out.setup.plain && out.dice.chance(300);
        let wait = if waits { Duration::from_millis(out.dice.within(50..=4_000)) } else { Duration::ZERO };
        let job = Job { request, wait, lease: None, tokens: 0, tries: 0, own: false };
        self.jobs.insert(self.next_job, job);
        self.ask(self.next_job, out);
    }

    fn ask(&mut self, id: u64, out: &mut Out<'_>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.tries += 1;
        let ask = Ask::Admit { request: job.request.clone(), wait: job.wait };
        self.call(id, Purpose::Admit, ask, out);
    }

    fn step(&mut self, id: u64, step: JobStep, out: &mut Out<'_>) {
        let Some(job) = self.jobs.get(&id) else { return };
        match (step, job.lease.clone()) {
            (JobStep::AskAgain, _) => self.ask(id, out),
            (JobStep::Renew, Some(lease)) if job.own => {
                let ttl = out.dice.chance(300).then(|| Duration::from_millis(out.dice.within(500..=5_000)));
                let lease = out.name(&lease);
                self.call(id, Purpose::Keep, Ask::Renew { lease, ttl }, out);
                out.wake(Self::renew_after(out), Own::Job(id, JobStep::Renew));
            }
            (JobStep::Extend, Some(lease)) => {
                let more = job.tokens + out.dice.within(1..=256);
                let tokens = more.min(out.setup.config.capacity.max_request_tokens.get());
                let lease = out.name(&lease);
                self.call(id, Purpose::Keep, Ask::Extend { lease, tokens }, out);
            }
            (JobStep::End, _) => {
                if let Some(job) = self.jobs.get_mut(&id) {
                    (job.own, job.tries) = (false, 0);
                }
                self.release(id, out);
            }
            (JobStep::ReleaseAgain, _) => {
                self.release(id, out);
                if out.dice.chance(700) {
                    self.jobs.remove(&id);
                }
            }
            _ => {}
        }
    }

    /// By number where it is known, else by name.
    fn release(&mut self, id: u64, out: &mut Out<'_>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.tries += 1;
        let (request_id, own) = (Arc::clone(&job.request.request_id), job.request.tenant.clone());
        let lease = job.lease.clone();
        let tenant = out.tenant(&own);
        let ask = match lease {
            Some(lease) if !out.dice.chance(100) => Ask::Release { id: lease.id, tenant },
            _ => Ask::ReleaseRequest { request_id, tenant },
        };
        self.call(id, Purpose::Release, ask, out);
    }

    fn renew_after(out: &Out<'_>) -> u64 {
        u64::try_from(out.setup.config.router_ttl.as_micros()).unwrap_or(u64::MAX) / 3
    }

    fn unanswered(&mut self, id: u64, purpose: Purpose, out: &mut Out<'_>) {
        let tries = self.jobs.get(&id).map_or(0, |job| job.tries);
        match purpose {
            Purpose::Admit if tries < TRIES && out.dice.chance(800) => self.ask(id, out),
            Purpose::Admit if out.dice.chance(700) => self.step(id, JobStep::End, out),
            Purpose::Release if tries < TRIES * 2 => self.release(id, out),
            Purpose::Admit | Purpose::Release => {
                self.jobs.remove(&id);
            }
            Purpose::Commit => self.step(id, JobStep::End, out),
            Purpose::Batch | Purpose::Keep | Purpose::Look => {}
        }
    }

    pub(crate) fn answered(&mut self, call: CallId, answer: &Answer, out: &mut Out<'_>) {
        let Some((id, purpose)) = self.open.remove(&call) else { return };
        match (purpose, answer) {
            (Purpose::Look, Answer::Capacity(Capacity { epoch, .. })) => {
                // Answers may overtake each other: the larger epoch is the later one.
                self.epoch = self.epoch.max(Some(*epoch));
            }
            (Purpose::Admit, Answer::Granted(granted)) => self.granted(id, &granted.lease, out),
            (Purpose::Admit, _) => {
                if self.jobs.get(&id).is_some_and(|job| job.tries < TRIES) && out.dice.chance(500) {
                    let later = out.dice.around(500_000);
                    out.wake(later, Own::Job(id, JobStep::AskAgain));
                } else {
                    self.jobs.remove(&id);
                }
            }
            (Purpose::Batch, Answer::AllGranted(all)) => {
                for granted in all {
                    self.next_job += 1;
                    let request = AdmitRequest {
                        tenant: Arc::clone(&granted.lease.tenant),
                        ..AdmitRequest::new(&granted.lease.request_id, 1, 0)
                    };
                    let job = Job { request, wait: Duration::ZERO, lease: None, tokens: 0, tries: 0, own: false };
                    self.jobs.insert(self.next_job, job);
                    self.granted(self.next_job, &granted.lease, out);
                }
            }
            (Purpose::Commit, Answer::Lease(_)) => {
                let after = Self::renew_after(out);
                out.wake(after, Own::Job(id, JobStep::Renew));
                if out.dice.chance(300) {
                    let after = out.dice.around(out.setup.decode_us / 2);
                    out.wake(after, Own::Job(id, JobStep::Extend));
                }
            }
            (Purpose::Commit, Answer::Refused(_)) => self.step(id, JobStep::End, out),
            (Purpose::Release, _) => {
                if out.dice.chance(200) {
                    let later = out.dice.around(1_500_000);
                    out.wake(later, Own::Job(id, JobStep::ReleaseAgain));
                } else {
                    self.jobs.remove(&id);
                }
            }
            _ => {}
        }
    }

    fn granted(&mut self, id: u64, lease: &Lease, out: &mut Out<'_>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(number) = lease.id else { return };
        let named = Named { id: number, tenant: Arc::clone(&lease.tenant), epoch: lease.epoch };
        (job.lease, job.tokens, job.tries) = (Some(named.clone()), lease.tokens.get(), 0);
        let ends = out.dice.around(out.setup.decode_us);
        match out.dice.below(10) {
            // Released at once, or after a while without ever having been used.
            0 => self.step(id, JobStep::End, out),
            // Forgotten.
            1 => {
                self.jobs.remove(&id);
            }
            2..=5 if out.setup.engines > 0 => {
                let engine = usize::try_from(out.dice.below(out.setup.engines as u64)).unwrap_or(0);
                let hashes = job.request.prefix_hashes.clone();
                let handover = Handover { lease: named, tokens: lease.tokens.get(), hashes };
                if out.dice.chance(100) {
                    // It took the first engine for dead.
                    out.handovers.push(((engine + 1) % out.setup.engines, handover.clone()));
                }
                out.handovers.push((engine, handover));
                // Most leave the end to the engine.
                if out.dice.chance(300) {
                    out.wake(ends, Own::Job(id, JobStep::End));
                } else {
                    self.jobs.remove(&id);
                }
            }
            _ => {
                job.own = true;
                let lease = out.name(&named);
                let ttl = out.dice.chance(300).then(|| Duration::from_millis(out.dice.within(500..=8_000)));
                self.call(id, Purpose::Commit, Ask::Commit { lease, by: CommitBy::Router { ttl } }, out);
                out.wake(ends, Own::Job(id, JobStep::End));
            }
        }
    }
}
