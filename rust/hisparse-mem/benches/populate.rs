//! How fast a segment's pages are made, per kind of pages and number of threads. Prints one JSON document.
//!
//! ```text
//!  benches/populate [GiB] [rounds]     make bench-populate
//! ```
//! Each round makes the segment anew; the first round of each kind is left out, since memory that was never used before
//! costs more (a virtual machine's host makes it then).
#![allow(clippy::print_stdout, clippy::disallowed_methods)] // a benchmark reads the clock and prints what it found
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // rates to two places

use std::num::NonZeroUsize;
use std::time::Instant;

use hisparse_mem::backing::Backing;
use hisparse_mem::bind::Placement;
use hisparse_mem::hugepage;
use hisparse_mem::populate::Workers;
use hisparse_mem::root::Root;
use hisparse_mem::segment::{Recipe, Segment};
use serde_json::{Value, json};

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let bytes = numbers.first().copied().unwrap_or(2) << 30;
    let rounds = numbers.get(1).copied().unwrap_or(7).max(2);
    let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let root = Root::machine();
    let mut kinds = vec![Backing::Memfd];
    if hugepage::transparent(&root).shared_advice_works() {
        kinds.push(Backing::MemfdThp);
    }
    let pools = hugepage::pools(&root);
    let enough = pools.iter().filter(|pool| pool.available_bytes() >= bytes);
    kinds.extend(enough.map(|pool| Backing::Hugetlb { page_bytes: pool.page_bytes }));
    let mut rows: Vec<Value> = Vec::new();
    for backing in kinds {
        let mut threads = 1;
        while threads <= cpus.min(16) {
            rows.push(measure(backing, bytes, threads, rounds));
            threads *= 2;
        }
    }
    let machine = json!({
        "kernel": root.read("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "cpu": cpu_model(&root),
        "cpus": cpus,
        "load": root.read("/proc/loadavg").unwrap_or_default().split(' ').next().unwrap_or_default(),
    });
    println!(
        "{:#}",
        json!({
            "benchmark": "populate",
            "command": format!("benches/populate {} {rounds}", bytes >> 30),
            "date": today(),
            "machine": machine,
            "setup": {
                "shmem_enabled": root.read("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default().trim(),
                "nr_hugepages": root.read("/proc/sys/vm/nr_hugepages").unwrap_or_default().trim(),
            },
            "segment_bytes": bytes,
            "rounds_kept": rounds - 1,
            "unit": "GiB/s",
            "results": rows,
        })
    );
}

fn measure(backing: Backing, bytes: u64, threads: usize, rounds: u64) -> Value {
    let workers = Workers::free(NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN));
    let mut rates: Vec<f64> = Vec::new();
    for round in 0..rounds {
        let placement = Placement::Anywhere;
        let recipe = Recipe {
            index: 0,
            bytes,
            backing,
            placement,
            node_cpus: &[],
            workers: &workers,
            lock: false,
            generation: None,
        };
        let start = Instant::now();
        let made = Segment::create(&recipe, &|_| {});
        let seconds = start.elapsed().as_secs_f64();
        match made {
            Ok(_) if round > 0 => rates.push((bytes >> 20) as f64 / 1024.0 / seconds),
            Ok(_) => {}
            Err(error) => return json!({"backing": backing, "threads": threads, "error": error.to_string()}),
        }
    }
    rates.sort_by(f64::total_cmp);
    let at = |share: f64| rates[((rates.len() - 1) as f64 * share).round() as usize];
    let rounded = |rate: f64| (rate * 100.0).round() / 100.0;
    json!({
        "backing": backing,
        "threads": threads,
        "median": rounded(at(0.5)),
        "least": rounded(at(0.0)),
        "most": rounded(at(1.0)),
    })
}

fn today() -> String {
    let printed = std::process::Command::new("date").args(["-u", "+%F"]).output().map(|output| output.stdout);
    String::from_utf8_lossy(&printed.unwrap_or_default()).trim().to_owned()
}

fn cpu_model(root: &Root) -> String {
    let text = root.read("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    line.map_or_else(|| "unknown".to_owned(), |(_, model)| model.trim().to_owned())
}
