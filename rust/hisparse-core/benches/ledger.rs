//! How fast the ledger decides: admissions with their releases, single calls, and a whole trace.
//!
//! ```text
//!  cargo bench -p hisparse-core --bench ledger -- benches/results/ledger-DATE.json
//! ```
//! A pool is first filled to 90 % with requests of 1 to 400 pages; then each round releases a random lease and admits a
//! new one of random length, so that every admission searches a broken-up pool. The trace is read where the shared
//! material is.

use std::hint::black_box;
use std::time::Duration;

use hisparse_core::budget::PlanRequest;
use hisparse_core::env::{Clock, Entropy, Moment};
use hisparse_core::ledger::{AdmitRequest, Epoch, LeaseId, Ledger, LedgerConfig, NodeCapacity};
use hisparse_core::model::presets::preset;
use hisparse_core::replay::{ReplayOptions, compare, parse};
use serde_json::{Value, json};

const ROUNDS: usize = 9;
const PAIRS: usize = 200_000;
/// Request names in rotation: more than there are leases at one time, few enough to stay out of the way of the caches.
const NAMES: usize = 16_384;

/// The machine's clock: the one place here that reads it.
struct Wall(std::time::Instant);

impl Wall {
    #[allow(clippy::disallowed_methods)] // a benchmark measures time
    fn new() -> Self {
        Self(std::time::Instant::now())
    }
}

/// Time this thread has spent on a core, in nanoseconds: what a rate "on one core" is measured by where other work
/// shares the machine. Zero where the system does not say.
fn on_cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Runs `work` in rounds; operations per second of wall time and of this thread's CPU time.
fn rates(operations: usize, mut work: impl FnMut()) -> (Value, Value) {
    let clock = Wall::new();
    let (mut by_wall, mut by_cpu) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (start, cpu) = (clock.now(), on_cpu_ns());
        for _ in 0..operations {
            work();
        }
        let total = operations as u64 * 1_000_000_000;
        by_cpu.push(total / (on_cpu_ns() - cpu).max(1));
        by_wall.push(total / nanos(clock.now().saturating_since(start)).max(1));
    }
    (spread(by_wall), spread(by_cpu))
}

impl Clock for Wall {
    fn now(&self) -> Moment {
        Moment::from_origin(self.0.elapsed())
    }
}

struct Random(u64);

impl Entropy for Random {
    fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next_u64() % bound as u64).unwrap_or(0)
    }
}

/// A pool under churn.
struct Churn {
    node: Ledger,
    live: Vec<LeaseId>,
    requests: Vec<AdmitRequest>,
    random: Random,
    next: usize,
    /// Leases at the start of the measurement.
    full: usize,
}

impl Churn {
    fn new(pages: u64) -> Self {
        let mut random = Random(42);
        // Every request has a name of its own, as routers give them; they are made before the clock starts.
        let requests = (0..NAMES)
            .map(|n| AdmitRequest::new(&format!("request-{n:08}"), 1 + random.next_u64() % (400 * 64), 0))
            .collect();
        let config = LedgerConfig::new(NodeCapacity::of_host_pages(pages, 1 << 20));
        let node = Ledger::new(config, Epoch::FIRST, &mut random).expect("the node is possible");
        let mut churn = Self { node, live: Vec::new(), requests, random, next: 0, full: 0 };
        while churn.node.pages().counts().free > pages / 10 {
            churn.admit();
        }
        churn.full = churn.live.len();
        churn
    }

    /// Admits under the next name that no lease has, if there is room.
    fn admit(&mut self) {
        loop {
            self.next = (self.next + 1) % self.requests.len();
            match self.node.admit(&self.requests[self.next], Moment::ORIGIN) {
                Ok(granted) if granted.repeated => {}
                Ok(granted) => return self.live.extend(granted.lease.id),
                Err(_) => return,
            }
        }
    }

    fn release(&mut self) {
        let at = self.random.below(self.live.len());
        let id = self.live.swap_remove(at);
        black_box(self.node.release(id, None, None, Moment::ORIGIN)).expect("a release fails for nothing");
    }
}

fn pairs(pages: u64) -> Value {
    let mut churn = Churn::new(pages);
    let (by_wall, by_cpu) = rates(PAIRS, || {
        churn.release();
        churn.admit();
    });
    let clock = Wall::new();
    let mut admit_ns = Vec::with_capacity(PAIRS);
    let mut release_ns = Vec::with_capacity(PAIRS);
    for _ in 0..PAIRS {
        let start = clock.now();
        churn.release();
        let middle = clock.now();
        churn.admit();
        release_ns.push(nanos(middle.saturating_since(start)));
        admit_ns.push(nanos(clock.now().saturating_since(middle)));
    }
    let audit_start = clock.now();
    churn.node.audit().expect("every invariant holds after the churn");
    json!({
        "case": "admit and release under churn, 90 % full",
        "pages": pages,
        "live_leases_before": churn.full,
        "live_leases_after": churn.live.len(),
        "free_runs": churn.node.pages().free_runs(),
        "pairs_per_second": by_wall,
        "pairs_per_cpu_second": by_cpu,
        "admit_ns": tail(admit_ns),
        "release_ns": tail(release_ns),
        "audit_ms": millis(clock.now().saturating_since(audit_start)),
    })
}

/// The cost of the least there is to do: one short request on an empty pool.
fn smallest_pairs() -> Value {
    let config = LedgerConfig::new(NodeCapacity::of_host_pages(50_000, 64));
    let mut node = Ledger::new(config, Epoch::FIRST, &mut Random(1)).expect("the node is possible");
    let request = AdmitRequest::new("request", 1_000, 200);
    let (by_wall, by_cpu) = rates(PAIRS, || {
        let granted = node.admit(black_box(&request), Moment::ORIGIN).expect("the pool is empty");
        let id = granted.lease.id.expect("a grant has an id");
        black_box(node.release(id, None, None, Moment::ORIGIN)).expect("a release fails for nothing");
    });
    let case = "admit and release of one request on an empty pool";
    json!({"case": case, "pages": 50_000, "pairs_per_second": by_wall, "pairs_per_cpu_second": by_cpu})
}

fn snapshots() -> Value {
    let churn = Churn::new(50_000);
    let (by_wall, by_cpu) = rates(PAIRS, || {
        let _ = black_box(churn.node.capacity(None, black_box(&[8_192, 131_072])));
    });
    let case = "capacity with two lengths";
    json!({"case": case, "pages": 50_000, "calls_per_second": by_wall, "calls_per_cpu_second": by_cpu})
}

fn trace() -> Option<Value> {
    let shared = std::env::var_os("HISPARSE_SHARED")
        .map_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared").into(), std::path::PathBuf::from);
    let text = std::fs::read_to_string(shared.join("traces/conversation_trace.jsonl")).ok()?;
    let requests = parse(&text).ok()?;
    let flags = json!({"kv_bytes": "20GiB", "host_pool": "160GiB", "hot_rows": 4096});
    let request = PlanRequest::from_json(flags.as_object()?).ok()?;
    let model = preset("glm-5.2").ok()?;
    let clock = Wall::new();
    let (mut times, mut report) = (Vec::new(), Value::Null);
    for _ in 0..5 {
        let start = clock.now();
        let found = compare(&requests, &model, &request, ReplayOptions::default(), &mut |_| {}).ok()?;
        times.push(millis(clock.now().saturating_since(start)));
        report = serde_json::to_value(found.report).ok()?;
    }
    Some(json!({"case": "conversation trace, both halves, virtual time", "ms": spread(times), "report": report}))
}

fn spread(mut values: Vec<u64>) -> Value {
    values.sort_unstable();
    json!({"median": values[values.len() / 2], "min": values[0], "max": values[values.len() - 1]})
}

fn tail(mut values: Vec<u64>) -> Value {
    values.sort_unstable();
    let at = |per_mille: usize| values[(values.len() * per_mille / 1_000).min(values.len() - 1)];
    json!({"p50": at(500), "p99": at(990), "p999": at(999), "max": at(1_000)})
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// First line of a command's output, or nothing.
fn said_by(command: &str, arguments: &[&str]) -> String {
    let output = std::process::Command::new(command).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

fn machine() -> Value {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let cores = cpus.lines().filter(|line| line.starts_with("processor")).count();
    // With more load than cores, wall time is the neighbours' as much as ours: read the rates per CPU second then.
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    json!({
        "cpu": model.trim_start_matches(['\t', ' ', ':']),
        "cores": cores,
        "load_average": load.split_whitespace().next().unwrap_or_default(),
        "rustc": said_by("rustc", &["--version"]),
    })
}

#[allow(clippy::print_stdout)] // a benchmark prints what it found
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let path = arguments.first();
    let mut cases = vec![smallest_pairs(), pairs(50_000), pairs(1_000_000), snapshots()];
    cases.extend(trace());
    let result = json!({
        "benchmark": "ledger",
        "date": said_by("date", &["-u", "+%Y-%m-%d"]),
        "command": format!("cargo bench -p hisparse-core --bench ledger -- {}", arguments.join(" ")),
        "machine": machine(),
        "threads": 1,
        "rounds": ROUNDS,
        "pairs_per_round": PAIRS,
        "cases": cases,
    });
    let text = serde_json::to_string_pretty(&result).unwrap_or_default();
    println!("{text}");
    if let Some(path) = path {
        std::fs::write(path, text + "\n").unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}
