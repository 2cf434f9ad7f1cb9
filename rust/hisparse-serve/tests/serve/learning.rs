//! A node that lost the record of what it granted.

use std::time::{Duration, Instant};

use hisparse_serve::proto::{AdmitRequest, BatchAdmitRequest, CommitRequest, RenewRequest};
use hisparse_serve::{Config, Server};
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
    assert!(said.contains("journal of an earlier start is gone") && said.contains("for 2 s"), "{said}");
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
