//! How long a restart takes: a journal's file of a pool of 10^6 pages, read, checked, replayed and restored.
//!
//! ```text
//!  cargo bench -p hisparse-core --bench restart -- benches/results/restart.json DATE
//! ```
//! The pool is filled to 90 % with leases of 1 to 400 pages, two thirds of whose pages are published, and then churned,
//! so that its free space is broken up and full of cached prefixes. *Compacted*: the state alone. *Longest*: the state
//! with as many changes behind it as a journal gets before it is compacted.

use std::hint::black_box;
use std::time::Instant;

use hisparse_core::env::{Entropy, Moment};
use hisparse_core::journal::{Entry, Frames, Image, frame};
use hisparse_core::ledger::{
    AdmitRequest, CommitBy, Epoch, LeaseId, Ledger, LedgerConfig, Length, NodeCapacity, SessionId,
};
use hisparse_core::limits::JOURNAL_GROWTH;
use hisparse_core::pages::PageHash;
use serde_json::json;

const PAGES: u64 = 1_000_000;
const ROUNDS: usize = 9;

struct Random(u64);

impl Entropy for Random {
    fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

struct Node {
    ledger: Ledger,
    random: Random,
    leases: Vec<LeaseId>,
    log: Vec<u8>,
}

impl Node {
    fn admit(&mut self) -> bool {
        let pages = 1 + self.random.next_u64() % 400;
        let request = AdmitRequest { length: Length::Pages(pages), ..AdmitRequest::new("", 1, 0) };
        let Ok(granted) = self.ledger.admit(&request, Moment::ORIGIN) else { return false };
        let (id, epoch) = (granted.lease.id.expect("a grant has an id"), self.ledger.epoch());
        let by = CommitBy::Session(SessionId(1));
        self.ledger.commit(id, None, epoch, by, Moment::ORIGIN).expect("it was just granted");
        let hash = |_| -> PageHash {
            let mut hash = [0; 32];
            hash.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&self.random.next_u64().to_le_bytes()));
            hash
        };
        let hashes: Vec<PageHash> = (0..pages * 2 / 3).map(hash).collect();
        self.ledger.publish(id, epoch, 0, &hashes, Moment::ORIGIN).expect("they are its full pages");
        self.leases.push(id);
        true
    }

    fn release(&mut self) {
        let at = usize::try_from(self.random.next_u64()).unwrap_or(0) % self.leases.len();
        let id = self.leases.swap_remove(at);
        self.ledger.release(id, None, Some(SessionId(1)), Moment::ORIGIN).expect("it is its holder's");
    }
}

fn written(image: &Image) -> Vec<u8> {
    let mut journal = Vec::new();
    image.entries().for_each(|entry| frame(&mut journal, |out| entry.encode(out)));
    journal
}

fn restored(path: &std::path::Path, config: LedgerConfig) -> Ledger {
    let journal = std::fs::read(path).expect("it was just written");
    let mut frames = Frames::new(&journal);
    let mut next = || frames.next_record().expect("whole").map(|record| Entry::decode(record).expect("ours"));
    let mut image = Image::begin(&next().expect("it has a beginning")).expect("a node");
    while let Some(entry) = next() {
        image.apply(&entry).expect("consistent");
    }
    let epoch = Epoch::new(2).expect("2 is an epoch");
    let mut ledger = Ledger::restore(config, &image, epoch, Moment::ORIGIN, &mut Random(3)).expect("it adds up");
    ledger.await_sessions(Moment::ORIGIN);
    ledger
}

#[allow(clippy::disallowed_methods)] // a benchmark measures time
fn measured(journal: &[u8], config: LedgerConfig) -> serde_json::Value {
    let path = std::env::temp_dir().join(format!("hisparse-restart-{}", std::process::id()));
    std::fs::write(&path, journal).expect("there is room for it");
    let mut times: Vec<u64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            black_box(restored(&path, config));
            u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
        })
        .collect();
    let _left = std::fs::remove_file(&path);
    times.sort_unstable();
    json!({
        "journal_bytes": journal.len(),
        "ms": { "median": times[ROUNDS / 2], "min": times[0], "max": times[ROUNDS - 1] },
    })
}

#[allow(clippy::print_stdout)] // a benchmark prints what it found
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let (out, date) = (arguments.first(), arguments.get(1));
    let capacity = NodeCapacity { request_slots: 1 << 20, ..NodeCapacity::of_host_pages(PAGES, 1 << 20) };
    let config = LedgerConfig::new(capacity);
    let ledger = Ledger::new(config, Epoch::FIRST, &mut Random(1)).expect("a possible node");
    let mut node = Node { ledger, random: Random(7), leases: Vec::new(), log: Vec::new() };
    let mut held = 0;
    while held < PAGES * 9 / 10 && node.admit() {
        let counts = node.ledger.pages().counts();
        held = counts.private + counts.held;
    }
    for _ in 0..20_000 {
        node.release();
        while !node.admit() {
            node.release();
        }
    }
    let compacted = written(&node.ledger.image());
    node.ledger.keep_log();
    let growth = usize::try_from(JOURNAL_GROWTH).unwrap_or(1);
    while node.log.len() < compacted.len() * (growth - 1) {
        node.release();
        while !node.admit() {
            node.release();
        }
        node.ledger.take_log(&mut node.log);
    }
    let counts = node.ledger.pages().counts();
    let longest = [compacted.clone(), node.log].concat();
    let result = json!({
        "what": "restart of a node of 10^6 pages: read the journal's file, check, replay, restore; see rust/hisparse-core/benches/restart.rs",
        "command": format!("cargo bench -p hisparse-core --bench restart -- {}", arguments.join(" ")),
        "date": date,
        "machine": machine(),
        "rounds": ROUNDS,
        "pages": PAGES,
        "leases": node.leases.len(),
        "page_states": { "free": counts.free, "private": counts.private, "held": counts.held, "evictable": counts.evictable },
        "compacted": measured(&compacted, config),
        "longest": measured(&longest, config),
    });
    let text = serde_json::to_string_pretty(&result).expect("it is plain data");
    println!("{text}");
    if let Some(out) = out {
        std::fs::write(out, text + "\n").expect("the result can be written");
    }
}

fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{}, {cores} cores", model.unwrap_or("unknown CPU"))
}
