//! Waiting: whoever waits is served in turn, and no longer than agreed.
//!
//! ```text
//!  a grant ─► nobody of its priority or a higher one has waited longer and waits on
//! ```
//! A tenant with a ceiling may be at it, and is passed over then: its waiters prove nothing. And a tenant with a floor
//! may have what is kept for it at any time: of some pool it then holds no more than its floor, this grant included.

use hisparse_core::ledger::Pool;

use super::waiter::Waiter;
use super::{Auditor, Checked, Step, ensure};
use crate::call::{Answer, Ask, Input};

impl Auditor {
    /// Whether the tenant holds, after this step, no more of some pool than what is kept for it.
    fn within_its_floor(&self, tenant: &str, step: &Step<'_>) -> bool {
        let Some(policy) = self.terms.policies.get(tenant) else { return false };
        let used = self.used_by(tenant, &step.after.leases);
        Pool::ALL.into_iter().zip(used).any(|(pool, used)| used <= policy.floor[pool] && used > 0)
    }

    pub(super) fn check_turns(&mut self, step: &Step<'_>) -> Checked {
        let granted = step.answered().filter_map(|(call, answer)| match (&call.ask, answer) {
            (Ask::Admit { request, .. }, Answer::Granted(granted)) if !granted.repeated => {
                Some((call.id, request.priority, &granted.lease.tenant))
            }
            _ => None,
        });
        for (call, priority, tenant) in granted {
            if self.within_its_floor(tenant, step) {
                continue;
            }
            // Those behind it in the line, and those of lower priority, wait rightly.
            let came = self.line.iter().find(|waiter| waiter.call == call).map_or(u64::MAX, |waiter| waiter.first_copy);
            let ahead = self.line.iter().filter(|waiter| waiter.call != call && waiter.last_copy < came);
            let left = ahead.filter(|waiter| step.waiting.contains(&waiter.call) && !waiter.capped);
            let skipped = left.filter(|waiter| waiter.priority >= priority).collect::<Vec<_>>();
            ensure(skipped.is_empty(), "first come, first served", || {
                format!("{call:?} before {skipped:?}; {step:?}")
            })?;
        }
        if let (Input::Call { call, arrived }, None) = (step.input, &step.decided.answer)
            && let Ask::Admit { request, wait } = &call.ask
        {
            let until = step.now.saturating_add(*wait).min(arrived.saturating_add(call.timeout));
            let capped = self.terms.policies.contains_key(&request.tenant);
            let (call, priority) = (call.id, request.priority);
            self.arrivals += 1;
            let (first_copy, last_copy) = (self.arrivals, self.arrivals);
            if let Some(waiter) = self.line.iter_mut().find(|waiter| waiter.call == call) {
                (waiter.last_copy, waiter.until) = (last_copy, waiter.until.max(until));
            } else {
                self.line.push(Waiter { call, first_copy, last_copy, priority, until, capped });
            }
            self.count("waited");
        }
        self.line.retain(|waiter| step.waiting.contains(&waiter.call));
        let late = self.line.iter().find(|waiter| waiter.until <= step.now);
        ensure(late.is_none(), "waits end", || format!("{late:?} at {:?}", step.now))
    }
}
