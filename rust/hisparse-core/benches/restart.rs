//! How long a restart takes: a journal's file of a pool of 10^6 pages, read, checked, replayed and restored.
//!
//! ```text
//!  cargo bench -p hisparse-core --bench restart -- benches/results/restart.json DATE
//! ```
//! The pool is churned: see [`node`]. *Compacted*: the state alone. *Longest*: the state
//! with as many changes behind it as a journal gets before it is compacted.

mod node;

use std::hint::black_box;
use std::time::Instant;

use hisparse_core::env::Moment;
use hisparse_core::journal::{Entry, Frames, Image, frame};
use hisparse_core::ledger::{Epoch, Ledger, LedgerConfig};
use hisparse_core::limits::JOURNAL_GROWTH;
use node::{Node, Random, machine};
use serde_json::json;

const PAGES: u64 = 1_000_000;
const ROUNDS: usize = 9;

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
    let mut node = Node::churned(PAGES);
    let config = *node.ledger.config();
    let mut log = Vec::new();
    let compacted = written(&node.ledger.image());
    node.ledger.keep_log();
    let growth = usize::try_from(JOURNAL_GROWTH).unwrap_or(1);
    while log.len() < compacted.len() * (growth - 1) {
        node.replace_one();
        node.ledger.take_log(&mut log);
    }
    let counts = node.ledger.pages().counts();
    let longest = [compacted.clone(), log].concat();
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
