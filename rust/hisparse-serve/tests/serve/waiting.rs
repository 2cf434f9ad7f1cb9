//! The line: who waits, who goes first, and what is left behind by one who goes away.

use std::time::{Duration, Instant};

use hisparse_serve::proto::AdmitRequest;
use tonic::{Code, Request};

use crate::{admit, ask, free, millis, refusal, release_of, seconds, serve};

fn waiting(request_id: &str, prompt_tokens: u64, wait_s: u64) -> AdmitRequest {
    AdmitRequest { wait: seconds(wait_s), ..ask(request_id, prompt_tokens, 0) }
}

/// Time for a call to reach the line.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[tokio::test]
async fn a_waiter_gets_what_is_released() {
    let served = serve(10, 4);
    let mut client = served.admission().await;
    let holder = admit(&mut client, ask("holder", 640, 0)).await.unwrap();
    let mut second = client.clone();
    let waiter = tokio::spawn(async move { admit(&mut second, waiting("waiter", 640, 30)).await });
    settle().await;
    assert!(!waiter.is_finished());
    client.release(release_of(&holder)).await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap().pages, 10);
    assert_eq!(free(&served.capacity().await, "host_pages"), 0);
}

#[tokio::test]
async fn a_wait_that_ends_answers_busy_with_the_node_as_it_is() {
    let served = serve(10, 4);
    let mut client = served.admission().await;
    admit(&mut client, ask("holder", 320, 0)).await.unwrap();
    let request = AdmitRequest { wait: millis(200), ..ask("waiter", 640, 0) };
    let status = admit(&mut client, request).await.unwrap_err();
    let (code, reason, details) = refusal(&status);
    assert_eq!((code, reason.as_str()), (Code::ResourceExhausted, "POOL_BUSY"));
    let metadata = &details.error_info().unwrap().metadata;
    assert_eq!((metadata["pool"].as_str(), metadata["asked"].as_str()), ("host_pages", "10"));
    assert_eq!(metadata["available"], "5");
    assert!(details.retry_info().unwrap().retry_delay.unwrap() > Duration::ZERO);
}

#[tokio::test]
async fn the_line_keeps_its_order_and_priority_goes_first() {
    let served = serve(10, 4);
    let mut client = served.admission().await;
    let mut holder = admit(&mut client, ask("holder", 640, 0)).await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for (name, priority) in [("a", 0), ("b", 0), ("c", 5), ("d", -5)] {
        let mut client = client.clone();
        let request = AdmitRequest { priority, ..waiting(name, 640, 30) };
        waiters.spawn(async move { admit(&mut client, request).await.unwrap() });
        settle().await;
    }
    let mut order = Vec::new();
    for _ in 0..4 {
        client.release(release_of(&holder)).await.unwrap();
        holder = waiters.join_next().await.unwrap().unwrap();
        order.push(holder.request_id.clone());
    }
    assert_eq!(order, ["c", "a", "b", "d"]);
}

#[tokio::test]
async fn a_newcomer_does_not_overtake_but_a_repeated_request_is_answered() {
    let served = serve(10, 4);
    let mut client = served.admission().await;
    let holder = admit(&mut client, ask("holder", 320, 0)).await.unwrap();
    let mut second = client.clone();
    let waiter = tokio::spawn(async move { admit(&mut second, waiting("waiter", 640, 30)).await });
    settle().await;
    // Five pages are free, and the waiter needs ten.
    let (code, reason, details) = refusal(&admit(&mut client, ask("newcomer", 64, 0)).await.unwrap_err());
    assert_eq!((code, reason.as_str()), (Code::ResourceExhausted, "POOL_BUSY"));
    assert_eq!(details.error_info().unwrap().metadata["waiting"], "1");
    assert_eq!(admit(&mut client, ask("holder", 320, 0)).await.unwrap().id, holder.id);
    let urgent = AdmitRequest { priority: 1, ..ask("urgent", 64, 0) };
    let urgent = admit(&mut client, urgent).await.unwrap();
    client.release(release_of(&urgent)).await.unwrap();
    client.release(release_of(&holder)).await.unwrap();
    waiter.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_caller_that_goes_away_while_it_waits_leaves_nothing_behind() {
    let served = serve(10, 4);
    let mut client = served.admission().await;
    let holder = admit(&mut client, ask("holder", 640, 0)).await.unwrap();
    for number in 0..50 {
        let mut caller = served.admission().await;
        let gone = tokio::spawn(async move { admit(&mut caller, waiting(&format!("gone{number}"), 640, 30)).await });
        tokio::time::sleep(Duration::from_millis(if number % 2 == 0 { 20 } else { 0 })).await;
        gone.abort();
    }
    settle().await;
    client.release(release_of(&holder)).await.unwrap();
    served.free_becomes("host_pages", 10).await;
    served.free_becomes("seats", 4).await;
    admit(&mut client, ask("next", 640, 0)).await.unwrap();
}

#[tokio::test]
async fn a_caller_that_goes_away_just_as_it_is_granted_leaks_nothing() {
    let served = serve(10, 4);
    let mut client = served.admission().await;
    for round in 0..100_u64 {
        let holder = admit(&mut client, ask(&format!("holder{round}"), 640, 0)).await.unwrap();
        let mut caller = client.clone();
        let waiter = tokio::spawn(async move { admit(&mut caller, waiting(&format!("w{round}"), 640, 30)).await });
        tokio::time::sleep(Duration::from_millis(2)).await;
        let mut releaser = client.clone();
        let release = tokio::spawn(async move { releaser.release(release_of(&holder)).await.unwrap() });
        tokio::time::sleep(Duration::from_micros(round * 10)).await;
        waiter.abort();
        release.await.unwrap();
        // Whoever saw the lease gives it back; whoever did not, has none.
        if let Ok(Ok(lease)) = waiter.await {
            client.release(release_of(&lease)).await.unwrap();
        } else {
            // A lease whose answer was on its way when the caller left ends by its name or its ttl.
            let by_name =
                hisparse_serve::proto::ReleaseRequest { request_id: format!("w{round}"), ..Default::default() };
            client.release(by_name).await.unwrap();
        }
        served.free_becomes("host_pages", 10).await;
    }
}

#[tokio::test]
async fn the_calls_deadline_ends_a_wait_that_is_longer() {
    let served = serve(10, 4);
    let mut client = served.admission().await;
    admit(&mut client, ask("holder", 640, 0)).await.unwrap();
    let mut request = Request::new(waiting("waiter", 640, 30));
    request.metadata_mut().insert("grpc-timeout", "1S".parse().unwrap());
    let began = Instant::now();
    let (code, reason, _) = refusal(&client.admit(request).await.unwrap_err());
    assert_eq!((code, reason.as_str()), (Code::DeadlineExceeded, "DEADLINE"));
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
    served.free_becomes("host_pages", 0).await;
}

#[tokio::test]
async fn one_that_can_never_fit_is_not_made_to_wait() {
    let served = serve(10, 4);
    let mut client = served.admission().await;
    admit(&mut client, ask("holder", 640, 0)).await.unwrap();
    let status = admit(&mut client, waiting("huge", 641, 30)).await.unwrap_err();
    assert_eq!(refusal(&status).1, "NEVER_FITS");
}
