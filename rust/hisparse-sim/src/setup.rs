//! The node and the workload of one run, drawn small: a full node is where things go wrong.
//!
//! ```text
//!  plain run   one tenant, no prefixes, waits or batches: its histories are also checked for linearizability
//!  full run    tenants with floors and ceilings, shared prefixes, waits, batches, draining
//! ```

use std::sync::Arc;
use std::time::Duration;

use hisparse_core::ledger::{Amounts, DEFAULT_TENANT, LedgerConfig, NodeCapacity, Pool, TenantPolicy, WindowCapacity};
use hisparse_core::limits::PAGE_TOKENS;
use hisparse_core::pages::Isolation;
use hisparse_core::units::{Pages, Tokens};

use crate::dice::Dice;
use crate::faults::QUARANTINE_BOUND_MS;
use crate::linear::node::Room;

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) config: LedgerConfig,
    pub(crate) tenants: Vec<Arc<str>>,
    pub(crate) policies: Vec<(Arc<str>, TenantPolicy)>,
    pub(crate) routers: usize,
    pub(crate) engines: usize,
    pub(crate) watchers: usize,
    pub(crate) plain: bool,
    /// Mean time between two requests of one router.
    pub(crate) job_every_us: u64,
    /// Mean time that a request is decoded.
    pub(crate) decode_us: u64,
    /// Time in which requests begin; afterwards everything ends.
    pub(crate) busy_us: u64,
}

impl Setup {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let plain = dice.chance(500);
        let names = ["ann", "bob", DEFAULT_TENANT];
        let tenants: Vec<Arc<str>> = if plain {
            vec![DEFAULT_TENANT.into()]
        } else {
            names[..dice_len(dice, 2..=3)].iter().map(|n| (*n).into()).collect()
        };
        let capacity = capacity(dice, plain);
        let policies = if plain || dice.chance(500) { Vec::new() } else { policies(dice, &capacity, &tenants) };
        let ms = |dice: &mut Dice, range| Duration::from_millis(dice.within(range));
        let mut config = LedgerConfig {
            isolation: if dice.chance(600) { Isolation::Scrub } else { Isolation::Shared },
            uncommitted_ttl: ms(dice, 500..=5_000),
            router_ttl: ms(dice, 1_000..=8_000),
            quarantine_bound: ms(dice, QUARANTINE_BOUND_MS),
            ..LedgerConfig::new(capacity)
        };
        // One bound for both ways into quarantine: the judge cannot always tell which one a lease took.
        config.reclaim_window = config.quarantine_bound;
        Self {
            config,
            tenants,
            policies,
            routers: dice_len(dice, 1..=4),
            engines: dice_len(dice, 0..=2),
            watchers: dice_len(dice, 0..=2),
            plain,
            job_every_us: dice.within(100_000..=1_000_000),
            decode_us: dice.within(50_000..=3_000_000),
            busy_us: dice.within(10_000_000..=40_000_000),
        }
    }

    /// What the linearizability checker needs to know of the node.
    pub(crate) fn room(&self) -> Room {
        let node = &self.config.capacity;
        Room {
            pages: node.host_pages.get(),
            requests: node.seats.min(node.request_slots),
            indexer_pages: node.indexer_tokens.get() / node.page_tokens,
        }
    }
}

fn dice_len(dice: &mut Dice, range: std::ops::RangeInclusive<u64>) -> usize {
    usize::try_from(dice.within(range)).unwrap_or(0)
}

fn capacity(dice: &mut Dice, plain: bool) -> NodeCapacity {
    let (pages, seats) = (dice.within(4..=64), dice.within(1..=8));
    let indexer_pages = dice.within(pages / 2 + 1..=pages * 2);
    let tokens = |pages: u64| Tokens::new(pages * PAGE_TOKENS);
    let per_request = tokens(dice.within(1..=4));
    let window = WindowCapacity { total: tokens(dice.within(4..=16)), per_request };
    NodeCapacity {
        host_pages: Pages::new(pages),
        indexer_tokens: tokens(indexer_pages),
        request_slots: dice.within(seats.saturating_sub(1).max(1)..=seats + 2),
        window: (!plain && dice.chance(250)).then_some(window),
        max_request_tokens: tokens(pages.min(indexer_pages)),
        ..NodeCapacity::of_host_pages(pages, seats)
    }
}

/// A floor for the first tenant, a ceiling for the second.
fn policies(dice: &mut Dice, node: &NodeCapacity, tenants: &[Arc<str>]) -> Vec<(Arc<str>, TenantPolicy)> {
    let (mut floor, mut ceiling) = (Amounts::ZERO, Amounts::UNBOUNDED);
    for (pool, total) in node.totals().iter() {
        let pages = if matches!(pool, Pool::IndexerTokens | Pool::WindowTokens) { node.page_tokens } else { 1 };
        floor[pool] = dice.below(total / 2 / pages + 1) * pages;
        if dice.chance(300) {
            ceiling[pool] = dice.within(total / 2..=total);
        }
    }
    let floored = TenantPolicy { floor, ceiling: Amounts::UNBOUNDED };
    let bounded = TenantPolicy { floor: Amounts::ZERO, ceiling };
    tenants.iter().cloned().zip([floored, bounded]).collect()
}

/// A prompt of this tenant: pages of one of few documents, so that prompts share their beginnings.
pub(crate) fn prefix(tenant: &str, document: u64, pages: u64) -> Vec<[u8; 32]> {
    let of = |page| crate::linear::check::digest(&(tenant, document, page));
    (0..pages)
        .map(|page| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&of(page).to_le_bytes());
            hash[8..16].copy_from_slice(&page.to_le_bytes());
            hash
        })
        .collect()
}
