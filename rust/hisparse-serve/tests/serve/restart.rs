//! A service that ends and comes back: what it promised still holds, and what is lost is said once.
//!
//! A service that is dropped here ends its sessions and closes its descriptors, as a killed one does; `killed_nodes`
//! kills real ones.

use std::time::Duration;

use hisparse_core::layout::pool::Content;
use hisparse_mem::attach::client::{AttachedPool, Standing};
use hisparse_mem::attach::frame::{Notice, Role};
use hisparse_mem::rows::PoolMemory;
use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::engine_service_client::EngineServiceClient;
use hisparse_serve::proto::{CommitRequest, GetLeaseRequest, Lease, LeaseState, ReclaimRequest, RenewRequest};
use hisparse_serve::{Config, Server, attach_beside};
use tonic::Code;

use crate::memory::{config, publish};
use crate::{Served, admit, ask, free, refusal};

const LONGEST: Duration = Duration::from_secs(60);

fn start(config: Config, home: tempfile::TempDir) -> Served {
    let running = Server::start(config).unwrap();
    assert_eq!(running.made(LONGEST), Some(Ok(())));
    Served { running, home }
}

fn writer(served: &Served) -> AttachedPool {
    AttachedPool::attach(&attach_beside(&served.socket()), "engine-0", 0, Role::Writer).unwrap()
}

fn resumed(engine: &AttachedPool) -> u64 {
    match engine.next_notice(LONGEST) {
        Some(Notice::Resumed { epoch }) => epoch,
        other => panic!("{other:?} in place of the service's return"),
    }
}

async fn lease(served: &Served, id: &str) -> Lease {
    let asked = GetLeaseRequest { lease_id: id.into(), ..GetLeaseRequest::default() };
    served.admission().await.get_lease(asked).await.unwrap().into_inner().lease.unwrap()
}

async fn committed(served: &Served, pages: u64) -> Lease {
    let mut client = served.admission().await;
    let lease = admit(&mut client, ask("r", pages * 64, 0)).await.unwrap();
    let commit = CommitRequest { lease_id: lease.id.clone(), epoch: lease.epoch, ..CommitRequest::default() };
    client.commit(commit).await.unwrap().into_inner().lease.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_living_engine_keeps_its_pool_and_its_leases_when_the_service_restarts() {
    let home = tempfile::tempdir().unwrap();
    let served = start(config(home.path(), 20), home);
    let engine = writer(&served);
    let before = committed(&served, 4).await;
    engine.write_row(Content::Main, 2, before.extents[0].first_page, 7, &[9; 656]).unwrap();
    let mut client = EngineServiceClient::new(served.channel().await);
    client.publish(publish(&before, 0, &[1, 2])).await.unwrap();
    let Served { running, home } = served;
    drop((running, client));
    // It goes on meanwhile.
    engine.write_row(Content::Main, 2, before.extents[0].first_page, 8, &[10; 656]).unwrap();

    let served = start(config(home.path(), 20), home);
    assert_eq!(served.running.warnings(), [""; 0], "nothing is lost");
    let epoch = resumed(&engine);
    assert!(epoch > before.epoch);
    let now = lease(&served, &before.id).await;
    assert_eq!((now.state(), now.epoch, &now.extents), (LeaseState::Committed, epoch, &before.extents));
    // It speaks for its session as before, in the new epoch.
    let mut client = EngineServiceClient::new(served.channel().await);
    let durable = client.publish(publish(&now, 2, &[3])).await.unwrap().into_inner().durable_pages;
    assert_eq!(durable, 3);
    let stale = client.publish(publish(&before, 3, &[4])).await.unwrap_err();
    assert_eq!(refusal(&stale).1, "STALE_EPOCH");
    let reader = AttachedPool::attach(&attach_beside(&served.socket()), "engine-0", 1, Role::Reader).unwrap();
    for (row, mark) in [(7, 9), (8, 10)] {
        let mut found = [0; 656];
        reader.read_row(Content::Main, 2, now.extents[0].first_page, row, &mut found).unwrap();
        assert_eq!(found, [mark; 656], "one pool before and after");
    }
    // A prefix that was published before is a hit after.
    let mut admission = served.admission().await;
    let hashes = [1, 2, 3].map(|byte| vec![byte; 32]).to_vec();
    let hit = admit(&mut admission, hisparse_serve::proto::AdmitRequest { prefix_hashes: hashes, ..ask("s", 256, 0) });
    assert_eq!(hit.await.unwrap().shared_pages, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_files_survives_both() {
    let Ok(state) = tempfile::Builder::new().permissions(private()).tempdir_in("/dev/shm") else {
        eprintln!("skipped: no writable /dev/shm here");
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let in_files = |home: &std::path::Path| Config { state_dir: Some(state.path().into()), ..config(home, 20) };
    let served = start(in_files(home.path()), home);
    let engine = writer(&served);
    let token = engine.token().0.to_vec();
    let before = committed(&served, 4).await;
    engine.write_row(Content::Main, 1, before.extents[0].first_page, 3, &[5; 656]).unwrap();
    EngineServiceClient::new(served.channel().await).publish(publish(&before, 0, &[1, 2])).await.unwrap();
    let Served { running, home } = served;
    drop(running);
    drop(engine);

    let served = start(in_files(home.path()), home);
    assert_eq!(served.running.warnings(), [""; 0], "nothing is lost");
    assert_eq!(lease(&served, &before.id).await.state(), LeaseState::Quarantined);
    let successor = writer(&served);
    let asked = ReclaimRequest { engine_id: "engine-0".into(), token };
    let back = EngineServiceClient::new(served.channel().await).reclaim(asked).await.unwrap().into_inner().leases;
    assert_eq!(back.iter().map(|back| back.durable_tokens).collect::<Vec<_>>(), [128]);
    let mut found = [0; 656];
    successor.read_row(Content::Main, 1, before.extents[0].first_page, 3, &mut found).unwrap();
    assert_eq!(found, [5; 656]);
}

fn private() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o700)
}

#[tokio::test(flavor = "multi_thread")]
async fn when_both_die_without_files_the_pool_is_new_and_the_loss_is_said_once() {
    let home = tempfile::tempdir().unwrap();
    let served = start(config(home.path(), 20), home);
    let engine = writer(&served);
    let before = committed(&served, 4).await;
    let Served { running, home } = served;
    drop(engine);
    drop(running);
    let served = start(config(home.path(), 20), home);
    let said = served.running.warnings().join("\n");
    assert!(said.contains("one lease of epoch") && said.contains("begins anew"), "{said}");
    assert_eq!(free(&served.capacity().await, "host_pages"), 20);
    let asked = GetLeaseRequest { lease_id: before.id.clone(), ..GetLeaseRequest::default() };
    assert_eq!(served.admission().await.get_lease(asked).await.unwrap_err().code(), Code::NotFound);
    let Served { running, home } = served;
    drop(running);
    let served = start(config(home.path(), 20), home);
    assert_eq!(served.running.warnings(), [""; 0], "once");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_new_pool_is_made_while_an_engine_has_the_old_one() {
    let home = tempfile::tempdir().unwrap();
    let served = start(config(home.path(), 20), home);
    let engine = writer(&served);
    let before = committed(&served, 4).await;
    let Served { running, home } = served;
    drop(running);
    // Another plan: its journal does not describe the pool that the engine has.
    let refused = Server::start(config(home.path(), 21)).unwrap_err().to_string();
    assert!(refused.contains("an engine still uses the pool") && refused.contains("stop the engine"), "{refused}");
    let no_pool = Server::start(crate::config(&home, 20, 8)).unwrap_err().to_string();
    assert!(no_pool.contains("an engine still uses the pool"), "{no_pool}");
    // Neither start has touched the journal: the right settings find the lease again, and the engine its session.
    let served = start(config(home.path(), 20), home);
    assert_eq!(engine.next_notice(LONGEST), Some(Notice::Resumed { epoch: lease(&served, &before.id).await.epoch }));
    let Served { running, home } = served;
    drop(running);
    // The engine goes while it is waited for: then the pool is gone.
    engine.end_session();
    assert_eq!(engine.standing(), Standing::Ended);
    let served = start(config(home.path(), 20), home);
    assert_eq!(free(&served.capacity().await, "host_pages"), 20);
}

#[tokio::test]
async fn a_node_that_counts_alone_keeps_its_leases_and_router_learn_the_new_epoch() {
    let home = tempfile::tempdir().unwrap();
    let served = Served { running: Server::start(crate::config(&home, 20, 8)).unwrap(), home };
    let before = committed(&served, 4).await;
    let Served { running, home } = served;
    drop(running);
    let served = Served { running: Server::start(crate::config(&home, 20, 8)).unwrap(), home };
    let mut client = AdmissionServiceClient::new(served.channel().await);
    let renew = RenewRequest { lease_id: before.id.clone(), epoch: before.epoch, ..RenewRequest::default() };
    assert_eq!(refusal(&client.renew(renew.clone()).await.unwrap_err()).1, "STALE_EPOCH");
    let now = lease(&served, &before.id).await;
    assert!(now.epoch > before.epoch && now.extents == before.extents && now.state() == LeaseState::Committed);
    client.renew(RenewRequest { epoch: now.epoch, ..renew }).await.unwrap();
}

#[tokio::test]
async fn a_dead_engines_leases_are_free_after_the_reclaim_window() {
    let home = tempfile::tempdir().unwrap();
    let short = Config { reclaim_window: Duration::from_millis(300), ..config(home.path(), 20) };
    let served = start(short, home);
    let engine = writer(&served);
    committed(&served, 4).await;
    drop(engine);
    served.free_becomes("host_pages", 20).await;
}

#[tokio::test]
async fn an_engine_is_told_of_a_lease_that_a_router_releases() {
    let home = tempfile::tempdir().unwrap();
    let served = start(config(home.path(), 20), home);
    let engine = writer(&served);
    let held = committed(&served, 4).await;
    // Over TCP a caller is a router; here one whose call names a session that is none.
    let mut stranger = tonic::Request::new(crate::release_of(&held));
    stranger.metadata_mut().insert("hisparse-session", "00".repeat(16).parse().unwrap());
    let released = served.admission().await.release(stranger).await.unwrap().into_inner();
    assert!(released.quarantined);
    assert_eq!(engine.next_notice(LONGEST), Some(Notice::Quarantined { lease_id: held.id.clone() }));
    // Its own release, by its token, is the word that nothing is written any more.
    let mut own = tonic::Request::new(crate::release_of(&held));
    let token = engine.token().0.map(|byte| format!("{byte:02x}")).concat();
    own.metadata_mut().insert("hisparse-session", token.parse().unwrap());
    assert!(!served.admission().await.release(own).await.unwrap().into_inner().quarantined);
    served.free_becomes("host_pages", 20).await; // some may be cleaned ahead just now
}

#[test]
fn a_damaged_journal_stops_the_start_and_says_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    drop(Server::start(crate::config(&home, 20, 8)).unwrap());
    let journal = home.path().join("h.sock.journal");
    let mut bytes = std::fs::read(&journal).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
    let refused = Server::start(crate::config(&home, 20, 8)).unwrap_err().to_string();
    assert!(refused.contains("cannot be believed") && refused.contains("move the file away"), "{refused}");
}
