//! Engines killed at any moment, each followed by a successor: no page leaks, nothing that was promised is lost.
//!
//! ```text
//!  child: attach ─► [ admit ─► commit ─► write ─► publish ─► release ] again and again     says what it does, and did
//!  parent: kill -9 in the step that is its turn ─► attach as successor ─► Reclaim ─► compare with what the child said
//! ```
//! `HISPARSE_KILLS` sets how many; a failure prints the seed and the round, `HISPARSE_KILLS_SEED` replays them.
#![allow(clippy::print_stdout)] // the child speaks to its parent by it, and a failure is replayed from it

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use hisparse_core::layout::pool::Content;
use hisparse_mem::attach::client::{AttachError, AttachedPool};
use hisparse_mem::attach::frame::{Reason, Role};
use hisparse_mem::rows::PoolMemory;
use hisparse_serve::attach_beside;
use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::engine_service_client::EngineServiceClient;
use hisparse_serve::proto::{
    CommitRequest, ListLeasesRequest, PublishRequest, ReclaimRequest, ReclaimedLease, ReleaseRequest,
};

use crate::memory::serve;
use crate::{Served, admit, ask, connect, release_of};

const STEPS: [&str; 6] = ["attach", "admit", "commit", "write", "publish", "release"];
const SOCKET: &str = "HISPARSE_TEST_ENGINE_SOCKET";
const ROUND: &str = "HISPARSE_TEST_ENGINE_ROUND";
/// Pages of a lease, and those of them that are published.
const PAGES: u64 = 4;
const PUBLISHED: u8 = 2;

/// Attaches as the writer; the one before may take a moment to be gone.
fn attach(socket: &std::path::Path) -> AttachedPool {
    for _ in 0..2_000 {
        match AttachedPool::attach(&attach_beside(socket), "engine-0", 0, Role::Writer) {
            Err(AttachError::Refused(Reason::WriterTaken)) => std::thread::sleep(Duration::from_millis(5)),
            attached => return attached.unwrap(),
        }
    }
    panic!("the session of a dead engine never ended");
}

/// What a page of this lease is filled with: no two in a row are alike.
fn mark(round: u8, turn: u8) -> u8 {
    1 + round.wrapping_mul(7).wrapping_add(turn) % 250
}

#[tokio::test]
#[ignore = "run by its parent, which kills it"]
async fn the_engine_that_dies() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    let socket = std::path::PathBuf::from(socket);
    let round: u8 = std::env::var(ROUND).unwrap().parse().unwrap();
    println!("engine: in attach");
    let pool = attach(&socket);
    println!("engine: token {}", pool.token().0.map(|byte| format!("{byte:02x}")).concat());
    let channel = connect(&socket).await;
    let mut admission = AdmissionServiceClient::new(channel.clone());
    let mut engine = EngineServiceClient::new(channel);
    for turn in 0..u8::MAX {
        println!("engine: in admit");
        let lease = admit(&mut admission, ask("", PAGES * 64, 0)).await.unwrap();
        println!("engine: in commit");
        let commit = CommitRequest { lease_id: lease.id.clone(), epoch: lease.epoch, ..CommitRequest::default() };
        admission.commit(commit).await.unwrap();
        println!("engine: committed {}", lease.id);
        println!("engine: in write");
        let pages = lease.extents.iter().flat_map(|run| run.first_page..run.first_page + run.page_count);
        for page in pages {
            for (layer, row) in (0..5).flat_map(|layer| (0..64).map(move |row| (layer, row))) {
                pool.write_row(Content::Main, layer, page, row, &[mark(round, turn); 656]).unwrap();
            }
        }
        println!("engine: in publish");
        let hashes = (0..PUBLISHED).map(|page| [&[round, turn, page][..], &[0; 29]].concat()).collect();
        let publish = PublishRequest { lease_id: lease.id.clone(), epoch: lease.epoch, first_page_index: 0, hashes };
        engine.publish(publish).await.unwrap();
        println!("engine: published {} {}", lease.id, mark(round, turn));
        println!("engine: in release");
        admission.release(release_of(&lease)).await.unwrap();
    }
}

/// What a dead engine had said.
#[derive(Debug, Default)]
struct Said {
    step: String,
    token: Option<Vec<u8>>,
    /// The lease that it held for certain, and the mark of what it had published of it.
    held: Option<(String, Option<u8>)>,
}

impl Said {
    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["in", step] => {
                step.clone_into(&mut self.step);
                if step == "release" {
                    self.held = None;
                }
            }
            ["token", hex] => {
                let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
                self.token = Some((0..hex.len()).step_by(2).map(byte).collect());
            }
            ["committed", id] => self.held = Some((id.to_owned(), None)),
            ["published", _, mark] => self.held.as_mut().unwrap().1 = Some(mark.parse().unwrap()),
            _ => panic!("the engine said {line:?}"),
        }
    }
}

/// Runs an engine until it has begun `step` so many times, kills it a moment later, and tells what it had said.
fn run_and_kill(served: &Served, round: u8, step: &str, times: u64, moment: Duration) -> Said {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed_engines::the_engine_that_dies", "--ignored", "--nocapture"])
        .env(SOCKET, served.socket())
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = Said::default();
    let mut begun = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        // The test harness of the child has words of its own.
        let line = line.unwrap();
        let Some((_, line)) = line.split_once("engine: ") else { continue };
        said.hear(line);
        begun += u64::from(line.strip_prefix("in ") == Some(step));
        if begun == times {
            begun += 1;
            std::thread::sleep(moment);
            child.kill().unwrap();
        }
    }
    assert!(begun > times, "the engine ended by itself: {said:?}");
    child.wait().unwrap();
    said
}

async fn take_over(served: &Served, pool: &AttachedPool, said: &Said) {
    let channel = served.channel().await;
    let mut admission = AdmissionServiceClient::new(channel.clone());
    let mut back: Vec<ReclaimedLease> = Vec::new();
    if let Some(token) = &said.token {
        let asked = ReclaimRequest { engine_id: "engine-0".into(), token: token.clone() };
        back = EngineServiceClient::new(channel).reclaim(asked).await.unwrap().into_inner().leases;
    }
    if let Some((id, published)) = &said.held {
        let found = back.iter().find(|back| back.lease.as_ref().unwrap().id == *id);
        let found = found.unwrap_or_else(|| panic!("a committed lease is lost: {said:?}, {back:?}"));
        if let Some(mark) = published {
            assert!(found.durable_tokens >= u64::from(PUBLISHED) * 64, "{said:?}, {found:?}");
            let pages = found.lease.as_ref().unwrap().extents.iter();
            let pages = pages.flat_map(|run| run.first_page..run.first_page + run.page_count);
            let mut row = [0; 656];
            for page in pages.take(PUBLISHED.into()) {
                pool.read_row(Content::Main, 4, page, 63, &mut row).unwrap();
                assert_eq!(row, [*mark; 656], "page {page} of {said:?}");
            }
        }
    }
    // What the engine had admitted and not committed ends by its ttl; here it is given back at once.
    let left = admission.list_leases(ListLeasesRequest::default()).await.unwrap().into_inner().leases;
    for lease in &left {
        let release = ReleaseRequest { lease_id: lease.id.clone(), ..ReleaseRequest::default() };
        let released = admission.release(release).await.unwrap().into_inner();
        assert!(!released.quarantined, "nobody can free {lease:?} after {said:?}");
    }
    let seen = served.capacity().await;
    for pool in &seen.pools {
        assert_eq!(pool.free + pool.evictable, pool.total, "leaked after {said:?}: {pool:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_engine_leaks_no_page_and_loses_no_lease_that_it_held() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let kills = number("HISPARSE_KILLS", 100);
    let mut random = number("HISPARSE_KILLS_SEED", 1).max(1);
    println!("{kills} kills from HISPARSE_KILLS_SEED={random}");
    let served = serve(64);
    let mut landed: BTreeMap<String, u64> = BTreeMap::new();
    for kill in 0..kills {
        // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let step = STEPS[usize::try_from(kill).unwrap() % STEPS.len()];
        let times = if step == "attach" { 1 } else { 1 + random % 3 };
        let moment = Duration::from_micros((random >> 8) % 800);
        let round = u8::try_from(kill % 256).unwrap();
        println!("kill {kill}: {step}, time {times}, after {moment:?}");
        let said = run_and_kill(&served, round, step, times, moment);
        *landed.entry(said.step.clone()).or_default() += 1;
        let successor = attach(&served.socket());
        take_over(&served, &successor, &said).await;
    }
    println!("landed in {landed:?}");
    for step in STEPS {
        let count = landed.get(step).copied().unwrap_or(0);
        assert!(count >= kills / 20, "only {count} of {kills} kills landed in {step}: {landed:?}");
    }
}
