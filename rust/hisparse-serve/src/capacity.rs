//! `CapacityService`: what the node has, once or as it changes; the latter in [`watch`](crate::watch).

use std::sync::Arc;
use std::time::Duration;

use hisparse_core::limits::MAX_WATCHES;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::error::Refusal;
use crate::layers::deadline::call_time;
use crate::look::look;
use crate::node::Node;
use crate::proto::capacity_service_server::CapacityService;
use crate::watch::{Asked, Start, Told, Watch};
use crate::{peer, proto, wire};

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
        let quotas = match asked.tenant.as_str() {
            "" => Vec::new(),
            tenant => self.node.decide(Some(deadline), |state, _| state.ledger.quotas(tenant))?,
        };
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
            quotas: quotas.iter().map(wire::quota).collect(),
        }))
    }

    type WatchCapacityStream = Told;

    async fn watch_capacity(
        &self,
        request: Request<proto::WatchCapacityRequest>,
    ) -> Result<Response<Self::WatchCapacityStream>, Status> {
        let rights = peer::rights(&request)?;
        let proto::WatchCapacityRequest { resume_token, lengths, tenant } = request.into_inner();
        if !tenant.is_empty() {
            rights.act_for(&tenant)?;
        }
        let start = Start::read(&self.node, &resume_token)?;
        let place = self
            .node
            .enter_watch(MAX_WATCHES)
            .ok_or(Refusal::Overloaded { what: "watches", limit: MAX_WATCHES as u64 })?;
        let told = Watch::begin(&self.node, start, Asked { tenant, lengths }, place, self.stopping.clone())?;
        Ok(Response::new(told))
    }
}
