//! What a look at every page and every lease costs a node of 10^6 pages: the longest that a decision waits for it, and all of
//! it.
//!
//! ```text
//!  cargo bench -p hisparse-core --bench survey -- benches/results/survey.json DATE
//! ```
//! The pool is churned: see [`node`]. *Slice*: what is done within one decision. *Map*: the counting into buckets after
//! it, which no decision waits for.

mod node;

use std::hint::black_box;
use std::time::Instant;

use hisparse_core::env::Moment;
use hisparse_core::ledger::Survey;
use hisparse_core::limits::{MAX_MAP_BUCKETS, MAX_OVERVIEW_LEASES};
use node::{Node, machine};
use serde_json::json;

const PAGES: u64 = 1_000_000;
const ROUNDS: usize = 9;

#[allow(clippy::disallowed_methods)] // a benchmark measures time
fn us(work: impl FnOnce()) -> u64 {
    let start = Instant::now();
    work();
    u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
}

fn spread(mut times: Vec<u64>) -> serde_json::Value {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    json!({ "median": at(50), "p99": at(99), "max": at(100), "count": times.len() })
}

#[allow(clippy::print_stdout)] // a benchmark prints what it found
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let node = Node::churned(PAGES);
    let (mut slices, mut maps, mut wholes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (mut survey, mut leases, mut whole) = (Survey::default(), Vec::new(), 0);
        loop {
            let mut slice = None;
            let took = us(|| slice = node.ledger.survey(&mut survey, Moment::ORIGIN));
            let Some(found) = slice else { break };
            leases.extend(found);
            slices.push(took);
            whole += took;
        }
        leases.sort_unstable_by_key(|lease| lease.id);
        leases.truncate(MAX_OVERVIEW_LEASES);
        maps.push(us(|| {
            black_box(survey.map(MAX_MAP_BUCKETS, &leases));
        }));
        wholes.push(whole);
    }
    let counts = node.ledger.pages().counts();
    let result = json!({
        "what": "a survey of a node of 10^6 pages; see rust/hisparse-core/benches/survey.rs",
        "command": format!("cargo bench -p hisparse-core --bench survey -- {}", arguments.join(" ")),
        "date": arguments.get(1),
        "machine": machine(),
        "pages": PAGES,
        "leases": node.leases.len(),
        "page_states": { "free": counts.free, "private": counts.private, "held": counts.held, "evictable": counts.evictable },
        "rounds": ROUNDS,
        "slice_us": spread(slices),
        "map_us": spread(maps),
        "slices_of_one_survey_us": spread(wholes),
    });
    let text = serde_json::to_string_pretty(&result).expect("it is plain data");
    println!("{text}");
    if let Some(out) = arguments.first() {
        std::fs::write(out, text + "\n").expect("the result can be written");
    }
}
