//! Four routers, each over many connections, race for the last seats of one node.
//!
//! ```text
//!  round:  node full but for SEATS ─► gate opens ─► every connection asks once or more ─► exactly SEATS have one
//!          └─ each winner holds its lease until the round is counted, then releases it ◄─┘
//! ```
//! The routers count for themselves: who holds which page, how many hold at once. A node that grants one too many, or one
//! too few, or one page to two, fails; so does a run in which too few lost a race, because it shows nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::Barrier;
use tonic::Code;

use crate::{admit, ask, assert_conserved, free, release_of, serve};

const ROUTERS: usize = 4;
const CONNECTIONS: usize = 64;
/// Room for so many, which is what bounds a round: three pages each, and one page that is too few for another.
const SEATS: u64 = 40;
const PAGES: u64 = 3 * SEATS + 1;

/// Admits of the small form, for every run of the tests; `HISPARSE_RACE_ADMITS` sets more.
const SMALL: u64 = 1_536;

#[derive(Debug, Default)]
struct Tally {
    asked: AtomicU64,
    granted: AtomicU64,
    refused: AtomicU64,
    held: AtomicU64,
    most_held: AtomicU64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_routers_racing_for_the_last_seats_are_granted_exactly_what_fits() {
    let admits: u64 = std::env::var("HISPARSE_RACE_ADMITS").map_or(SMALL, |text| text.parse().unwrap());
    let connections = (ROUTERS * CONNECTIONS) as u64;
    let rounds = admits.div_ceil(connections);
    let served = serve(PAGES, SEATS + 100);
    let gate = Arc::new(Barrier::new(ROUTERS * CONNECTIONS + 1));
    let tally = Arc::new(Tally::default());
    let pages = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let begun = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for router in 0..ROUTERS {
        for connection in 0..CONNECTIONS {
            let mut client = served.admission().await;
            let (gate, tally, pages) = (Arc::clone(&gate), Arc::clone(&tally), Arc::clone(&pages));
            callers.spawn(async move {
                for round in 0..rounds {
                    gate.wait().await; // everybody at once
                    tally.asked.fetch_add(1, Ordering::Relaxed);
                    let won = match admit(&mut client, ask(&format!("{router}/{connection}/{round}"), 192, 0)).await {
                        Ok(lease) => {
                            tally.granted.fetch_add(1, Ordering::Relaxed);
                            let held = tally.held.fetch_add(1, Ordering::SeqCst) + 1;
                            tally.most_held.fetch_max(held, Ordering::SeqCst);
                            for extent in &lease.extents {
                                for page in extent.first_page..extent.first_page + extent.page_count {
                                    assert!(pages.lock().unwrap().insert(page), "page {page} has two holders");
                                }
                            }
                            Some(lease)
                        }
                        Err(status) => {
                            assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                            tally.refused.fetch_add(1, Ordering::Relaxed);
                            None
                        }
                    };
                    gate.wait().await; // the round is over; the test counts
                    gate.wait().await; // and has counted
                    if let Some(lease) = won {
                        for extent in &lease.extents {
                            let mut pages = pages.lock().unwrap();
                            (extent.first_page..extent.first_page + extent.page_count).for_each(|page| {
                                pages.remove(&page);
                            });
                        }
                        tally.held.fetch_sub(1, Ordering::SeqCst);
                        client.release(release_of(&lease)).await.unwrap();
                    }
                    gate.wait().await; // everything is given back
                }
            });
        }
    }
    let mut over = 0_u64;
    for round in 0..rounds {
        gate.wait().await;
        gate.wait().await;
        let held = tally.held.load(Ordering::SeqCst);
        assert_eq!(held, SEATS, "round {round}: so many were granted, and {SEATS} fit");
        over += held.saturating_sub(SEATS);
        let now = served.capacity().await;
        assert_eq!(free(&now, "host_pages"), 1, "round {round}");
        let pools = now.pools.clone();
        assert_conserved(&hisparse_serve::proto::Capacity { pools, ..Default::default() });
        gate.wait().await;
        gate.wait().await;
    }
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (asked, granted, refused) = (count(&tally.asked), count(&tally.granted), count(&tally.refused));
    assert!(asked >= admits && granted == rounds * SEATS, "{tally:?}");
    assert!(refused >= asked / 2, "too few lost a race for it to show anything: {tally:?}");
    assert_eq!(free(&served.capacity().await, "host_pages"), PAGES, "everything came back");
    if let Ok(path) = std::env::var("HISPARSE_RACE_OUT") {
        let result = format!(
            "{{\n  \"what\": \"{ROUTERS} routers x {CONNECTIONS} connections race for the last {SEATS} seats of one node, in rounds, over its Unix socket\",\n  \
             \"command\": \"HISPARSE_RACE_ADMITS={admits} HISPARSE_RACE_OUT=... cargo test -p hisparse-serve --test serve four_routers\",\n  \
             \"date\": \"{}\",\n  \"machine\": \"{}\",\n  \"admits\": {asked},\n  \"granted\": {granted},\n  \"refused\": {refused},\n  \"rounds\": {rounds},\n  \
             \"most_held_at_once\": {},\n  \"over_commit\": {over},\n  \"seconds\": {:.1}\n}}\n",
            std::env::var("HISPARSE_RACE_DATE").unwrap_or_default(),
            std::env::var("HISPARSE_RACE_MACHINE").unwrap_or_default(),
            count(&tally.most_held),
            begun.elapsed().as_secs_f64(),
        );
        std::fs::write(path, result).unwrap();
    }
}
