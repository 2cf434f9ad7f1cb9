//! A load generator: Admit and Release over the Unix socket, many calls at a time on few connections.
//!
//! ```text
//!  cargo run --release -p hisparse-serve --example load -- [--socket PATH] [--seconds 10] [--connections 2]
//!      [--in-flight 32] [--rate PER_SECOND] [--call admit|capacity|watch|churn]
//!      [--watchers 1000] [--admits-per-second LIMIT] [--out FILE.json]
//! ```
//! Without `--socket` it starts a server of its own in the same process, with the server's default of two threads, and
//! shares the machine with it. Each Admit and each Release counts as a call. `admit` and `capacity` without a rate are
//! a closed loop: every worker calls again when it has its answer. `--rate` makes `admit` an [`open_loop`] of so many
//! Admits per second, and says how often the node of `watch` changes.

#![allow(clippy::unwrap_used)] // a benchmark that cannot go on stops with its reason
#![allow(clippy::disallowed_methods)] // it measures the real clock
#![allow(clippy::print_stdout)] // its output

mod churn;
mod open_loop;
mod schedule;
mod watchers;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hisparse_core::ledger::NodeCapacity;
use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::capacity_service_client::CapacityServiceClient;
use hisparse_serve::proto::{AdmitRequest, GetCapacityRequest, ReleaseRequest};
use hisparse_serve::{Config, NodeConfig, ServeLimits, Server};
use serde_json::json;
use tokio::runtime::Builder;
use tonic::transport::{Channel, Endpoint};

/// What is measured, and how.
#[derive(Clone, Debug)]
struct Options {
    socket: Option<PathBuf>,
    seconds: u64,
    connections: usize,
    in_flight: usize,
    rate: Option<u64>,
    call: String,
    watchers: usize,
    admits_per_second: Option<u32>,
    out: Option<PathBuf>,
}

impl Options {
    fn from_arguments() -> Self {
        let mut options = Self {
            socket: None,
            seconds: 10,
            connections: 2,
            in_flight: 32,
            rate: None,
            call: "admit".to_owned(),
            watchers: 1_000,
            admits_per_second: None,
            out: None,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(flag) = arguments.next() {
            let value = arguments.next().unwrap_or_else(|| panic!("{flag} needs a value"));
            match flag.as_str() {
                "--socket" => options.socket = Some(value.into()),
                "--seconds" => options.seconds = value.parse().unwrap(),
                "--connections" => options.connections = value.parse().unwrap(),
                "--in-flight" => options.in_flight = value.parse().unwrap(),
                "--rate" => options.rate = Some(value.parse().unwrap()),
                "--call" => options.call = value,
                "--watchers" => options.watchers = value.parse().unwrap(),
                "--admits-per-second" => options.admits_per_second = Some(value.parse().unwrap()),
                "--out" => options.out = Some(value.into()),
                other => panic!("unknown flag {other}"),
            }
        }
        let calls = ["admit", "capacity", "watch", "churn"];
        assert!(calls.contains(&options.call.as_str()), "--call is one of {calls:?}");
        options
    }

    /// Admits per second, where they are sent by a clock.
    fn open_loop(&self) -> Option<u64> {
        self.rate.filter(|_| self.call == "admit")
    }
}

/// One worker's calls.
struct Worker {
    admission: AdmissionServiceClient<Channel>,
    capacity: CapacityServiceClient<Channel>,
    number: usize,
    latencies_us: Vec<u32>,
}

impl Worker {
    /// One round of calls; how many.
    async fn round(&mut self, call: &str, round: u64) -> u64 {
        let sent = Instant::now();
        if call == "capacity" {
            self.capacity.get_capacity(GetCapacityRequest::default()).await.unwrap();
            self.latencies_us.push(us(sent));
            return 1;
        }
        let request = AdmitRequest {
            request_id: format!("load-{}-{round}", self.number),
            prompt_tokens: 8_192,
            max_new_tokens: 1_024,
            ..AdmitRequest::default()
        };
        let lease = self.admission.admit(request).await.unwrap().into_inner().lease.unwrap();
        self.latencies_us.push(us(sent));
        let sent = Instant::now();
        let release = ReleaseRequest { lease_id: lease.id, ..ReleaseRequest::default() };
        self.admission.release(release).await.unwrap();
        self.latencies_us.push(us(sent));
        2
    }
}

/// Microseconds since then.
fn us(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}

/// So many connections to a service.
async fn connect(socket: &Path, count: usize) -> Vec<Channel> {
    let mut channels = Vec::new();
    for _ in 0..count {
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
        // A service that is busy accepts later.
        for _ in 0..50 {
            if let Ok(channel) = endpoint.connect().await {
                channels.push(channel);
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    channels
}

/// Latencies at a glance; `null` where there are none.
fn quantiles(latencies_us: &mut [u32]) -> serde_json::Value {
    latencies_us.sort_unstable();
    let Some(last) = latencies_us.len().checked_sub(1) else { return serde_json::Value::Null };
    let at = |permille: usize| latencies_us[last * permille / 1_000];
    json!({"p50": at(500), "p90": at(900), "p99": at(990), "p999": at(999), "max": at(1_000)})
}

async fn measure(options: Options, socket: PathBuf) -> serde_json::Value {
    if let Some(rate) = options.open_loop() {
        return open_loop::measure(&options, rate, &socket).await;
    }
    match options.call.as_str() {
        "watch" => return watchers::measure(&options, &socket).await,
        "churn" => return churn::measure(&options, &socket).await,
        _ => {}
    }
    let calls = Arc::new(AtomicU64::new(0));
    let channels = connect(&socket, options.connections).await;
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let workers: Vec<_> = (0..options.in_flight)
        .map(|number| {
            let channel = channels[number % channels.len()].clone();
            let (options, calls) = (options.clone(), Arc::clone(&calls));
            let mut worker = Worker {
                admission: AdmissionServiceClient::new(channel.clone()),
                capacity: CapacityServiceClient::new(channel),
                number,
                latencies_us: Vec::new(),
            };
            tokio::spawn(async move {
                for round in 0.. {
                    if Instant::now() >= end {
                        break;
                    }
                    let made = worker.round(&options.call, round).await;
                    calls.fetch_add(made, Ordering::Relaxed);
                }
                worker.latencies_us
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for worker in workers {
        latencies.extend(worker.await.unwrap());
    }
    let calls = calls.load(Ordering::Relaxed);
    json!({
        "call": if options.call == "admit" { "Admit+Release, each counted" } else { "GetCapacity" },
        "calls_per_second": calls / options.seconds,
        "calls": calls,
        "seconds": options.seconds,
        "connections": options.connections,
        "in_flight": options.in_flight,
        "latency_us": quantiles(&mut latencies),
    })
}

/// Resident anonymous memory of this process, in KiB.
fn anonymous_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn main() {
    let options = Options::from_arguments();
    let home = std::env::temp_dir().join(format!("hisparse-load-{}", std::process::id()));
    let (socket, own, ready_us) = if let Some(socket) = options.socket.clone() {
        (socket, None, None)
    } else {
        let socket = home.join("h.sock");
        let node = NodeConfig::of_capacity("load", NodeCapacity::of_host_pages(1_000_000, 10_000));
        let began = Instant::now();
        let running = Server::start(Config {
            socket: Some(socket.clone()),
            limits: ServeLimits { admits_per_second: options.admits_per_second, ..ServeLimits::default() },
            ..Config::new(node)
        })
        .unwrap();
        (socket, Some(running), Some(began.elapsed().as_micros()))
    };
    // What is sent by a clock needs one thread beside the clock's, and leaves the rest to the server.
    let runtime = if options.open_loop().is_some() {
        Builder::new_current_thread().enable_all().build().unwrap()
    } else {
        Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    };
    let mut result = runtime.block_on(measure(options.clone(), socket));
    if let Some(running) = own {
        result["server"] = json!({
            "in_process": true, "threads": 2, "host_pages": 1_000_000, "ready_us": ready_us.map(|us| us.to_string()),
            "rss_anon_kib_with_client": anonymous_kib(),
        });
        running.stop(Duration::from_secs(1));
        drop(runtime);
        running.join();
        let _ = std::fs::remove_dir_all(&home);
    }
    let text = serde_json::to_string_pretty(&result).unwrap();
    println!("{text}");
    if let Some(out) = options.out {
        std::fs::write(out, text + "\n").unwrap();
    }
}
