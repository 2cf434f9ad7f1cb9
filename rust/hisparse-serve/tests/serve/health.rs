//! Probes and scrapes: the gRPC health and reflection services, and the HTTP port.

use std::time::{Duration, Instant};

use hisparse_core::limits::MAX_HTTP_CONNECTIONS;
use hisparse_serve::proto::admin_service_client::AdminServiceClient;
use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::{AdmitRequest, DrainRequest};
use hisparse_serve::{Config, Running, ServeLimits, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::{admit, ask, ask_http, config, connect, seconds};

struct Probed {
    running: Running,
    channel: Channel,
    home: tempfile::TempDir,
}

async fn probed() -> Probed {
    let home = tempfile::tempdir().unwrap();
    let running = Server::start(Config { http: Some("127.0.0.1:0".into()), ..config(&home, 100, 4) }).unwrap();
    Probed { running, channel: connect(&home.path().join("h.sock")).await, home }
}

impl Probed {
    async fn http(&self, request: &str) -> String {
        ask_http(self.running.addresses().last().unwrap(), &format!("{request} HTTP/1.1\r\nHost: h\r\n\r\n")).await
    }

    async fn health(&self, service: &str) -> i32 {
        let mut client = HealthClient::new(self.channel.clone());
        client.check(HealthCheckRequest { service: service.into() }).await.unwrap().into_inner().status
    }

    async fn drain(&self, resume: bool) {
        AdminServiceClient::new(self.channel.clone()).drain(DrainRequest { resume, wait: None }).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn readiness_follows_the_drain_and_liveness_does_not() {
    let probed = probed().await;
    let (up, down) = (ServingStatus::Serving as i32, ServingStatus::NotServing as i32);
    for (resume, ready, http) in [(true, up, "200"), (false, down, "503"), (true, up, "200")] {
        probed.drain(resume).await;
        for name in ["", "readiness", "hisparse.v1.AdmissionService"] {
            assert_eq!(probed.health(name).await, ready, "{name:?} {resume}");
        }
        for name in ["liveness", "hisparse.v1.CapacityService"] {
            assert_eq!(probed.health(name).await, up, "{name:?} {resume}");
        }
        assert!(probed.http("GET /readyz").await.starts_with(&format!("HTTP/1.1 {http}")), "{resume}");
        assert!(probed.http("GET /healthz").await.starts_with("HTTP/1.1 200"), "{resume}");
    }
}

#[tokio::test]
async fn a_probe_that_speaks_grpc_is_answered_on_the_http_port_and_nothing_else_is() {
    let probed = probed().await;
    let address = probed.running.addresses().last().unwrap().clone();
    let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel.clone());
    for (resume, wanted) in [(true, ServingStatus::Serving), (false, ServingStatus::NotServing)] {
        probed.drain(resume).await;
        for (service, wanted) in [("readiness", wanted), ("liveness", ServingStatus::Serving)] {
            let check = HealthCheckRequest { service: service.into() };
            assert_eq!(client.check(check).await.unwrap().into_inner().status, wanted as i32, "{service} {resume}");
        }
    }
    let refused = AdminServiceClient::new(channel).drain(DrainRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    // A first byte that both begin with decides nothing.
    let mut stream =
        tokio::net::TcpStream::connect(probed.running.addresses().last().unwrap().strip_prefix("http://").unwrap())
            .await
            .unwrap();
    stream.write_all(b"P").await.unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    stream.write_all(b"OST / HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
}

#[tokio::test]
async fn an_overloaded_node_is_ready_and_alive_since_only_the_calls_beyond_its_bounds_are_shed() {
    let home = tempfile::tempdir().unwrap();
    let limits = ServeLimits { calls: 1, ..ServeLimits::default() };
    let config = Config { http: Some("127.0.0.1:0".into()), limits, ..config(&home, 100, 4) };
    let running = Server::start(config).unwrap();
    let channel = connect(&home.path().join("h.sock")).await;
    let probed = Probed { running, channel, home };
    let mut holding = AdmissionServiceClient::new(probed.channel.clone());
    admit(&mut holding, ask("all", 6_400, 0)).await.unwrap();
    let mut waits = holding.clone();
    let waiting = tokio::spawn(async move { waits.admit(AdmitRequest { wait: seconds(60), ..ask("w", 64, 0) }).await });
    let mut shed = Code::Ok;
    for number in 0..500 {
        shed = admit(&mut holding, ask(&format!("r{number}"), 64, 0))
            .await
            .map_or_else(|status| status.code(), |_| Code::Ok);
        if shed == Code::Unavailable {
            break;
        }
    }
    assert_eq!(shed, Code::Unavailable, "the only place is taken");
    assert!(probed.http("GET /readyz").await.starts_with("HTTP/1.1 200"));
    assert!(probed.http("GET /healthz").await.starts_with("HTTP/1.1 200"));
    assert_eq!(probed.health("readiness").await, ServingStatus::Serving as i32);
    assert_eq!(probed.health("liveness").await, ServingStatus::Serving as i32);
    waiting.abort();
}

#[tokio::test]
async fn the_http_port_reads_and_does_nothing_else() {
    let probed = probed().await;
    assert!(probed.http("POST /metrics").await.starts_with("HTTP/1.1 405"));
    assert!(probed.http("DELETE /healthz").await.starts_with("HTTP/1.1 405"));
    assert!(probed.http("GET /nothing").await.starts_with("HTTP/1.1 404"));
    assert!(probed.http("GET /page/../../etc/passwd").await.starts_with("HTTP/1.1 404"));
    assert!(probed.http("GET /../etc/passwd").await.starts_with("HTTP/1.1 404"));
    assert!(probed.http("nonsense").await.starts_with("HTTP/1.1 400"));
}

#[tokio::test]
async fn metrics_say_what_the_ledger_says() {
    let probed = probed().await;
    let mut client =
        hisparse_serve::proto::admission_service_client::AdmissionServiceClient::new(probed.channel.clone());
    admit(&mut client, ask("r", 640, 0)).await.unwrap();
    admit(&mut client, ask("huge", 64_000, 0)).await.unwrap_err();
    admit(&mut client, ask("zero", 0, 0)).await.unwrap_err();
    let page = probed.http("GET /metrics").await;
    for line in [
        "hisparse_pages{pool=\"host_pages\",numa=\"\",state=\"reserved\"} 10",
        "hisparse_pages{pool=\"host_pages\",numa=\"\",state=\"free\"} 90",
        "hisparse_seats{state=\"free\"} 3",
        "hisparse_leases{state=\"reserved\"} 1",
        "hisparse_largest_grant_tokens 5760",
        "hisparse_admit_total{result=\"granted\",reason=\"\"} 1",
        "hisparse_admit_total{result=\"refused\",reason=\"NEVER_FITS\"} 1",
        "hisparse_admit_total{result=\"invalid\",reason=\"\"} 1",
        "hisparse_admit_seconds_count 3",
        "hisparse_draining 0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    assert!(page.lines().any(|line| line.starts_with("hisparse_epoch ")), "{page}");
}

#[tokio::test]
async fn reflection_lists_what_is_served_and_nothing_else() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let probed = probed().await;
    let mut client = ServerReflectionClient::new(probed.channel.clone());
    let ask = ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..Default::default()
    };
    let mut answers = client.server_reflection_info(tokio_stream::iter([ask])).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
    let mut names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    names.retain(|name| name.starts_with("hisparse."));
    names.sort();
    let served = ["Admin", "Admission", "Budget", "Capacity"].map(|name| format!("hisparse.v1.{name}Service"));
    assert_eq!(names, served);
    assert!(probed.home.path().exists());
}

#[tokio::test]
async fn connections_that_say_nothing_or_half_a_request_do_not_silence_a_probe() {
    let probed = probed().await;
    let address = probed.running.addresses().last().unwrap().strip_prefix("http://").unwrap();
    let mut silent = Vec::new();
    for number in 0..4 * MAX_HTTP_CONNECTIONS {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        if number % 2 == 0 {
            stream.write_all(b"GET /healthz HTT").await.unwrap();
        }
        silent.push(stream);
    }
    let began = Instant::now();
    assert!(probed.http("GET /healthz").await.starts_with("HTTP/1.1 200"));
    // Well before any of them has run out of time.
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    // The oldest made room, and the newest has not yet been sent away.
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(1), silent[0].read_to_end(&mut rest)).await;
    assert!(ended.is_ok() && rest.is_empty(), "{ended:?} {rest:?}");
    let newest = silent.last_mut().unwrap();
    newest.write_all(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    newest.read_to_end(&mut rest).await.unwrap();
    assert!(rest.starts_with(b"HTTP/1.1 200"), "{rest:?}");
}
