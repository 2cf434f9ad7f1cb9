//! Callers that come and go, for soaks: connections opened and dropped with calls on their way, waits given up, watches
//! left, leases that nobody releases. Whoever runs it may kill it at any time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::capacity_service_client::CapacityServiceClient;
use hisparse_serve::proto::{
    AdmitRequest, CommitRequest, ListLeasesRequest, ReleaseRequest, RenewRequest, WatchCapacityRequest,
};
use serde_json::json;
use tonic::Status;
use tonic::transport::Channel;

use crate::{Options, connect};

/// Rest of one caller between two connections.
const REST: Duration = Duration::from_millis(50);

/// One connection's life; what it does depends on its number.
async fn visit(channel: Channel, number: u64) -> Result<(), Status> {
    let mut client = AdmissionServiceClient::new(channel.clone());
    let request = |name: &str| AdmitRequest {
        request_id: format!("{name}-{}-{number}", std::process::id()),
        tenant: format!("tenant-{}", number % 50),
        prompt_tokens: 4_096 + number % 1_000,
        max_new_tokens: 512,
        ttl: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
        ..AdmitRequest::default()
    };
    let lease = client.admit(request("visit")).await?.into_inner().lease.unwrap();
    let (lease_id, epoch, tenant) = (lease.id, lease.epoch, lease.tenant);
    match number % 6 {
        0 => {
            let ttl = Some(prost_types::Duration { seconds: 1, nanos: 0 });
            client.commit(CommitRequest { lease_id: lease_id.clone(), epoch, tenant: tenant.clone(), ttl }).await?;
            client.renew(RenewRequest { lease_id, epoch, tenant, ttl }).await?; // and leave it to its end
        }
        1 => {
            let mut watch = CapacityServiceClient::new(channel).watch_capacity(WatchCapacityRequest::default()).await?;
            watch.get_mut().message().await?;
        }
        2 => {
            // Given up while it waits, or just when it is granted.
            let wait = Some(prost_types::Duration { seconds: 5, nanos: 0 });
            let waiting = client.admit(AdmitRequest { wait, pages: 0, ..request("wait") });
            let _ = tokio::time::timeout(Duration::from_micros(number % 900), waiting).await;
        }
        3 => {
            client.list_leases(ListLeasesRequest { page_size: 1_000, ..Default::default() }).await?;
            client.release(ReleaseRequest { lease_id, tenant, ..Default::default() }).await?;
        }
        _ => {
            client.release(ReleaseRequest { lease_id, tenant, ..Default::default() }).await?;
        }
    }
    Ok(())
}

/// Runs it; the figures.
pub(crate) async fn measure(options: &Options, socket: &Path) -> serde_json::Value {
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let (visits, failures) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..options.in_flight)
        .map(|_| {
            let (socket, visits, failures) = (socket.to_owned(), Arc::clone(&visits), Arc::clone(&failures));
            tokio::spawn(async move {
                while Instant::now() < end {
                    let number = visits.fetch_add(1, Ordering::Relaxed);
                    for channel in connect(&socket, 1).await {
                        if visit(channel, number).await.is_err() {
                            failures.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    tokio::time::sleep(REST).await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    json!({
        "call": "visits, each on a connection of its own",
        "seconds": options.seconds,
        "visits": visits.load(Ordering::Relaxed),
        "refused": failures.load(Ordering::Relaxed),
    })
}
