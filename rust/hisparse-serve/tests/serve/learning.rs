//! A node that lost the record of what it granted.
#![allow(clippy::print_stderr)] // a test says what it could not look at

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::capacity_service_client::CapacityServiceClient;
use hisparse_serve::proto::{
    AdmitRequest, BatchAdmitRequest, CommitRequest, GetCapacityRequest, GetCapacityResponse, RenewRequest,
};
use hisparse_serve::{Config, Running, Server};
use tonic::Code;

use crate::{Served, admit, ask, config, free, refusal, release_of};

const LEARNING: Duration = Duration::from_secs(2);

fn started(home: tempfile::TempDir) -> Served {
    let mut config: Config = config(&home, 100, 4);
    config.node.learning = LEARNING;
    Served { running: Server::start(config).unwrap(), home }
}

async fn ended(served: Served) -> tempfile::TempDir {
    let Served { running, home } = served;
    tokio::task::spawn_blocking(move || drop(running)).await.unwrap();
    home
}

#[tokio::test]
async fn a_node_that_lost_its_journal_grants_nothing_until_what_it_granted_has_ended() {
    let served = started(tempfile::tempdir().unwrap());
    assert!(served.running.ready(), "nothing came before it");
    let mut client = served.admission().await;
    let lease = admit(&mut client, ask("held", 640, 0)).await.unwrap();
    let commit = CommitRequest { lease_id: lease.id.clone(), epoch: lease.epoch, ..Default::default() };
    client.commit(commit).await.unwrap();
    let home = ended(served).await;
    std::fs::remove_file(home.path().join("h.sock.journal")).unwrap();

    let begun = Instant::now();
    let served = started(home);
    assert!(!served.running.ready());
    let said = served.running.warnings().join("\n");
    assert!(said.contains("h.sock.journal, is gone") && said.contains("for 2 s"), "{said}");
    assert!(said.contains("remove") && said.contains("h.sock.serving"), "it says how to skip the wait: {said}");
    let mut client = served.admission().await;
    for request in [ask("new", 64, 0), AdmitRequest { validate_only: true, ..ask("new", 64, 0) }] {
        let (code, reason, details) = refusal(&client.admit(request).await.unwrap_err());
        assert_eq!((code, reason.as_str()), (Code::Unavailable, "RECOVERING"));
        assert!(details.retry_info().is_some());
    }
    let batch = BatchAdmitRequest { requests: vec![ask("a", 64, 0), ask("b", 64, 0)], partial: false };
    assert_eq!(refusal(&client.batch_admit(batch).await.unwrap_err()).1, "RECOVERING");
    let renew = RenewRequest { lease_id: lease.id.clone(), epoch: lease.epoch, ..Default::default() };
    assert_eq!(refusal(&client.renew(renew).await.unwrap_err()).1, "STALE_EPOCH", "it cannot be kept for longer");
    assert!(client.release(release_of(&lease)).await.unwrap().into_inner().already_released);
    assert_eq!(free(&served.capacity().await, "host_pages"), 100);
    while !served.running.ready() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(begun.elapsed() >= LEARNING, "{:?}", begun.elapsed());
    admit(&mut client, ask("new", 64, 0)).await.unwrap();
}

#[tokio::test]
async fn a_node_with_its_journal_goes_on_at_once_and_keeps_what_is_held() {
    let served = started(tempfile::tempdir().unwrap());
    let mut client = served.admission().await;
    let lease = admit(&mut client, ask("held", 640, 0)).await.unwrap();
    let served = started(ended(served).await);
    assert!(served.running.ready());
    let mut client = served.admission().await;
    assert_eq!(free(&served.capacity().await, "host_pages"), 90);
    assert_eq!(admit(&mut client, ask("held", 640, 0)).await.unwrap().id, lease.id);
}

/// A node's socket, and a folder in memory for its journal; `None` where there is no such memory.
struct Homes {
    home: tempfile::TempDir,
    state: tempfile::TempDir,
}

impl Homes {
    fn new() -> Option<Self> {
        let private = PermissionsExt::from_mode(0o700);
        let Ok(state) = tempfile::Builder::new().permissions(private).tempdir_in("/dev/shm") else {
            eprintln!("skipped: no writable /dev/shm here");
            return None;
        };
        Some(Self { home: tempfile::tempdir().unwrap(), state })
    }

    /// With its journal in the state directory, or beside the socket.
    fn start(&self, in_state: bool, life: Duration) -> Running {
        let mut config = config(&self.home, 100, 4);
        config.node.learning = life;
        config.state_dir = in_state.then(|| self.state.path().into());
        Server::start(config).unwrap()
    }

    fn word(&self) -> PathBuf {
        self.home.path().join("h.sock.serving")
    }

    async fn epoch(&self) -> u64 {
        capacity(&self.home).await.epoch
    }

    async fn hold(&self) {
        let channel = crate::connect(&self.home.path().join("h.sock")).await;
        admit(&mut AdmissionServiceClient::new(channel), ask("held", 640, 0)).await.unwrap();
    }
}

async fn capacity(home: &tempfile::TempDir) -> GetCapacityResponse {
    let channel = crate::connect(&home.path().join("h.sock")).await;
    CapacityServiceClient::new(channel).get_capacity(GetCapacityRequest::default()).await.unwrap().into_inner()
}

/// Ends it as a kill would: the word stays.
fn kill(running: Running, word: &Path) {
    let left = std::fs::read(word).unwrap();
    drop(running);
    std::fs::write(word, left).unwrap();
}

const LIFE: Duration = Duration::from_secs(600);

#[tokio::test(flavor = "multi_thread")]
async fn after_a_start_of_another_journal_that_held_nothing_the_next_serves_at_once() {
    let Some(homes) = Homes::new() else { return };
    let running = homes.start(true, LIFE);
    assert!(homes.word().exists());
    let before = homes.epoch().await;
    drop(running);
    assert!(!homes.word().exists(), "it ended in order and held nothing");
    let running = homes.start(false, LIFE);
    assert!(running.ready() && running.warnings().is_empty(), "{:?}", running.warnings());
    assert!(homes.epoch().await > before);
    kill(running, &homes.word());
    // Killed, it leaves the word; its journal tells that nothing is out.
    let running = homes.start(true, LIFE);
    assert!(running.ready() && running.warnings().is_empty(), "{:?}", running.warnings());
    drop(running);
    // Nor does it matter that the folder went after an end in order.
    std::fs::remove_dir_all(homes.state.path()).unwrap();
    assert!(homes.start(false, LIFE).ready());
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_in_a_journal_that_is_not_named_are_waited_for_and_the_folder_to_name_is_told() {
    let Some(homes) = Homes::new() else { return };
    let running = homes.start(true, LIFE);
    homes.hold().await;
    drop(running);
    // What a copy or a hand makes of the file's time is no word on its leases.
    let journal = std::fs::File::options().append(true).open(homes.state.path().join("journal")).unwrap();
    journal.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();

    let running = homes.start(false, LIFE);
    let said = running.warnings().join("\n");
    assert!(!running.ready() && said.contains("remove"), "{said}");
    assert!(said.contains(&format!("start with --state-dir {} to go on", homes.state.path().display())), "{said}");
    let wait_s: u64 = said.split("granted for ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((500..=600).contains(&wait_s), "what is left of the life of a lease, not {wait_s} s");
    drop(running);
    // It had yet to wait: its own journal, which holds nothing, is no word of what it did not know.
    let running = homes.start(false, LIFE);
    let said = running.warnings().join("\n");
    assert!(!running.ready(), "{said}");
    assert!(said.contains(&format!("start with --state-dir {} to go on", homes.state.path().display())), "{said}");
    drop(running);

    // Who does what it says has nothing to wait for.
    let running = homes.start(true, LIFE);
    assert!(running.ready(), "its own journal tells: {:?}", running.warnings());
    assert_eq!(free(&capacity(&homes.home).await, "host_pages"), 90);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_is_refused_leaves_nothing_to_wait_for() {
    let home = tempfile::tempdir().unwrap();
    let in_the_way = home.path().join("h.sock.journal.new");
    std::fs::create_dir(&in_the_way).unwrap();
    let refused = Server::start(config(&home, 100, 4)).unwrap_err().to_string();
    assert!(refused.contains("journal file"), "{refused}");
    let epoch: u64 = std::fs::read_to_string(home.path().join("h.sock.epoch")).unwrap().trim().parse().unwrap();
    std::fs::remove_dir(&in_the_way).unwrap();
    let running = Server::start(config(&home, 100, 4)).unwrap();
    assert!(running.ready() && running.warnings().is_empty(), "{:?}", running.warnings());
    assert!(capacity(&home).await.epoch > epoch, "an epoch that was refused is not used again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_that_cannot_be_left_refuses_the_start_and_stays_as_it_was() {
    let home = tempfile::tempdir().unwrap();
    let word = home.path().join("h.sock.serving");
    let running = Server::start(config(&home, 100, 4)).unwrap();
    kill(running, &word);
    let before = std::fs::read(&word).unwrap();
    let in_the_way = home.path().join("h.sock.serving.new");
    std::fs::create_dir(&in_the_way).unwrap();
    let refused = Server::start(config(&home, 100, 4)).unwrap_err().to_string();
    assert!(refused.contains("serving file") && refused.contains("make its folder writable"), "{refused}");
    assert_eq!(std::fs::read(&word).unwrap(), before);
    std::fs::remove_dir(&in_the_way).unwrap();
    let running = Server::start(config(&home, 100, 4)).unwrap();
    assert!(running.ready() && running.warnings().is_empty(), "{:?}", running.warnings());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_was_the_services_own_leaves_nothing_that_counts_alone_must_wait_for() {
    let Some(homes) = Homes::new() else { return };
    let own = crate::memory::config(homes.home.path(), 20);
    let running = Server::start(Config { state_dir: Some(homes.state.path().into()), ..own }).unwrap();
    assert_eq!(running.made(Duration::from_secs(60)), Some(Ok(())));
    homes.hold().await;
    drop(running);
    let running = homes.start(false, LIFE);
    assert!(running.ready() && running.warnings().is_empty(), "{:?}", running.warnings());
}
