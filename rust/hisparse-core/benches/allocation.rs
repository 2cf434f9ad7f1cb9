//! How well the allocator keeps a request's pages together under churn from a real trace, and what an operation costs;
//! beside two plain allocators that live here and nowhere else.
//!
//! ```text
//!  make bench-allocation TRACE=conversation_trace.jsonl
//!
//!  trace ─► next request ─► would the pool be over 90 %? ─ yes ─► the running request that ends first leaves
//!                                      └─ no ─► reserve its whole length ─► count runs of consecutive pages
//! ```
//! A request runs for its prefill (20,000 tokens a second) and 50 ms a token. The same stream of requests goes to each
//! allocator. `with prefixes` is the product: prompts are published when they are prefilled and found by their hashes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Instant;

use hisparse_core::env::{Entropy, Moment};
use hisparse_core::ledger::{
    AdmitRequest, CommitBy, Epoch, LeaseId, Ledger, LedgerConfig, NodeCapacity, Refusal, SessionId,
};
use hisparse_core::limits::{REPLAY_DECODE, REPLAY_PREFILL_TPS};
use hisparse_core::pages::PageHash;
use hisparse_core::replay::{PerRequest, TraceRequest, parse};
use hisparse_core::units::Tokens;
use serde_json::{Value, json};

const PAGE_TOKENS: u64 = hisparse_core::limits::PAGE_TOKENS;
const SEATS: u64 = 1 << 16;
const SMALL_POOL: u32 = 50_000;
const LARGE_POOL: u32 = 1_000_000;
const UTILISATION_PERCENT: u64 = 90;
/// Pages from which on a request is a long one.
const LONG_PAGES: u32 = 1_500;
/// The trace is played so often over the large pool, which holds a good third of it at a time.
const LARGE_ROUNDS: usize = 3;

/// Who hands out pages; a request is named by its place in the stream.
trait Allocator {
    /// What a caller brings along: made before the clock runs.
    fn prepare(&mut self, _name: usize, _request: &TraceRequest) {}
    /// Reserves a request's whole length.
    fn reserve(&mut self, name: usize, request: &TraceRequest) -> Reserved;
    /// Its prompt is in host memory.
    fn prefilled(&mut self, _name: usize) {}
    /// It has ended.
    fn give_back(&mut self, name: usize);
    /// Pages in requests' hands.
    fn used(&self) -> u64;
}

/// What a request got.
#[derive(Clone, Copy)]
struct Reserved {
    new_runs: u64,
    shared_runs: u64,
    shared_pages: u64,
}

impl Reserved {
    const fn new(new_runs: u64) -> Self {
        Self { new_runs, shared_runs: 0, shared_pages: 0 }
    }
}

fn pages_of(request: &TraceRequest) -> u32 {
    let pages = (request.input_tokens + request.output_tokens).div_ceil(PAGE_TOKENS);
    u32::try_from(pages).expect("a trace's lengths are bounded by a context")
}

/// First fit by address: the lowest run that holds the whole request, else the lowest runs until it has enough.
struct FirstFit {
    free: BTreeMap<u32, u32>,
    held: BTreeMap<usize, Vec<(u32, u32)>>,
    used: u64,
}

impl FirstFit {
    fn new(pages: u32) -> Self {
        Self { free: BTreeMap::from([(0, pages)]), held: BTreeMap::new(), used: 0 }
    }

    fn cut(&mut self, start: u32, pages: u32) -> (u32, u32) {
        let length = self.free.remove(&start).expect("the run was found in the map");
        if length > pages {
            self.free.insert(start + pages, length - pages);
        }
        (start, pages.min(length))
    }
}

impl Allocator for FirstFit {
    fn reserve(&mut self, name: usize, request: &TraceRequest) -> Reserved {
        let mut left = pages_of(request);
        let mut taken = Vec::new();
        while left > 0 {
            let whole = self.free.iter().find(|(_, length)| **length >= left).map(|(start, _)| *start);
            let start = whole.or_else(|| self.free.keys().next().copied()).expect("the driver keeps within the pool");
            let run = self.cut(start, left);
            left -= run.1;
            taken.push(run);
        }
        self.used += u64::from(pages_of(request));
        let runs = taken.len() as u64;
        self.held.insert(name, taken);
        Reserved::new(runs)
    }

    fn give_back(&mut self, name: usize) {
        for (mut start, mut length) in self.held.remove(&name).unwrap_or_default() {
            self.used -= u64::from(length);
            if let Some((before, pages)) = self.free.range(..start).next_back().map(|(at, pages)| (*at, *pages))
                && before + pages == start
            {
                self.free.remove(&before);
                (start, length) = (before, length + pages);
            }
            if let Some(after) = self.free.remove(&(start + length)) {
                length += after;
            }
            self.free.insert(start, length);
        }
    }

    fn used(&self) -> u64 {
        self.used
    }
}

/// A page at a time from a stack of free pages, as paged caches without a notion of runs do.
struct PageList {
    free: Vec<u32>,
    held: BTreeMap<usize, Vec<u32>>,
    used: u64,
}

impl PageList {
    fn new(pages: u32) -> Self {
        Self { free: (0..pages).rev().collect(), held: BTreeMap::new(), used: 0 }
    }
}

impl Allocator for PageList {
    fn reserve(&mut self, name: usize, request: &TraceRequest) -> Reserved {
        let pages = pages_of(request) as usize;
        let taken: Vec<u32> = self.free.drain(self.free.len() - pages..).rev().collect();
        self.used += pages as u64;
        let runs = 1 + taken.windows(2).filter(|pair| pair[1] != pair[0] + 1).count() as u64;
        self.held.insert(name, taken);
        Reserved::new(runs)
    }

    fn give_back(&mut self, name: usize) {
        let pages = self.held.remove(&name).unwrap_or_default();
        self.used -= pages.len() as u64;
        self.free.extend(pages.into_iter().rev());
    }

    fn used(&self) -> u64 {
        self.used
    }
}

/// The product's ledger.
struct Ours {
    ledger: Ledger,
    prefixes: bool,
    journal: Vec<u8>,
    held: BTreeMap<usize, LeaseId>,
    asked: AdmitRequest,
    hashes: Vec<PageHash>,
}

const ENGINE: SessionId = SessionId(1);

/// A node that host pages alone bind: shared pages cost none anew, and each request their length in indexer tokens.
fn node_of(pages: u32) -> NodeCapacity {
    let host = NodeCapacity::of_host_pages(pages.into(), SEATS);
    NodeCapacity { indexer_tokens: Tokens::new(host.indexer_tokens.get() * 8), ..host }
}

impl Ours {
    fn new(pages: u32, prefixes: bool) -> Self {
        let ledger = Ledger::new(LedgerConfig::new(node_of(pages)), Epoch::FIRST, &mut Fixed(0));
        Self {
            ledger: ledger.expect("the figures are within the limits"),
            prefixes,
            journal: Vec::new(),
            held: BTreeMap::new(),
            asked: AdmitRequest::new("", 1, 0),
            hashes: Vec::new(),
        }
    }

    /// With its changes noted, as a service that outlives a `kill -9` has them.
    fn journalled(pages: u32) -> Self {
        let mut ours = Self::new(pages, true);
        ours.ledger.keep_log();
        ours
    }

    fn try_reserve(&mut self, name: usize) -> Result<Reserved, Refusal> {
        let lease = self.ledger.admit(&self.asked, NOW)?.lease;
        let id = lease.id.expect("a granted lease has an id");
        let committed = self.ledger.commit(id, None, self.ledger.epoch(), CommitBy::Session(ENGINE), NOW);
        committed.expect("the lease was granted a moment ago");
        self.held.insert(name, id);
        let shared_runs = runs_of(lease.extents.page_numbers().take(lease.shared_pages as usize));
        let new_runs = runs_of(lease.extents.page_numbers()) - shared_runs;
        Ok(Reserved { new_runs, shared_runs, shared_pages: lease.shared_pages.into() })
    }
}

impl Allocator for Ours {
    fn prepare(&mut self, name: usize, request: &TraceRequest) {
        self.journal.clear();
        self.ledger.take_log(&mut self.journal);
        self.hashes = if self.prefixes { request.page_hashes(PAGE_TOKENS) } else { Vec::new() };
        self.asked = AdmitRequest {
            prefix_hashes: self.hashes.clone(),
            ..AdmitRequest::new(&name.to_string(), request.input_tokens, request.output_tokens)
        };
    }

    fn reserve(&mut self, name: usize, _: &TraceRequest) -> Reserved {
        self.try_reserve(name).expect("the driver keeps within the pool")
    }

    fn prefilled(&mut self, name: usize) {
        if let (true, Some(id)) = (self.prefixes, self.held.get(&name)) {
            let published = self.ledger.publish(*id, self.ledger.epoch(), 0, &self.hashes, NOW);
            published.expect("the lease is committed and its prompt's pages are its own");
        }
    }

    fn give_back(&mut self, name: usize) {
        let id = self.held.remove(&name).expect("it was reserved");
        self.ledger.release(id, None, Some(ENGINE), NOW).expect("its own session releases it");
    }

    fn used(&self) -> u64 {
        let counts = self.ledger.pages().counts();
        counts.private + counts.held
    }
}

/// Nothing here depends on time: leases live as long as their session.
const NOW: Moment = Moment::ORIGIN;

fn runs_of(pages: impl Iterator<Item = u32>) -> u64 {
    let mut next = None;
    pages.fold(0, |runs, page| runs + u64::from(next.replace(page + 1) != Some(page)))
}

/// The same secrets every time.
#[derive(Debug)]
struct Fixed(u64);

impl Entropy for Fixed {
    fn next_u64(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// How long each operation took, in nanoseconds.
#[derive(Default)]
struct Times {
    reserve: Vec<u64>,
    publish: Vec<u64>,
    give_back: Vec<u64>,
}

impl Times {
    fn report(self) -> Value {
        json!({
            "reserve_ns": tail(self.reserve),
            "publish_ns": tail(self.publish),
            "give_back_ns": tail(self.give_back),
        })
    }
}

/// What a stream of requests found.
#[derive(Default)]
struct Found {
    new_runs: Vec<u64>,
    shared_runs: Vec<u64>,
    shared_pages: u64,
    times: Times,
    /// Of requests of at least [`LONG_PAGES`].
    times_of_long: Times,
    used: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Prefilled,
    Finished,
}

/// Plays the trace so often; requests before the first departure fill the pool and are not counted.
fn churn(allocator: &mut dyn Allocator, trace: &[TraceRequest], pages: u32, rounds: usize) -> Found {
    let most = u64::from(pages) * UTILISATION_PERCENT / 100;
    let mut found = Found::default();
    let mut events: BinaryHeap<Reverse<(u64, Event, usize)>> = BinaryHeap::new();
    let (mut now_us, mut full) = (0, false);
    for (name, request) in std::iter::repeat_n(trace, rounds).flatten().enumerate() {
        while allocator.used() + u64::from(pages_of(request)) > most {
            full = true;
            let Some(Reverse((at, event, other))) = events.pop() else { break };
            now_us = at;
            let request = &trace[other % trace.len()];
            allocator.prepare(other, request);
            let started = time();
            let took = match event {
                Event::Prefilled => {
                    allocator.prefilled(other);
                    since(started)
                }
                Event::Finished => {
                    allocator.give_back(other);
                    since(started)
                }
            };
            found.note(request, took, |times| match event {
                Event::Prefilled => &mut times.publish,
                Event::Finished => &mut times.give_back,
            });
        }
        allocator.prepare(name, request);
        let started = time();
        let reserved = allocator.reserve(name, request);
        let took = since(started);
        let prefilled = now_us + request.input_tokens * 1_000_000 / REPLAY_PREFILL_TPS;
        let decode_us = u64::try_from(REPLAY_DECODE.as_micros()).unwrap_or(u64::MAX);
        events.push(Reverse((prefilled, Event::Prefilled, name)));
        events.push(Reverse((prefilled + request.output_tokens * decode_us, Event::Finished, name)));
        if full {
            found.new_runs.push(reserved.new_runs);
            found.shared_runs.push(reserved.shared_runs);
            found.shared_pages += reserved.shared_pages;
            found.note(request, took, |times| &mut times.reserve);
            found.used.push(allocator.used());
        }
    }
    assert!(found.new_runs.len() > trace.len() / 2, "most of the trace must be played over a full pool");
    found
}

#[allow(clippy::disallowed_methods)] // a benchmark measures time
fn time() -> Instant {
    Instant::now()
}

fn since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Found {
    fn note(&mut self, request: &TraceRequest, took: u64, of: impl Fn(&mut Times) -> &mut Vec<u64>) {
        of(&mut self.times).push(took);
        if pages_of(request) >= LONG_PAGES {
            of(&mut self.times_of_long).push(took);
        }
    }

    #[allow(clippy::cast_precision_loss)] // counts of pages, far below 2^52
    fn report(self, allocator: &str, pages: u32) -> Value {
        let in_one = self.new_runs.iter().filter(|runs| **runs <= 1).count();
        let share = |part: usize| (part as f64 / self.new_runs.len() as f64 * 1_000.0).round() / 1_000.0;
        let used = self.used.iter().sum::<u64>() as f64 / self.used.len() as f64 / f64::from(pages);
        json!({
            "allocator": allocator,
            "requests": self.new_runs.len(),
            "in_one_new_extent": share(in_one),
            "utilisation": (used * 1_000.0).round() / 1_000.0,
            "new_extents_per_request": rounded(PerRequest::of(self.new_runs)),
            "shared_extents_per_request": rounded(PerRequest::of(self.shared_runs)),
            "shared_pages": self.shared_pages,
            "all": self.times.report(),
            "of_1500_pages_or_more": self.times_of_long.report(),
        })
    }
}

fn rounded(found: PerRequest) -> Value {
    json!({"mean": (found.mean * 100.0).round() / 100.0, "p99": found.p99})
}

fn tail(mut values: Vec<u64>) -> Value {
    values.sort_unstable();
    let at = |per_mille: usize| values.get((values.len() * per_mille / 1_000).min(values.len().saturating_sub(1)));
    json!({"operations": values.len(), "p50": at(500), "p99": at(990), "p999": at(999), "max": at(1_000)})
}

/// Keeps on admitting over a churned pool, and nothing leaves, until the first request is told that the node is busy.
#[allow(clippy::cast_precision_loss)] // as above
fn first_busy(trace: &[TraceRequest], prefixes: bool) -> Value {
    let mut ours = Ours::new(SMALL_POOL, prefixes);
    churn(&mut ours, trace, SMALL_POOL, 1);
    for (name, request) in (trace.len()..).zip(trace) {
        ours.prepare(name, request);
        match ours.try_reserve(name) {
            Ok(_) => {}
            Err(Refusal::PoolBusy { .. }) => {
                let used = ours.used() as f64 / f64::from(SMALL_POOL);
                return json!({"utilisation": (used * 10_000.0).round() / 10_000.0, "refused_pages": pages_of(request)});
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    panic!("the trace has more pages than the pool");
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
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    json!({
        "cpu": model.trim_start_matches(['\t', ' ', ':']),
        "cores": cpus.lines().filter(|line| line.starts_with("processor")).count(),
        "load_average": load.split_whitespace().next().unwrap_or_default(),
        "rustc": said_by("rustc", &["--version"]),
    })
}

#[allow(clippy::print_stdout)] // a benchmark prints what it found
fn main() {
    let mut paths = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let Some(trace_path) = paths.next() else {
        println!("name a trace: make bench-allocation TRACE=TRACE.jsonl");
        return;
    };
    let text = std::fs::read_to_string(&trace_path).unwrap_or_else(|error| panic!("{trace_path}: {error}"));
    let trace = parse(&text).unwrap_or_else(|problems| panic!("{trace_path}: {problems}"));
    let mut small = Vec::new();
    let mut large = Vec::new();
    for (pages, rounds, rows) in [(SMALL_POOL, 1, &mut small), (LARGE_POOL, LARGE_ROUNDS, &mut large)] {
        let mut row = |name: &str, mut allocator: Box<dyn Allocator>| {
            rows.push(churn(allocator.as_mut(), &trace, pages, rounds).report(name, pages));
        };
        row("ours, with prefixes", Box::new(Ours::new(pages, true)));
        row("ours, with prefixes, changes noted for a journal", Box::new(Ours::journalled(pages)));
        row("ours, no prefixes", Box::new(Ours::new(pages, false)));
        row("first fit by address", Box::new(FirstFit::new(pages)));
        row("a page at a time", Box::new(PageList::new(pages)));
    }
    let result = json!({
        "benchmark": "allocation",
        "date": said_by("date", &["-u", "+%Y-%m-%d"]),
        "command": "make bench-allocation TRACE=conversation_trace.jsonl",
        "timed": "the call alone, at real-time priority where the caller has given it; wall time",
        "note": "at real-time priority the kernel takes the processor away for up to 50 ms of each second (sched_rt_runtime_us), which the longest single times (max) may hold",
        "machine": machine(),
        "threads": 1,
        "trace_requests": trace.len(),
        "utilisation_percent": UTILISATION_PERCENT,
        "churn": {"pages_50000": small, "pages_1000000": large},
        "first_busy_after_churn_pages_50000": {
            "with_prefixes": first_busy(&trace, true),
            "no_prefixes": first_busy(&trace, false),
        },
    });
    let text = serde_json::to_string_pretty(&result).unwrap_or_default();
    println!("{text}");
    if let Some(path) = paths.next() {
        std::fs::write(&path, text + "\n").unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}
