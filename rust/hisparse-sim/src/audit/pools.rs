//! The conservation law, against sums that the auditor makes itself from the leases it sees.
//!
//! ```text
//!  free + reserved + committed + evictable + scrubbing + quarantined = total
//!         └───────────┴─ of leases, by state ─────────────────┘
//! ```

use hisparse_core::ledger::{Lease, LeaseState, Pool, PoolState};

use super::{Auditor, Checked, Step, ensure};

impl Auditor {
    pub(super) fn check_pools(&self, step: &Step<'_>) -> Checked {
        let leases = &step.after.leases;
        let totals = self.terms.totals();
        for pool in &step.after.capacity.pools {
            let parts = [pool.free, pool.reserved, pool.committed, pool.evictable, pool.scrubbing, pool.quarantined];
            let total = totals[pool.name as usize];
            let sum: u64 = parts.iter().sum();
            ensure(sum == total && pool.total == total, "conservation", || format!("{pool:?} of {total}; {step:?}"))?;
            if pool.name == Pool::HostPages {
                self.check_host_pages(pool, leases)?;
            } else {
                let counted = LEASE_STATES.map(|state| {
                    let of_state = leases.iter().filter(|lease| lease.state == state);
                    of_state.map(|lease| self.terms.demand(lease.tokens.get())[pool.name as usize]).sum::<u64>()
                });
                ensure(
                    counted == [pool.reserved, pool.committed, pool.quarantined]
                        && pool.evictable + pool.scrubbing == 0,
                    "conservation",
                    || format!("{pool:?}, and leases add up to {counted:?}; {step:?}"),
                )?;
            }
        }
        self.check_quotas(step)
    }

    /// Shared pages count once, so of pages only sums over states can be told from outside.
    fn check_host_pages(&self, pool: &PoolState, leases: &[Lease]) -> Checked {
        let own = |state: LeaseState| -> u64 {
            let of_state = leases.iter().filter(|lease| lease.state == state);
            of_state.map(|lease| u64::from(lease.pages - lease.shared_pages)).sum()
        };
        let in_leases = pool.reserved + pool.committed + pool.quarantined;
        let published = leases
            .iter()
            .filter(|lease| lease.state == LeaseState::Quarantined)
            .flat_map(|lease| lease.extents.page_numbers().skip(lease.shared_pages as usize))
            .filter(|page| self.pages.is_published(*page))
            .count() as u64;
        let quarantined = own(LeaseState::Quarantined);
        ensure(
            in_leases == self.pages.held
                && pool.reserved == own(LeaseState::Reserved)
                && pool.quarantined <= quarantined
                && pool.quarantined >= quarantined - published,
            "conservation",
            || format!("{pool:?}, and leases list {} pages: {leases:?}", self.pages.held),
        )
    }

    /// Ceilings hold at all times, and floors at every grant.
    fn check_quotas(&self, step: &Step<'_>) -> Checked {
        for (tenant, policy) in &self.terms.policies {
            let used = self.used_by(tenant, &step.after.leases);
            for pool in Pool::ALL {
                let (used, ceiling) = (used[pool as usize], policy.ceiling[pool]);
                ensure(used <= ceiling, "ceilings hold", || format!("{tenant} uses {used} of {ceiling} {pool}"))?;
            }
        }
        for (_, granted) in step.grants().into_iter().filter(|(_, granted)| !granted.repeated) {
            let lease = &granted.lease;
            let kept = self.set_aside(&lease.tenant, &step.after.leases);
            for pool in &step.after.capacity.pools {
                let unheld = pool.free + pool.evictable + pool.scrubbing;
                let nothing_new = pool.name == Pool::HostPages && lease.pages == lease.shared_pages;
                ensure(nothing_new || unheld >= kept[pool.name as usize], "floors hold", || {
                    format!("{pool:?} leaves {unheld}, and {} is set aside: {granted:?}", kept[pool.name as usize])
                })?;
            }
        }
        Ok(())
    }
}

const LEASE_STATES: [LeaseState; 3] = [LeaseState::Reserved, LeaseState::Committed, LeaseState::Quarantined];
