//! The table of the fleet: sizes × ages of views × rules, one run each, as JSON.
//!
//! ```text
//!  cargo run --release -p hisparse-sim --example fleet -- [--trace FILE] [--nodes 10,100,1000] [--staleness-ms 0,500,2000,5000]
//!      [--rules random:1,most_left:4] [--routers 100] [--seed 1] [--load-milli 900] [--warm-s 20] [--measured-s 30] [--faults no]
//!      [--date TEXT] [--out FILE]
//! ```
//! With `--out` the file is written after every run, and runs that it holds already are kept: a long table can be made in
//! parts.
#![allow(clippy::print_stdout, clippy::print_stderr)] // a command line

use std::process::ExitCode;
use std::time::Duration;

use hisparse_core::fleet::Policy;
use hisparse_core::replay::{TraceRequest, parse};
use hisparse_sim::fleet::{Rule, Setup, simulate};
use serde_json::{Value, json};

const SAMPLE: &str = include_str!("../../../python/hisparse_svc/data/conversation_200.jsonl");

struct Args {
    trace: Option<String>,
    nodes: Vec<usize>,
    staleness_ms: Vec<u64>,
    rules: Vec<Rule>,
    routers: usize,
    seed: u64,
    load_milli: u64,
    warm_s: u64,
    measured_s: u64,
    faults: bool,
    date: Option<String>,
    out: Option<String>,
}

fn main() -> ExitCode {
    match read_args().and_then(|args| table(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::from(2)
        }
    }
}

fn read_args() -> Result<Args, String> {
    let mut args = Args {
        trace: None,
        nodes: vec![10, 100, 1_000, 10_000],
        staleness_ms: vec![0, 500, 2_000, 5_000],
        rules: Rule::COMPARED.to_vec(),
        routers: 100,
        seed: 1,
        load_milli: 900,
        warm_s: 20,
        measured_s: 30,
        faults: true,
        date: None,
        out: None,
    };
    let mut given = std::env::args().skip(1);
    while let Some(flag) = given.next() {
        let value = given.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--trace" => args.trace = Some(value),
            "--nodes" => args.nodes = list(&flag, &value)?,
            "--staleness-ms" => args.staleness_ms = list(&flag, &value)?,
            "--rules" => args.rules = value.split(',').map(rule).collect::<Result<_, _>>()?,
            "--routers" => args.routers = number(&flag, &value)?,
            "--seed" => args.seed = number(&flag, &value)?,
            "--load-milli" => args.load_milli = number(&flag, &value)?,
            "--warm-s" => args.warm_s = number(&flag, &value)?,
            "--measured-s" => args.measured_s = number(&flag, &value)?,
            "--faults" => args.faults = value != "no",
            "--date" => args.date = Some(value),
            "--out" => args.out = Some(value),
            _ => return Err(format!("unknown flag {flag}")),
        }
    }
    Ok(args)
}

fn number<T: std::str::FromStr>(flag: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{flag} takes a number, not {value}"))
}

fn list<T: std::str::FromStr>(flag: &str, value: &str) -> Result<Vec<T>, String> {
    value.split(',').map(|part| number(flag, part)).collect()
}

/// `most_left:4`: a policy, and how many nodes it compares.
fn rule(text: &str) -> Result<Rule, String> {
    let (policy, choices) = text.split_once(':').ok_or_else(|| format!("a rule is POLICY:CHOICES, not {text}"))?;
    let policy = Policy::of_name(policy).ok_or_else(|| format!("no policy {policy}"))?;
    Ok(Rule { policy, choices: number("--rules", choices)? })
}

fn table(args: &Args) -> Result<(), String> {
    let text = match &args.trace {
        Some(file) => std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?,
        None => SAMPLE.to_owned(),
    };
    let trace = parse(&text).map_err(|problems| problems.to_string())?;
    let mut rows = kept(args);
    for nodes in &args.nodes {
        for staleness_ms in &args.staleness_ms {
            for rule in &args.rules {
                let row = row(args, *nodes, *staleness_ms, *rule, &trace)?;
                println!("{row}");
                rows.retain(|known| !same(known, &row));
                rows.push(row);
                write(args, trace.len(), &rows)?;
            }
        }
    }
    Ok(())
}

fn row(args: &Args, nodes: usize, staleness_ms: u64, rule: Rule, trace: &[TraceRequest]) -> Result<Value, String> {
    let base = Setup::new(args.seed, nodes, args.routers, Duration::from_millis(staleness_ms), rule);
    let setup = Setup {
        load_milli: args.load_milli,
        warm: Duration::from_secs(args.warm_s),
        measured: Duration::from_secs(args.measured_s),
        deaths_milli: if args.faults { base.deaths_milli } else { 0 },
        slow_milli: if args.faults { base.slow_milli } else { 0 },
        ..base
    };
    let report = simulate(&setup, trace).map_err(|problems| problems.to_string())?;
    Ok(json!({
        "nodes": nodes,
        "staleness_ms": staleness_ms,
        "policy": rule.policy_name(),
        "choices": rule.choices,
        "routers": setup.routers,
        "seed": setup.seed,
        "load_milli": setup.load_milli,
        "faults": args.faults,
        "warm_s": args.warm_s,
        "measured_s": args.measured_s,
        "goodput": report.goodput(),
        "attempts_per_admit": report.attempts_per_admit(),
        "counts": report,
    }))
}

/// Whether two rows are of one run.
fn same(one: &Value, other: &Value) -> bool {
    let keys = ["nodes", "staleness_ms", "policy", "choices", "routers", "seed", "load_milli", "faults"];
    keys.iter().all(|key| one[key] == other[key])
}

/// Rows that the file holds already.
fn kept(args: &Args) -> Vec<Value> {
    let text = args.out.as_ref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    let document: Value = serde_json::from_str(&text).unwrap_or_default();
    document["runs"].as_array().cloned().unwrap_or_default()
}

fn write(args: &Args, shapes: usize, rows: &[Value]) -> Result<(), String> {
    let Some(file) = &args.out else { return Ok(()) };
    let setup = Setup::new(args.seed, 1, args.routers, Duration::ZERO, Rule::COMPARED[0]);
    let document = json!({
        "benchmark": "fleet simulation",
        "date": args.date,
        "command": "cargo run --release -p hisparse-sim --example fleet -- --out benches/results/fleet_simulation.json",
        "trace_requests": shapes,
        "node": { "seats": setup.seats, "host_pages": setup.host_pages },
        "deaths_milli": setup.deaths_milli,
        "slow_milli": setup.slow_milli,
        "patience_s": setup.patience.as_secs(),
        "runs": rows,
    });
    std::fs::write(file, format!("{document:#}\n")).map_err(|error| format!("{file}: {error}"))
}
