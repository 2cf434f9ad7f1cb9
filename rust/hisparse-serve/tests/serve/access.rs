//! Who may do what, on the Unix socket and over loopback; certificates are in `tls`.

use hisparse_serve::proto::admin_service_client::AdminServiceClient;
use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::capacity_service_client::CapacityServiceClient;
use hisparse_serve::proto::{
    AdmitRequest, BatchAdmitRequest, CommitRequest, DrainRequest, DumpRequest, ExtendRequest, GetCapacityRequest,
    GetLeaseRequest, GetServerInfoRequest, ListLeasesRequest, ReleaseRequest, RenewRequest, WatchCapacityRequest,
};
use hisparse_serve::{Access, Config, Server};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::{Served, admit, ask, config, connect, refusal, release_of};

fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// A server that gives this user what the list says after `uid:…`, and whoever connects to its port what `loopback` says.
async fn serve_with(ours: &str, loopback: &str) -> (Served, Channel, Channel) {
    let home = tempfile::tempdir().unwrap();
    let access = Access::parse(&format!("uid:{}{ours} loopback{loopback}", uid())).unwrap();
    let config = Config { access, listen: Some("127.0.0.1:0".into()), ..config(&home, 100, 10) };
    let running = Server::start(config).unwrap();
    let port = running.addresses().iter().find(|address| address.starts_with("127.")).unwrap().clone();
    let served = Served { running, home };
    let unix = connect(&served.socket()).await;
    let tcp = Endpoint::from_shared(format!("http://{port}")).unwrap().connect().await.unwrap();
    (served, unix, tcp)
}

fn wrong_role(status: &Status, needed: &str) {
    let (code, reason, details) = refusal(status);
    assert_eq!((code, reason.as_str()), (Code::PermissionDenied, "WRONG_ROLE"), "{status:?}");
    assert_eq!(details.error_info().unwrap().metadata["role"], needed);
    assert!(status.message().contains(needed), "{status:?}");
}

#[tokio::test]
async fn each_role_may_make_its_calls_and_is_told_which_role_the_others_need() {
    let (served, unix, tcp) = serve_with("=router", "=engine").await;
    let (mut router, mut engine) =
        (AdmissionServiceClient::new(unix.clone()), AdmissionServiceClient::new(tcp.clone()));
    let lease = admit(&mut router, ask("r", 64, 0)).await.unwrap();
    wrong_role(&admit(&mut engine, ask("r", 64, 0)).await.unwrap_err(), "router");
    let batch = BatchAdmitRequest { requests: vec![ask("s", 64, 0)], ..Default::default() };
    wrong_role(&engine.batch_admit(batch).await.unwrap_err(), "router");
    let (lease_id, epoch) = (lease.id.clone(), lease.epoch);
    engine.commit(CommitRequest { lease_id: lease_id.clone(), epoch, ..Default::default() }).await.unwrap();
    engine.renew(RenewRequest { lease_id: lease_id.clone(), epoch, ..Default::default() }).await.unwrap();
    engine.extend(ExtendRequest { lease_id, epoch, tokens: 65, ..Default::default() }).await.unwrap();
    for channel in [unix.clone(), tcp.clone()] {
        let mut admin = AdminServiceClient::new(channel.clone());
        wrong_role(&admin.drain(DrainRequest::default()).await.unwrap_err(), "admin");
        wrong_role(&admin.dump(DumpRequest {}).await.unwrap_err(), "admin");
        admin.get_server_info(GetServerInfoRequest {}).await.unwrap();
    }
    router.release(release_of(&lease)).await.unwrap();

    let (_served, unix, tcp) = serve_with("=admin", "").await;
    AdminServiceClient::new(unix.clone()).drain(DrainRequest { resume: true, ..Default::default() }).await.unwrap();
    wrong_role(&admit(&mut AdmissionServiceClient::new(unix), ask("r", 64, 0)).await.unwrap_err(), "router");
    let mut nobody = AdmissionServiceClient::new(tcp.clone());
    wrong_role(&nobody.release(release_of(&lease)).await.unwrap_err(), "router or engine");
    wrong_role(&nobody.list_leases(ListLeasesRequest::default()).await.unwrap_err(), "router or engine or admin");
    CapacityServiceClient::new(tcp).get_capacity(GetCapacityRequest::default()).await.unwrap();
    let notices = served.running.notices();
    assert_eq!(notices.len(), 2, "each user is noticed once, whatever it tries: {notices:?}");
}

#[tokio::test]
async fn a_peer_that_the_list_does_not_name_is_not_let_in_and_noticed_once() {
    let home = tempfile::tempdir().unwrap();
    let access = Access::parse(&format!("uid:{}=router", uid() + 1)).unwrap();
    let served = Served { running: Server::start(Config { access, ..config(&home, 10, 4) }).unwrap(), home };
    for _ in 0..3 {
        let socket = served.socket();
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
        let refused = match endpoint.connect().await {
            Err(_) => true,
            Ok(channel) => admit(&mut AdmissionServiceClient::new(channel), ask("r", 64, 0)).await.is_err(),
        };
        assert!(refused);
    }
    assert_eq!(served.running.notices(), [format!("uid {}: a connection was refused: not on the access list", uid())]);
}

#[tokio::test]
async fn a_peer_held_to_tenants_sees_theirs_and_touches_no_other() {
    let (served, unix, tcp) = serve_with("=router", "=router+admin@a+b").await;
    let mut all = AdmissionServiceClient::new(unix);
    let of = |tenant: &str, name: &str| AdmitRequest { tenant: tenant.into(), ..ask(name, 64, 0) };
    for (tenant, name) in [("a", "1"), ("c", "2"), ("b", "3"), ("a", "4"), ("", "5")] {
        admit(&mut all, of(tenant, name)).await.unwrap();
    }
    let mut ours = AdmissionServiceClient::new(tcp.clone());
    let names = async |client: &mut AdmissionServiceClient<Channel>, tenant: &str| {
        let (mut names, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = ListLeasesRequest { tenant: tenant.into(), page_size: 2, page_token };
            let page = client.list_leases(request).await?.into_inner();
            names.extend(page.leases.into_iter().map(|lease| lease.request_id));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok::<_, Status>(names);
            }
        }
    };
    assert_eq!(names(&mut all, "").await.unwrap(), ["1", "2", "3", "4", "5"]);
    assert_eq!(names(&mut ours, "").await.unwrap(), ["1", "3", "4"], "in order of grant, over both tenants");
    assert_eq!(names(&mut ours, "b").await.unwrap(), ["3"]);

    let foreign = admit(&mut all, of("c", "6")).await.unwrap();
    let (lease_id, epoch, tenant) = (foreign.id.clone(), foreign.epoch, "c".to_owned());
    let by_name = ReleaseRequest { request_id: "6".into(), tenant: tenant.clone(), ..Default::default() };
    let get = GetLeaseRequest { lease_id: lease_id.clone(), tenant: tenant.clone() };
    let capacity = GetCapacityRequest { tenant: tenant.clone(), ..Default::default() };
    let watch = WatchCapacityRequest { tenant: tenant.clone(), ..Default::default() };
    let batch = BatchAdmitRequest { requests: vec![of("a", "7"), of("c", "8")], ..Default::default() };
    let refusals = [
        names(&mut ours, "c").await.unwrap_err(),
        admit(&mut ours, of("c", "9")).await.unwrap_err(),
        admit(&mut ours, of("", "9")).await.unwrap_err(),
        ours.batch_admit(batch).await.unwrap_err(),
        ours.get_lease(get).await.unwrap_err(),
        ours.release(release_of(&foreign)).await.unwrap_err(),
        ours.release(by_name).await.unwrap_err(),
        ours.commit(CommitRequest { lease_id: lease_id.clone(), epoch, tenant: tenant.clone(), ttl: None })
            .await
            .unwrap_err(),
        ours.renew(RenewRequest { lease_id: lease_id.clone(), epoch, tenant: tenant.clone(), ttl: None })
            .await
            .unwrap_err(),
        ours.extend(ExtendRequest { lease_id, epoch, tenant, tokens: 100 }).await.unwrap_err(),
        CapacityServiceClient::new(tcp.clone()).get_capacity(capacity).await.unwrap_err(),
        CapacityServiceClient::new(tcp.clone()).watch_capacity(watch).await.unwrap_err(),
        AdminServiceClient::new(tcp.clone()).dump(DumpRequest {}).await.unwrap_err(),
    ];
    for status in refusals {
        let (code, reason, details) = refusal(&status);
        assert_eq!((code, reason.as_str()), (Code::PermissionDenied, "WRONG_TENANT"), "{status:?}");
        assert_eq!(details.error_info().unwrap().metadata["tenants"], "a, b");
    }
    // Under one of its own names a foreign lease is none of its either.
    let own_name = GetLeaseRequest { lease_id: foreign.id.clone(), tenant: "a".into() };
    assert_eq!(refusal(&ours.get_lease(own_name).await.unwrap_err()).0, Code::PermissionDenied);
    assert_eq!(names(&mut all, "").await.unwrap().len(), 6, "nothing of it came or went");
    drop(served);
}
