//! A node that owns its pool's bytes: engines attach, die and come back, and no tenant sees another's rows.

use std::path::Path;
use std::time::Duration;

use hisparse_core::layout::pool::{PoolLayout, PoolShape};
use hisparse_core::layout::{RowLayout, StrideAlign, default_index_dtype};
use hisparse_core::ledger::NodeCapacity;
use hisparse_core::model::{Layer, preset};
use hisparse_core::platform::{KvDtype, LayerGroups};
use hisparse_core::units::Bytes;
use hisparse_mem::attach::client::AttachedPool;
use hisparse_mem::attach::frame::{Notice, Role};
use hisparse_mem::rows::PoolMemory;
use hisparse_serve::proto::batch_admit_result::Outcome;
use hisparse_serve::proto::capacity_service_client::CapacityServiceClient;
use hisparse_serve::proto::engine_service_client::EngineServiceClient;
use hisparse_serve::proto::{
    AdmitRequest, BatchAdmitRequest, CommitRequest, ExtendRequest, GetCapacityRequest, GetLeaseRequest, Lease,
    LeaseState, LeaseUsage, PublishRequest, ReclaimRequest, ReportUsageRequest, SwapInUsage,
};
use hisparse_serve::{Config, MemoryConfig, NodeConfig, Server, attach_beside};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::{Served, admit, ask, free, get, millis, refusal, release_of, seconds};

/// Five layers of `pages` pages and the spare one.
pub(crate) fn layout(pages: u64) -> PoolLayout {
    let model = preset("glm-5.2").unwrap();
    let main = RowLayout::main(&model, KvDtype::Fp8E4m3, 1).unwrap();
    let indexer = RowLayout::indexer(&model, default_index_dtype(&model)).unwrap();
    PoolLayout::new(&PoolShape {
        layers: &[Layer::Indexed, Layer::Shared, Layer::Shared, Layer::Indexed, Layer::Shared],
        draft_layers: 0,
        main: &main,
        indexer: &indexer,
        page_tokens: 64,
        tokens_per_row: 1,
        tokens_per_index_row: 1,
        pages: pages + 1,
        align: StrideAlign::Packed,
        groups: LayerGroups::Auto,
    })
    .unwrap()
}

pub(crate) fn config(home: &Path, pages: u64) -> Config {
    let node = NodeConfig::of_capacity("test", NodeCapacity::of_host_pages(pages, 8));
    let memory = Some(MemoryConfig::new(layout(pages)));
    Config { socket: Some(home.join("h.sock")), memory, ..Config::new(node) }
}

pub(crate) fn serve(pages: u64) -> Served {
    let home = tempfile::tempdir().unwrap();
    let running = Server::start(config(home.path(), pages)).unwrap();
    assert_eq!(running.made(Duration::from_secs(60)), Some(Ok(())));
    assert!(running.ready());
    Served { running, home }
}

fn attach(served: &Served, role: Role) -> AttachedPool {
    AttachedPool::attach(&attach_beside(&served.socket()), "engine-0", 0, role).unwrap()
}

async fn committed(served: &Served, request_id: &str, tokens: u64) -> Lease {
    let mut client = served.admission().await;
    let lease = admit(&mut client, ask(request_id, tokens, 0)).await.unwrap();
    let commit = CommitRequest { lease_id: lease.id.clone(), epoch: lease.epoch, ..CommitRequest::default() };
    client.commit(commit).await.unwrap().into_inner().lease.unwrap()
}

async fn state_of(served: &Served, lease: &Lease) -> LeaseState {
    let asked = GetLeaseRequest { lease_id: lease.id.clone(), ..GetLeaseRequest::default() };
    served.admission().await.get_lease(asked).await.unwrap().into_inner().lease.unwrap().state()
}

/// Waits until the lease is in this state, at most five seconds.
async fn becomes(served: &Served, lease: &Lease, state: LeaseState) {
    for _ in 0..500 {
        if state_of(served, lease).await == state {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("lease {} never became {state:?}", lease.id);
}

pub(crate) fn publish(lease: &Lease, first: u64, hashes: &[u8]) -> PublishRequest {
    let hashes = hashes.iter().map(|byte| vec![*byte; 32]).collect();
    PublishRequest { lease_id: lease.id.clone(), epoch: lease.epoch, first_page_index: first, hashes }
}

async fn engine(served: &Served) -> EngineServiceClient<Channel> {
    EngineServiceClient::new(served.channel().await)
}

#[tokio::test]
async fn a_dead_engines_leases_wait_for_its_successor_and_resume_where_they_are_durable() {
    let served = serve(20);
    let first = attach(&served, Role::Writer);
    let token = first.token().0.to_vec();
    let lease = committed(&served, "r", 640).await;
    assert_eq!(lease.expire_time, None, "it lives as long as the engine's session");
    let mut client = engine(&served).await;
    let durable = client.publish(publish(&lease, 0, &[1, 2, 3])).await.unwrap().into_inner().durable_pages;
    assert_eq!(durable, 3);
    // A gap does not move the point to resume at.
    assert_eq!(client.publish(publish(&lease, 5, &[6])).await.unwrap().into_inner().durable_pages, 3);

    drop(first);
    becomes(&served, &lease, LeaseState::Quarantined).await;
    assert_eq!(free(&served.capacity().await, "host_pages"), 10, "nobody else gets the pages");

    let _second = attach(&served, Role::Writer);
    let reclaim = |token: &[u8]| ReclaimRequest { engine_id: "engine-0".into(), token: token.to_vec() };
    let stranger = client.reclaim(reclaim(&[0; 16])).await.unwrap_err();
    assert_eq!(stranger.code(), Code::PermissionDenied, "{stranger:?}");
    for _ in 0..2 {
        let got = client.reclaim(reclaim(&token)).await.unwrap().into_inner().leases;
        assert_eq!(got.len(), 1, "a repeated call says the same");
        assert_eq!(got[0].durable_tokens, 192);
        let back = got[0].lease.as_ref().unwrap();
        assert_eq!((&back.id, &back.extents, back.state()), (&lease.id, &lease.extents, LeaseState::Committed));
    }
    let released = served.admission().await.release(release_of(&lease)).await.unwrap().into_inner();
    assert!(!released.quarantined, "the engine that holds it frees it at once");
}

#[tokio::test]
async fn a_reader_and_a_stranger_speak_for_no_session() {
    let served = serve(20);
    let mut client = engine(&served).await;
    let _reader = attach(&served, Role::Reader);
    let lease = committed(&served, "r", 64).await;
    assert!(lease.expire_time.is_some(), "without a writer it is a router's lease");
    let refused = client.publish(publish(&lease, 0, &[1])).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    let _writer = attach(&served, Role::Writer);
    let refused = client.publish(publish(&lease, 0, &[1])).await.unwrap_err();
    assert_eq!(refusal(&refused).1, "LEASE_NOT_FOUND", "a router's lease is not the engine's to publish");
    let usage = |lease_id: &str| ReportUsageRequest {
        usage: vec![LeaseUsage { lease_id: lease_id.into(), tokens: 1, hit_rows: 7, miss_rows: 2 }],
        ..ReportUsageRequest::default()
    };
    client.report_usage(usage(&lease.id)).await.unwrap();
    assert_eq!(client.report_usage(usage("x")).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn what_an_engine_reports_of_each_layer_group_is_in_the_metrics_and_no_other_group_is() {
    let home = tempfile::tempdir().unwrap();
    let running = Server::start(Config { http: Some("127.0.0.1:0".into()), ..config(home.path(), 20) }).unwrap();
    assert_eq!(running.made(Duration::from_secs(60)), Some(Ok(())));
    let served = Served { running, home };
    let mut client = engine(&served).await;
    let _writer = attach(&served, Role::Writer);
    // Five layers in two groups.
    let group = |layer_group| SwapInUsage { layer_group, hit_rows: 90, miss_rows: 6, copied_bytes: 3_936 };
    let report = |swap_in| ReportUsageRequest { swap_in, steps: 2, exposed: millis(3), ..Default::default() };
    client.report_usage(report(vec![group(0), group(1)])).await.unwrap();
    for wrong in [vec![group(2)], vec![group(0), group(1), group(1)]] {
        let refused = client.report_usage(report(wrong)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
    let page = get(served.running.addresses().last().unwrap(), "/metrics").await;
    for line in [
        "hisparse_swap_in_rows_total{layer_group=\"1\",result=\"miss\"} 6",
        "hisparse_swap_in_rows_total{layer_group=\"0\",result=\"hit\"} 90",
        "hisparse_swap_in_bytes_total 7872",
        "hisparse_swap_in_exposed_seconds_sum 0.003000",
        "hisparse_swap_in_exposed_seconds_count 2",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("layer_group=\"2\""));
}

#[tokio::test]
async fn the_engine_service_is_on_the_unix_socket_of_a_node_with_a_pool_and_nowhere_else() {
    let home = tempfile::tempdir().unwrap();
    let with_tcp = Config { listen: Some("127.0.0.1:0".into()), ..config(home.path(), 20) };
    let running = Server::start(with_tcp).unwrap();
    let address = running.addresses().iter().find(|address| address.starts_with("127.")).unwrap();
    let tcp = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let asked = ReportUsageRequest::default();
    let refused = EngineServiceClient::new(tcp).report_usage(asked.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    let books_only = crate::serve(10, 2);
    let refused = engine(&books_only).await.report_usage(asked).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
}

/// Whether every byte of the page is zero, in all layers and in the index keys.
fn is_zero(pool: &AttachedPool, page: u64) -> bool {
    pool.layout().ranges_of(page..page + 1).all(|(segment, range)| {
        let view = pool.mapping(segment).unwrap().view();
        view.sub(range.start, range.end - range.start).unwrap().is_zero()
    })
}

fn fill(pool: &AttachedPool, page: u64) {
    for (segment, range) in pool.layout().ranges_of(page..page + 1) {
        let bytes = vec![0xA5; usize::try_from(range.end - range.start).unwrap()];
        pool.mapping(segment).unwrap().writable().unwrap().write(range.start, &bytes).unwrap();
    }
}

/// Set `HISPARSE_REGRANTED_PAGES` for more of them than a quick run has.
#[tokio::test]
async fn pages_that_change_tenant_are_zero_in_every_byte_before_the_next_one_has_them() {
    const PAGES: u64 = 20;
    let wanted = std::env::var("HISPARSE_REGRANTED_PAGES").map_or(1_000, |text| text.parse().unwrap());
    let served = serve(PAGES);
    let writer = attach(&served, Role::Writer);
    let mut client = served.admission().await;
    // Whose bytes each page holds; a tenant's own may come back to it as they are.
    let mut left_by = std::collections::HashMap::new();
    let mut changed_hands = 0;
    let mut round = 0_usize;
    while changed_hands < wanted {
        let name = ["a", "b", "c"][round % 3];
        let tenant = name.to_owned();
        // Lengths differ, so that runs of several tenants' pages lie between each other.
        let pages = PAGES - round as u64 % 7;
        let request = AdmitRequest { tenant, wait: seconds(20), ..ask(&format!("r{round}"), pages * 64, 0) };
        let lease = admit(&mut client, request).await.unwrap();
        for extent in &lease.extents {
            for page in extent.first_page..extent.first_page + extent.page_count {
                if left_by.insert(page, name).is_some_and(|owner| owner != name) {
                    assert!(is_zero(&writer, page), "round {round} page {page} of {:?}", lease.extents);
                    changed_hands += 1;
                }
                fill(&writer, page);
            }
        }
        client.release(release_of(&lease)).await.unwrap();
        round += 1;
    }
}

#[tokio::test]
async fn a_tenant_gets_what_another_left_without_a_wait_of_its_own() {
    const PAGES: u64 = 20;
    let served = serve(PAGES);
    let mut client = served.admission().await;
    let all = |tenant: &str, id: &str| AdmitRequest { tenant: tenant.into(), ..ask(id, PAGES * 64, 0) };
    let mut at_once = 0;
    for round in 0..10 {
        for tenant in ["a", "b"] {
            let asked = all(tenant, &format!("{tenant}{round}"));
            let lease = match admit(&mut client, asked.clone()).await {
                Ok(lease) => {
                    at_once += 1;
                    lease
                }
                Err(_) => admit(&mut client, AdmitRequest { wait: seconds(20), ..asked }).await.unwrap(),
            };
            client.release(release_of(&lease)).await.unwrap();
        }
    }
    // Without patience for zeroes it is the first alone; on a machine that has no time for them it is few.
    assert!(at_once > 2, "{at_once} of 20 were granted without a wait of their own");
    // Nobody asks, and yet the pages become anyone's.
    let mut capacity = CapacityServiceClient::new(served.channel().await);
    let asked = GetCapacityRequest { tenant: "stranger".into(), ..GetCapacityRequest::default() };
    let begun = std::time::Instant::now();
    loop {
        let seen = capacity.get_capacity(asked.clone()).await.unwrap().into_inner();
        if seen.largest_grant_tokens == PAGES * 64 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{seen:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_batch_and_an_extension_wait_for_zeroes_as_an_admit_does() {
    const PAGES: u64 = 20;
    const ROUNDS: usize = 8;
    let served = serve(PAGES);
    let mut client = served.admission().await;
    let of = |tenant: &str, id: &str, pages: u64| {
        // An Admit here is no matter of this test: it waits as long as it takes.
        AdmitRequest { tenant: tenant.into(), wait: seconds(20), ..ask(id, pages * 64, 0) }
    };
    let (mut batches, mut growths) = (0, 0);
    for round in 0..ROUNDS {
        // All of it held another tenant's bytes when the batch comes.
        let whole = admit(&mut client, of("a", &format!("whole-{round}"), PAGES)).await.unwrap();
        client.release(release_of(&whole)).await.unwrap();
        let halves = ["x", "y"].map(|half| of("b", &format!("{half}{round}"), PAGES / 2));
        let requests = halves.map(|half| AdmitRequest { wait: None, ..half }).to_vec();
        let batch = BatchAdmitRequest { requests, partial: round % 2 == 0 };
        let results = client.batch_admit(batch).await.map(|answer| answer.into_inner().results).unwrap_or_default();
        let leases: Vec<_> = results
            .iter()
            .filter_map(|result| match &result.outcome {
                Some(Outcome::Lease(lease)) => Some(lease),
                _ => None,
            })
            .collect();
        batches += usize::from(leases.len() == 2);
        for lease in leases {
            client.release(release_of(lease)).await.unwrap();
        }
        let some = admit(&mut client, of("a", &format!("some-{round}"), 3)).await.unwrap();
        let (lease_id, epoch, tenant) = (some.id.clone(), some.epoch, some.tenant.clone());
        let more = ExtendRequest { lease_id, epoch, tenant, tokens: PAGES * 64 };
        let grown = client.extend(more).await.map(|answer| answer.into_inner().lease.unwrap());
        growths += usize::from(grown.is_ok_and(|lease| lease.pages == PAGES));
        client.release(release_of(&some)).await.unwrap();
    }
    // Without patience it is none; on a machine that has no time for zeroes it is few.
    assert!(batches > 0 && growths > 0, "{batches} batches and {growths} growths of {ROUNDS}");
}

#[test]
fn a_pool_beyond_the_machine_is_refused_at_once_with_the_limit_and_its_remedy() {
    let home = tempfile::tempdir().unwrap();
    let mut config = config(home.path(), 200);
    config.memory.as_mut().unwrap().assume_memory = Some(Bytes::new(1 << 20));
    let refusal = Server::start(config).unwrap_err().to_string();
    assert!(refusal.starts_with("--host-pool is "), "{refusal}");
    assert!(refusal.contains("--assume-memory leaves 1 MiB") && refusal.contains("raise --assume-memory"), "{refusal}");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn an_attach_socket_in_use_fails_the_pool_and_leaves_the_node_unready() {
    let home = tempfile::tempdir().unwrap();
    let socket = attach_beside(&home.path().join("h.sock"));
    let _other = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    let running = Server::start(config(home.path(), 20)).unwrap();
    let refusal = running.made(Duration::from_secs(60)).unwrap().unwrap_err().to_string();
    assert!(refusal.contains("another service listens"), "{refusal}");
    assert!(!running.ready());
}

#[test]
fn an_end_gives_everything_back() {
    let served = serve(20);
    let attach = attach_beside(&served.socket());
    assert!(attach.exists());
    drop(served.running);
    assert!(!attach.exists() && !served.home.path().join("h.sock").exists());
}

#[tokio::test]
async fn a_lease_released_while_an_importer_fills_it_is_nobody_elses_until_the_importer_is_done() {
    let served = serve(20);
    let writer = attach(&served, Role::Writer);
    let mut client = served.admission().await;
    for ends_by_death in [false, true] {
        let importer = attach(&served, Role::Importer);
        let lease = admit(&mut client, ask("r", 640, 0)).await.unwrap();
        let patience = Duration::from_secs(5);
        assert!(importer.fill(&lease.id, patience).unwrap());
        let released = client.release(release_of(&lease)).await.unwrap().into_inner();
        assert!(released.quarantined, "{released:?}");
        let told = Some(Notice::Quarantined { lease_id: lease.id.clone() });
        assert_eq!(importer.next_notice(patience), told);
        assert_eq!(writer.next_notice(patience), told);
        assert_eq!(free(&served.capacity().await, "host_pages"), 10, "by death: {ends_by_death}");
        assert!(!importer.fill(&lease.id, patience).unwrap(), "nothing more may be written");
        if ends_by_death {
            drop(importer);
        } else {
            importer.filled(&lease.id);
            served.free_becomes("host_pages", 20).await;
            drop(importer);
        }
        served.free_becomes("host_pages", 20).await;
    }
}
