//! Lease histories: every difference between two looks at the node has a cause in between that allows it.
//!
//! ```text
//!   (none) ─► reserved      a grant, of a number larger than all before
//!   reserved ─► committed   a commit, before its end
//!   ─► quarantined          its end, its session's death, a release by another than its engine
//!   quarantined ─► committed   a successor's reclaim
//!   ─► (none)               a release, a confirmation, the quarantine bound
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use hisparse_core::ledger::{CommitBy, Lease, LeaseId, LeaseState, Released, SessionId};

use super::{Auditor, Checked, Finding, Keeper, Step, ensure};
use crate::call::{Answer, Ask, Input};

/// Not worth counting.
const STAYED: &str = "stayed";

impl Auditor {
    pub(super) fn check_leases(&mut self, step: &Step<'_>, is: &BTreeMap<LeaseId, &Lease>) -> Checked {
        let mut ids: Vec<LeaseId> = self.leases.keys().chain(is.keys()).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        let mut happened = Vec::new();
        for id in ids {
            let found = match (self.leases.get(&id), is.get(&id)) {
                (None, Some(now)) => self.began(id, now, step).map(|()| "granted"),
                (Some(was), None) => self.ended_rightly(id, was, step),
                (Some(was), Some(now)) => self.went_on(id, was, now, step),
                (None, None) => continue,
            };
            happened.push(found.map_err(|finding| Finding {
                detail: format!(
                    "lease {id}, {}; before {:?}; after {:?}; {step:?}",
                    finding.detail,
                    self.leases.get(&id),
                    is.get(&id)
                ),
                ..finding
            })?);
        }
        for what in happened.into_iter().filter(|what| *what != STAYED) {
            self.count(what);
        }
        self.one_lease_per_request(is)
    }

    fn began(&self, id: LeaseId, now: &Lease, step: &Step<'_>) -> Checked {
        ensure(!self.ended.contains(&id), "an ended lease stays ended", || "is back".into())?;
        ensure(self.last_id.is_none_or(|last| id > last), "lease ids grow", || format!("after {:?}", self.last_id))?;
        let grants = step.grants();
        let grant = grants.iter().find(|(_, granted)| granted.lease.id == Some(id) && !granted.repeated);
        let Some((request, granted)) = grant else {
            return Err(Finding { rule: "a lease has a grant", detail: "appeared by itself".into() });
        };
        let ttl = request.ttl.unwrap_or(self.terms.config.uncommitted_ttl);
        let tokens = self.terms.tokens_of(request);
        ensure(
            granted.lease == *now
                && now.state == LeaseState::Reserved
                && now.tokens.get() == tokens
                && u64::from(now.pages) == self.terms.demand(tokens)[0]
                && now.extents.pages() == now.pages
                && now.tenant == request.tenant
                && now.expires_at == Some(step.now.saturating_add(ttl)),
            "a grant is what was asked",
            || format!("asked {request:?}"),
        )
    }

    fn ended_rightly(&self, id: LeaseId, was: &Lease, step: &Step<'_>) -> Result<&'static str, Finding> {
        let over = was.expires_at.is_some_and(|end| end <= step.now);
        if was.state == LeaseState::Quarantined && over {
            return Ok("freed after quarantine");
        }
        let past_its_end = was.state == LeaseState::Quarantined || over;
        let keeper = self.keepers.get(&id).copied().unwrap_or(Keeper::Nobody);
        match answer_about(id, was, step) {
            Some((Ask::Confirm(_), Answer::Confirmed, _)) if past_its_end => Ok("confirmed"),
            Some((Ask::Release { .. } | Ask::ReleaseRequest { .. }, Answer::Released(Released::Freed), session)) => {
                let by_another = matches!(keeper, Keeper::Session(holder) if session != Some(holder));
                ensure(!by_another, "only its engine frees at once", || format!("kept by {keeper:?}"))?;
                Ok("released")
            }
            _ if over => Err(Finding { rule: "expiry quarantines", detail: "was freed at its end".into() }),
            _ => Err(Finding { rule: "freed for a reason", detail: "is gone without cause".into() }),
        }
    }

    fn went_on(&self, id: LeaseId, was: &Lease, now: &Lease, step: &Step<'_>) -> Result<&'static str, Finding> {
        use LeaseState::{Committed, Quarantined, Reserved};
        let over = was.expires_at.is_some_and(|end| end <= step.now);
        let keeper = self.keepers.get(&id).copied().unwrap_or(Keeper::Nobody);
        let about = answer_about(id, was, step);
        let unchanged = |but_for_its_end: bool| {
            let same = Lease {
                state: was.state,
                expires_at: if but_for_its_end { was.expires_at } else { now.expires_at },
                ..now.clone()
            };
            ensure(same == *was, "a lease changes for a reason", || "changed by itself".into())
        };
        match (was.state, now.state) {
            (Quarantined, Quarantined) => {
                ensure(!over, "quarantine has a bound", || "is past it".into())?;
                unchanged(true).map(|()| STAYED)
            }
            (Reserved, Reserved) | (Committed, Committed) => {
                ensure(!over, "a lease ends at its end", || format!("outlived its end at {:?}", step.now))?;
                let rule = "a lease changes for a reason";
                match about {
                    Some((Ask::Extend { tokens, .. }, Answer::Lease(_), _)) if now.tokens != was.tokens => {
                        let kept = was.extents.page_numbers().zip(now.extents.page_numbers()).all(|(a, b)| a == b);
                        let long = now.tokens.get() == *tokens && now.tokens > was.tokens && now.pages >= was.pages;
                        ensure(kept && long, rule, || format!("asked for {tokens} tokens"))?;
                        ensure(now.extents.pages() == now.pages, rule, || "pages and extents differ".into())?;
                        Ok("extended")
                    }
                    Some((Ask::Renew { ttl, .. }, Answer::Lease(_), _)) => {
                        let until = ttl.map(|ttl| Some(step.now.saturating_add(ttl)));
                        let kept_ttl = was.expires_at.is_some() == now.expires_at.is_some();
                        let right = was.expires_at.is_none() || until.is_none_or(|until| until == now.expires_at);
                        ensure(right && kept_ttl && now.expires_at.is_none_or(|end| end > step.now), rule, || {
                            format!("renewed for {ttl:?}")
                        })?;
                        unchanged(true).map(|()| "renewed")
                    }
                    Some((Ask::Commit { by: CommitBy::Session(_), .. }, Answer::Lease(_), _)) => {
                        ensure(now.expires_at.is_none(), "a session keeps its lease", || "it ends".into())?;
                        unchanged(true).map(|()| "taken over")
                    }
                    Some((Ask::Publish { first, hashes, .. }, Answer::Published(_), _)) => {
                        let (first, was_durable) = (u64::from(*first), u64::from(was.durable_pages));
                        // A gap before them leaves the successor where it was to resume.
                        let end = if first <= was_durable { first + hashes.len() as u64 } else { 0 };
                        let grown = u64::from(now.durable_pages) == was_durable.max(end);
                        let same = Lease { durable_pages: was.durable_pages, ..now.clone() } == *was;
                        ensure(grown && same, rule, || format!("published {} pages from {first}", hashes.len()))?;
                        Ok(STAYED)
                    }
                    _ => unchanged(false).map(|()| STAYED),
                }
            }
            (Reserved, Committed) => {
                let Some((Ask::Commit { by, .. }, Answer::Lease(_), _)) = about else {
                    return Err(Finding { rule: "committed by a commit", detail: "committed by itself".into() });
                };
                ensure(!over, "no commit after the end", || format!("committed at {:?}", step.now))?;
                let right = match by {
                    CommitBy::Session(_) => now.expires_at.is_none(),
                    CommitBy::Router { ttl } => {
                        let ttl = ttl.unwrap_or(self.terms.config.router_ttl);
                        now.expires_at == Some(step.now.saturating_add(ttl))
                    }
                };
                ensure(right, "a commit sets the end", || format!("by {by:?}"))?;
                unchanged(true).map(|()| "committed")
            }
            (Reserved | Committed, Quarantined) => {
                let by_word = match (about, step.input) {
                    (Some((_, Answer::Released(Released::Quarantined), session)), _) => {
                        matches!(keeper, Keeper::Session(holder) if session != Some(holder))
                    }
                    (_, Input::SessionLost(session)) => keeper == Keeper::Session(*session),
                    _ => false,
                };
                ensure(over || by_word, "quarantined for a reason", || format!("kept by {keeper:?}"))?;
                self.bounded(now, step)?;
                unchanged(true).map(|()| if over { "expired" } else { "quarantined" })
            }
            (Quarantined, Committed) => {
                let Some((Ask::Reclaim { dead }, Answer::Reclaimed(_), Some(_))) = about else {
                    return Err(Finding { rule: "quarantine ends in a reclaim", detail: "is back in use".into() });
                };
                ensure(!over && keeper == Keeper::Session(*dead), "a successor reclaims", || format!("{keeper:?}"))?;
                unchanged(true).map(|()| "reclaimed")
            }
            (from, to) => Err(Finding { rule: "states follow their picture", detail: format!("{from:?} to {to:?}") }),
        }
    }

    fn bounded(&self, now: &Lease, step: &Step<'_>) -> Checked {
        let bound: Duration = self.terms.config.quarantine_bound;
        let end = step.now.saturating_add(bound);
        ensure(now.expires_at == Some(end), "quarantine lasts its bound", || format!("{:?}", now.expires_at))
    }

    /// Two living leases never answer to one request id.
    fn one_lease_per_request(&self, is: &BTreeMap<LeaseId, &Lease>) -> Checked {
        let mut named = BTreeMap::new();
        for (id, lease) in is {
            let request_id = self.requests.get(id).map_or(&lease.request_id, |request| &request.request_id);
            if lease.state == LeaseState::Quarantined || request_id.is_empty() {
                continue;
            }
            let other = named.insert((&lease.tenant, request_id), *id);
            // A reclaimed lease gets its name back only where no newer lease has it.
            let reclaimed = |id: &LeaseId| matches!(self.keepers.get(id), Some(Keeper::Session(_)));
            ensure(other.is_none_or(|other| reclaimed(&other) || reclaimed(id)), "one lease per request id", || {
                format!("{request_id} of {} names {other:?} and {id}", lease.tenant)
            })?;
        }
        Ok(())
    }
}

/// The call of this step that names this lease, with its answer and the session it came from.
fn answer_about<'a>(
    id: LeaseId,
    lease: &Lease,
    step: &'a Step<'_>,
) -> Option<(&'a Ask, &'a Answer, Option<SessionId>)> {
    let Input::Call { call, .. } = step.input else { return None };
    let answer = step.decided.answer.as_ref()?;
    let names = match &call.ask {
        Ask::Commit { lease, .. }
        | Ask::Renew { lease, .. }
        | Ask::Extend { lease, .. }
        | Ask::Publish { lease, .. } => lease.id == id,
        Ask::Release { id: named, .. } | Ask::Confirm(named) => *named == id,
        Ask::ReleaseRequest { request_id, tenant } => *request_id == lease.request_id && *tenant == lease.tenant,
        Ask::Reclaim { .. } => {
            matches!(answer, Answer::Reclaimed(leases) if leases.iter().any(|lease| lease.id == Some(id)))
        }
        _ => false,
    };
    names.then_some((&call.ask, answer, call.session))
}
