//! The server as its callers meet it: over a real Unix socket, one server per test.

#![allow(clippy::unwrap_used)] // helpers of tests: a panic is how they say no
#![allow(clippy::disallowed_methods)] // these tests measure the real clock of a real server

mod access;
mod admission;
mod bad_input;
mod budget;
mod freshness;
mod health;
mod killed;
mod learning;
mod leftovers;
mod lifecycle;
mod memory;
mod overload;
mod race;
mod restart;
mod tls;
mod waiting;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use hisparse_core::ledger::NodeCapacity;
use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::capacity_service_client::CapacityServiceClient;
use hisparse_serve::proto::{AdmitRequest, Capacity, GetCapacityRequest, GetCapacityResponse, Lease, ReleaseRequest};
use hisparse_serve::{Config, NodeConfig, Running, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// A server in a folder of its own.
struct Served {
    running: Running,
    home: tempfile::TempDir,
}

impl Served {
    fn socket(&self) -> PathBuf {
        self.home.path().join("h.sock")
    }

    async fn channel(&self) -> Channel {
        connect(&self.socket()).await
    }

    async fn admission(&self) -> AdmissionServiceClient<Channel> {
        AdmissionServiceClient::new(self.channel().await)
    }

    async fn capacity(&self) -> GetCapacityResponse {
        let mut client = CapacityServiceClient::new(self.channel().await);
        client.get_capacity(GetCapacityRequest::default()).await.unwrap().into_inner()
    }

    /// Waits for the server's end beside the runtime, whose clients must go on answering its last words.
    async fn ends_within(self, longest: Duration) -> bool {
        tokio::task::spawn_blocking(move || self.running.wait(Some(longest))).await.unwrap()
    }

    /// Waits until the pool's free amount is this, at most two seconds.
    async fn free_becomes(&self, pool: &str, amount: u64) {
        let mut last = None;
        for _ in 0..200 {
            last = Some(free(&self.capacity().await, pool));
            if last == Some(amount) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{pool} has {last:?} free, and was to have {amount}");
    }
}

async fn connect(socket: &std::path::Path) -> Channel {
    Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap().connect().await.unwrap()
}

/// What the HTTP port answers, head and all.
async fn get(address: &str, path: &str) -> String {
    ask_http(address, &format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await
}

/// What the HTTP port answers to these words.
async fn ask_http(address: &str, words: &str) -> String {
    let address = address.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(words.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn config(home: &tempfile::TempDir, pages: u64, seats: u64) -> Config {
    let node = NodeConfig::of_capacity("test", NodeCapacity::of_host_pages(pages, seats));
    Config { socket: Some(home.path().join("h.sock")), ..Config::new(node) }
}

/// A server with so many pages of 64 tokens, and so many seats.
fn serve(pages: u64, seats: u64) -> Served {
    let home = tempfile::tempdir().unwrap();
    let running = Server::start(config(&home, pages, seats)).unwrap();
    Served { running, home }
}

fn ask(request_id: &str, prompt_tokens: u64, max_new_tokens: u64) -> AdmitRequest {
    AdmitRequest { request_id: request_id.into(), prompt_tokens, max_new_tokens, ..AdmitRequest::default() }
}

#[allow(clippy::unnecessary_wraps)] // the messages' fields are optional
fn seconds(seconds: u64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds: i64::try_from(seconds).unwrap(), nanos: 0 })
}

#[allow(clippy::unnecessary_wraps)] // the messages' fields are optional
fn millis(ms: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds: i64::from(ms / 1_000), nanos: ms % 1_000 * 1_000_000 })
}

fn release_of(lease: &Lease) -> ReleaseRequest {
    ReleaseRequest { lease_id: lease.id.clone(), tenant: lease.tenant.clone(), ..ReleaseRequest::default() }
}

async fn admit(client: &mut AdmissionServiceClient<Channel>, request: AdmitRequest) -> Result<Lease, Status> {
    client.admit(request).await.map(|answer| answer.into_inner().lease.unwrap())
}

fn free(capacity: &GetCapacityResponse, pool: &str) -> u64 {
    capacity.pools.iter().find(|found| found.name == pool).unwrap().free
}

/// Code, reason and details of a refusal; checks what holds for all of them.
fn refusal(status: &Status) -> (Code, String, ErrorDetails) {
    let details = status.check_error_details().unwrap();
    let reason = details.error_info().map(|info| {
        assert_eq!(info.domain, "hisparse.v1");
        info.reason.clone()
    });
    assert!(status.details().len() < 4_096, "{status:?}");
    assert!(!status.message().is_empty(), "{status:?}");
    (status.code(), reason.unwrap_or_default(), details)
}

/// The conservation law, per pool.
fn assert_conserved(capacity: &Capacity) {
    for pool in &capacity.pools {
        let parts = [pool.free, pool.reserved, pool.committed, pool.evictable, pool.scrubbing, pool.quarantined];
        assert_eq!(parts.iter().sum::<u64>(), pool.total, "{pool:?}");
    }
}
