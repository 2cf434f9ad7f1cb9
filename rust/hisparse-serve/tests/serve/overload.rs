//! More than the service takes: what is shed, what is not, and that nobody else notices.

use std::time::{Duration, Instant};

use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::{AdmitRequest, BatchAdmitRequest, CommitRequest, ListLeasesRequest, RenewRequest};
use hisparse_serve::{Config, ServeLimits, Server};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::{Served, admit, ask, config, refusal, release_of, seconds};

fn serve_with(limits: ServeLimits, pages: u64) -> Served {
    let home = tempfile::tempdir().unwrap();
    Served { running: Server::start(Config { limits, ..config(&home, pages, 10_000) }).unwrap(), home }
}

fn overloaded(status: &tonic::Status, what: &str, limit: &str) {
    let (code, reason, details) = refusal(status);
    assert_eq!((code, reason.as_str()), (Code::Unavailable, "OVERLOADED"), "{status:?}");
    let metadata = &details.error_info().unwrap().metadata;
    assert_eq!((metadata["what"].as_str(), metadata["limit"].as_str()), (what, limit));
    assert!(details.retry_info().unwrap().retry_delay.unwrap() >= Duration::from_millis(50));
}

/// Callers that wait for room there is none for, so many; each holds a place until it is aborted.
async fn waiters(served: &Served, count: usize) -> Vec<tokio::task::JoinHandle<()>> {
    let client = served.admission().await;
    let tasks = (0..count).map(|number| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let request = AdmitRequest { wait: seconds(60), ..ask(&format!("wait-{number}"), 6_400, 0) };
            let _ = client.admit(request).await;
        })
    });
    let tasks = tasks.collect();
    let mut info = hisparse_serve::proto::admin_service_client::AdminServiceClient::new(served.channel().await);
    for _ in 0..500 {
        let request = hisparse_serve::proto::GetServerInfoRequest {};
        if info.get_server_info(request).await.unwrap().into_inner().waiters == count as u64 {
            return tasks;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{count} callers were to wait");
}

#[tokio::test]
async fn admits_above_the_rate_are_shed_and_releases_never_are() {
    let served = serve_with(ServeLimits { admits_per_second: Some(20), ..ServeLimits::default() }, 100_000);
    let mut client = served.admission().await;
    let began = Instant::now();
    let (mut granted, mut shed) = (0_u32, 0_u32);
    while began.elapsed() < Duration::from_secs(1) {
        match admit(&mut client, ask(&format!("r{}", granted + shed), 64, 0)).await {
            Ok(lease) => {
                granted += 1;
                client.release(release_of(&lease)).await.unwrap();
            }
            Err(status) => {
                shed += 1;
                overloaded(&status, "Admits per second", "20");
            }
        }
    }
    let elapsed = began.elapsed().as_secs_f64();
    assert!(shed > granted, "{shed} shed and {granted} granted is no overload");
    assert!(f64::from(granted) <= 20.0 * elapsed + 3.0, "{granted} in {elapsed} s at 20/s and 1 of burst");
    assert!(granted >= 5, "{granted} in {elapsed} s at 20/s"); // a busy machine asks less often than it may
    assert_eq!(served.running.notices().len(), 1, "{:?}", served.running.notices());
}

#[tokio::test]
async fn the_requests_of_a_batch_count_each_against_the_rate() {
    let served = serve_with(ServeLimits { admits_per_second: Some(10), ..ServeLimits::default() }, 1_000);
    let mut client = served.admission().await;
    let requests = (0..50).map(|number| ask(&format!("b{number}"), 64, 0)).collect();
    client.batch_admit(BatchAdmitRequest { requests, ..Default::default() }).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await; // three Admits' time, of fifty that are owed
    overloaded(&admit(&mut client, ask("r", 64, 0)).await.unwrap_err(), "Admits per second", "10");
}

#[tokio::test]
async fn a_peer_at_its_bound_is_refused_and_may_still_renew_release_and_ask_for_health() {
    let served = serve_with(ServeLimits { calls_per_peer: 20, ..ServeLimits::default() }, 100);
    let mut client = served.admission().await;
    let lease = admit(&mut client, ask("r", 3_200, 0)).await.unwrap();
    let other = admit(&mut client, ask("o", 64, 0)).await.unwrap();
    let waiting = waiters(&served, 20).await;
    overloaded(&admit(&mut client, ask("s", 64, 0)).await.unwrap_err(), "calls of one peer", "20");
    let (lease_id, epoch) = (lease.id.clone(), lease.epoch);
    client.renew(RenewRequest { lease_id: lease_id.clone(), epoch, ..Default::default() }).await.unwrap();
    client.commit(CommitRequest { lease_id, epoch, ..Default::default() }).await.unwrap();
    client.list_leases(ListLeasesRequest::default()).await.unwrap();
    HealthClient::new(served.channel().await).check(HealthCheckRequest { service: String::new() }).await.unwrap();
    client.release(release_of(&other)).await.unwrap();
    for task in waiting {
        task.abort();
    }
    for _ in 0..200 {
        if admit(&mut client, ask("after", 64, 0)).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("places of calls that are gone were not given back");
}

#[tokio::test]
async fn when_every_place_is_taken_admits_wait_50_ms_and_after_a_second_not_at_all() {
    let served = serve_with(ServeLimits { calls: 20, ..ServeLimits::default() }, 100);
    let mut client = served.admission().await;
    let lease = admit(&mut client, ask("r", 3_200, 0)).await.unwrap();
    let waiting = waiters(&served, 20).await;
    let timed = async |client: &mut AdmissionServiceClient<_>| {
        let began = Instant::now();
        overloaded(&admit(client, ask("s", 64, 0)).await.unwrap_err(), "calls at a time", "20");
        began.elapsed()
    };
    let first = timed(&mut client).await;
    assert!(first >= Duration::from_millis(50), "{first:?} is no wait");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        fastest = fastest.min(timed(&mut client).await);
    }
    assert!(fastest < Duration::from_millis(50), "{fastest:?} is a wait");
    let (lease_id, epoch) = (lease.id.clone(), lease.epoch);
    client.renew(RenewRequest { lease_id, epoch, ..Default::default() }).await.unwrap();
    HealthClient::new(served.channel().await).check(HealthCheckRequest { service: String::new() }).await.unwrap();
    client.release(release_of(&lease)).await.unwrap();
    for task in waiting {
        task.abort();
    }
}
