//! Watching capacity.

use std::time::{Duration, Instant};

use hisparse_serve::Server;
use hisparse_serve::proto::capacity_service_client::CapacityServiceClient;
use hisparse_serve::proto::watch_capacity_response::Event;
use hisparse_serve::proto::{AdmitRequest, Capacity, WatchCapacityRequest, WatchCapacityResponse};
use tonic::{Code, Streaming};

use crate::{Served, admit, ask, assert_conserved, config, refusal, release_of, seconds, serve};

async fn watch(served: &Served) -> Streaming<WatchCapacityResponse> {
    resume(served, Vec::new(), vec![64]).await
}

async fn resume(served: &Served, resume_token: Vec<u8>, lengths: Vec<u64>) -> Streaming<WatchCapacityResponse> {
    let mut client = CapacityServiceClient::new(served.channel().await);
    client
        .watch_capacity(WatchCapacityRequest { resume_token, lengths, ..Default::default() })
        .await
        .unwrap()
        .into_inner()
}

/// The events of a stream up to its sync marker, the state they lead to from `known`, and the last token.
async fn synced(stream: &mut Streaming<WatchCapacityResponse>, known: Option<Capacity>) -> (String, Capacity, Vec<u8>) {
    let (mut kinds, mut seen) = (Vec::new(), known);
    loop {
        let message = next(stream).await;
        match message.event.unwrap() {
            Event::Resync(resync) => {
                assert!(!resync.reason.is_empty());
                seen = None;
                kinds.push("resync");
            }
            Event::Snapshot(snapshot) => {
                seen = Some(snapshot);
                kinds.push("snapshot");
            }
            Event::Delta(delta) => {
                let seen = seen.as_mut().expect("a delta needs a picture");
                for pool in delta.pools {
                    let known = seen.pools.iter_mut().find(|known| known.name == pool.name);
                    *known.unwrap() = pool;
                }
                seen.sequence = message.sequence;
                kinds.push("delta");
            }
            Event::Sync(sync) => {
                kinds.push(if sync.resumed { "resumed" } else { "sync" });
                return (kinds.join(" "), seen.unwrap(), message.resume_token);
            }
        }
    }
}

async fn next(stream: &mut Streaming<WatchCapacityResponse>) -> WatchCapacityResponse {
    let message = tokio::time::timeout(Duration::from_secs(5), stream.message()).await;
    message.expect("a message within 5 s").unwrap().expect("an open stream")
}

#[tokio::test]
async fn a_watch_begins_with_everything_and_then_tells_what_changes() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let lease = admit(&mut client, ask("before", 640, 0)).await.unwrap();
    let mut stream = watch(&served).await;
    let first = next(&mut stream).await;
    let Some(Event::Snapshot(snapshot)) = &first.event else { panic!("{first:?}") };
    assert_conserved(snapshot);
    assert_eq!((snapshot.pools[0].reserved, first.fits[0].count), (10, 3));
    assert!(matches!(next(&mut stream).await.event, Some(Event::Sync(_))));

    let freed = Instant::now();
    client.release(release_of(&lease)).await.unwrap();
    let news = next(&mut stream).await;
    let Some(Event::Delta(delta)) = &news.event else { panic!("{news:?}") };
    assert!(news.sequence > first.sequence && news.epoch == first.epoch);
    assert_eq!(delta.pools[0].free, 100);
    assert_eq!(news.fits[0].count, 4);
    // 50 ms is the promise; the rest is for a busy test machine.
    assert!(freed.elapsed() < Duration::from_secs(1), "{:?}", freed.elapsed());
}

#[tokio::test]
async fn many_changes_become_few_messages_and_the_last_one_is_the_truth() {
    let served = serve(1_000, 500);
    let mut client = served.admission().await;
    let mut stream = watch(&served).await;
    next(&mut stream).await;
    next(&mut stream).await;
    let began = Instant::now();
    for number in 0..300 {
        admit(&mut client, ask(&format!("r{number}"), 64, 0)).await.unwrap();
    }
    let (mut messages, mut sequence) = (0, 0);
    loop {
        let news = next(&mut stream).await;
        assert!(news.sequence > sequence, "{} after {sequence}", news.sequence);
        (messages, sequence) = (messages + 1, news.sequence);
        let Some(Event::Delta(delta)) = news.event else { panic!("no delta") };
        if delta.pools[0].reserved == 300 {
            break;
        }
    }
    let most = began.elapsed().as_millis() / 50 + 2;
    assert!(messages <= most, "{messages} messages in {:?}", began.elapsed());
}

#[tokio::test]
async fn a_watch_goes_on_from_its_token_without_a_gap() {
    let served = serve(100, 8);
    let mut client = served.admission().await;
    let mut stream = resume(&served, Vec::new(), Vec::new()).await;
    let (kinds, seen, token) = synced(&mut stream, None).await;
    assert_eq!(kinds, "snapshot sync");
    drop(stream);
    let mut stream = resume(&served, token.clone(), Vec::new()).await;
    let (kinds, seen, _) = synced(&mut stream, Some(seen)).await;
    assert_eq!(kinds, "resumed", "nothing happened meanwhile");
    drop(stream);
    for number in 0..5 {
        admit(&mut client, ask(&format!("r{number}"), 640, 0)).await.unwrap();
    }
    let mut stream = resume(&served, token.clone(), Vec::new()).await;
    let (kinds, mut seen, newer) = synced(&mut stream, Some(seen)).await;
    assert_eq!(kinds, "delta resumed");
    let now = served.capacity().await;
    assert_eq!((&seen.pools, seen.sequence), (&now.pools, now.sequence));
    // The stream goes on from there, and an old token is as good as a new one.
    admit(&mut client, ask("r5", 640, 0)).await.unwrap();
    let news = next(&mut stream).await;
    assert!(news.sequence > now.sequence && news.resume_token != newer, "{news:?}");
    seen.sequence = 0;
    let mut again = resume(&served, token, vec![64]).await;
    let (kinds, seen, _) = synced(&mut again, Some(seen)).await;
    assert_eq!((kinds.as_str(), seen.pools), ("delta resumed", served.capacity().await.pools));
}

#[tokio::test]
async fn a_token_that_leads_nowhere_is_answered_with_resync_and_everything() {
    let served = serve(100, 4);
    let mut stream = resume(&served, Vec::new(), Vec::new()).await;
    let (_, _, mut token) = synced(&mut stream, None).await;
    let other = serve(100, 4);
    for foreign in [token.clone(), b"nonsense".to_vec()] {
        let mut stream = resume(&other, foreign, Vec::new()).await;
        assert_eq!(synced(&mut stream, None).await.0, "resync snapshot sync");
    }
    *token.last_mut().unwrap() = 250;
    let mut stream = resume(&served, token.clone(), Vec::new()).await;
    assert_eq!(synced(&mut stream, None).await.0, "resync snapshot sync", "a sequence that is yet to come");
    // The same node after a restart: another epoch.
    let Served { running, home } = served;
    tokio::task::spawn_blocking(move || drop(running)).await.unwrap();
    let running = Server::start(config(&home, 100, 4)).unwrap();
    let restarted = Served { running, home };
    *token.last_mut().unwrap() = 0;
    let mut stream = resume(&restarted, token, Vec::new()).await;
    assert_eq!(synced(&mut stream, None).await.0, "resync snapshot sync");
    let mut client = CapacityServiceClient::new(restarted.channel().await);
    let request = WatchCapacityRequest { resume_token: vec![1; 65], ..Default::default() };
    assert_eq!(client.watch_capacity(request).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn watches_that_were_dropped_make_room_for_others() {
    let served = serve(10, 4);
    for _ in 0..3 {
        let mut streams = Vec::new();
        for _ in 0..600 {
            streams.push(watch(&served).await);
            if streams.len() % 100 == 0 {
                next(streams.last_mut().unwrap()).await;
            }
        }
        drop(streams);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test]
async fn a_stopping_server_ends_its_watches() {
    let served = serve(10, 4);
    let mut stream = watch(&served).await;
    next(&mut stream).await;
    next(&mut stream).await;
    served.running.stop(Duration::from_secs(5));
    let status = tokio::time::timeout(Duration::from_secs(4), stream.message()).await.unwrap().unwrap_err();
    assert_eq!(refusal(&status).1, "DRAINING");
    assert!(served.ends_within(Duration::from_secs(4)).await);
}

#[tokio::test]
async fn who_waits_ahead_leaves_nothing_for_a_newcomer_and_watchers_are_told() {
    let served = serve(10, 4);
    let mut client = served.admission().await;
    admit(&mut client, ask("held", 9 * 64, 0)).await.unwrap();
    let mut stream = watch(&served).await;
    next(&mut stream).await;
    next(&mut stream).await;
    let mut waiter = served.admission().await;
    let waiting = tokio::spawn(async move {
        let request = AdmitRequest { wait: seconds(60), ..ask("long", 5 * 64, 0) };
        let _ = waiter.admit(request).await;
    });
    let told = next(&mut stream).await;
    assert_eq!((told.fits[0].count, told.fits[0].reason.as_str()), (0, "POOL_BUSY"), "{told:?}");
    let (code, reason, _) = refusal(&client.admit(ask("short", 64, 0)).await.unwrap_err());
    assert_eq!((code, reason.as_str()), (Code::ResourceExhausted, "POOL_BUSY"));
    waiting.abort();
    let told = next(&mut stream).await;
    assert_eq!(told.fits[0].count, 1, "{told:?}");
    admit(&mut client, ask("short", 64, 0)).await.unwrap();
}
