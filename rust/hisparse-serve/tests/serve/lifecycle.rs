//! Starting, draining, stopping.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hisparse_core::ledger::NodeCapacity;
use hisparse_serve::proto::admin_service_client::AdminServiceClient;
use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::{
    AdmitRequest, Capacity, DrainRequest, DumpRequest, GetLeaseRequest, GetServerInfoRequest, RenewRequest,
};
use hisparse_serve::{Config, NodeConfig, Server};
use tonic::Code;

use crate::{admit, ask, config, connect, free, millis, refusal, release_of, seconds, serve};

#[tokio::test]
async fn a_drained_node_grants_nothing_keeps_what_is_held_and_can_resume() {
    let served = serve(100, 4);
    let (mut client, mut admin) = (served.admission().await, AdminServiceClient::new(served.channel().await));
    let held = admit(&mut client, ask("held", 640, 0)).await.unwrap();
    let drained = admin.drain(DrainRequest::default()).await.unwrap().into_inner();
    assert_eq!((drained.leases, drained.capacity.unwrap().draining), (1, true));
    assert!(!served.running.ready());
    let (code, reason, details) = refusal(&admit(&mut client, ask("new", 64, 0)).await.unwrap_err());
    assert_eq!((code, reason.as_str()), (Code::Unavailable, "DRAINING"));
    assert!(details.retry_info().is_some());
    assert_eq!(admit(&mut client, ask("held", 640, 0)).await.unwrap().id, held.id);
    client.release(release_of(&held)).await.unwrap();
    admin.drain(DrainRequest { resume: true, wait: None }).await.unwrap();
    assert!(served.running.ready());
    admit(&mut client, ask("new", 64, 0)).await.unwrap();
}

#[tokio::test]
async fn a_drain_keeps_renewals_and_says_when_the_node_is_empty() {
    let served = serve(100, 4);
    let (mut client, mut admin) = (served.admission().await, AdminServiceClient::new(served.channel().await));
    let held = admit(&mut client, ask("held", 640, 0)).await.unwrap();
    let mut line = client.clone();
    let waits = AdmitRequest { wait: seconds(30), ..ask("waiter", 6_400, 0) };
    let waiter = tokio::spawn(async move { admit(&mut line, waits).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let begun = Instant::now();
    let short = admin.drain(DrainRequest { resume: false, wait: millis(200) }).await.unwrap().into_inner();
    assert_eq!((short.leases, short.empty), (1, false), "its time was over, and the lease is still held");
    assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    assert_eq!(refusal(&waiter.await.unwrap().unwrap_err()).1, "DRAINING", "nobody waits on for a node that drains");

    let mut operator = admin.clone();
    let drain = tokio::spawn(async move { operator.drain(DrainRequest { resume: false, wait: seconds(30) }).await });
    let renew = RenewRequest { lease_id: held.id.clone(), epoch: held.epoch, ttl: seconds(60), ..Default::default() };
    let renewed = client.renew(renew).await.unwrap().into_inner().lease.unwrap();
    assert!(renewed.expire_time.unwrap().seconds > held.expire_time.unwrap().seconds, "renewals go on");
    client.release(release_of(&held)).await.unwrap();
    let done = tokio::time::timeout(Duration::from_secs(5), drain).await.unwrap().unwrap().unwrap().into_inner();
    assert_eq!((done.leases, done.empty), (0, true));
    assert_eq!(free_of(&done.capacity.unwrap()), 100);
    let status = admin.drain(DrainRequest { resume: true, wait: seconds(1) }).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let status = admin.drain(DrainRequest { resume: false, wait: seconds(601) }).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

fn free_of(capacity: &Capacity) -> u64 {
    capacity.pools[0].free
}

#[tokio::test]
async fn a_stop_under_load_answers_every_call_and_leaves_nothing_behind() {
    let served = serve(1_000_000, 100_000);
    let (socket, stopped) = (served.socket(), Arc::new(AtomicBool::new(false)));
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..16 {
        let (mut client, stopped) = (served.admission().await, Arc::clone(&stopped));
        callers.spawn(async move {
            let (mut granted, mut turned_away) = (0_u64, 0_u64);
            for number in 0.. {
                match admit(&mut client, ask(&format!("{caller}-{number}"), 640, 0)).await {
                    Ok(lease) => {
                        granted += 1;
                        if client.release(release_of(&lease)).await.is_err() {
                            turned_away += 1;
                        }
                    }
                    Err(status) => {
                        // Refused with a reason, or the connection went with the server; never a hang or a wrong code.
                        // tonic's client calls a stream that a polite GOAWAY turned away an internal error.
                        let goodbye = format!("{status:?}").contains("GoAway(b\"\", NO_ERROR, Remote)");
                        let ended = matches!(status.code(), Code::Unavailable | Code::Cancelled | Code::Unknown);
                        assert!(ended || goodbye, "{status:?}");
                        turned_away += 1;
                    }
                }
                if stopped.load(Ordering::Relaxed) && turned_away > 0 {
                    break;
                }
            }
            (granted, turned_away)
        });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    served.running.stop(Duration::from_secs(5));
    stopped.store(true, Ordering::Relaxed);
    let (mut granted, mut turned_away) = (0, 0);
    while let Some(caller) = callers.join_next().await {
        let (more, away) = caller.unwrap();
        (granted, turned_away) = (granted + more, turned_away + away);
    }
    let ended = served.ends_within(Duration::from_secs(6)).await;
    assert!(ended && granted > 0 && turned_away > 0, "ended {ended}, {granted} granted, {turned_away} turned away");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_stop_sends_the_line_away() {
    let served = serve(10, 4);
    let mut client = served.admission().await;
    admit(&mut client, ask("holder", 640, 0)).await.unwrap();
    let waiter =
        tokio::spawn(
            async move { admit(&mut client, AdmitRequest { wait: seconds(60), ..ask("waiter", 640, 0) }).await },
        );
    tokio::time::sleep(Duration::from_millis(100)).await;
    served.running.stop(Duration::from_secs(5));
    assert_eq!(refusal(&waiter.await.unwrap().unwrap_err()).1, "DRAINING");
    assert!(served.ends_within(Duration::from_secs(4)).await);
}

#[tokio::test]
async fn a_call_that_never_ends_holds_up_a_stop_for_its_grace_and_no_longer() {
    let served = serve(10, 4);
    let channel = served.channel().await;
    // Headers and no body: a client that is stuck.
    let stuck = tokio::spawn(async move {
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.unwrap();
        let path = http::uri::PathAndQuery::from_static("/hisparse.v1.AdmissionService/Release");
        let body = tokio_stream::pending::<hisparse_serve::proto::ReleaseRequest>();
        let codec = tonic_prost::ProstCodec::<_, hisparse_serve::proto::ReleaseResponse>::default();
        client.client_streaming(tonic::Request::new(body), path, codec).await
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let began = Instant::now();
    served.running.stop(Duration::from_millis(300));
    let ended = served.ends_within(Duration::from_secs(5)).await;
    let took = began.elapsed();
    assert!(ended && took >= Duration::from_millis(300) && took < Duration::from_secs(3), "{ended} {took:?}");
    assert!(stuck.await.unwrap().is_err());
}

#[tokio::test]
async fn a_live_server_is_not_displaced_and_a_dead_ones_place_is_taken_with_a_new_epoch() {
    let home = tempfile::tempdir().unwrap();
    let first = Server::start(config(&home, 10, 4)).unwrap();
    let refused = Server::start(config(&home, 10, 4)).unwrap_err().to_string();
    assert!(refused.contains("a live server listens there"), "{refused}");
    let socket = home.path().join("h.sock");
    let epoch = async || {
        let mut admin = AdminServiceClient::new(connect(&socket).await);
        admin.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner().epoch
    };
    let before = epoch().await;
    // As after kill -9: the file stays, and nobody answers.
    let kept = home.path().join("kept.sock");
    std::fs::hard_link(&socket, &kept).unwrap();
    drop(first);
    std::fs::rename(&kept, &socket).unwrap();
    let _second = Server::start(config(&home, 10, 4)).unwrap();
    assert!(epoch().await > before);
}

#[tokio::test]
async fn loopback_tcp_serves_the_same_and_addresses_are_told() {
    let home = tempfile::tempdir().unwrap();
    let addresses =
        Config { listen: Some("127.0.0.1:0".into()), http: Some("127.0.0.1:0".into()), ..config(&home, 10, 4) };
    let running = Server::start(addresses).unwrap();
    let [unix, tcp, http] = running.addresses() else { panic!("{:?}", running.addresses()) };
    assert!(unix.starts_with("unix:/") && http.starts_with("http://127.0.0.1:"), "{unix} {http}");
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{tcp}")).unwrap().connect().await.unwrap();
    let info = AdminServiceClient::new(channel).get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.addresses, running.addresses());
    assert_eq!((info.model.as_str(), info.page_tokens, info.limits["max_waiters"]), ("test", 64, 4_096));
}

#[test]
fn a_server_without_address_or_with_absurd_figures_does_not_start() {
    let node = NodeConfig::of_capacity("test", NodeCapacity::of_host_pages(10, 4));
    let refused = Server::start(Config { threads: 0, ..Config::new(node) }).unwrap_err();
    let fields: Vec<_> = refused.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(fields, ["socket", "threads"]);
    let home = tempfile::tempdir().unwrap();
    let absurd = Server::start(config(&home, 0, 0)).unwrap_err();
    assert!(absurd.iter().any(|problem| problem.field == "host_pages"), "{absurd}");
    assert!(!home.path().join("h.sock").exists(), "nothing is left behind");
}

#[tokio::test]
async fn a_dump_is_the_whole_ledger_of_one_moment() {
    let served = serve(2_000, 1_200);
    let mut client = served.admission().await;
    for number in 0..1_100 {
        admit(&mut client, ask(&format!("r{number}"), 64, 0)).await.unwrap();
    }
    let mut admin = AdminServiceClient::new(served.channel().await);
    let mut stream = admin.dump(DumpRequest {}).await.unwrap().into_inner();
    let (mut leases, mut pages) = (0, 0);
    while let Some(part) = stream.message().await.unwrap() {
        assert_eq!(part.capacity.is_some(), leases == 0 && part.leases.is_empty());
        leases += part.leases.len();
        pages += part.leases.iter().map(|lease| lease.pages).sum::<u64>();
    }
    assert_eq!((leases, pages), (1_100, 1_100));
    assert_eq!(free(&served.capacity().await, "host_pages"), 900);
}

#[tokio::test]
async fn an_old_lease_id_names_nothing_after_a_restart_that_lost_its_epoch_and_its_journal() {
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("h.sock");
    let held = async || {
        let mut client = AdmissionServiceClient::new(connect(&socket).await);
        (admit(&mut client, ask("r", 640, 0)).await.unwrap(), client)
    };
    let mut before = None;
    for _ in 0..5 {
        let running = Server::start(config(&home, 100, 4)).unwrap();
        assert!(running.warnings().is_empty());
        let (lease, mut client) = held().await;
        if let Some(old) = before.replace(lease.clone()) {
            assert!(lease.epoch > old.epoch && lease.id > old.id, "{} after {}", lease.id, old.id);
            assert!(client.release(release_of(&old)).await.unwrap().into_inner().already_released);
            let get = GetLeaseRequest { lease_id: lease.id.clone(), ..Default::default() };
            assert_eq!(client.get_lease(get).await.unwrap().into_inner().lease, Some(lease));
        }
        drop(client);
        drop(running);
        for lost in ["h.sock.epoch", "h.sock.journal", "h.sock.serving"] {
            std::fs::remove_file(home.path().join(lost)).unwrap();
        }
    }
}
