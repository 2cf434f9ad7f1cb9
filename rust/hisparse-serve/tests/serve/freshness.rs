//! What an answer says of its own age, and what looking at a node does to it: nothing.

use std::time::{Duration, Instant};

use hisparse_serve::proto::GetCapacityRequest;
use hisparse_serve::proto::capacity_service_client::CapacityServiceClient;
use hisparse_serve::{Config, Server};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::{admit, ask, config, free, serve};

#[tokio::test]
async fn the_first_answer_of_a_node_is_the_whole_truth() {
    let served = serve(100, 4);
    let first = served.capacity().await;
    assert_eq!((free(&first, "host_pages"), free(&first, "seats"), first.largest_grant_tokens), (100, 4, 6_400));
    assert_eq!(first.max_request_tokens, 6_400);
    assert!(first.pools.iter().all(|pool| pool.total > 0 && pool.free == pool.total), "{first:?}");
}

#[tokio::test]
async fn every_answer_says_how_fresh_it_is() {
    let served = serve(100, 4);
    let nanos = |at: prost_types::Timestamp| i128::from(at.seconds) * 1_000_000_000 + i128::from(at.nanos);
    let (first, again) = (served.capacity().await, served.capacity().await);
    assert_eq!((first.epoch, first.sequence), (again.epoch, again.sequence), "nothing happened between them");
    assert!(nanos(again.observed_at.unwrap()) > nanos(first.observed_at.unwrap()), "and the second is newer");
    let mut client = served.admission().await;
    let told = client.admit(ask("r", 64, 0)).await.unwrap().into_inner().capacity.unwrap();
    assert!(told.sequence > again.sequence && nanos(told.observed_at.unwrap()) > nanos(again.observed_at.unwrap()));
    let status = admit(&mut client, ask("full", 6_400, 0)).await.unwrap_err();
    let rich = tonic_types::pb::Status::decode(status.details()).unwrap();
    let fresh = rich.details.iter().find(|detail| detail.type_url.ends_with("hisparse.v1.Capacity")).unwrap();
    let fresh = hisparse_serve::proto::Capacity::decode(&*fresh.value).unwrap();
    assert_eq!((fresh.sequence, fresh.observed_at.is_some()), (told.sequence, true));
}

#[tokio::test]
async fn probes_and_scrapes_change_nothing() {
    let home = tempfile::tempdir().unwrap();
    let running = Server::start(Config { http: Some("127.0.0.1:0".into()), ..config(&home, 100, 4) }).unwrap();
    let channel = crate::connect(&home.path().join("h.sock")).await;
    let mut admission = hisparse_serve::proto::admission_service_client::AdmissionServiceClient::new(channel.clone());
    admit(&mut admission, ask("held", 640, 0)).await.unwrap();
    let mut capacity = CapacityServiceClient::new(channel.clone());
    let mut look = async || capacity.get_capacity(GetCapacityRequest::default()).await.unwrap().into_inner();
    let before = look().await;
    let address = running.addresses().last().unwrap().strip_prefix("http://").unwrap().to_owned();
    for _ in 0..20 {
        let service = String::new();
        HealthClient::new(channel.clone()).check(HealthCheckRequest { service }).await.unwrap();
        for path in ["/healthz", "/readyz", "/metrics"] {
            let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.unwrap();
        }
    }
    let after = look().await;
    assert_eq!((before.sequence, before.pools), (after.sequence, after.pools));
}

/// An answer and its trailers in two packets wait 40 ms for an acknowledgement where the socket does not send at once.
/// The quickest of many calls tells, however busy the machine is.
#[tokio::test]
async fn a_small_answer_over_tcp_is_not_held_back() {
    let home = tempfile::tempdir().unwrap();
    let running = Server::start(Config { listen: Some("127.0.0.1:0".into()), ..config(&home, 10, 4) }).unwrap();
    let address = format!("http://{}", running.addresses().last().unwrap());
    let channel = tonic::transport::Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    let mut client = CapacityServiceClient::new(channel);
    let mut quickest = Duration::MAX;
    for _ in 0..60 {
        let begun = Instant::now();
        client.get_capacity(GetCapacityRequest::default()).await.unwrap();
        quickest = quickest.min(begun.elapsed());
    }
    assert!(quickest < Duration::from_millis(30), "the quickest of 60 calls took {quickest:?}");
}

#[tokio::test]
async fn no_series_is_written_twice() {
    let home = tempfile::tempdir().unwrap();
    let running = Server::start(Config { http: Some("127.0.0.1:0".into()), ..config(&home, 100, 4) }).unwrap();
    let address = running.addresses().last().unwrap().strip_prefix("http://").unwrap().to_owned();
    let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let page = answer.split_once("\r\n\r\n").unwrap().1;
    let series: Vec<_> = page.lines().filter(|line| line.starts_with("hisparse_")).collect();
    let names: std::collections::BTreeSet<_> = series.iter().map(|line| line.rsplit_once(' ').unwrap().0).collect();
    assert!(series.len() > 50 && names.len() == series.len(), "{} of {}", names.len(), series.len());
    let types: Vec<_> = page.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let metrics: std::collections::BTreeSet<_> = types.iter().map(|line| line.split(' ').nth(2).unwrap()).collect();
    assert_eq!(metrics.len(), types.len(), "a metric has one type: {types:?}");
}
