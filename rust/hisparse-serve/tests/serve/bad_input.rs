//! Everything a caller can get wrong, each with the answer that says what to do.

use hisparse_serve::proto::capacity_service_client::CapacityServiceClient;
use hisparse_serve::proto::{
    AdmitRequest, BatchAdmitRequest, CommitRequest, ExtendRequest, GetCapacityRequest, GetLeaseRequest,
    ListLeasesRequest, ReleaseRequest, RenewRequest,
};
use tonic::{Code, Request, Status};

use crate::{Served, admit, ask, free, millis, refusal, seconds, serve};

/// The fields that a refusal as malformed names.
fn fields(status: &Status) -> Vec<String> {
    let (code, reason, details) = refusal(status);
    assert_eq!((code, reason.as_str()), (Code::InvalidArgument, ""), "{status:?}");
    details.bad_request().unwrap().field_violations.iter().map(|violation| violation.field.clone()).collect()
}

async fn refused_fields(served: &Served, request: AdmitRequest) -> Vec<String> {
    fields(&admit(&mut served.admission().await, request).await.unwrap_err())
}

#[tokio::test]
async fn a_prompt_longer_than_can_ever_fit_is_told_the_limit() {
    let served = serve(100, 4);
    let status = admit(&mut served.admission().await, ask("r", 6_400, 1)).await.unwrap_err();
    let (code, reason, details) = refusal(&status);
    assert_eq!((code, reason.as_str()), (Code::FailedPrecondition, "NEVER_FITS"));
    let metadata = &details.error_info().unwrap().metadata;
    assert_eq!((metadata["limit"].as_str(), metadata["value"].as_str()), ("max_request_tokens", "6400"));
    assert_eq!(metadata["asked"], "6401");
    assert!(details.retry_info().is_none(), "waiting does not help");
}

#[tokio::test]
async fn zero_tokens_and_two_to_the_63_tokens_are_malformed() {
    let served = serve(100, 4);
    assert_eq!(refused_fields(&served, ask("r", 0, 10)).await, ["prompt_tokens"]);
    assert_eq!(refused_fields(&served, ask("r", 1 << 63, 0)).await, ["prompt_tokens"]);
    let all = AdmitRequest { generated_tokens: u64::MAX, ..ask("r", u64::MAX, u64::MAX) };
    assert_eq!(refused_fields(&served, all).await, ["prompt_tokens", "generated_tokens", "max_new_tokens"]);
    let pages = AdmitRequest { pages: 1 << 63, ..AdmitRequest::default() };
    assert_eq!(refused_fields(&served, pages).await, ["pages"]);
    let both = AdmitRequest { pages: 1, ..ask("r", 64, 0) };
    assert_eq!(refused_fields(&served, both).await, ["pages"]);
    assert_eq!(free(&served.capacity().await, "host_pages"), 100);
}

#[tokio::test]
async fn malformed_hashes_are_named_by_their_place() {
    let served = serve(100, 4);
    let with = |hashes: Vec<Vec<u8>>, prompt| AdmitRequest { prefix_hashes: hashes, ..ask("r", prompt, 64) };
    for length in [0, 16, 31, 33] {
        let hashes = vec![vec![7; 32], vec![7; length]];
        assert_eq!(refused_fields(&served, with(hashes, 640)).await, ["prefix_hashes[1]"], "{length}");
    }
    // 639 tokens are nine full pages and a partial one, which has no hash.
    assert_eq!(refused_fields(&served, with(vec![vec![7; 32]; 10], 639)).await, ["prefix_hashes"]);
    admit(&mut served.admission().await, with(vec![vec![7; 32]; 10], 640)).await.unwrap();
}

#[tokio::test]
async fn everything_wrong_comes_back_together() {
    let served = serve(100, 4);
    let request = AdmitRequest {
        ttl: Some(prost_types::Duration { seconds: -1, nanos: 0 }),
        wait: seconds(601),
        epoch: u64::MAX,
        prefix_hashes: vec![vec![1]],
        ..ask("r", 64, 0)
    };
    assert_eq!(refused_fields(&served, request).await, ["epoch", "wait", "ttl", "prefix_hashes[0]"]);
    let request = AdmitRequest {
        request_id: "r".repeat(129),
        tenant: "t".repeat(65),
        priority: 101,
        ttl: seconds(3_601),
        ..AdmitRequest::default()
    };
    assert_eq!(refused_fields(&served, request).await, ["request_id", "tenant", "priority", "ttl", "prompt_tokens"]);
}

#[tokio::test]
async fn a_request_id_with_other_parameters_is_refused_and_the_lease_stays() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let lease = admit(&mut client, ask("r", 640, 0)).await.unwrap();
    let (code, reason, details) = refusal(&admit(&mut client, ask("r", 641, 0)).await.unwrap_err());
    assert_eq!((code, reason.as_str()), (Code::AlreadyExists, "REQUEST_ID_REUSED"));
    assert_eq!(details.error_info().unwrap().metadata["lease_id"], lease.id);
    // The same name is another request where the tenant is another.
    let other = AdmitRequest { tenant: "b".into(), ..ask("r", 641, 0) };
    admit(&mut client, other).await.unwrap();
}

#[tokio::test]
async fn another_tenants_lease_cannot_be_touched() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let lease = admit(&mut client, AdmitRequest { tenant: "a".into(), ..ask("r", 640, 0) }).await.unwrap();
    let (lease_id, tenant, epoch) = (lease.id.clone(), "b".to_owned(), lease.epoch);
    let release = ReleaseRequest { lease_id: lease_id.clone(), tenant: tenant.clone(), ..Default::default() };
    let commit = CommitRequest { lease_id: lease_id.clone(), tenant: tenant.clone(), epoch, ttl: None };
    let renew = RenewRequest { lease_id: lease_id.clone(), tenant: tenant.clone(), epoch, ttl: None };
    let extend = ExtendRequest { lease_id: lease_id.clone(), tenant: tenant.clone(), epoch, tokens: 1_000 };
    let get = GetLeaseRequest { lease_id, tenant };
    for status in [
        client.release(release).await.unwrap_err(),
        client.commit(commit).await.unwrap_err(),
        client.renew(renew).await.unwrap_err(),
        client.extend(extend).await.unwrap_err(),
        client.get_lease(get).await.unwrap_err(),
    ] {
        assert_eq!(refusal(&status).0, Code::PermissionDenied, "{status:?}");
    }
    // By request id the other tenant's lease is not even seen.
    let by_name = ReleaseRequest { request_id: "r".into(), tenant: "b".into(), ..Default::default() };
    assert!(client.release(by_name).await.unwrap().into_inner().already_released);
    assert_eq!(free(&served.capacity().await, "host_pages"), 90);
}

#[tokio::test]
async fn a_stale_epoch_is_told_the_current_one_and_release_never_minds() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let lease = admit(&mut client, ask("r", 640, 0)).await.unwrap();
    let (lease_id, epoch) = (lease.id.clone(), lease.epoch - 1);
    // A lease id of that older epoch, too: what an engine holds after a restart of the service.
    let older = format!("{epoch:010x}{:010x}", 7);
    for lease_id in [lease_id, older.clone()] {
        let commit = CommitRequest { lease_id: lease_id.clone(), epoch, ..Default::default() };
        let renew = RenewRequest { lease_id: lease_id.clone(), epoch, ..Default::default() };
        let extend = ExtendRequest { lease_id, epoch, tokens: 1_000, ..Default::default() };
        for status in [
            client.commit(commit).await.unwrap_err(),
            client.renew(renew).await.unwrap_err(),
            client.extend(extend).await.unwrap_err(),
        ] {
            let (code, reason, details) = refusal(&status);
            assert_eq!((code, reason.as_str()), (Code::FailedPrecondition, "STALE_EPOCH"));
            assert_eq!(details.error_info().unwrap().metadata["current_epoch"], lease.epoch.to_string());
        }
    }
    let status = admit(&mut client, AdmitRequest { epoch, ..ask("s", 64, 0) }).await.unwrap_err();
    assert_eq!(refusal(&status).1, "STALE_EPOCH");
    let release = ReleaseRequest { lease_id: older, ..Default::default() };
    assert!(client.release(release).await.unwrap().into_inner().already_released);
}

#[tokio::test]
async fn lease_ids_that_are_none_are_malformed_and_unknown_ones_are_not_found() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let epoch = served.capacity().await.epoch;
    for lease_id in ["", "7", "not a lease", "00000000000000zz", "日本語"] {
        let get = GetLeaseRequest { lease_id: lease_id.into(), ..Default::default() };
        assert_eq!(fields(&client.get_lease(get).await.unwrap_err()), ["lease_id"], "{lease_id}");
        let release = ReleaseRequest { lease_id: lease_id.into(), ..Default::default() };
        assert_eq!(fields(&client.release(release).await.unwrap_err()), ["lease_id"], "{lease_id}");
    }
    let unknown = format!("{epoch:010x}{:010x}", 7);
    let commit = CommitRequest { lease_id: unknown.clone(), epoch, ..Default::default() };
    let (code, reason, _) = refusal(&client.commit(commit).await.unwrap_err());
    assert_eq!((code, reason.as_str()), (Code::NotFound, "LEASE_NOT_FOUND"));
    let both = ReleaseRequest { lease_id: unknown.clone(), request_id: "r".into(), ..Default::default() };
    assert_eq!(fields(&client.release(both).await.unwrap_err()), ["request_id"]);
    let commit = CommitRequest { lease_id: unknown, epoch: 0, ..Default::default() };
    assert_eq!(fields(&client.commit(commit).await.unwrap_err()), ["epoch"]);
    let list = ListLeasesRequest { page_token: "x".repeat(500), ..Default::default() };
    assert_eq!(fields(&client.list_leases(list).await.unwrap_err()), ["page_token"]);
}

#[tokio::test]
async fn impossible_lengths_and_too_many_of_them_are_refused() {
    let served = serve(100, 4);
    let mut client = CapacityServiceClient::new(served.channel().await);
    let mut ask = async |lengths: Vec<u64>| {
        let request = GetCapacityRequest { lengths, ..Default::default() };
        client.get_capacity(request).await.map(tonic::Response::into_inner)
    };
    assert_eq!(fields(&ask(vec![0, 64, u64::MAX]).await.unwrap_err()), ["lengths[0]", "lengths[2]"]);
    assert_eq!(fields(&ask(vec![1; 65]).await.unwrap_err()), ["lengths"]);
    let fits: Vec<_> = ask(vec![640, 3_200, 6_401]).await.unwrap().fits;
    let shown: Vec<_> = fits.iter().map(|fit| (fit.tokens, fit.count, fit.binding.as_str())).collect();
    assert_eq!(shown, [(640, 4, "seats"), (3_200, 2, "host_pages"), (6_401, 0, "max_request_tokens")]);
}

#[tokio::test]
async fn a_malformed_batch_changes_nothing() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let waits = AdmitRequest { wait: millis(1), validate_only: true, ..ask("b", 64, 0) };
    let broken = AdmitRequest { prefix_hashes: vec![vec![0]], ..ask("c", 64, 0) };
    let requests = vec![ask("a", 64, 0), waits, broken];
    let status = client.batch_admit(BatchAdmitRequest { requests, partial: false }).await.unwrap_err();
    let named = ["requests[1].wait", "requests[1].validate_only", "requests[2].prefix_hashes[0]"];
    assert_eq!(fields(&status), named);
    for count in [0, 257] {
        let requests = vec![ask("a", 64, 0); count];
        let status = client.batch_admit(BatchAdmitRequest { requests, partial: false }).await.unwrap_err();
        assert_eq!(fields(&status), ["requests"], "{count}");
    }
    assert_eq!(free(&served.capacity().await, "host_pages"), 100);
}

#[tokio::test]
async fn a_call_past_its_deadline_changes_nothing() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let mut request = Request::new(ask("r", 64, 0));
    request.metadata_mut().insert("grpc-timeout", "0m".parse().unwrap());
    let status = client.admit(request).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    assert_eq!(free(&served.capacity().await, "host_pages"), 100);
}

#[tokio::test]
async fn a_message_beyond_the_bound_is_refused_and_the_server_lives() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    let huge = AdmitRequest { prefix_hashes: vec![vec![1; 32]; 80_000], ..ask("r", 64, 0) };
    let status = client.admit(huge).await.unwrap_err();
    assert!(matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted), "{status:?}");
    admit(&mut client, ask("r", 64, 0)).await.unwrap();
}

/// Sends bytes where an `AdmitRequest` belongs.
async fn send_raw(served: &Served, bytes: Vec<u8>) -> Status {
    #[derive(Debug, Default)]
    struct RawCodec;
    #[derive(Debug)]
    struct Raw;
    impl tonic::codec::Encoder for Raw {
        type Item = Vec<u8>;
        type Error = Status;
        fn encode(&mut self, item: Vec<u8>, buf: &mut tonic::codec::EncodeBuf<'_>) -> Result<(), Status> {
            bytes::BufMut::put_slice(buf, &item);
            Ok(())
        }
    }
    impl tonic::codec::Decoder for Raw {
        type Item = Vec<u8>;
        type Error = Status;
        fn decode(&mut self, _: &mut tonic::codec::DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
            Ok(Some(Vec::new()))
        }
    }
    impl tonic::codec::Codec for RawCodec {
        type Encode = Vec<u8>;
        type Decode = Vec<u8>;
        type Encoder = Raw;
        type Decoder = Raw;
        fn encoder(&mut self) -> Raw {
            Raw
        }
        fn decoder(&mut self) -> Raw {
            Raw
        }
    }
    let mut client = tonic::client::Grpc::new(served.channel().await);
    client.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/hisparse.v1.AdmissionService/Admit");
    client.unary(Request::new(bytes), path, RawCodec).await.unwrap_err()
}

#[tokio::test]
async fn bytes_that_are_no_message_and_text_that_is_not_utf_8_are_the_callers_fault() {
    let served = serve(100, 4);
    let cut_short = vec![0x0a, 0x7f, b'r'];
    let not_utf_8 = vec![0x0a, 0x02, 0xff, 0xfe, 0x10, 0x40];
    let unknown_wire_type = vec![0x0f];
    for bytes in [cut_short, not_utf_8, unknown_wire_type] {
        assert_eq!(fields(&send_raw(&served, bytes.clone()).await), ["message"], "{bytes:?}");
    }
    assert_eq!(free(&served.capacity().await, "host_pages"), 100);
}

#[tokio::test]
async fn a_time_to_live_of_zero_is_out_of_range_and_an_absent_one_the_default() {
    let served = serve(100, 4);
    let mut client = served.admission().await;
    assert_eq!(refused_fields(&served, AdmitRequest { ttl: seconds(0), ..ask("r", 64, 0) }).await, ["ttl"]);
    let lease = admit(&mut client, ask("r", 64, 0)).await.unwrap();
    let (lease_id, epoch) = (lease.id, lease.epoch);
    let commit = CommitRequest { lease_id: lease_id.clone(), epoch, ttl: seconds(0), ..Default::default() };
    assert_eq!(fields(&client.commit(commit).await.unwrap_err()), ["ttl"]);
    let renew = RenewRequest { lease_id: lease_id.clone(), epoch, ttl: seconds(0), ..Default::default() };
    assert_eq!(fields(&client.renew(renew).await.unwrap_err()), ["ttl"]);
    let commit = CommitRequest { lease_id: lease_id.clone(), epoch, ..Default::default() };
    client.commit(commit).await.unwrap();
    client.renew(RenewRequest { lease_id, epoch, ..Default::default() }).await.unwrap();
}

#[tokio::test]
async fn names_with_control_characters_are_malformed() {
    let served = serve(100, 4);
    for name in ["a\nb", "\u{0}", "tab\t", "\u{7f}", "\u{85}", "\u{1b}[31m"] {
        let request = AdmitRequest { tenant: name.into(), ..ask(name, 64, 0) };
        assert_eq!(refused_fields(&served, request).await, ["request_id", "tenant"], "{name:?}");
    }
    let named = AdmitRequest { tenant: "équipe 7/日本".into(), ..ask("r 1:ü", 64, 0) };
    admit(&mut served.admission().await, named).await.unwrap();
}
