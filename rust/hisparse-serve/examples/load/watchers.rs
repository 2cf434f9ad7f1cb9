//! Many watchers of a node that changes at a steady rate: how many messages they get.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hisparse_serve::proto::WatchCapacityRequest;
use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::capacity_service_client::CapacityServiceClient;
use hisparse_serve::proto::{AdmitRequest, ReleaseRequest};
use serde_json::json;

use crate::{Options, connect};

/// Runs it; the figures. The node changes `rate` times a second.
pub(crate) async fn measure(options: &Options, socket: &Path) -> serde_json::Value {
    let rate = options.rate.unwrap_or(20);
    let channels = connect(socket, options.connections).await;
    let messages = Arc::new(AtomicU64::new(0));
    let mut watches = Vec::new();
    for number in 0..options.watchers {
        let mut client = CapacityServiceClient::new(channels[number % channels.len()].clone());
        let mut stream = client.watch_capacity(WatchCapacityRequest::default()).await.unwrap().into_inner();
        let messages = Arc::clone(&messages);
        watches.push(tokio::spawn(async move {
            while let Ok(Some(_)) = stream.message().await {
                messages.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    let mut client = AdmissionServiceClient::new(channels[0].clone());
    messages.store(0, Ordering::Relaxed); // snapshots are no news
    let begin = Instant::now();
    let mut changes = 0_u32;
    let mut held: Option<String> = None;
    let mut tick = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate).unwrap_or(20));
    while begin.elapsed() < Duration::from_secs(options.seconds) {
        tick.tick().await;
        changes += 1;
        if let Some(lease_id) = held.take() {
            client.release(ReleaseRequest { lease_id, ..ReleaseRequest::default() }).await.unwrap();
        } else {
            let request = AdmitRequest { prompt_tokens: 64, ..AdmitRequest::default() };
            held = client.admit(request).await.unwrap().into_inner().lease.map(|lease| lease.id);
        }
    }
    let elapsed = begin.elapsed().as_secs_f64();
    let got = messages.load(Ordering::Relaxed);
    for watch in &watches {
        watch.abort();
    }
    #[allow(clippy::cast_precision_loss)] // counts of one run
    let per_watcher = got as f64 / options.watchers.max(1) as f64 / elapsed;
    json!({
        "call": "WatchCapacity",
        "watchers": options.watchers,
        "connections": options.connections,
        "seconds": elapsed,
        "changes_per_second": f64::from(changes) / elapsed,
        "messages": got,
        "messages_per_watcher_per_second": per_watcher,
    })
}
