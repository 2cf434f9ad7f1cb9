//! `EngineService`: what an attached engine tells the node. Served on the Unix socket alone, where the kernel says who
//! calls: the process that attached as the writer speaks for its session, and nobody else does.

use std::sync::Arc;
use std::time::Duration;

use hisparse_core::ledger::{self, Epoch, SessionId, Walk};
use hisparse_core::limits::{MAX_PREFIX_HASHES, MAX_USAGE_ENTRIES};
use hisparse_mem::attach::server::Session;
use tonic::{Request, Response, Status};

use crate::error::Refusal;
use crate::layers::deadline::call_time;
use crate::layers::logging::Note;
use crate::node::Node;
use crate::proto::engine_service_server::EngineService;
use crate::wire::Reader;
use crate::{proto, wire};

/// The service.
#[derive(Debug)]
pub(crate) struct Engine {
    node: Arc<Node>,
}

impl Engine {
    pub(crate) const fn new(node: Arc<Node>) -> Self {
        Self { node }
    }

    fn caller<T>(&self, request: &Request<T>) -> Result<Session, Refusal> {
        self.node.sessions.caller(request).ok_or(Refusal::NotAttached)
    }
}

#[tonic::async_trait]
impl EngineService for Engine {
    async fn publish(
        &self,
        request: Request<proto::PublishRequest>,
    ) -> Result<Response<proto::PublishResponse>, Status> {
        let deadline = call_time(&request).deadline(Duration::ZERO);
        let session = SessionId(self.caller(&request)?.number);
        let note = Note::of(&request);
        let message = request.into_inner();
        note.named(&message.lease_id, "", "");
        let id = wire::lease_id(&message.lease_id)?;
        let mut reader = Reader::default();
        let most = usize::try_from(MAX_PREFIX_HASHES).unwrap_or(usize::MAX);
        if message.hashes.is_empty() || message.hashes.len() > most {
            let rule = format!("must hold 1 to {MAX_PREFIX_HASHES} hashes");
            reader.problem("hashes", message.hashes.len(), &rule, "publish in several calls");
        }
        let hashes = reader.hashes("hashes", &message.hashes);
        // What stands in for a wrong value is never used: `finish` returns the problem.
        let epoch = Epoch::new(message.epoch).unwrap_or_else(|| {
            let remedy = "send `lease.epoch` of Admit's answer";
            reader.problem("epoch", message.epoch, "must be the epoch of the lease", remedy);
            Epoch::FIRST
        });
        let first = u32::try_from(message.first_page_index).unwrap_or_else(|_| {
            reader.problem("first_page_index", message.first_page_index, "must be a page of the lease", "count from 0");
            0
        });
        reader.finish(())?;
        let durable = self.node.decide(Some(deadline), |state, now| {
            state.ledger.check_held(id, session)?;
            state.ledger.publish(id, epoch, first, &hashes, now)?;
            state.ledger.get(id, None).map(|lease| lease.durable_pages)
        })?;
        let durable_pages = durable.map_err(Refusal::from)?.into();
        Ok(Response::new(proto::PublishResponse { durable_pages }))
    }

    async fn reclaim(
        &self,
        request: Request<proto::ReclaimRequest>,
    ) -> Result<Response<proto::ReclaimResponse>, Status> {
        let deadline = call_time(&request).deadline(Duration::ZERO);
        let session = self.caller(&request)?;
        let message = request.into_inner();
        if session.hello.engine_id != message.engine_id {
            return Err(Refusal::NotPredecessor.into());
        }
        let dead = self.node.sessions.predecessor(&message.engine_id, &message.token);
        let dead = dead.ok_or(Refusal::NotPredecessor)?;
        let successor = SessionId(session.number);
        // All it holds, so that a call repeated after a lost answer says the same; so does one that was cut short by its
        // deadline, which is then done in part.
        let (mut leases, mut walk) = (Vec::new(), Walk::default());
        while let Some(held) = self.node.reclaim_in_part(dead, successor, &mut walk, Some(deadline))? {
            leases.extend(held);
            tokio::task::yield_now().await;
        }
        leases.sort_unstable_by_key(|lease| lease.id);
        let page_tokens = self.node.config.capacity.page_tokens;
        let shown = |lease: &ledger::Lease| proto::ReclaimedLease {
            durable_tokens: (u64::from(lease.durable_pages) * page_tokens).min(lease.tokens.get()),
            lease: Some(wire::lease(lease, &self.node.clock, true)),
        };
        Ok(Response::new(proto::ReclaimResponse { leases: leases.iter().map(shown).collect() }))
    }

    async fn report_usage(
        &self,
        request: Request<proto::ReportUsageRequest>,
    ) -> Result<Response<proto::ReportUsageResponse>, Status> {
        self.caller(&request)?;
        let report = request.into_inner();
        let (usage, swap_in) = (&report.usage, self.node.counters().swap_in());
        let mut reader = Reader::default();
        if usage.len() > MAX_USAGE_ENTRIES {
            let rule = format!("must hold at most {MAX_USAGE_ENTRIES} entries");
            reader.problem("usage", usage.len(), &rule, "report in several calls");
        }
        for (place, entry) in usage.iter().enumerate().take(MAX_USAGE_ENTRIES) {
            if let Err(refusal) = wire::lease_id(&entry.lease_id) {
                reader.refused(&format!("usage[{place}]"), refusal);
                break; // the first one tells what is wrong with the caller
            }
        }
        let groups = swap_in.groups();
        if report.swap_in.len() > groups {
            let rule = format!("must hold at most {groups} entries, one per layer group of the pool");
            reader.problem("swap_in", report.swap_in.len(), &rule, "add the rows of one group up");
        }
        for (place, entry) in report.swap_in.iter().enumerate().take(groups) {
            if usize::try_from(entry.layer_group).is_ok_and(|group| group >= groups) {
                let (field, rule) = (format!("swap_in[{place}].layer_group"), format!("must be below {groups}"));
                reader.problem(&field, entry.layer_group, &rule, "number the groups as the pool's layout does, from 0");
            }
        }
        let exposed = reader.duration("exposed", report.exposed).unwrap_or_default();
        reader.finish(())?;
        swap_in.reported(&report, exposed);
        Ok(Response::new(proto::ReportUsageResponse {}))
    }
}
