//! `hisparse-sim`: runs seeds, says which broke a rule, and how to run that one again.
//!
//! ```text
//!  hisparse-sim --seeds 10000 [--first 0] [--threads 2] [--out FILE [--date TEXT]]    hisparse-sim --seed 4711 [--bug NAME]
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr)] // a command line

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use hisparse_sim::{Bug, Judges, Summary, faults, run};

struct Args {
    seeds: u64,
    first: u64,
    seed: Option<u64>,
    threads: u64,
    bug: Option<Bug>,
    out: Option<String>,
    /// The day of the run, as its caller says it: nothing here looks at a clock.
    date: Option<String>,
}

const USAGE: &str =
    "usage: hisparse-sim [--seeds N] [--first N] [--threads N] | --seed N; [--bug NAME] [--out FILE [--date TEXT]]";

fn main() -> ExitCode {
    let args = match read_args(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(problem) => {
            eprintln!("error: {problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let (document, broken) = if let Some(seed) = args.seed {
        let run = run(seed, args.bug, Judges::All);
        let broken = run.finding.is_some();
        (serde_json::to_value(run), broken)
    } else {
        let summary = run_many(&args);
        let broken = !summary.findings.is_empty();
        let value = serde_json::to_value(&summary).map(|summary| {
            serde_json::json!({
                "benchmark": "simulation",
                "date": args.date,
                "command": format!("make sim SEEDS={}", args.seeds),
                "first_seed": args.first,
                "summary": summary,
                "fault_ranges": faults::RANGES,
            })
        });
        (value, broken)
    };
    let text = match document {
        Ok(value) => format!("{value:#}\n"),
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    if let Some(file) = &args.out
        && let Err(error) = std::fs::write(file, &text)
    {
        eprintln!("error: {file}: {error}");
        return ExitCode::from(2);
    }
    print!("{text}");
    ExitCode::from(u8::from(broken))
}

fn read_args(args: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut read = Args { seeds: 200, first: 0, seed: None, threads: threads(), bug: None, out: None, date: None };
    let mut args = args;
    while let Some(flag) = args.next() {
        let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{flag} takes a number, not {value}"));
        match flag.as_str() {
            "--seeds" => read.seeds = number()?,
            "--first" => read.first = number()?,
            "--seed" => read.seed = Some(number()?),
            "--threads" => read.threads = number()?.max(1),
            "--out" => read.out = Some(value),
            "--date" => read.date = Some(value),
            "--bug" => {
                let found = Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == value);
                read.bug = Some(found.ok_or_else(|| format!("no bug {value}; there are {:?}", Bug::ALL))?);
            }
            _ => return Err(format!("unknown flag {flag}")),
        }
    }
    Ok(read)
}

fn threads() -> u64 {
    std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64)
}

/// Seeds are independent of each other, so threads change nothing but the time it takes.
fn run_many(args: &Args) -> Summary {
    let (next, summary) = (AtomicU64::new(0), Mutex::new(Summary::default()));
    std::thread::scope(|scope| {
        for _ in 0..args.threads {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    if place >= args.seeds {
                        break;
                    }
                    let run = run(args.first + place, args.bug, Judges::All);
                    if let Some(finding) = &run.finding {
                        let detail: String = finding.detail.chars().take(300).collect();
                        eprintln!("seed {}: {}: {detail} …", run.seed, finding.rule);
                        eprintln!("  again: make sim SEED={}", run.seed);
                    }
                    let mut summary = summary.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    summary.add(run);
                    if summary.seeds % 500 == 0 {
                        eprintln!("{} of {} seeds, {} findings", summary.seeds, args.seeds, summary.findings.len());
                    }
                }
            });
        }
    });
    let mut summary = summary.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    summary.findings.sort_by_key(|(seed, _)| *seed);
    summary
}
