//! `CapacityService`: what the node has, once or as it changes.
//!
//! ```text
//!  change ─► changes (a number) ─► watch: look again, send what differs ─► buffer of one ─► reader
//!                                     └─ then rest 50 ms                        └─ full: look later, see newer
//! ```
//! A watch never queues history: it sends the difference between what its reader has and what is so now. A slow reader
//! costs one message of memory and misses no state that still holds.

use std::sync::Arc;
use std::time::Duration;

use hisparse_core::env::Moment;
use hisparse_core::ledger;
use hisparse_core::limits::{MAX_WATCH_HZ, MAX_WATCHES};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::error::Refusal;
use crate::layers::deadline::call_time;
use crate::node::{Node, WatchPlace};
use crate::proto::capacity_service_server::CapacityService;
use crate::proto::watch_capacity_response::Event;
use crate::{peer, proto, wire};

/// Rest between two messages of one watch.
const REST: Duration = Duration::from_millis(1_000 / MAX_WATCH_HZ as u64);

/// The service.
#[derive(Debug)]
pub(crate) struct Capacity {
    node: Arc<Node>,
    stopping: watch::Receiver<bool>,
}

impl Capacity {
    pub(crate) const fn new(node: Arc<Node>, stopping: watch::Receiver<bool>) -> Self {
        Self { node, stopping }
    }
}

#[tonic::async_trait]
impl CapacityService for Capacity {
    async fn get_capacity(
        &self,
        request: Request<proto::GetCapacityRequest>,
    ) -> Result<Response<proto::GetCapacityResponse>, Status> {
        let deadline = call_time(&request).deadline(Duration::ZERO);
        let rights = peer::rights(&request)?;
        let asked = request.into_inner();
        if !asked.tenant.is_empty() {
            rights.act_for(&asked.tenant)?;
        }
        let (capacity, fits) = look(&self.node, &asked.tenant, &asked.lengths, Some(deadline))?;
        Ok(Response::new(proto::GetCapacityResponse {
            epoch: capacity.epoch,
            sequence: capacity.sequence,
            observed_at: capacity.observed_at,
            pools: capacity.pools,
            largest_grant_tokens: capacity.largest_grant_tokens,
            max_request_tokens: capacity.max_request_tokens,
            draining: capacity.draining,
            largest_extent_pages: capacity.largest_extent_pages,
            fits,
            quotas: Vec::new(),
        }))
    }

    type WatchCapacityStream = ReceiverStream<Result<proto::WatchCapacityResponse, Status>>;

    async fn watch_capacity(
        &self,
        request: Request<proto::WatchCapacityRequest>,
    ) -> Result<Response<Self::WatchCapacityStream>, Status> {
        let lengths = request.into_inner().lengths;
        let place = self
            .node
            .enter_watch(MAX_WATCHES)
            .ok_or(Refusal::Overloaded { what: "watches", limit: MAX_WATCHES as u64 })?;
        // Changes are listened to before the first look, so that none falls between the two.
        let changes = self.node.changes();
        let (capacity, fits) = look(&self.node, "", &lengths, None)?;
        let (sender, receiver) = mpsc::channel(1);
        let watch = Watch { node: Arc::clone(&self.node), lengths, seen: capacity, sender, _place: place };
        tokio::spawn(watch.run(fits, changes, self.stopping.clone()));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// The node now, as this tenant sees it (empty: as it is).
fn look(
    node: &Node,
    tenant: &str,
    lengths: &[u64],
    deadline: Option<Moment>,
) -> Result<(proto::Capacity, Vec<proto::Fit>), Refusal> {
    let tenant = (!tenant.is_empty()).then_some(tenant);
    node.decide(deadline, |state, now| {
        let seen = state.ledger.capacity(tenant, lengths).map_err(ledger::Refusal::Malformed)?;
        Ok((wire::capacity(&seen, state.numa_node, node.clock.wall(now)), wire::fits(&seen)))
    })?
}

/// One reader's watch.
struct Watch {
    node: Arc<Node>,
    lengths: Vec<u64>,
    /// What the reader has.
    seen: proto::Capacity,
    sender: mpsc::Sender<Result<proto::WatchCapacityResponse, Status>>,
    _place: WatchPlace,
}

impl Watch {
    /// Until the reader goes or the server stops.
    async fn run(
        mut self,
        fits: Vec<proto::Fit>,
        mut changes: watch::Receiver<u64>,
        mut stopping: watch::Receiver<bool>,
    ) {
        let told = async {
            let snapshot = Event::Snapshot(self.seen.clone());
            self.send(snapshot, fits).await?;
            self.send(Event::Sync(proto::WatchSync { resumed: false }), Vec::new()).await?;
            loop {
                tokio::select! {
                    news = changes.changed() => news.map_err(|_| Gone)?,
                    () = self.sender.closed() => return Err(Gone),
                }
                let Ok((now, fits)) = look(&self.node, "", &self.lengths, None) else {
                    // The lengths were right at the start, so this is a node that decides nothing any more.
                    let _ = self.sender.send(Err(Refusal::Poisoned.into())).await;
                    return Err(Gone);
                };
                if now.sequence == self.seen.sequence {
                    continue;
                }
                let delta = delta(&self.seen, &now);
                self.seen = now;
                self.send(Event::Delta(delta), fits).await?;
                tokio::time::sleep(REST).await;
            }
        };
        let ended: Result<(), Gone> = tokio::select! {
            ended = told => ended,
            _ = stopping.wait_for(|stopping| *stopping) => Ok(()),
        };
        if ended.is_ok() {
            // A reader that takes nothing learns of the end from its connection.
            let _ = self.sender.try_send(Err(Refusal::Stopping.into()));
        }
    }

    async fn send(&self, event: Event, fits: Vec<proto::Fit>) -> Result<(), Gone> {
        let message = proto::WatchCapacityResponse {
            epoch: self.seen.epoch,
            sequence: self.seen.sequence,
            event: Some(event),
            fits,
            resume_token: Vec::new(),
        };
        self.sender.send(Ok(message)).await.map_err(|_| Gone)
    }
}

/// The reader is gone.
struct Gone;

fn delta(before: &proto::Capacity, now: &proto::Capacity) -> proto::CapacityDelta {
    proto::CapacityDelta {
        observed_at: now.observed_at,
        pools: now.pools.iter().filter(|pool| !before.pools.contains(pool)).cloned().collect(),
        largest_grant_tokens: now.largest_grant_tokens,
        max_request_tokens: now.max_request_tokens,
        draining: now.draining,
        largest_extent_pages: now.largest_extent_pages,
    }
}
