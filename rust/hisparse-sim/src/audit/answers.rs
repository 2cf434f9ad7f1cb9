//! Answers: what was accepted had to be acceptable, what was refused had to be refused, and what was shown is so.
//!
//! ```text
//!  accepted ─► of this epoch, of a living lease, by its tenant, from an attached session
//!  refused  ─► nothing changed, and the reason given is true
//! ```

use std::collections::BTreeMap;

use hisparse_core::ledger::{AdmitRequest, CommitBy, Lease, LeaseId, LeaseState, Pool, Refusal, Released};

use super::{Auditor, Checked, Keeper, Step, ensure};
use crate::call::{Answer, Ask, Call, Input, Named, Refused};

impl Auditor {
    pub(super) fn check_answers(&mut self, step: &Step<'_>, is: &BTreeMap<LeaseId, &Lease>) -> Checked {
        for (call, answer) in step.answered() {
            let direct = matches!(step.input, Input::Call { call: asked, .. } if asked.id == call.id);
            self.check_answer(call, answer, direct, step, is)
                .map_err(|finding| super::Finding { detail: format!("{}; {step:?}", finding.detail), ..finding })?;
            self.count(match answer {
                Answer::Refused(Refused::Ledger(refusal)) => refusal.reason().unwrap_or("refused for another reason"),
                Answer::Refused(Refused::Deadline) => "DEADLINE",
                Answer::Refused(Refused::NoSession) => "session gone",
                _ => "answered",
            });
        }
        Ok(())
    }

    fn check_answer(
        &self,
        call: &Call,
        answer: &Answer,
        direct: bool,
        step: &Step<'_>,
        is: &BTreeMap<LeaseId, &Lease>,
    ) -> Checked {
        if let Answer::Refused(refused) = answer {
            self.check_refused(&call.ask, refused, direct, step, is)?;
        } else if let Some(session) = call.session {
            ensure(self.attached.contains(&session), "a dead session decides nothing", || format!("{session:?}"))?;
        }
        match (&call.ask, answer) {
            (
                Ask::Commit { lease, .. }
                | Ask::Renew { lease, .. }
                | Ask::Extend { lease, .. }
                | Ask::Publish { lease, .. },
                Answer::Lease(_) | Answer::Published(_),
            ) => {
                let current = step.after.capacity.epoch;
                ensure(lease.epoch == current, "no stale epoch is accepted", || {
                    format!("{} at {current}", lease.epoch)
                })?;
                ensure(self.living(lease.id, step), "only living leases are used", || format!("{lease:?}"))?;
                let publishes = matches!(call.ask, Ask::Publish { .. });
                ensure(publishes || self.owns(lease), "a lease is its tenant's alone", || format!("{lease:?}"))?;
                let stolen = match (&call.ask, self.keepers.get(&lease.id)) {
                    (Ask::Commit { by: CommitBy::Session(by), .. }, Some(Keeper::Session(holder))) => by != holder,
                    _ => false,
                };
                ensure(!stolen, "one engine per lease", || format!("{call:?}"))
            }
            (Ask::Release { id, .. }, Answer::Released(released)) => {
                let (was, now) = (self.leases.get(id), is.get(id));
                let right = match released {
                    Released::Freed => was.is_some() && now.is_none(),
                    Released::Quarantined => now.is_some_and(|lease| lease.state == LeaseState::Quarantined),
                    Released::Already => now.is_none(),
                };
                ensure(right, "a release says what it did", || format!("{was:?} to {now:?}"))
            }
            // For those who wait, things may be done after the look: a grant, pages that begin to be zeroed.
            (Ask::GetCapacity, Answer::Capacity(capacity)) if self.line.len() + step.decided.served.len() == 0 => {
                let same = *capacity == step.after.capacity;
                ensure(same, "capacity is fresh", || format!("{capacity:?} and {:?}", step.after.capacity))
            }
            _ => self.check_grants(step, is),
        }
    }

    fn check_grants(&self, step: &Step<'_>, is: &BTreeMap<LeaseId, &Lease>) -> Checked {
        for (request, granted) in step.grants() {
            let current = step.after.capacity.epoch;
            let stale = request.epoch.is_some_and(|given| given != current);
            ensure(!stale, "no stale epoch is accepted", || format!("{request:?} at {current}"))?;
            let Some(id) = granted.lease.id else {
                return ensure(false, "a grant has a number", || format!("{granted:?}"));
            };
            if granted.repeated {
                let original =
                    self.requests.get(&id).map(|original| AdmitRequest { epoch: request.epoch, ..original.clone() });
                let same = original.is_none_or(|original| original == *request);
                // Who waited may get what this very step granted to another copy of the call, or brought back to life.
                let granted_now = step.grants().iter().any(|(_, other)| other.lease.id == Some(id) && !other.repeated);
                let back = matches!(&step.decided.answer, Some(Answer::Reclaimed(all)) if all.iter().any(|l| l.id == Some(id)));
                let new = granted_now || back;
                ensure(same && (new || self.living(id, step)), "a repeated request gets its own lease", || {
                    format!("{granted:?}")
                })?;
            }
            ensure(is.get(&id).is_some_and(|lease| **lease == granted.lease), "what is granted is there", || {
                format!("{granted:?}")
            })?;
        }
        Ok(())
    }

    fn check_refused(
        &self,
        ask: &Ask,
        refused: &Refused,
        direct: bool,
        step: &Step<'_>,
        is: &BTreeMap<LeaseId, &Lease>,
    ) -> Checked {
        // Nothing but time may have touched a lease, where nobody else was served in this step.
        if direct && step.decided.served.is_empty() {
            let touched = is.iter().find(|(id, lease)| {
                let was = self.leases.get(id);
                was != Some(**lease) && was.is_none_or(|was| was.expires_at.is_none_or(|end| end > step.now))
            });
            ensure(touched.is_none(), "a refusal changes nothing", || format!("{touched:?}"))?;
        }
        let Refused::Ledger(refusal) = refused else { return Ok(()) };
        match (ask, refusal) {
            (
                Ask::Commit { lease, .. } | Ask::Renew { lease, .. } | Ask::Extend { lease, .. },
                Refusal::LeaseNotFound { .. } | Refusal::WrongState { .. },
            ) => {
                let taken = matches!(
                    (ask, self.keepers.get(&lease.id)),
                    (Ask::Commit { by: CommitBy::Session(asking), .. }, Some(Keeper::Session(holder))) if asking != holder
                );
                let right = self.owns(lease) && lease.epoch == step.after.capacity.epoch && !taken;
                let usable = self.living(lease.id, step) && right;
                ensure(!usable, "a living lease can be used", || format!("{lease:?}"))
            }
            (_, Refusal::StaleEpoch { given, current }) => {
                ensure(given != current && *current == step.after.capacity.epoch, "stale is stale", || {
                    format!("{refusal}")
                })
            }
            (Ask::Admit { request, wait }, Refusal::PoolBusy { pool, .. }) if wait.is_zero() && direct => {
                self.check_busy(request, *pool, step)
            }
            (Ask::Admit { request, .. }, Refusal::NeverFits { .. }) => {
                let tokens = self.terms.tokens_of(request);
                let mut floors = [0; 5];
                for (_, policy) in self.terms.policies.iter().filter(|(name, _)| **name != request.tenant) {
                    for pool in Pool::ALL {
                        floors[pool as usize] += policy.floor[pool];
                    }
                }
                let ceiling = self.terms.policies.get(&request.tenant).map(|policy| policy.ceiling);
                let too_much = Pool::ALL.into_iter().any(|pool| {
                    let asked = self.terms.demand(tokens)[pool as usize];
                    asked > self.terms.totals()[pool as usize] - floors[pool as usize]
                        || ceiling.is_some_and(|ceiling| asked > ceiling[pool])
                });
                let too_long = tokens > self.terms.config.capacity.max_request_tokens.get();
                ensure(too_much || too_long, "what fits an empty node may fit", || format!("{request:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Busy has to be true: of the pool that is named, less is left than was asked.
    fn check_busy(&self, request: &AdmitRequest, pool: Pool, step: &Step<'_>) -> Checked {
        // Who waits is ahead of a newcomer, room or not; and of pages a tenant may be kept from others' leavings.
        let told_by_the_queue = !step.decided.served.is_empty() || self.line.len() + step.waiting.len() > 0;
        let pages_are_plain = request.prefix_hashes.is_empty() && (self.terms.tenants == 1 || !self.isolated());
        if told_by_the_queue || (pool == Pool::HostPages && !pages_are_plain) {
            return Ok(());
        }
        let asked = self.terms.demand(self.terms.tokens_of(request))[pool as usize];
        let kept = self.set_aside(&request.tenant, &step.after.leases)[pool as usize];
        let shown = step.after.capacity.pools.iter().find(|shown| shown.name == pool);
        let unheld = shown.map_or(0, |shown| shown.free + shown.evictable + shown.scrubbing);
        ensure(asked > unheld.saturating_sub(kept), "busy is true", || {
            format!("{asked} of {pool}: {unheld} left, {kept} set aside")
        })
    }

    /// By the auditor's own record: there, and not past its end.
    fn living(&self, id: LeaseId, step: &Step<'_>) -> bool {
        self.leases.get(&id).is_some_and(|lease| {
            lease.state != LeaseState::Quarantined && lease.expires_at.is_none_or(|end| end > step.now)
        })
    }

    fn owns(&self, named: &Named) -> bool {
        self.leases.get(&named.id).is_some_and(|lease| lease.tenant == named.tenant)
    }
}
