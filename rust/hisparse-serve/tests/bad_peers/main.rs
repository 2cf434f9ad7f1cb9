//! Peers that misbehave: each is bounded, noticed once, and its neighbour goes on as if nothing were.
//!
//! ```text
//!  attacker ── loopback ──┐
//!                         ├─► one server     the neighbour admits and releases throughout; every call of its must succeed
//!  neighbour ── socket ───┘
//! ```
//! Short by default; `HISPARSE_BAD_PEERS=1` waits for every time-out, `HISPARSE_REQUEST_IDS=1000000` sends so many ids.

#![allow(clippy::unwrap_used)] // helpers of tests: a panic is how they say no
#![allow(clippy::disallowed_methods)] // these tests measure the real clock of a real server
#![allow(clippy::print_stdout)] // what it measured, for whoever runs it with --nocapture

mod http2;
mod silent;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hisparse_core::ledger::NodeCapacity;
use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::{AdmitRequest, ReleaseRequest};
use hisparse_serve::{Config, NodeConfig, Running, ServeLimits, Server};
use tokio::sync::{Mutex, MutexGuard};
use tonic::transport::{Channel, Endpoint};

/// One attack at a time, so that memory and latencies are its own.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// A server, and the right to attack it.
struct Target {
    running: Running,
    home: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Target {
    async fn start(limits: ServeLimits) -> Self {
        let turn = ONE_AT_A_TIME.lock().await;
        let home = tempfile::tempdir().unwrap();
        let node = NodeConfig::of_capacity("test", NodeCapacity::of_host_pages(10_000, 5_000));
        let config = Config {
            socket: Some(home.path().join("h.sock")),
            listen: Some("127.0.0.1:0".into()),
            http: Some("127.0.0.1:0".into()),
            limits,
            ..Config::new(node)
        };
        Self { running: Server::start(config).unwrap(), home, _turn: turn }
    }

    /// Address of the loopback listener.
    fn tcp(&self) -> String {
        self.running.addresses().iter().find(|address| address.starts_with("127.")).unwrap().clone()
    }

    async fn client(&self) -> AdmissionServiceClient<Channel> {
        let socket = self.home.path().join("h.sock");
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
        AdmissionServiceClient::new(endpoint.connect().await.unwrap())
    }

    /// A gauge or counter of the metrics page.
    async fn metric(&self, series: &str) -> u64 {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let address = self.running.addresses().iter().find_map(|address| address.strip_prefix("http://")).unwrap();
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).await.unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{series} is not in {page}")).trim().parse().unwrap()
    }

    /// Waits until a metric has this value, at most so long.
    async fn metric_becomes(&self, series: &str, value: u64, longest: Duration) {
        let end = Instant::now() + longest;
        loop {
            let now = self.metric(series).await;
            if now == value {
                return;
            }
            assert!(Instant::now() < end, "{series} is {now} and was to become {value}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The lines about peers that hold this text.
    fn noticed(&self, text: &str) -> usize {
        self.running.notices().iter().filter(|line| line.contains(text)).count()
    }
}

/// Rounds of a neighbour that tell something.
const ENOUGH: usize = 30;

/// A caller that does nothing wrong.
struct Neighbour {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Vec<Duration>>,
}

impl Neighbour {
    async fn start(target: &Target) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut client, stopped) = (target.client().await, Arc::clone(&stop));
        let task = tokio::spawn(async move {
            let mut took = Vec::new();
            while took.len() < ENOUGH || !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                let request = AdmitRequest { prompt_tokens: 64, ..AdmitRequest::default() };
                let lease = client.admit(request).await.unwrap().into_inner().lease.unwrap();
                client.release(ReleaseRequest { lease_id: lease.id, ..Default::default() }).await.unwrap();
                took.push(began.elapsed());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            took
        });
        Self { stop, task }
    }

    /// Every call of its succeeded, and almost all of them soon.
    async fn was_unaffected(self, by: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let mut took = self.task.await.unwrap();
        took.sort_unstable();
        let p99 = took[(took.len() - 1) * 99 / 100];
        println!("{by}: {} Admit+Release of the neighbour, p99 {p99:?}", took.len());
        assert!(p99 < Duration::from_millis(500), "{by}: p99 of the neighbour {p99:?}");
    }
}

/// Whether time-outs are waited for.
fn thorough() -> bool {
    std::env::var_os("HISPARSE_BAD_PEERS").is_some()
}

/// Resident anonymous memory of this process, server and callers, in KiB.
fn anonymous_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_request_ids_leave_no_memory_behind() {
    let ids: u64 = std::env::var("HISPARSE_REQUEST_IDS").map_or(6_000, |ids| ids.parse().unwrap());
    let target = Target::start(ServeLimits::default()).await;
    let client = target.client().await;
    let run = async |from: u64, to: u64| {
        let callers = (0..16).map(|caller| {
            let mut client = client.clone();
            tokio::spawn(async move {
                for number in (from..to).skip(caller).step_by(16) {
                    let request_id = format!("{number:0>128}");
                    let request = AdmitRequest { request_id, prompt_tokens: 64, ..AdmitRequest::default() };
                    let lease = client.admit(request).await.unwrap().into_inner().lease.unwrap();
                    client.release(ReleaseRequest { lease_id: lease.id, ..Default::default() }).await.unwrap();
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
    };
    run(0, ids / 3).await;
    let before = anonymous_kib();
    run(ids / 3, ids).await;
    let after = anonymous_kib();
    println!("{ids} request ids of 128 bytes: {before} KiB after a third, {after} KiB after all");
    // Kept ids would be 128 bytes and an entry each; allocators breathe by less than these 8 MiB.
    assert!(after < before + 8_192, "{before} KiB grew to {after} KiB");
}
