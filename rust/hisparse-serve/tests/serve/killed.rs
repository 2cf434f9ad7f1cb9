//! Engines, services and both killed at any moment: no page leaks, nothing that was promised is lost, nothing stays behind.
//!
//! ```text
//!  engine:  attach ─► [ admit ─► commit ─► write ─► publish ─► release ] again and again      says what it does, and did
//!  parent:  kill -9 in the step that is its turn
//!             the engine   ─► a successor attaches, reclaims, and finds what the engine said
//!             the service  ─► another one starts; the engine goes on, finds its lease, ends a whole turn; then as above
//!             both         ─► another one starts; with --state-dir as above, without it everything is free and new
//! ```
//! Every other round has a service with a state directory. The processes live in a control group of their own where one
//! can be made: what is charged to it when all are dead is what they left. `HISPARSE_KILLS` sets how many; a failure prints the seed and
//! the round, `HISPARSE_KILLS_SEED` replays them.
#![allow(clippy::print_stdout)] // children speak to their parent by it, and a failure is replayed from it

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hisparse_core::layout::pool::Content;
use hisparse_mem::attach::client::{AttachError, AttachedPool};
use hisparse_mem::attach::frame::{Reason, Role};
use hisparse_mem::rows::PoolMemory;
use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::capacity_service_client::CapacityServiceClient;
use hisparse_serve::proto::engine_service_client::EngineServiceClient;
use hisparse_serve::proto::{
    CommitRequest, GetCapacityRequest, GetLeaseRequest, Lease, LeaseState, ListLeasesRequest, Pool, PublishRequest,
    ReclaimRequest, ReleaseRequest,
};
use hisparse_serve::{Config, Server, attach_beside};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::leftovers::Group;
use crate::memory::{config, layout};
use crate::{admit, ask, connect, release_of};

const STEPS: [&str; 6] = ["attach", "admit", "commit", "write", "publish", "release"];
const HOME: &str = "HISPARSE_TEST_HOME";
const STATE: &str = "HISPARSE_TEST_STATE_DIR";
const ROUND: &str = "HISPARSE_TEST_ENGINE_ROUND";
/// Pages of a lease, and those of them that are published.
const PAGES: u64 = 4;
const PUBLISHED: u8 = 2;
/// Pages of the pool.
const POOL_PAGES: u64 = 64;
/// How often, and how long apart, something is tried that must succeed in the end.
const TRIES: usize = 4_000;
const REST: Duration = Duration::from_millis(5);

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Engine,
    Service,
    Both,
}

/// Attaches as the writer; the one before may take a moment to be gone, and a service to come.
fn attach(socket: &Path) -> AttachedPool {
    let mut last = None;
    for _ in 0..TRIES {
        match AttachedPool::attach(&attach_beside(socket), "engine-0", 0, Role::Writer) {
            Ok(pool) => return pool,
            Err(
                refused @ (AttachError::Refused(Reason::WriterTaken | Reason::Recovering | Reason::Unavailable)
                | AttachError::Unreachable { .. }
                | AttachError::Channel(_)),
            ) => last = Some(refused),
            Err(other) => panic!("{other}"),
        }
        std::thread::sleep(REST);
    }
    panic!("no session: {last:?}");
}

/// What a page of this lease is filled with: no two in a row are alike.
fn mark(round: u8, turn: u8) -> u8 {
    1 + round.wrapping_mul(7).wrapping_add(turn) % 250
}

/// The service, in a process of its own.
struct Service<'g> {
    child: Child,
    group: &'g Group,
    home: PathBuf,
    state: Option<PathBuf>,
}

fn this_test(name: &str, home: &Path, group: &Group) -> Command {
    let mut command = group.command(&std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]).env(HOME, home);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

impl<'g> Service<'g> {
    /// Starts one and waits until it grants.
    fn start(home: &Path, state: Option<&Path>, group: &'g Group) -> Self {
        let mut command = this_test("killed::the_service_that_dies", home, group);
        if let Some(state) = state {
            command.env(STATE, state);
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.map_while(Result::ok).find_map(|line| Some(line.split_once("service: ")?.1.to_owned()));
        assert_eq!(ready.as_deref(), Some("ready"), "in {}", home.display());
        Self { child, group, home: home.into(), state: state.map(Path::to_path_buf) }
    }

    fn socket(&self) -> PathBuf {
        self.home.join("h.sock")
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Another one in its place.
    fn replace(&mut self) {
        self.kill();
        *self = Self::start(&self.home.clone(), self.state.clone().as_deref(), self.group);
    }

    /// Only files that are told of in the documentation, and one generation of segments.
    fn leaves_nothing_else(&self) {
        let names = |path: &Path| -> Vec<String> {
            let entries = std::fs::read_dir(path).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        let known = ["h.sock", "h.sock.attach", "h.sock.epoch", "h.sock.journal", "h.sock.sessions", "h.sock.lock"];
        for name in names(&self.home) {
            assert!(known.contains(&name.as_str()), "{name} was left beside the socket");
        }
        let Some(state) = &self.state else { return };
        let segments = names(state).into_iter().filter(|name| name.starts_with("segment-")).count();
        assert_eq!(segments, 1, "{:?}", names(state));
    }
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        // One that is dead already is no news.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "run by its parent, which kills it"]
fn the_service_that_dies() {
    let Ok(home) = std::env::var(HOME) else { return };
    let state_dir = std::env::var_os(STATE).map(PathBuf::from);
    let running = Server::start(Config { state_dir, ..config(Path::new(&home), POOL_PAGES) }).unwrap();
    println!(
        "service: {}",
        match running.made(Duration::from_secs(60)) {
            Some(Ok(())) => "ready".to_owned(),
            other => format!("{other:?}"),
        }
    );
    // A parent that dies without a kill leaves it so long.
    running.wait(Some(Duration::from_secs(600)));
}

/// Asks again until the service, or the next one, agrees.
async fn persist<T>(socket: &Path, mut call: impl AsyncFnMut(Channel) -> Result<T, Status>) -> T {
    let mut last = None;
    for _ in 0..TRIES {
        if socket.exists()
            && let Ok(endpoint) = tonic::transport::Endpoint::from_shared(format!("unix:{}", socket.display()))
            && let Ok(channel) = endpoint.connect().await
        {
            match call(channel).await {
                Ok(answer) => return answer,
                Err(refused) => last = Some(refused),
            }
        }
        tokio::time::sleep(REST).await;
    }
    panic!("engine: never agreed: {last:?}");
}

async fn lease_now(channel: &Channel, id: &str) -> Result<Lease, Status> {
    let asked = GetLeaseRequest { lease_id: id.into(), ..GetLeaseRequest::default() };
    Ok(AdmissionServiceClient::new(channel.clone()).get_lease(asked).await?.into_inner().lease.unwrap())
}

#[tokio::test]
#[ignore = "run by its parent, which kills it"]
async fn the_engine_that_dies() {
    let Ok(home) = std::env::var(HOME) else { return };
    let Ok(round) = std::env::var(ROUND) else { return };
    let (socket, round): (_, u8) = (Path::new(&home).join("h.sock"), round.parse().unwrap());
    println!("engine: in attach");
    let pool = attach(&socket);
    println!("engine: token {}", pool.token().0.map(|byte| format!("{byte:02x}")).concat());
    for turn in 0..u8::MAX {
        println!("engine: in admit");
        let name = format!("{}-{turn}", std::process::id());
        let granted = persist(&socket, async |channel| {
            admit(&mut AdmissionServiceClient::new(channel), ask(&name, PAGES * 64, 0)).await
        });
        let granted = granted.await;
        println!("engine: in commit");
        let lease = persist(&socket, async |channel| {
            let now = lease_now(&channel, &granted.id).await?;
            let commit = CommitRequest { lease_id: now.id, epoch: now.epoch, ..CommitRequest::default() };
            let committed = AdmissionServiceClient::new(channel).commit(commit).await?.into_inner().lease.unwrap();
            // By the session: what a router commits would end by itself.
            if committed.expire_time.is_some() { Err(Status::unavailable("not resumed yet")) } else { Ok(committed) }
        });
        let lease = lease.await;
        assert_eq!(lease.extents, granted.extents, "engine: moved");
        println!("engine: committed {}", lease.id);
        println!("engine: in write");
        let pages = lease.extents.iter().flat_map(|run| run.first_page..run.first_page + run.page_count);
        for page in pages {
            for (layer, row) in (0..5).flat_map(|layer| (0..64).map(move |row| (layer, row))) {
                pool.write_row(Content::Main, layer, page, row, &[mark(round, turn); 656]).unwrap();
            }
        }
        println!("engine: in publish");
        persist(&socket, async |channel| {
            let now = lease_now(&channel, &lease.id).await?;
            if now.state() == LeaseState::Quarantined {
                return Err(Status::unavailable("not resumed yet"));
            }
            assert_eq!((now.state(), &now.extents), (LeaseState::Committed, &lease.extents), "engine: lost");
            let hashes = (0..PUBLISHED).map(|page| [&[round, turn, page][..], &[0; 29]].concat()).collect();
            let publish = PublishRequest { lease_id: now.id, epoch: now.epoch, first_page_index: 0, hashes };
            EngineServiceClient::new(channel).publish(publish).await
        })
        .await;
        println!("engine: published {} {}", lease.id, mark(round, turn));
        println!("engine: in release");
        persist(&socket, async |channel| {
            AdmissionServiceClient::new(channel).release(release_of(&lease)).await.and_then(|released| {
                // The session is not known yet: then the word is not the engine's, and is said again.
                if released.get_ref().quarantined { Err(Status::unavailable("not resumed yet")) } else { Ok(()) }
            })
        })
        .await;
        println!("engine: turn {}", pool.epoch());
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
            ["turn", _] => {}
            _ => panic!("the engine said {line:?}"),
        }
    }
}

/// An engine whose words are heard.
struct Engine {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    said: Said,
}

impl Engine {
    fn start(home: &Path, round: u8, group: &Group) -> Self {
        let command = &mut this_test("killed::the_engine_that_dies", home, group);
        let mut child = command.env(ROUND, round.to_string()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, said: Said::default() }
    }

    /// Its next word; `None` when it is dead.
    fn next(&mut self) -> Option<String> {
        loop {
            // The test harness of the child has words of its own.
            let line = self.lines.next()?.unwrap();
            if let Some((_, line)) = line.split_once("engine: ") {
                self.said.hear(line);
                return Some(line.to_owned());
            }
        }
    }

    /// Until it has begun `step` so many times.
    fn run_to(&mut self, step: &str, times: u64) {
        let mut begun = 0;
        while begun < times {
            let line = self.next().unwrap_or_else(|| panic!("the engine ended by itself: {:?}", self.said));
            begun += u64::from(line.strip_prefix("in ") == Some(step));
        }
    }

    /// Until it has ended a whole turn with a service of an epoch after `epoch`.
    fn survives(&mut self, epoch: u64) {
        let later = |line: &str| line.strip_prefix("turn ").is_some_and(|now| now.parse::<u64>().unwrap() > epoch);
        while !later(&self.next().unwrap_or_else(|| panic!("the engine stopped: {:?}", self.said))) {}
    }

    fn kill(mut self) -> Said {
        self.child.kill().unwrap();
        while self.next().is_some() {}
        self.child.wait().unwrap();
        self.said
    }
}

async fn epoch_of(socket: &Path) -> u64 {
    let mut client = CapacityServiceClient::new(connect(socket).await);
    client.get_capacity(GetCapacityRequest::default()).await.unwrap().into_inner().epoch
}

/// A successor takes over; what the engine held is there, or (`gone`) nothing is.
async fn take_over(service: &Service<'_>, pool: &AttachedPool, said: &Said, gone: bool) {
    let channel = connect(&service.socket()).await;
    let mut admission = AdmissionServiceClient::new(channel.clone());
    let mut back = Vec::new();
    if let Some(token) = &said.token {
        let asked = ReclaimRequest { engine_id: "engine-0".into(), token: token.clone() };
        match EngineServiceClient::new(channel.clone()).reclaim(asked).await {
            Err(refused) if gone => assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}"),
            answer => back = answer.unwrap().into_inner().leases,
        }
    }
    if let Some((id, published)) = said.held.as_ref().filter(|_| !gone) {
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
    assert!(!gone || left.is_empty(), "a lease without a pool: {left:?}");
    for lease in &left {
        let release = ReleaseRequest { lease_id: lease.id.clone(), ..ReleaseRequest::default() };
        let released = admission.release(release).await.unwrap().into_inner();
        assert!(!released.quarantined, "nobody can free {lease:?} after {said:?}");
    }
    for pool in &settled(CapacityServiceClient::new(channel)).await {
        assert_eq!(pool.free + pool.evictable, pool.total, "leaked after {said:?}: {pool:?}");
    }
}

/// The pools once no page is being zeroed any more, which is done ahead of whoever asks next.
async fn settled(mut capacity: CapacityServiceClient<Channel>) -> Vec<Pool> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let seen = capacity.get_capacity(GetCapacityRequest::default()).await.unwrap().into_inner().pools;
        if seen.iter().all(|pool| pool.scrubbing == 0) || Instant::now() > deadline {
            return seen;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One round; the step that the kill landed in.
async fn round(
    service: &mut Service<'_>,
    round: u8,
    victim: Victim,
    (step, times, moment): (&str, u64, Duration),
) -> String {
    let mut engine = Engine::start(&service.home, round, service.group);
    engine.run_to(step, times);
    let epoch = epoch_of(&service.socket()).await;
    std::thread::sleep(moment);
    let (said, landed) = match victim {
        Victim::Engine => {
            let said = engine.kill();
            let landed = said.step.clone();
            (said, landed)
        }
        Victim::Service => {
            let landed = engine.said.step.clone();
            service.replace();
            engine.survives(epoch);
            (engine.kill(), landed)
        }
        Victim::Both => {
            service.kill();
            let said = engine.kill();
            service.replace();
            let landed = said.step.clone();
            (said, landed)
        }
    };
    let gone = victim == Victim::Both && service.state.is_none();
    let successor = attach(&service.socket());
    take_over(service, &successor, &said, gone).await;
    service.leaves_nothing_else();
    landed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_engine_or_service_leaks_no_page_and_loses_no_lease_that_was_held() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let kills = number("HISPARSE_KILLS", 100);
    let mut random = number("HISPARSE_KILLS_SEED", 1).max(1);
    println!("{kills} kills from HISPARSE_KILLS_SEED={random}");
    let group = Group::new("killed");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    let state = tempfile::Builder::new().permissions(private).tempdir_in("/dev/shm").ok();
    if state.is_none() {
        println!("no writable /dev/shm here: every service is without a state directory");
    }
    let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut services = [None, state.as_ref().map(tempfile::TempDir::path)]
        .into_iter()
        .zip(&homes)
        .map(|(state, home)| Service::start(home.path(), state, &group))
        .collect::<Vec<_>>();
    let mut started: Vec<u32> = services.iter().map(|service| service.child.id()).collect();
    if let Some(shared) = group.shared_bytes() {
        assert!(shared >= 2 * POOL_PAGES * 5 * 64 * 656, "the group sees both pools: {shared} bytes");
    }
    let mut landed: BTreeMap<String, u64> = BTreeMap::new();
    let mut killed: BTreeMap<(Victim, bool), u64> = BTreeMap::new();
    for kill in 0..kills {
        // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let at = usize::try_from(kill).unwrap();
        let step = STEPS[at % STEPS.len()];
        let victim = [Victim::Engine, Victim::Service, Victim::Engine, Victim::Service, Victim::Both][at % 5];
        let times = if step == "attach" { 1 } else { 1 + random % 3 };
        let moment = Duration::from_micros((random >> 8) % 800);
        let service = &mut services[at / STEPS.len() % 2];
        println!("kill {kill}: {victim:?} in {step}, time {times}, after {moment:?}");
        let found = round(service, u8::try_from(kill % 256).unwrap(), victim, (step, times, moment)).await;
        started.extend((Some(&service.child.id()) != started.last()).then_some(service.child.id()));
        *landed.entry(found).or_default() += 1;
        *killed.entry((victim, service.state.is_some())).or_default() += 1;
    }
    println!("landed in {landed:?}; killed, without and with a state directory: {killed:?}");
    for step in STEPS {
        let count = landed.get(step).copied().unwrap_or(0);
        assert!(count >= kills / 20, "only {count} of {kills} kills landed in {step}: {landed:?}");
    }
    drop((services, state));
    let pool_bytes = layout(POOL_PAGES).segment_bytes().iter().sum::<u64>();
    group.has_left_nothing(pool_bytes * started.len() as u64, &started);
}
