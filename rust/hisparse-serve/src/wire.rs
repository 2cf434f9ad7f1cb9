//! Between the ledger's types and the wire's. No rule lives here; what cannot be expressed is a problem.

use std::time::Duration;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::ledger::{self, LeaseId, Pool as PoolName};
use hisparse_core::limits::PAGE_HASH_BYTES;
use hisparse_core::pages::PageHash;
use hisparse_mem::report::{PoolReport, SegmentReport};

use crate::env::MachineClock;
use crate::error::Refusal;
use crate::proto;

/// A length of time on the wire; the longest there is where it is longer.
pub(crate) fn duration_to_proto(time: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(time.subsec_nanos()).unwrap_or_default(),
    }
}

/// A point in time on the wire, from time since 1970-01-01 UTC.
pub(crate) fn timestamp_to_proto(since_unix_epoch: Duration) -> prost_types::Timestamp {
    let prost_types::Duration { seconds, nanos } = duration_to_proto(since_unix_epoch);
    prost_types::Timestamp { seconds, nanos }
}

/// Reads one message's fields, noting every problem.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    problems: Problems,
}

impl Reader {
    /// Notes a problem.
    pub(crate) fn problem(&mut self, field: &str, value: impl std::fmt::Display, rule: &str, remedy: &str) {
        self.problems.push(Problem::new(field, value, rule, remedy));
    }

    /// A length of time, `None` where absent or wrong (then noted).
    pub(crate) fn duration(&mut self, field: &str, given: Option<prost_types::Duration>) -> Option<Duration> {
        let given = given?;
        let read = u64::try_from(given.seconds).ok().zip(u32::try_from(given.nanos).ok());
        let Some((seconds, nanos)) = read.filter(|(_, nanos)| *nanos < 1_000_000_000) else {
            let value = format!("{}.{:09} s", given.seconds, given.nanos);
            self.problem(field, value, "must be a length of time", "give whole seconds and nanos, none negative");
            return None;
        };
        Some(Duration::new(seconds, nanos))
    }

    /// Hashes of full pages.
    pub(crate) fn hashes(&mut self, field: &str, given: &[Vec<u8>]) -> Vec<PageHash> {
        let mut hashes = Vec::with_capacity(given.len());
        for (place, bytes) in given.iter().enumerate() {
            let Ok(hash) = PageHash::try_from(bytes.as_slice()) else {
                let rule = format!("a page hash has {PAGE_HASH_BYTES} bytes");
                let value = format!("{} bytes", bytes.len());
                self.problem(&format!("{field}[{place}]"), value, &rule, "send the hash whole");
                break; // The first one tells what is wrong with the caller; thousands would say no more.
            };
            hashes.push(hash);
        }
        hashes
    }

    /// Takes over what somebody else has found wrong.
    pub(crate) fn problems(&mut self, found: Problems) {
        self.problems.extend(found);
    }

    /// Takes over what was wrong with a part, under the part's own path.
    pub(crate) fn refused(&mut self, path: &str, refusal: Refusal) {
        match refusal {
            Refusal::Invalid(problems) => {
                for mut problem in problems {
                    problem.field = format!("{path}.{}", problem.field);
                    self.problems.push(problem);
                }
            }
            other => self.problem(path, "refused", other.reason(), "send it alone to see why"),
        }
    }

    /// `value`, or everything that is wrong.
    pub(crate) fn finish<T>(self, value: T) -> Result<T, Refusal> {
        self.problems.into_result(value).map_err(Refusal::Invalid)
    }
}

/// A lease's name.
pub(crate) fn lease_id(text: &str) -> Result<LeaseId, Refusal> {
    text.parse().map_err(|rule: String| {
        let shown: String = text.chars().take(80).collect();
        Refusal::field("lease_id", format!("{shown:?}"), &rule, "send `lease.id` of Admit's answer")
    })
}

/// A lease as callers see it.
pub(crate) fn lease(lease: &ledger::Lease, clock: &MachineClock, with_extents: bool) -> proto::Lease {
    let extents = lease.extents.iter().filter(|_| with_extents);
    proto::Lease {
        id: lease.id.map(|id| id.to_string()).unwrap_or_default(),
        request_id: lease.request_id.to_string(),
        state: lease_state(lease.state).into(),
        epoch: lease.epoch.get(),
        pages: lease.pages.into(),
        extents: extents
            .map(|extent| proto::Extent { first_page: extent.start.into(), page_count: extent.pages.into() })
            .collect(),
        expire_time: lease.expires_at.map(|moment| timestamp_to_proto(clock.wall(moment))),
        tenant: lease.tenant.to_string(),
        shared_pages: lease.shared_pages.into(),
        tokens: lease.tokens.get(),
    }
}

/// Where a lease stands.
pub(crate) const fn lease_state(state: ledger::LeaseState) -> proto::LeaseState {
    match state {
        ledger::LeaseState::Reserved => proto::LeaseState::Reserved,
        ledger::LeaseState::Committed => proto::LeaseState::Committed,
        ledger::LeaseState::Quarantined => proto::LeaseState::Quarantined,
        ledger::LeaseState::Released => proto::LeaseState::Released,
    }
}

/// The node as callers see it.
/// `numa_node` is the one that all of its memory lies on, where there is one.
pub(crate) fn capacity(
    seen: &ledger::Capacity,
    numa_node: Option<u32>,
    observed_since_unix_epoch: Duration,
) -> proto::Capacity {
    proto::Capacity {
        epoch: seen.epoch.get(),
        sequence: seen.sequence,
        observed_at: Some(timestamp_to_proto(observed_since_unix_epoch)),
        pools: seen.pools.iter().map(|state| pool(state, numa_node)).collect(),
        largest_grant_tokens: seen.largest_grant_tokens,
        max_request_tokens: seen.max_request_tokens,
        draining: seen.draining,
        largest_extent_pages: seen.largest_extent_pages.into(),
    }
}

fn pool(state: &ledger::PoolState, numa_node: Option<u32>) -> proto::Pool {
    proto::Pool {
        name: state.name.name().to_owned(),
        // Only host pages are host memory.
        numa_node: numa_node.filter(|_| state.name == PoolName::HostPages),
        total: state.total,
        free: state.free,
        reserved: state.reserved,
        committed: state.committed,
        evictable: state.evictable,
        scrubbing: state.scrubbing,
        quarantined: state.quarantined,
    }
}

/// What the pool's memory became.
pub(crate) fn segments(report: &PoolReport) -> Vec<proto::Segment> {
    let shown = |segment: &SegmentReport| proto::Segment {
        bytes: segment.bytes,
        backing: segment.backing.word().to_owned(),
        page_bytes: segment.backing.granule_bytes(),
        placement: segment.placement.to_string(),
        placed_by: segment.placed.word().to_owned(),
        node_percent: segment.nodes.known().into_iter().flatten().map(|(node, percent)| (*node, *percent)).collect(),
    };
    report.segments.iter().map(shown).collect()
}

/// A tenant's part of a pool.
pub(crate) fn quota(quota: &ledger::Quota) -> proto::Quota {
    proto::Quota { pool: quota.pool.name().to_owned(), floor: quota.floor, ceiling: quota.ceiling, used: quota.used }
}

/// How many requests of each length asked about fit.
pub(crate) fn fits(seen: &ledger::Capacity) -> Vec<proto::Fit> {
    let shown = |fit: &ledger::Fit| proto::Fit {
        tokens: fit.tokens,
        count: fit.count,
        binding: fit.binding.to_owned(),
        reason: fit.reason.to_owned(),
    };
    seen.fits.iter().map(shown).collect()
}

/// Problems as a message lists them.
pub(crate) fn problems(problems: &Problems) -> Vec<proto::Problem> {
    let shown = |problem: &Problem| proto::Problem {
        field: problem.field.clone(),
        value: problem.value.clone(),
        rule: problem.rule.clone(),
        remedy: problem.remedy.clone(),
    };
    problems.iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_and_crooked_times_are_problems() {
        for (seconds, nanos) in [(-1, 0), (0, -1), (1, 1_000_000_000), (i64::MIN, i32::MIN)] {
            let mut reader = Reader::default();
            assert_eq!(reader.duration("ttl", Some(prost_types::Duration { seconds, nanos })), None);
            assert!(reader.finish(()).is_err(), "{seconds} {nanos}");
        }
        let mut reader = Reader::default();
        let given = prost_types::Duration { seconds: 1, nanos: 500_000_000 };
        assert_eq!(reader.duration("ttl", Some(given)), Some(Duration::from_millis(1_500)));
        assert_eq!(reader.duration("ttl", None), None);
        assert!(reader.finish(()).is_ok());
    }

    #[test]
    fn a_hash_of_another_length_is_named_by_its_place() {
        let mut reader = Reader::default();
        reader.hashes("prefix_hashes", &[vec![1; 32], vec![2; 31], vec![3; 33]]);
        let Err(Refusal::Invalid(problems)) = reader.finish(()) else { panic!("it was taken") };
        assert_eq!(problems.iter().next().unwrap().field, "prefix_hashes[1]");
    }
}
