//! Granting, and giving back.

use std::sync::Arc;
use std::time::Duration;

use hisparse_serve::proto::batch_admit_result::Outcome;
use hisparse_serve::proto::{
    AdmitRequest, BatchAdmitRequest, CommitRequest, ExtendRequest, GetLeaseRequest, LeaseState, ListLeasesRequest,
    ReleaseRequest, RenewRequest,
};
use tonic::Code;

use crate::{admit, ask, assert_conserved, free, millis, refusal, release_of, seconds, serve};

#[tokio::test]
async fn a_lease_lives_from_admit_over_commit_to_release_and_capacity_follows() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let answer = client.admit(ask("r", 1_000, 280)).await.unwrap().into_inner();
    let (lease, capacity) = (answer.lease.unwrap(), answer.capacity.unwrap());
    assert_eq!((lease.pages, lease.tokens, lease.state()), (20, 1_280, LeaseState::Reserved));
    assert_eq!(lease.extents.iter().map(|extent| extent.page_count).sum::<u64>(), 20);
    assert_eq!((lease.tenant.as_str(), lease.request_id.as_str()), ("default", "r"));
    assert_conserved(&capacity);
    assert_eq!(capacity.pools[0].reserved, 20);

    let commit = CommitRequest { lease_id: lease.id.clone(), epoch: lease.epoch, ..CommitRequest::default() };
    let committed = client.commit(commit.clone()).await.unwrap().into_inner().lease.unwrap();
    assert_eq!(committed.state(), LeaseState::Committed);
    assert_eq!(client.commit(commit).await.unwrap().into_inner().lease.unwrap(), committed);
    assert!(committed.expire_time.unwrap().seconds > lease.expire_time.unwrap().seconds);

    let released = client.release(release_of(&lease)).await.unwrap().into_inner();
    assert!(!released.already_released && !released.quarantined);
    assert_eq!(free(&served.capacity().await, "host_pages"), 100);
}

#[tokio::test]
async fn releasing_twice_succeeds_and_says_so() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let lease = admit(&mut client, ask("r", 64, 0)).await.unwrap();
    assert!(!client.release(release_of(&lease)).await.unwrap().into_inner().already_released);
    assert!(client.release(release_of(&lease)).await.unwrap().into_inner().already_released);
    assert_eq!(free(&served.capacity().await, "seats"), 4);
}

#[tokio::test]
async fn a_lost_answer_is_made_good_by_the_request_id() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let first = client.admit(ask("r", 640, 0)).await.unwrap().into_inner();
    let again = client.admit(ask("r", 640, 0)).await.unwrap().into_inner();
    assert!(!first.repeated_request && again.repeated_request);
    assert_eq!(first.lease, again.lease);
    assert_eq!(free(&served.capacity().await, "host_pages"), 90);

    let by_name = ReleaseRequest { request_id: "r".into(), ..ReleaseRequest::default() };
    assert!(!client.release(by_name.clone()).await.unwrap().into_inner().already_released);
    assert!(client.release(by_name).await.unwrap().into_inner().already_released);
    assert_eq!(free(&served.capacity().await, "host_pages"), 100);
}

#[tokio::test]
async fn a_re_bootstrap_reserves_what_was_generated_besides_what_is_to_come() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let again =
        admit(&mut client, hisparse_serve::proto::AdmitRequest { generated_tokens: 250, ..ask("r", 1_000, 100) });
    let lease = again.await.unwrap();
    assert_eq!((lease.tokens, lease.pages), (1_350, 22));
}

#[tokio::test]
async fn validation_answers_as_admit_would_and_reserves_nothing() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let only = |request| hisparse_serve::proto::AdmitRequest { validate_only: true, ..request };
    let lease = admit(&mut client, only(ask("r", 640, 0))).await.unwrap();
    assert_eq!((lease.id.as_str(), lease.pages), ("", 10));
    let status = admit(&mut client, only(ask("r", 6_401, 0))).await.unwrap_err();
    assert_eq!(refusal(&status).1, "NEVER_FITS");
    assert_eq!(free(&served.capacity().await, "host_pages"), 100);
}

#[tokio::test]
async fn of_a_thousand_that_want_the_last_seat_exactly_one_gets_it() {
    let served = serve(10_000, 1);
    let client = served.admission().await;
    let start = Arc::new(tokio::sync::Barrier::new(1_000));
    let callers: Vec<_> = (0..1_000)
        .map(|caller| {
            let (mut client, start) = (client.clone(), Arc::clone(&start));
            tokio::spawn(async move {
                start.wait().await;
                admit(&mut client, ask(&format!("r{caller}"), 64, 64)).await
            })
        })
        .collect();
    let mut granted = 0;
    for caller in callers {
        match caller.await.unwrap() {
            Ok(_) => granted += 1,
            Err(status) => {
                let (code, reason, details) = refusal(&status);
                assert_eq!((code, reason.as_str()), (Code::ResourceExhausted, "POOL_BUSY"));
                assert_eq!(details.quota_failure().unwrap().violations[0].subject, "pool:seats");
            }
        }
    }
    assert_eq!(granted, 1);
    assert_eq!(served.capacity().await.pools[1].reserved, 1);
}

#[tokio::test]
async fn what_nobody_commits_expires_into_quarantine_and_not_into_other_hands() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let short = hisparse_serve::proto::AdmitRequest { ttl: millis(50), ..ask("r", 640, 0) };
    let lease = admit(&mut client, short).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let capacity = served.capacity().await;
    assert_eq!((capacity.pools[0].quarantined, capacity.pools[0].free), (10, 90));
    let commit = CommitRequest { lease_id: lease.id, epoch: lease.epoch, ..CommitRequest::default() };
    let (code, reason, _) = refusal(&client.commit(commit).await.unwrap_err());
    assert_eq!((code, reason.as_str()), (Code::NotFound, "LEASE_NOT_FOUND"));
}

#[tokio::test]
async fn renewing_puts_off_the_end_and_extending_grows_within_the_pools() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let lease = admit(&mut client, ask("r", 640, 0)).await.unwrap();
    let renew =
        RenewRequest { lease_id: lease.id.clone(), epoch: lease.epoch, ttl: seconds(900), ..Default::default() };
    let renewed = client.renew(renew).await.unwrap().into_inner().lease.unwrap();
    assert!(renewed.expire_time.unwrap().seconds > lease.expire_time.unwrap().seconds + 800);

    let extend =
        |tokens| ExtendRequest { lease_id: lease.id.clone(), epoch: lease.epoch, tokens, ..Default::default() };
    let grown = client.extend(extend(1_280)).await.unwrap().into_inner().lease.unwrap();
    assert_eq!((grown.pages, grown.tokens, grown.extents.len()), (20, 1_280, 1));
    assert_eq!(client.extend(extend(1_280)).await.unwrap().into_inner().lease.unwrap(), grown);
    let (_, reason, _) = refusal(&client.extend(extend(6_401)).await.unwrap_err());
    assert_eq!(reason, "NEVER_FITS");
    let other = admit(&mut client, ask("other", 64 * 80, 0)).await.unwrap();
    let (_, reason, _) = refusal(&client.extend(extend(1_281)).await.unwrap_err());
    assert_eq!(reason, "POOL_BUSY");
    client.release(release_of(&other)).await.unwrap();
    assert_eq!(client.extend(extend(6_400)).await.unwrap().into_inner().lease.unwrap().pages, 100);
}

#[tokio::test]
async fn a_batch_is_granted_whole_or_not_at_all() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let batch = |requests| BatchAdmitRequest { requests, partial: false };
    let misfit = vec![ask("a", 640, 0), ask("b", 64 * 80, 0), ask("c", 64 * 11, 0), ask("d", 64, 0)];
    let status = client.batch_admit(batch(misfit.clone())).await.unwrap_err();
    let (code, reason, details) = refusal(&status);
    assert_eq!((code, reason.as_str()), (Code::ResourceExhausted, "POOL_BUSY"));
    let metadata = &details.error_info().unwrap().metadata;
    assert_eq!((metadata["request"].as_str(), metadata["pool"].as_str()), ("2", "host_pages"));
    assert!(details.retry_info().is_some() && status.message().contains("requests[2]"), "{status:?}");
    assert_eq!((free(&served.capacity().await, "host_pages"), free(&served.capacity().await, "seats")), (100, 4));
    // One that lives already is given again, and outlives the failure of its batch.
    let living = admit(&mut client, ask("a", 640, 0)).await.unwrap();
    client.batch_admit(batch(misfit[..3].to_vec())).await.unwrap_err();
    assert_eq!(free(&served.capacity().await, "host_pages"), 90);
    let answer = client.batch_admit(batch(misfit[..2].to_vec())).await.unwrap().into_inner();
    let repeated: Vec<_> = answer.results.iter().map(|result| result.repeated_request).collect();
    assert_eq!(repeated, [true, false]);
    let Some(Outcome::Lease(again)) = &answer.results[0].outcome else { panic!("{answer:?}") };
    assert_eq!(again.id, living.id);
    assert_conserved(&answer.capacity.unwrap());
}

#[tokio::test]
async fn a_batch_overtakes_nobody_who_waits() {
    let served = serve(100, 8);
    let mut client = served.admission().await;
    let holder = admit(&mut client, ask("holder", 64 * 60, 0)).await.unwrap();
    let mut second = client.clone();
    let waits = AdmitRequest { wait: seconds(30), ..ask("waiter", 64 * 50, 0) };
    let waiter = tokio::spawn(async move { admit(&mut second, waits).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let requests = vec![ask("x", 64, 0), ask("y", 64, 0)];
    let status =
        client.batch_admit(BatchAdmitRequest { requests: requests.clone(), partial: false }).await.unwrap_err();
    assert_eq!(refusal(&status).2.error_info().unwrap().metadata["request"], "0");
    client.release(release_of(&holder)).await.unwrap();
    waiter.await.unwrap().unwrap();
    client.batch_admit(BatchAdmitRequest { requests, partial: false }).await.unwrap();
}

#[tokio::test]
async fn a_partial_batch_decides_on_each_request_by_itself() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let requests = vec![ask("a", 640, 0), ask("b", 64_000, 0), ask("c", 64 * 91, 0), ask("d", 64, 0), ask("a", 640, 0)];
    let answer = client.batch_admit(BatchAdmitRequest { requests, partial: true }).await.unwrap().into_inner();
    let shown: Vec<_> = answer
        .results
        .iter()
        .map(|result| match result.outcome.as_ref().unwrap() {
            Outcome::Lease(lease) => format!("{} {} {}", lease.request_id, lease.pages, result.repeated_request),
            Outcome::Refusal(refusal) => format!("{} {}", refusal.reason, refusal.binding),
        })
        .collect();
    assert_eq!(
        shown,
        ["a 10 false", "NEVER_FITS max_request_tokens", "POOL_BUSY host_pages", "d 1 false", "a 10 true"]
    );
    assert_conserved(&answer.capacity.unwrap());
}

#[tokio::test]
async fn leases_are_listed_in_order_of_grant_page_by_page() {
    let served = serve(1_000, 300);
    let mut client = served.admission().await;
    for number in 0..250 {
        admit(&mut client, ask(&format!("r{number}"), 64, 0)).await.unwrap();
    }
    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let request = ListLeasesRequest { page_token: token, page_size: 100, ..Default::default() };
        let page = client.list_leases(request).await.unwrap().into_inner();
        seen.extend(page.leases.into_iter().map(|lease| lease.request_id));
        (token, pages) = (page.next_page_token, pages + 1);
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(pages, 3);
    assert_eq!(seen, (0..250).map(|number| format!("r{number}")).collect::<Vec<_>>());
    let nobody = ListLeasesRequest { tenant: "nobody".into(), ..Default::default() };
    assert!(client.list_leases(nobody).await.unwrap().into_inner().leases.is_empty());
}

#[tokio::test]
async fn one_lease_is_shown_with_its_extents() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let lease = admit(&mut client, ask("r", 640, 0)).await.unwrap();
    let get = GetLeaseRequest { lease_id: lease.id.clone(), ..Default::default() };
    assert_eq!(client.get_lease(get).await.unwrap().into_inner().lease.unwrap(), lease);
}
