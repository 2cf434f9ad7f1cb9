//! The node at a glance: what the page on the HTTP port and `hisparse-svc top` show.
//!
//! ```text
//!  survey, slice by slice ─► map, leases ─┐
//!  one decision ─► capacity, fits ────────┼─► GetOverviewResponse ─┬─► gRPC          GetOverview
//!  counters, history, segments ───────────┘                        └─► JSON          the page: see `page`
//! ```
//! It names no tenant and no request: a lease is its own number, its length and its age.

use std::collections::BTreeMap;
use std::sync::Arc;

use hisparse_core::budget::concurrency::CONTEXTS_TOKENS;
use hisparse_core::env::{Clock, Moment};
use hisparse_core::ledger::{Glance, LeaseId, PageMap, Survey};
use hisparse_core::limits::{MAX_MAP_BUCKETS, MAX_OVERVIEW_EXTENTS, MAX_OVERVIEW_LEASES};
use hisparse_mem::report::PoolReport;

use crate::error::Refusal;
use crate::memory::Hosting;
use crate::node::Node;
use crate::{proto, wire};

/// How much of the pool is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// The pools alone: one decision.
    Pools,
    /// Every page and every lease too.
    Whole,
}

/// The node now; `lengths` as in `GetCapacity`, and where there are none the usual ones that it could ever hold.
///
/// # Errors
/// Lengths that no node could hold; [`Refusal::Deadline`], [`Refusal::Poisoned`].
pub(crate) async fn overview(
    node: &Arc<Node>,
    lengths: &[u64],
    depth: Depth,
    deadline: Option<Moment>,
) -> Result<proto::GetOverviewResponse, Refusal> {
    let (mut survey, mut leases, mut held) = (Survey::default(), Vec::new(), 0);
    if depth == Depth::Whole {
        while let Some(slice) = node.decide(deadline, |state, now| state.ledger.survey(&mut survey, now))? {
            held += slice.len();
            leases.extend(slice);
            keep_oldest(&mut leases, 2 * MAX_OVERVIEW_LEASES);
            tokio::task::yield_now().await;
        }
        keep_oldest(&mut leases, MAX_OVERVIEW_LEASES);
        leases.sort_unstable_by_key(|lease| lease.id);
    }
    let map = (depth == Depth::Whole).then(|| page_map(&survey.map(MAX_MAP_BUCKETS, &leases), &leases));
    let usual;
    let lengths = if lengths.is_empty() {
        let longest = node.config.capacity.max_request_tokens.get();
        usual = CONTEXTS_TOKENS.into_iter().filter(|length| *length <= longest).collect::<Vec<_>>();
        // A node too small for any of them says what it has of its longest.
        if usual.is_empty() { &[longest][..] } else { &usual }
    } else {
        lengths
    };
    let (capacity, fits) = crate::look::look(node, "", lengths, deadline)?;
    let seen = node.overview()?;
    let made = node.hosting().and_then(Hosting::made);
    Ok(proto::GetOverviewResponse {
        capacity: Some(capacity),
        fits,
        not_ready: node.not_ready().map(std::borrow::Cow::into_owned).unwrap_or_default(),
        waiters: seen.waiters as u64,
        sessions: node.sessions.attached() as u64,
        model: node.config.model.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        backing: if node.hosting().is_some() { "memory" } else { "none" }.to_owned(),
        page_tokens: node.config.capacity.page_tokens,
        uptime: Some(wire::duration_to_proto(node.clock.now().since_origin())),
        notes: node.notes(),
        numa: made.map(numa).unwrap_or_default(),
        admits: Some(node.history.shown(node.counters())),
        swap_in: node.counters().swap_in().totals(),
        leases_total: held as u64,
        leases: leases.iter().map(lease).collect(),
        map,
    })
}

/// Drops all but the oldest, once there are more than `most`.
fn keep_oldest(leases: &mut Vec<Glance>, most: usize) {
    if leases.len() > most {
        let kept = MAX_OVERVIEW_LEASES.min(leases.len());
        leases.select_nth_unstable_by_key(kept - 1, |lease| lease.id);
        leases.truncate(kept);
    }
}

fn lease(lease: &Glance) -> proto::LeaseGlance {
    let extents = lease.extents.iter().take(MAX_OVERVIEW_EXTENTS);
    proto::LeaseGlance {
        id: lease.id.to_string(),
        state: wire::lease_state(lease.state).into(),
        tokens: lease.tokens.get(),
        pages: lease.pages.into(),
        shared_pages: lease.shared_pages.into(),
        durable_pages: lease.durable_pages.into(),
        extent_count: lease.extents.len() as u64,
        extents: extents
            .map(|run| proto::Extent { first_page: run.start.into(), page_count: run.pages.into() })
            .collect(),
        age: Some(wire::duration_to_proto(lease.age)),
        older: lease.restored,
        expires_in: lease.expires_in.map(wire::duration_to_proto),
    }
}

fn page_map(map: &PageMap, leases: &[Glance]) -> proto::PageMap {
    let place = |id: &LeaseId| leases.binary_search_by_key(id, |lease| lease.id).ok();
    let number = |id: &Option<LeaseId>| {
        let place = id.as_ref().and_then(place).and_then(|place| u32::try_from(place + 1).ok());
        place.unwrap_or_default()
    };
    let [free, reserved, committed, evictable, scrubbing, quarantined] = map.counts.clone();
    proto::PageMap {
        pages_per_bucket: map.pages_per_bucket.into(),
        free,
        reserved,
        committed,
        evictable,
        scrubbing,
        quarantined,
        lease: map.leases.iter().map(number).collect(),
    }
}

/// Bytes of the pool on each NUMA node, as a sample of each segment's pages says; none where the kernel does not tell.
fn numa(made: &PoolReport) -> Vec<proto::NumaShare> {
    let mut nodes: BTreeMap<u32, u64> = BTreeMap::new();
    for segment in &made.segments {
        for (node, percent) in segment.nodes.known().into_iter().flatten() {
            let share = u128::from(segment.bytes) * u128::from(*percent) / 100;
            *nodes.entry(*node).or_default() += u64::try_from(share).unwrap_or(u64::MAX);
        }
    }
    nodes.into_iter().map(|(node, bytes)| proto::NumaShare { node, bytes }).collect()
}
