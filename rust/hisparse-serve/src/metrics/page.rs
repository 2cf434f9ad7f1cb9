//! The page of `/metrics`, written anew for each scrape.

use super::exposition::{Dialect, Kind, Page, escaped};
use crate::door::Door;
use crate::load_report::LoadReport;
use crate::node::{Overview, Standing};
use crate::proto;

/// The states of a pool with their amounts; they add up to the total.
fn states(pool: &proto::Pool) -> [(&'static str, u64); 6] {
    [
        ("free", pool.free),
        ("reserved", pool.reserved),
        ("committed", pool.committed),
        ("evictable", pool.evictable),
        ("scrubbing", pool.scrubbing),
        ("quarantined", pool.quarantined),
    ]
}

/// The whole page.
pub(crate) fn page(door: &Door, dialect: Dialect) -> String {
    let node = &door.node;
    let mut out = Page::new(dialect);
    out.head("hisparse_build_info", Kind::Gauge, "1, with what runs here");
    let (version, model) = (env!("CARGO_PKG_VERSION"), escaped(&node.config.model));
    let backing = if node.hosting().is_some() { "memory" } else { "none" };
    out.line(&format!("hisparse_build_info{{version=\"{version}\",model=\"{model}\",backing=\"{backing}\"}}"), 1);
    let overview = node.overview();
    out.gauge(
        "hisparse_up",
        "1 while decisions are made; 0: one failed, restart the service",
        u8::from(overview.is_ok()),
    );
    let standing = node.stands();
    out.head("hisparse_standing", Kind::Gauge, "1 for how the node stands: granting, or why it grants nothing");
    for each in Standing::ALL {
        let series = format!("hisparse_standing{{standing=\"{}\"}}", each.word());
        out.line(&series, u8::from(standing == each));
    }
    if let Ok(seen) = &overview {
        pools(&mut out, &seen.capacity);
        utilization(&mut out, &seen.capacity);
        at_a_glance(&mut out, seen);
    }
    out.gauge("hisparse_page_tokens", "tokens of one page", node.config.capacity.page_tokens);
    out.gauge("hisparse_sessions", "processes that are attached", node.sessions.attached());
    out.counter(
        "hisparse_journal_failures_total",
        "writes of the journal that failed: GetServerInfo says more",
        node.journal_failures(),
    );
    out.gauge("hisparse_connections", "connections of all listeners of gRPC", door.peers.connections());
    out.gauge("hisparse_calls", "calls whose answers are not yet taken", door.shared.places.taken());
    let dropped = door.shared.log.as_ref().map_or(0, |log| log.dropped());
    out.counter("hisparse_log_dropped_total", "lines of the log that its reader was too slow for", dropped);
    node.counters().write(&mut out);
    out.finish()
}

/// What each pool holds, by state. Pages carry their pool and place as labels; the other pools are metrics of their
/// own, with the unit in the name.
fn pools(out: &mut Page, capacity: &proto::Capacity) {
    for pool in &capacity.pools {
        let (name, labels) = if pool.name == "host_pages" {
            let numa = pool.numa_node.map(|node| node.to_string()).unwrap_or_default();
            ("hisparse_pages".to_owned(), format!("pool=\"host_pages\",numa=\"{numa}\","))
        } else {
            (format!("hisparse_{}", pool.name), String::new())
        };
        out.head(&name, Kind::Gauge, "what the pool holds, by state; the states add up to the pool");
        for (state, amount) in states(pool) {
            out.line(&format!("{name}{{{labels}state=\"{state}\"}}"), amount);
        }
    }
    out.head("hisparse_capacity", Kind::Gauge, "all of each pool, in its own unit: pages, seats, tokens, requests");
    for pool in &capacity.pools {
        out.line(&format!("hisparse_capacity{{pool=\"{}\"}}", pool.name), pool.total);
    }
}

/// The same shares as the load report of `Admit`.
fn utilization(out: &mut Page, capacity: &proto::Capacity) {
    let report = LoadReport::of(capacity);
    out.head(
        "hisparse_utilization_ratio",
        Kind::Gauge,
        "share of each pool that cannot be granted now, 0 to 1; cached prefixes can be",
    );
    for (pool, share) in report.utilization() {
        out.line(&format!("hisparse_utilization_ratio{{pool=\"{pool}\"}}"), share);
    }
    out.gauge("hisparse_load_ratio", "the same of the fullest pool: what the next request meets", report.fullest());
}

fn at_a_glance(out: &mut Page, seen: &Overview) {
    let capacity = &seen.capacity;
    out.gauge(
        "hisparse_largest_grant_tokens",
        "longest request, in tokens, that would be granted now",
        capacity.largest_grant_tokens,
    );
    out.gauge(
        "hisparse_max_request_tokens",
        "longest request, in tokens, that could ever be granted",
        capacity.max_request_tokens,
    );
    out.gauge(
        "hisparse_largest_extent_pages",
        "longest run of free pages with consecutive numbers",
        capacity.largest_extent_pages,
    );
    out.head("hisparse_leases", Kind::Gauge, "live leases by state");
    for (state, count) in seen.leases {
        out.line(&format!("hisparse_leases{{state=\"{state}\"}}"), count);
    }
    out.gauge("hisparse_epoch", "generation of the pool", capacity.epoch);
    out.gauge("hisparse_sequence", "changes of the ledger in this epoch", capacity.sequence);
    out.gauge("hisparse_waiters", "Admit calls that wait for room", seen.waiters);
    out.gauge("hisparse_draining", "1 while nothing new is granted", u8::from(capacity.draining));
}
