//! One behaviour of the ledger per test: what each call promises its caller.

mod node;

use std::time::Duration;

use hisparse_core::ledger::{
    AdmitRequest, Amounts, CommitBy, Epoch, LeaseId, LeaseState, Ledger, LedgerConfig, Length, Limit, Listing,
    NodeCapacity, Pool, Refusal, Released, SessionId, TenantPolicy, Walk, WindowCapacity,
};
use hisparse_core::limits::{MAX_ENDINGS_PER_CALL, MAX_LEASES_PER_SLICE};
use hisparse_core::pages::Isolation;
use hisparse_core::units::Tokens;
use node::{at, first_epoch, ledger, ledger_of};

const ROUTER: CommitBy = CommitBy::Router { ttl: None };

fn request(id: &str, tokens: u64) -> AdmitRequest {
    AdmitRequest::new(id, tokens, 0)
}

fn of_tenant(tenant: &str, id: &str, tokens: u64) -> AdmitRequest {
    AdmitRequest { tenant: tenant.into(), ..request(id, tokens) }
}

/// Free units of a pool; 0 where the node does not report it.
fn free(node: &Ledger, pool: Pool) -> u64 {
    let capacity = node.capacity(None, &[]).expect("no length is asked about");
    capacity.pools.iter().find(|state| state.name == pool).map_or(0, |state| state.free)
}

#[test]
fn a_lease_takes_every_pool_at_once_and_gives_all_back() {
    let mut node = ledger(10, 3);
    let lease = node.admit(&AdmitRequest::new("r", 65, 64), at(0)).unwrap().lease;
    assert_eq!((lease.pages, lease.shared_pages, lease.extents.len()), (3, 0, 1));
    let taken = Pool::ALL.map(|pool| node.config().capacity.totals()[pool] - free(&node, pool));
    assert_eq!(taken, [3, 1, 192, 1, 0]);
    assert_eq!(node.release(lease.id.unwrap(), None, None, at(1)), Ok(Released::Freed));
    assert_eq!(free(&node, Pool::HostPages), 10);
    node.audit().unwrap();
}

#[test]
fn the_same_request_gets_the_same_lease_and_other_parameters_are_refused() {
    let mut node = ledger(10, 3);
    let first = node.admit(&request("r", 100), at(0)).unwrap();
    let again = node.admit(&request("r", 100), at(1)).unwrap();
    assert!(!first.repeated && again.repeated);
    assert_eq!(again.lease, first.lease);
    let reused = node.admit(&request("r", 101), at(1)).unwrap_err();
    assert_eq!(reused, Refusal::RequestIdReused { lease: first.lease.id.unwrap() });
    assert!(!node.admit(&of_tenant("other", "r", 101), at(1)).unwrap().repeated, "names are per tenant");
    node.release(first.lease.id.unwrap(), None, None, at(2)).unwrap();
    assert!(!node.admit(&request("r", 101), at(2)).unwrap().repeated, "a released name may be used anew");
}

#[test]
fn never_fits_names_the_limit_and_busy_names_the_pool() {
    let capacity = NodeCapacity { max_request_tokens: Tokens::new(300), ..NodeCapacity::of_host_pages(4, 2) };
    let mut node = ledger_of(LedgerConfig::new(capacity));
    let never = node.admit(&request("a", 301), at(0)).unwrap_err();
    assert_eq!(never, Refusal::NeverFits { limit: Limit::MaxRequestTokens, value: 300, asked: 301 });
    let never = node.admit(&request("a", 257), at(0)).unwrap_err();
    assert_eq!(never, Refusal::NeverFits { limit: Limit::Total(Pool::HostPages), value: 4, asked: 5 });
    node.admit(&request("a", 190), at(0)).unwrap();
    let busy = node.admit(&request("b", 100), at(0)).unwrap_err();
    assert_eq!(busy, Refusal::PoolBusy { pool: Pool::HostPages, asked: 2, available: 1 });
    node.admit(&request("b", 10), at(0)).unwrap();
    let busy = node.admit(&request("c", 1), at(0)).unwrap_err();
    assert_eq!(busy, Refusal::PoolBusy { pool: Pool::HostPages, asked: 1, available: 0 });
    node.audit().unwrap();
}

#[test]
fn seats_indexer_and_window_each_refuse_by_their_own_name() {
    let plenty = NodeCapacity::of_host_pages(100, 100);
    let window = Some(WindowCapacity { total: Tokens::new(128), per_request: Tokens::new(128) });
    for (capacity, pool) in [
        (NodeCapacity { seats: 1, ..plenty }, Pool::Seats),
        (NodeCapacity { indexer_tokens: Tokens::new(64), ..plenty }, Pool::IndexerTokens),
        (NodeCapacity { request_slots: 1, ..plenty }, Pool::RequestSlots),
        (NodeCapacity { window, ..plenty }, Pool::WindowTokens),
    ] {
        let mut node = ledger_of(LedgerConfig::new(capacity));
        let tokens = if pool == Pool::WindowTokens { 200 } else { 64 };
        node.admit(&request("a", tokens), at(0)).unwrap();
        let before = node.capacity(None, &[]).unwrap();
        let refusal = node.admit(&request("b", tokens), at(0)).unwrap_err();
        assert_eq!((refusal.binding(), refusal.reason()), (Some(pool.name()), Some("POOL_BUSY")));
        assert_eq!(node.capacity(None, &[]).unwrap(), before, "a refusal takes nothing from any pool");
    }
}

#[test]
fn an_uncommitted_lease_ends_in_quarantine_and_then_frees() {
    let mut node = ledger(10, 3);
    let id = node.admit(&request("r", 640), at(0)).unwrap().lease.id.unwrap();
    node.advance(at(29));
    assert_eq!(node.get(id, None).unwrap().state, LeaseState::Reserved);
    node.advance(at(30));
    assert_eq!(node.get(id, None).unwrap().state, LeaseState::Quarantined);
    assert_eq!(free(&node, Pool::HostPages), 0, "quarantine keeps its pages from everyone");
    let late = node.commit(id, None, first_epoch(), ROUTER, at(31)).unwrap_err();
    assert_eq!(late.reason(), Some("LEASE_NOT_FOUND"));
    node.advance(at(149));
    assert_eq!(free(&node, Pool::HostPages), 0);
    node.advance(at(150));
    assert_eq!(free(&node, Pool::HostPages), 10);
    node.audit().unwrap();
}

#[test]
fn a_confirmation_ends_the_quarantine_at_once() {
    let mut node = ledger(10, 3);
    let id = node.admit(&request("r", 640), at(0)).unwrap().lease.id.unwrap();
    assert!(matches!(node.confirm(id, at(1)), Err(Refusal::WrongState { .. })));
    node.confirm(id, at(30)).unwrap();
    assert_eq!(free(&node, Pool::HostPages), 10);
}

#[test]
fn a_router_keeps_its_lease_by_renewing() {
    let mut node = ledger(10, 3);
    let id = node.admit(&request("r", 64), at(0)).unwrap().lease.id.unwrap();
    node.commit(id, None, first_epoch(), ROUTER, at(1)).unwrap();
    for minute in 1..60 {
        node.renew(id, None, first_epoch(), None, at(minute * 60)).unwrap();
    }
    node.advance(at(59 * 60 + 599));
    assert_eq!(node.get(id, None).unwrap().state, LeaseState::Committed);
    node.advance(at(59 * 60 + 600));
    assert_eq!(node.get(id, None).unwrap().state, LeaseState::Quarantined);
}

#[test]
fn an_engines_lease_outlives_any_silence_and_its_session_does_not_outlive_it() {
    let mut node = ledger(10, 3);
    let (dead, successor) = (SessionId(1), SessionId(2));
    let id = node.admit(&request("r", 64), at(0)).unwrap().lease.id.unwrap();
    node.commit(id, None, first_epoch(), CommitBy::Session(dead), at(1)).unwrap();
    node.advance(at(1_000_000));
    assert_eq!(node.get(id, None).unwrap().state, LeaseState::Committed);
    assert_eq!(node.session_lost(dead, at(1_000_000)), 1);
    assert_eq!(node.get(id, None).unwrap().state, LeaseState::Quarantined);
    let back = node.reclaim(dead, successor, at(1_000_100));
    assert_eq!(back.iter().map(|lease| lease.id.unwrap()).collect::<Vec<_>>(), [id]);
    assert_eq!(node.get(id, None).unwrap().state, LeaseState::Committed);
    assert_eq!(node.session_lost(successor, at(1_000_200)), 1);
    node.advance(at(1_000_320));
    assert!(matches!(node.get(id, None), Err(Refusal::LeaseNotFound { .. })), "nobody came for it");
}

#[test]
fn a_router_cannot_free_pages_under_a_living_engine() {
    let mut node = ledger(10, 3);
    let engine = SessionId(1);
    let id = node.admit(&request("r", 640), at(0)).unwrap().lease.id.unwrap();
    node.commit(id, None, first_epoch(), CommitBy::Session(engine), at(1)).unwrap();
    assert_eq!(node.release(id, None, None, at(2)), Ok(Released::Quarantined));
    assert_eq!(free(&node, Pool::HostPages), 0);
    assert_eq!(node.release(id, None, Some(engine), at(3)), Ok(Released::Freed));
    assert_eq!(free(&node, Pool::HostPages), 10);
}

#[test]
fn one_engine_cannot_take_a_lease_from_under_another() {
    let mut node = ledger(10, 3);
    let (writing, other) = (SessionId(1), SessionId(2));
    let id = node.admit(&request("r", 640), at(0)).unwrap().lease.id.unwrap();
    node.commit(id, None, first_epoch(), ROUTER, at(1)).unwrap();
    node.commit(id, None, first_epoch(), CommitBy::Session(writing), at(1)).unwrap();
    let taken = node.commit(id, None, first_epoch(), CommitBy::Session(other), at(2));
    assert!(matches!(taken, Err(Refusal::WrongState { state: LeaseState::Committed, .. })), "{taken:?}");
    assert_eq!(node.release(id, None, Some(other), at(3)), Ok(Released::Quarantined));
    assert_eq!(free(&node, Pool::HostPages), 0, "the first engine may still be moving these pages");
}

#[test]
fn release_succeeds_twice_and_for_the_unknown_but_not_for_another_tenants() {
    let mut node = ledger(10, 3);
    let id = node.admit(&of_tenant("a", "r", 64), at(0)).unwrap().lease.id.unwrap();
    assert_eq!(node.release(id, Some("b"), None, at(1)), Err(Refusal::OtherTenant { id }));
    assert_eq!(node.release(id, Some("a"), None, at(1)), Ok(Released::Freed));
    assert_eq!(node.release(id, Some("a"), None, at(1)), Ok(Released::Already));
    assert_eq!(node.release("000000000000000000ff".parse().unwrap(), Some("b"), None, at(1)), Ok(Released::Already));
    node.admit(&of_tenant("a", "s", 64), at(2)).unwrap();
    assert_eq!(node.release_request(&"s".into(), "b", None, at(2)), Released::Already);
    assert_eq!(node.release_request(&"s".into(), "a", None, at(2)), Released::Freed);
}

#[test]
fn a_stale_epoch_is_refused_everywhere_but_in_release() {
    let mut node = ledger(10, 3);
    let stale = Epoch::new(9).unwrap();
    let asked = AdmitRequest { epoch: Some(stale), ..request("r", 64) };
    let refusal = Refusal::StaleEpoch { given: stale, current: first_epoch() };
    assert_eq!(node.admit(&asked, at(0)), Err(refusal.clone()));
    let id = node.admit(&request("r", 64), at(0)).unwrap().lease.id.unwrap();
    assert_eq!(node.commit(id, None, stale, ROUTER, at(0)), Err(refusal.clone()));
    assert_eq!(node.renew(id, None, stale, None, at(0)), Err(refusal.clone()));
    assert_eq!(node.extend(id, None, stale, 100, at(0)), Err(refusal));
    assert_eq!(node.release(id, None, None, at(0)), Ok(Released::Freed));
}

#[test]
fn a_lease_grows_in_place_where_the_pages_behind_it_are_free() {
    let mut node = ledger(10, 3);
    let first = node.admit(&request("a", 128), at(0)).unwrap().lease;
    let grown = node.extend(first.id.unwrap(), None, first_epoch(), 200, at(0)).unwrap();
    assert_eq!((grown.pages, grown.extents.len(), grown.tokens.get()), (4, 1, 200));
    node.admit(&request("b", 64), at(0)).unwrap();
    let split = node.extend(first.id.unwrap(), None, first_epoch(), 300, at(0)).unwrap();
    assert_eq!((split.pages, split.extents.len()), (5, 2));
    let same = node.extend(first.id.unwrap(), None, first_epoch(), 10, at(0)).unwrap();
    assert_eq!(same.tokens.get(), 300, "a length it has is granted at once");
    let busy = node.extend(first.id.unwrap(), None, first_epoch(), 640, at(0)).unwrap_err();
    assert_eq!(busy, Refusal::PoolBusy { pool: Pool::HostPages, asked: 5, available: 4 });
    node.audit().unwrap();
}

#[test]
fn a_batch_is_granted_whole_or_not_at_all() {
    let mut node = ledger(10, 3);
    node.admit(&request("held", 64), at(0)).unwrap();
    let before = node.capacity(None, &[]).unwrap();
    let batch = [request("held", 64), request("a", 256), request("b", 256), request("c", 1)];
    let (place, refusal) = node.admit_all(&batch, at(0)).unwrap_err();
    assert_eq!((place, refusal.binding()), (3, Some("seats")));
    assert_eq!(node.capacity(None, &[]).unwrap().pools, before.pools, "the repeated one stays, the others are undone");
    assert_eq!(node.admit_all(&batch[..3], at(0)).unwrap().len(), 3);
    node.audit().unwrap();
}

#[test]
fn validation_answers_as_admission_would_and_changes_nothing() {
    let mut node = ledger(10, 1);
    let sequence = node.sequence();
    let answer = node.validate(&request("r", 130), at(0)).unwrap();
    assert_eq!((answer.lease.id, answer.lease.pages), (None, 3));
    assert_eq!(node.sequence(), sequence);
    node.admit(&request("r", 130), at(0)).unwrap();
    assert_eq!(node.validate(&request("s", 130), at(0)).unwrap_err().reason(), Some("POOL_BUSY"));
}

#[test]
fn draining_refuses_new_leases_and_lets_old_ones_finish() {
    let mut node = ledger(10, 3);
    let id = node.admit(&request("r", 64), at(0)).unwrap().lease.id.unwrap();
    node.set_draining(true);
    assert_eq!(node.admit(&request("s", 64), at(0)), Err(Refusal::Draining));
    assert!(node.admit(&request("r", 64), at(0)).unwrap().repeated);
    node.commit(id, None, first_epoch(), ROUTER, at(0)).unwrap();
    node.extend(id, None, first_epoch(), 100, at(0)).unwrap();
    assert_eq!(node.capacity(None, &[64]).unwrap().fits[0].count, 0);
    assert_eq!(node.release(id, None, None, at(0)), Ok(Released::Freed));
}

#[test]
fn a_quota_binds_its_tenant_and_a_floor_binds_the_others() {
    let mut node = ledger(10, 10);
    let mut ceiling = Amounts::UNBOUNDED;
    ceiling[Pool::HostPages] = 4;
    let mut floor = Amounts::ZERO;
    floor[Pool::HostPages] = 3;
    node.set_tenant_policy("small", TenantPolicy { floor, ceiling }).unwrap();
    let never = node.admit(&of_tenant("small", "a", 320), at(0)).unwrap_err();
    assert_eq!(never, Refusal::NeverFits { limit: Limit::TenantCeiling(Pool::HostPages), value: 4, asked: 5 });
    let never = node.admit(&request("b", 512), at(0)).unwrap_err();
    assert_eq!(never, Refusal::NeverFits { limit: Limit::Total(Pool::HostPages), value: 7, asked: 8 });
    node.admit(&request("b", 448), at(0)).unwrap();
    let busy = node.admit(&request("c", 1), at(0)).unwrap_err();
    assert_eq!(busy, Refusal::PoolBusy { pool: Pool::HostPages, asked: 1, available: 0 });
    node.admit(&of_tenant("small", "a", 192), at(0)).unwrap();
    let quota = node.admit(&of_tenant("small", "d", 128), at(0)).unwrap_err();
    assert_eq!(quota, Refusal::Quota { tenant: "small".into(), pool: Pool::HostPages, asked: 2, ceiling: 4, used: 3 });
    node.audit().unwrap();
    floor[Pool::HostPages] = 8;
    assert!(node.set_tenant_policy("other", TenantPolicy { floor, ..TenantPolicy::default() }).is_err());
}

#[test]
fn capacity_says_how_many_of_each_length_fit_and_what_binds() {
    let capacity =
        NodeCapacity { seats: 3, max_request_tokens: Tokens::new(512), ..NodeCapacity::of_host_pages(10, 9) };
    let mut node = ledger_of(LedgerConfig::new(capacity));
    node.admit(&request("a", 128), at(0)).unwrap();
    let now = node.capacity(None, &[1, 192, 512, 513]).unwrap();
    let fits: Vec<_> = now.fits.iter().map(|fit| (fit.count, fit.binding)).collect();
    assert_eq!(fits, [(2, "seats"), (2, "host_pages"), (1, "host_pages"), (0, "max_request_tokens")]);
    assert_eq!((now.largest_grant_tokens, now.max_request_tokens, now.largest_extent_pages), (512, 512, 8));
    node.admit(&request("b", 128), at(0)).unwrap();
    assert_eq!(node.capacity(None, &[]).unwrap().largest_grant_tokens, 384);
    assert!(node.capacity(None, &[0]).is_err());
    assert!(node.capacity(None, &[1; 65]).is_err());
}

#[test]
fn a_page_that_changes_tenant_is_scrubbed_first() {
    let mut node = ledger(4, 4);
    let id = node.admit(&of_tenant("a", "r", 192), at(0)).unwrap().lease.id.unwrap();
    node.release(id, None, None, at(1)).unwrap();
    let busy = node.admit(&of_tenant("b", "s", 192), at(1)).unwrap_err();
    assert_eq!(busy, Refusal::PoolBusy { pool: Pool::HostPages, asked: 3, available: 1 });
    node.audit().unwrap();
    assert_eq!(node.pages().counts().scrubbing, 2, "just what is missing");
    assert!(node.admit(&of_tenant("b", "s", 192), at(1)).is_err());
    assert_eq!(node.pages().counts().scrubbing, 2, "asking again scrubs no more");
    while let Some(job) = node.next_scrub(1) {
        assert_eq!(job.extent().pages, 1);
        node.scrubbed(job);
    }
    let lease = node.admit(&of_tenant("b", "s", 192), at(2)).unwrap().lease;
    assert_eq!(lease.pages, 3);
    node.admit(&of_tenant("a", "t", 64), at(2)).expect("a tenant's own page comes back to it as it is");
    node.audit().unwrap();
}

#[test]
fn pages_are_scrubbed_ahead_of_the_next_tenant_and_cached_prefixes_stay() {
    let mut node = ledger(20, 4);
    let hashes = vec![[1; 32], [2; 32]];
    let cached = AdmitRequest { prefix_hashes: hashes.clone(), ..of_tenant("a", "cached", 128) };
    let ids = [&of_tenant("a", "r", 640), &cached, &of_tenant("a", "s", 512)]
        .map(|request| node.admit(request, at(0)).unwrap().lease.id.unwrap());
    node.commit(ids[1], None, first_epoch(), ROUTER, at(0)).unwrap();
    node.publish(ids[1], first_epoch(), 0, &hashes, at(0)).unwrap();
    for id in ids {
        node.release(id, None, None, at(1)).unwrap();
    }
    assert_eq!((node.pages().counts().free, node.pages().stale(), node.pages().counts().evictable), (18, 18, 2));
    let (mut steps, mut pages) = (0, 0);
    while node.scrub_ahead(4) > 0 {
        while let Some(job) = node.next_scrub(4) {
            assert!(job.extent().pages <= 4);
            pages += job.extent().pages;
            node.scrubbed(job);
        }
        node.audit().unwrap();
        steps += 1;
    }
    assert_eq!((pages, node.pages().stale(), node.pages().counts().evictable), (18, 0, 2));
    assert!(steps >= 5, "a few pages at a time, not {pages} in {steps} steps");
    assert_eq!(node.validate(&cached, at(2)).unwrap().lease.shared_pages, 2, "the prefix is still there");
    node.admit(&of_tenant("b", "t", 18 * 64), at(2)).expect("all that is free is anyone's");
    assert_eq!(node.scrub_ahead(4), 0);
}

#[test]
fn equal_hashes_of_two_tenants_share_no_page() {
    let mut node = ledger(10, 4);
    let hashes = vec![[7; 32], [8; 32]];
    let of = |tenant: &str, id: &str| AdmitRequest { prefix_hashes: hashes.clone(), ..of_tenant(tenant, id, 128) };
    let id = node.admit(&of("a", "r"), at(0)).unwrap().lease.id.unwrap();
    node.commit(id, None, first_epoch(), ROUTER, at(0)).unwrap();
    node.publish(id, first_epoch(), 0, &hashes, at(0)).unwrap();
    assert_eq!(node.admit(&of("a", "s"), at(0)).unwrap().lease.shared_pages, 2, "within a tenant they are shared");
    assert_eq!(node.admit(&of("b", "r"), at(0)).unwrap().lease.shared_pages, 0);
    node.audit().unwrap();
}

#[test]
fn a_published_prefix_is_shared_kept_and_evicted_from_its_end() {
    let capacity = NodeCapacity { indexer_tokens: Tokens::new(1_024), ..NodeCapacity::of_host_pages(6, 6) };
    let mut node = ledger_of(LedgerConfig { isolation: Isolation::Shared, ..LedgerConfig::new(capacity) });
    let hashes: Vec<[u8; 32]> = (1..=4_u8).map(|byte| [byte; 32]).collect();
    let with_prefix = |id: &str, tokens| AdmitRequest { prefix_hashes: hashes.clone(), ..request(id, tokens) };
    let first = node.admit(&with_prefix("a", 256), at(0)).unwrap().lease;
    assert_eq!(first.shared_pages, 0);
    node.commit(first.id.unwrap(), None, first_epoch(), ROUTER, at(0)).unwrap();
    assert_eq!(node.publish(first.id.unwrap(), first_epoch(), 0, &hashes, at(0)), Ok(4));
    let second = node.admit(&with_prefix("b", 300), at(0)).unwrap().lease;
    assert_eq!((second.pages, second.shared_pages), (5, 4), "a hit costs no new page");
    assert_eq!(free(&node, Pool::IndexerTokens), 1_024 - 256 - 320, "but its whole length in indexer tokens");
    let foreign = AdmitRequest { tenant: "other".into(), ..with_prefix("c", 256) };
    assert_eq!(node.validate(&foreign, at(0)).unwrap_err().binding(), Some("host_pages"), "nothing of another tenant");

    node.release(first.id.unwrap(), None, None, at(1)).unwrap();
    assert_eq!(node.pages().counts().evictable, 0, "the second lease still holds them");
    node.release(second.id.unwrap(), None, None, at(1)).unwrap();
    assert_eq!(node.pages().counts().evictable, 4);
    node.admit(&request("big", 256), at(2)).expect("cached pages make room");
    assert_eq!(node.pages().counts().evictable, 2);
    node.audit().unwrap();
    node.release_request(&"big".into(), "", None, at(2));
    assert_eq!(node.admit(&with_prefix("d", 256), at(3)).unwrap().lease.shared_pages, 2, "the front of the chain");
    node.audit().unwrap();
}

#[test]
fn length_in_pages_leaves_room_to_grow() {
    let mut node = ledger(100, 4);
    let by_pages = AdmitRequest { length: Length::Pages(16), ..request("a", 1) };
    let lease = node.admit(&by_pages, at(0)).unwrap().lease;
    assert_eq!((lease.pages, lease.tokens.get()), (16, 1_024));
}

#[test]
fn a_lease_has_a_life_within_bounds() {
    let mut node = ledger(10, 4);
    let asked = AdmitRequest { ttl: Some(Duration::from_secs(100_000)), ..request("r", 64) };
    assert!(matches!(node.admit(&asked, at(0)), Err(Refusal::Malformed(_))));
    let asked = AdmitRequest { ttl: Some(Duration::from_secs(5)), ..request("r", 64) };
    assert_eq!(node.admit(&asked, at(0)).unwrap().lease.expires_at, Some(at(5)));
}

#[test]
fn leases_list_in_order_of_grant_page_by_page_and_per_tenant() {
    let mut node = ledger(10, 10);
    let ids: Vec<_> = (0..5)
        .map(|n| node.admit(&of_tenant(if n % 2 == 0 { "a" } else { "b" }, &format!("r{n}"), 1), at(0)).unwrap())
        .map(|granted| granted.lease.id.unwrap())
        .collect();
    let all: Vec<_> = node.list(None, None, 2).into_iter().chain(node.list(None, Some(ids[1]), 10)).collect();
    assert_eq!(all.iter().map(|lease| lease.id.unwrap()).collect::<Vec<_>>(), ids);
    assert_eq!(node.list(Some("b"), None, 10).len(), 2);
    assert_eq!(node.list(Some("nobody"), None, 10).len(), 0);
}

#[test]
fn a_listing_finds_the_first_whatever_slots_they_lie_in_and_keeps_no_more_than_it_was_asked_for() {
    let many = 4 * u64::from(MAX_LEASES_PER_SLICE);
    let mut node = ledger(2 * many, many); // pages that a tenant left are zeroed before another has them
    let grant = |node: &mut Ledger, number: u64| {
        let tenant = ["a", "b", "c"][usize::try_from(number % 3).unwrap()];
        node.admit(&of_tenant(tenant, &format!("r{number}"), 1), at(0)).unwrap().lease.id.unwrap()
    };
    let first: Vec<_> = (0..many).map(|number| grant(&mut node, number)).collect();
    // The slots of every other one are taken again in reverse: order of slots is no order of grant any more.
    for lease in first.iter().step_by(2) {
        node.release(*lease, None, None, at(0)).unwrap();
    }
    let again: Vec<_> = (many..many + many / 2).map(|number| grant(&mut node, number)).collect();
    let live: Vec<_> = first.iter().skip(1).step_by(2).chain(&again).copied().collect();
    for (tenants, most) in [(None, 1), (None, 100), (None, usize::MAX), (Some(["a", "c"].as_slice()), 100)] {
        let theirs = |id: &&LeaseId| {
            let tenant = node.get(**id, None).unwrap().tenant;
            tenants.is_none_or(|tenants: &[&str]| tenants.contains(&&*tenant))
        };
        for after in [None, Some(live[700])] {
            let wanted: Vec<_> =
                live.iter().filter(theirs).filter(|id| Some(**id) > after).take(most).copied().collect();
            let mut listing = Listing::new(tenants, after, most);
            while listing.look(&node) {
                listing.sift();
            }
            let found: Vec<_> = listing.leases().iter().map(|lease| lease.id.unwrap()).collect();
            assert_eq!(found, wanted, "{tenants:?} after {after:?}, at most {most}");
        }
    }
}

#[test]
fn what_is_kept_for_a_tenant_is_free_to_nobody_else() {
    let mut node = ledger(10, 3);
    let mut floor = Amounts::ZERO;
    floor[Pool::Seats] = 1;
    floor[Pool::HostPages] = 4;
    node.set_tenant_policy("named", TenantPolicy { floor, ..TenantPolicy::default() }).unwrap();
    for tenant in [None, Some("new")] {
        let seen = node.capacity(tenant, &[64]).unwrap();
        assert_eq!((seen.largest_grant_tokens, seen.fits[0].count), (384, 2), "{tenant:?}");
    }
    assert_eq!(node.capacity(Some("named"), &[64]).unwrap().largest_grant_tokens, 640);
    for name in ["a", "b"] {
        node.admit(&request(name, 64), at(0)).unwrap();
    }
    assert_eq!(node.capacity(None, &[64]).unwrap().fits[0].count, 0, "the last seat is kept");
    assert!(matches!(node.admit(&request("c", 64), at(0)), Err(Refusal::PoolBusy { pool: Pool::Seats, .. })));
}

#[test]
fn a_tenant_without_settings_is_bound_by_the_ceiling_of_the_others_known_or_not() {
    let mut node = ledger(10, 9);
    let mut ceiling = Amounts::UNBOUNDED;
    ceiling[Pool::HostPages] = 3;
    node.set_other_tenants_ceiling(ceiling);
    node.set_tenant_policy("named", TenantPolicy::default()).unwrap();
    let never = node.validate(&of_tenant("new", "a", 256), at(0)).unwrap_err();
    assert_eq!(never, Refusal::NeverFits { limit: Limit::TenantCeiling(Pool::HostPages), value: 3, asked: 4 });
    assert_eq!(node.capacity(Some("new"), &[]).unwrap().largest_grant_tokens, 192);
    assert_eq!(node.capacity(None, &[]).unwrap().largest_grant_tokens, 192, "nobody asks for whom");
    node.admit(&of_tenant("new", "a", 128), at(0)).unwrap();
    let quota = node.admit(&of_tenant("new", "b", 128), at(0)).unwrap_err();
    assert_eq!(quota.to_string(), "tenant new is at its quota of host_pages: 2 of 3 in use, and it needs 2");
    let seen = node.quotas("new");
    assert_eq!((seen[0].floor, seen[0].ceiling, seen[0].used), (0, Some(3), 2));
    assert_eq!(seen[1].ceiling, None);
    assert!(node.quotas("stranger").is_empty());
    node.admit(&of_tenant("named", "a", 512), at(0)).unwrap();
    node.audit().unwrap();
}

/// Endings need no room: on a node without one free page and one free seat, each of them works.
#[test]
fn a_full_node_takes_every_ending() {
    let (dead, next) = (SessionId(1), SessionId(2));
    let mut node = ledger(50, 5);
    let leases: Vec<_> = (0..5)
        .map(|number| node.admit(&request(&format!("r{number}"), 640), at(0)).unwrap().lease.id.unwrap())
        .collect();
    assert_eq!((free(&node, Pool::HostPages), free(&node, Pool::Seats)), (0, 0));
    let epoch = node.epoch();
    for lease in &leases[..3] {
        node.commit(*lease, None, epoch, CommitBy::Session(dead), at(1)).unwrap();
    }
    assert!(node.extend(leases[0], None, epoch, 641, at(1)).is_err(), "growth needs room, and is refused");
    assert_eq!(node.session_lost(dead, at(2)), 3);
    assert_eq!(node.reclaim(dead, next, at(3)).len(), 3);
    assert_eq!(node.release(leases[0], None, Some(next), at(4)).unwrap(), Released::Freed);
    assert_eq!(node.release(leases[1], None, None, at(4)).unwrap(), Released::Quarantined);
    node.confirm(leases[1], at(5)).unwrap();
    assert_eq!(node.session_lost(next, at(6)), 1);
    assert_eq!(node.release(leases[3], None, None, at(7)).unwrap(), Released::Freed);
    node.advance(at(10_000));
    node.advance(at(20_000));
    assert_eq!((free(&node, Pool::Seats), node.lease_counts().quarantined), (5, 0));
    node.audit().unwrap();
}

#[test]
fn endings_come_in_slices_and_a_lease_that_a_call_names_has_ended_in_time() {
    let many = 3 * MAX_ENDINGS_PER_CALL as u64;
    let mut node = ledger(many, many);
    let leases: Vec<_> = (0..many)
        .map(|number| node.admit(&request(&format!("r{number}"), 64), at(0)).unwrap().lease.id.unwrap())
        .collect();
    node.advance(at(30));
    assert_eq!(node.lease_counts().quarantined, MAX_ENDINGS_PER_CALL as u64, "one call ends so many");
    let last = leases[leases.len() - 1];
    let late = node.renew(last, None, node.epoch(), None, at(31)).unwrap_err();
    assert!(matches!(late, Refusal::WrongState { state: LeaseState::Quarantined, .. }), "{late}");
    let granted = node.validate(&request(&format!("r{}", many - 2), 64), at(31));
    assert!(!granted.is_ok_and(|granted| granted.repeated), "its time is over, and the name is free");
    node.advance(at(31));
    assert_eq!(node.lease_counts().quarantined, many, "the rest follows");
    assert!(node.next_deadline().is_some_and(|next| next > at(31)));

    let session = SessionId(7);
    let mut node = ledger(many, many);
    for number in 0..many {
        let id = node.admit(&request(&format!("r{number}"), 64), at(0)).unwrap().lease.id.unwrap();
        node.commit(id, None, node.epoch(), CommitBy::Session(session), at(0)).unwrap();
    }
    let slices: Vec<_> = (0..4).map(|_| node.session_lost_in_part(session, MAX_ENDINGS_PER_CALL, at(1))).collect();
    assert_eq!(slices, [MAX_ENDINGS_PER_CALL, MAX_ENDINGS_PER_CALL, MAX_ENDINGS_PER_CALL, 0]);
    node.audit().unwrap();
}

#[test]
fn a_walk_meets_every_lease_that_lives_through_it_once_and_reclaims_in_slices() {
    let many = 2 * u64::from(MAX_LEASES_PER_SLICE) + 7;
    let (dead, next) = (SessionId(1), SessionId(2));
    let mut node = ledger(many + 1, many + 1);
    let epoch = node.epoch();
    let leases: Vec<_> = (0..many)
        .map(|number| node.admit(&request(&format!("r{number}"), 64), at(0)).unwrap().lease.id.unwrap())
        .collect();
    for lease in leases.iter().step_by(2) {
        node.commit(*lease, None, epoch, CommitBy::Session(dead), at(0)).unwrap();
    }
    node.commit(leases[1], None, epoch, CommitBy::Session(next), at(0)).unwrap();
    node.session_lost(dead, at(1));
    let (mut listing, mut slices) = (Listing::new(None, None, usize::MAX), 0);
    while listing.look(&node) {
        // One that comes and goes in between moves none of the others.
        let passer = node.admit(&request("passer", 64), at(1)).unwrap().lease.id.unwrap();
        node.release(passer, None, None, at(1)).unwrap();
        slices += 1;
    }
    let mut met: Vec<_> = listing.leases().iter().map(|lease| lease.id.unwrap()).collect();
    met.retain(|id| leases.contains(id)); // a passer may have been met, or not
    assert_eq!((met.as_slice(), slices), (leases.as_slice(), 3));

    for round in 0..2 {
        let (mut walk, mut held) = (Walk::default(), Vec::new());
        while let Some(slice) = node.reclaim_in_part(dead, next, &mut walk, at(2)) {
            held.extend(slice.iter().map(|lease| lease.id.unwrap()));
        }
        held.sort_unstable();
        let theirs: Vec<_> = node.held_by(next).iter().map(|lease| lease.id.unwrap()).collect();
        assert_eq!((held.len() as u64, held), (many.div_ceil(2) + 1, theirs), "round {round}");
    }
    assert_eq!(node.lease_counts().quarantined, 0);
    node.audit().unwrap();
}
