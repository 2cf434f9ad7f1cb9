//! The real service, in a process of its own that is killed half-way: every history of its callers is linearizable.
//!
//! ```text
//!  clients ──unix socket──► serve (child process) ── SIGKILL ── serve again (next epoch)
//!     └── calls, answers, their times ──► history ──► checker
//! ```
//! Twelve histories run with the tests. `HISPARSE_HISTORIES=200`, as in `make check-deep`, runs so many.

#![allow(clippy::unwrap_used)] // helpers of tests: a panic is how they say no
#![allow(clippy::disallowed_methods)] // these tests measure the real clock of a real server

mod client;
mod server;

use std::sync::Arc;
use std::time::Duration;

use hisparse_sim::linear::check::{Entry, Verdict, check};
use hisparse_sim::linear::node::{Op, Room};

use crate::client::{Client, Recorder, Tally};
use crate::server::Server;

const PAGES: u64 = 12;
const SEATS: u64 = 4;
const ROOM: Room = Room { pages: PAGES, requests: SEATS, indexer_pages: PAGES };
const CLIENTS: u64 = 4;
/// How long callers call before the kill, and after it.
const TRAFFIC: Duration = Duration::from_millis(40);

/// One history: traffic, a kill under way, traffic again.
fn record(seed: u64, tally: &mut Tally) -> Vec<Entry<Op>> {
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("h.sock");
    let recorder = Arc::new(Recorder::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for life in 0..2 {
        let began = recorder.now();
        let server = Server::start(&socket);
        let epoch = runtime.block_on(client::epoch(&socket));
        recorder.add(Op::Restart { keeps: true, epoch }, began, Some(recorder.now()));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|place| Client::new(seed, life * CLIENTS + place, epoch, Arc::clone(&recorder)))
            .map(|client| runtime.spawn(client.run(socket.clone(), TRAFFIC * 4)))
            .collect();
        runtime.block_on(async { tokio::time::sleep(TRAFFIC).await });
        // Under way: the clients go on calling until their calls fail.
        server.kill();
        for client in clients {
            tally.add(&runtime.block_on(client).unwrap());
        }
    }
    Arc::into_inner(recorder).unwrap().into_entries()
}

/// Whether one page more in any one answer of `GetCapacity` is noticed, but for answers that another order may explain.
fn bites(history: &[Entry<Op>]) -> bool {
    let mut noticed = Vec::new();
    for place in 0..history.len() {
        let mut wrong = history.to_vec();
        if let Op::GetCapacity { free_pages, .. } = &mut wrong[place].op {
            *free_pages += 1;
            noticed.push(check(&ROOM, &wrong, 2_000_000) != Verdict::Linearizable);
        }
    }
    noticed.iter().filter(|noticed| **noticed).count() > noticed.len() / 2
}

#[test]
fn histories_of_the_service_with_kills_are_linearizable() {
    let histories = std::env::var("HISPARSE_HISTORIES").map_or(12, |number| number.parse::<u64>().unwrap());
    let mut tally = Tally::default();
    for seed in 0..histories {
        let history = record(seed, &mut tally);
        let verdict = check(&ROOM, &history, 2_000_000);
        if let Verdict::NotLinearizable { stuck_at } = &verdict {
            let calls: Vec<_> = stuck_at.iter().map(|at| &history[*at]).collect();
            panic!("history {seed}: no order explains {calls:#?} in {history:#?}");
        }
        assert_eq!(verdict, Verdict::Linearizable, "history {seed} of {} calls", history.len());
    }
    assert!(bites(&record(histories, &mut Tally::default())), "a changed answer is noticed");
    println!("{histories} histories: {tally:?}");
    // A run with too little traffic shows nothing.
    let per_history = |times: u64| times / histories;
    assert!(per_history(tally.calls) >= 60, "{tally:?}");
    assert!(per_history(tally.granted) >= 5 && per_history(tally.busy) >= 5, "{tally:?}");
    assert!(per_history(tally.released) >= 2 && tally.unanswered > 0, "{tally:?}");
}

/// Not a test of its own: the child process that [`Server::start`] starts.
#[test]
fn serve_where_a_parent_asks_for_it() {
    server::serve_if_asked();
}
