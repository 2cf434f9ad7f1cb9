//! `AdminService`: drain, who answers, the node at a glance, dump.

use std::sync::Arc;
use std::time::Duration;

use hisparse_core::env::{Clock, Moment};
use hisparse_core::ledger::Listing;
use hisparse_core::limits;
use tokio_stream::Iter;
use tonic::{Request, Response, Status};

use crate::layers::deadline::call_time;
use crate::memory::Hosting;
use crate::node::{Node, Standing};
use crate::overview::{Depth, overview};
use crate::proto::admin_service_server::AdminService;
use crate::wire::Reader;
use crate::{peer, proto, wire};

/// Leases in one part of a dump.
const PART_LEASES: usize = 500;

/// The service.
#[derive(Debug)]
pub(crate) struct Admin {
    node: Arc<Node>,
}

impl Admin {
    pub(crate) const fn new(node: Arc<Node>) -> Self {
        Self { node }
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn drain(&self, request: Request<proto::DrainRequest>) -> Result<Response<proto::DrainResponse>, Status> {
        let call = call_time(&request);
        let proto::DrainRequest { resume, wait } = request.into_inner();
        let mut reader = Reader::default();
        let wait = reader.duration("wait", wait).unwrap_or_default();
        if wait > limits::MAX_WAIT {
            let rule = format!("must be at most {} s", limits::MAX_WAIT.as_secs());
            reader.problem("wait", format!("{wait:?}"), &rule, "wait for less, and ask again");
        }
        if resume && !wait.is_zero() {
            reader.problem("wait", format!("{wait:?}"), "excludes resume", "there is nothing to wait for");
        }
        reader.finish(())?;
        // Listened to before the first look, so that no release falls between.
        let (mut changes, mut standing) = (self.node.changes(), self.node.standing());
        let (mut leases, mut capacity) = self.node.drain(resume, call.deadline(wait))?;
        let until = self.node.clock.instant(self.node.clock.now().saturating_add(wait).min(call.deadline(wait)));
        while leases > 0 && !wait.is_zero() && capacity.draining {
            let Some(until) = until else { break };
            tokio::select! {
                news = changes.changed() => if news.is_err() { break },
                () = tokio::time::sleep_until(until) => break,
                _ = standing.wait_for(|standing| *standing == Standing::Stopping) => break,
            }
            let seen = self.node.overview()?;
            (leases, capacity) = (seen.leases.iter().map(|(_, count)| count).sum(), seen.capacity);
        }
        Ok(Response::new(proto::DrainResponse { leases, capacity: Some(capacity), empty: leases == 0 }))
    }

    async fn get_server_info(
        &self,
        _: Request<proto::GetServerInfoRequest>,
    ) -> Result<Response<proto::GetServerInfoResponse>, Status> {
        let node = &self.node;
        let seen = node.overview()?;
        Ok(Response::new(proto::GetServerInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: node.epoch().get(),
            model: node.config.model.clone(),
            backing: if node.hosting().is_some() { "memory" } else { "none" }.to_owned(),
            page_tokens: node.config.capacity.page_tokens,
            host_bytes: node.config.budget.as_ref().map_or(0, |plan| plan.host_bytes),
            addresses: node.addresses.clone(),
            start_time: Some(wire::timestamp_to_proto(node.clock.wall(Moment::ORIGIN))),
            uptime: Some(wire::duration_to_proto(node.clock.now().since_origin())),
            draining: seen.capacity.draining,
            waiters: seen.waiters as u64,
            segments: node.hosting().and_then(Hosting::made).map(wire::segments).unwrap_or_default(),
            notes: node.notes(),
            limits: bounds().into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        }))
    }

    async fn get_overview(
        &self,
        request: Request<proto::GetOverviewRequest>,
    ) -> Result<Response<proto::GetOverviewResponse>, Status> {
        let deadline = call_time(&request).deadline(Duration::ZERO);
        let asked = request.into_inner();
        Ok(Response::new(overview(&self.node, &asked.lengths, Depth::Whole, Some(deadline)).await?))
    }

    type DumpStream = Iter<std::vec::IntoIter<Result<proto::DumpResponse, Status>>>;

    async fn dump(&self, request: Request<proto::DumpRequest>) -> Result<Response<Self::DumpStream>, Status> {
        let deadline = call_time(&request).deadline(Duration::ZERO);
        peer::rights(&request)?.act_for_all()?;
        let capacity = self.node.decide(Some(deadline), |state, now| state.capacity(now, &self.node.clock))?;
        let leases = self.node.list(Listing::new(None, None, usize::MAX), deadline).await?;
        let shown: Vec<_> = leases.iter().map(|lease| wire::lease(lease, &self.node.clock, true)).collect();
        let first = proto::DumpResponse { capacity: Some(capacity), leases: Vec::new() };
        let rest = shown.chunks(PART_LEASES).map(|part| proto::DumpResponse { capacity: None, leases: part.to_vec() });
        let parts: Vec<_> = std::iter::once(first).chain(rest).map(Ok).collect();
        Ok(Response::new(tokio_stream::iter(parts)))
    }
}

/// The bounds a caller may meet, by the names they have in `limits.rs`.
fn bounds() -> [(&'static str, u64); 18] {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    [
        ("default_deadline_ms", ms(limits::DEFAULT_DEADLINE)),
        ("max_batch_requests", limits::MAX_BATCH_REQUESTS),
        ("max_calls_per_connection", limits::MAX_CALLS_PER_CONNECTION.into()),
        ("max_connections", limits::MAX_CONNECTIONS as u64),
        ("max_context_tokens", limits::MAX_CONTEXT_TOKENS),
        ("max_lengths_asked", limits::MAX_LENGTHS_ASKED),
        ("max_list_page_leases", limits::MAX_LIST_PAGE_LEASES as u64),
        ("max_prefix_hashes", limits::MAX_PREFIX_HASHES),
        ("max_received_bytes", limits::MAX_RECEIVED_BYTES as u64),
        ("max_request_id_bytes", limits::MAX_REQUEST_ID_BYTES),
        ("max_tenant_bytes", limits::MAX_TENANT_BYTES),
        ("max_tenants", limits::MAX_TENANTS),
        ("max_ttl_ms", ms(limits::MAX_TTL)),
        ("max_wait_ms", ms(limits::MAX_WAIT)),
        ("max_waiters", limits::MAX_WAITERS),
        ("max_watches", limits::MAX_WATCHES as u64),
        ("quarantine_bound_ms", ms(limits::QUARANTINE_BOUND)),
        ("uncommitted_ttl_ms", ms(limits::UNCOMMITTED_TTL)),
    ]
}
