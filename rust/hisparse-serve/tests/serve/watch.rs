//! Watching capacity.

use std::time::{Duration, Instant};

use hisparse_serve::proto::capacity_service_client::CapacityServiceClient;
use hisparse_serve::proto::watch_capacity_response::Event;
use hisparse_serve::proto::{WatchCapacityRequest, WatchCapacityResponse};
use tonic::Streaming;

use crate::{Served, admit, ask, assert_conserved, refusal, release_of, serve};

async fn watch(served: &Served) -> Streaming<WatchCapacityResponse> {
    let mut client = CapacityServiceClient::new(served.channel().await);
    let request = WatchCapacityRequest { lengths: vec![64], ..Default::default() };
    client.watch_capacity(request).await.unwrap().into_inner()
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
