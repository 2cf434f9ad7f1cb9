//! `AdmissionService`: reads what callers send, lets the node decide, shows what it decided. Every rule lies below.

use std::sync::Arc;
use std::time::Duration;

use hisparse_core::env::Moment;
use hisparse_core::ledger::{self, CommitBy, Epoch, Granted, LeaseId, Listing, Released, SessionId};
use hisparse_core::limits::{LIST_PAGE_LEASES, MAX_BATCH_REQUESTS, MAX_LIST_PAGE_LEASES};
use tonic::{Request, Response, Status};

use crate::admit::Several;
use crate::error::Refusal;
use crate::handover::{Handover, Parting};
use crate::layers::deadline::call_time;
use crate::layers::logging::Note;
use crate::layers::rate::Rate;
use crate::load_report::{LoadReport, Readable};
use crate::node::{Node, State};
use crate::proto::admission_service_server::AdmissionService;
use crate::proto::batch_admit_result::Outcome;
use crate::wire::Reader;
use crate::{peer, proto, wire};

mod reading;

use reading::{Name, read_admit, read_ttl, released_name};

/// The service.
#[derive(Debug)]
pub(crate) struct Admission {
    node: Arc<Node>,
}

impl Admission {
    pub(crate) const fn new(node: Arc<Node>) -> Self {
        Self { node }
    }

    /// The engine that calls, if one does.
    fn session<T>(&self, request: &Request<T>) -> Option<SessionId> {
        self.node.sessions.caller(request).map(|session| SessionId(session.number))
    }

    fn shown(&self, lease: &ledger::Lease) -> proto::Lease {
        wire::lease(lease, &self.node.clock, true)
    }

    /// A lease that the caller names with its epoch.
    fn named(&self, lease_id: &str, epoch: u64) -> Result<(LeaseId, Epoch), Refusal> {
        let current = self.node.epoch();
        let given = Epoch::new(epoch).ok_or_else(|| {
            Refusal::field("epoch", epoch, "must be the epoch of the lease", "send `lease.epoch` of Admit's answer")
        })?;
        // Before the look-up: a lease of an older pool is unknown here, and its holder should learn why.
        if given != current {
            return Err(ledger::Refusal::StaleEpoch { given, current }.into());
        }
        Ok((wire::lease_id(lease_id)?, given))
    }

    /// Decides on such a lease.
    fn on_lease<T>(
        &self,
        deadline: Moment,
        (lease_id, epoch): (&str, u64),
        decision: impl FnOnce(&mut State, LeaseId, Epoch, Moment) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let (id, epoch) = self.named(lease_id, epoch)?;
        self.node.decide(Some(deadline), |state, now| decision(state, id, epoch, now))?
    }
}

#[tonic::async_trait]
impl AdmissionService for Admission {
    async fn admit(&self, request: Request<proto::AdmitRequest>) -> Result<Response<proto::AdmitResponse>, Status> {
        let call = call_time(&request);
        let rights = peer::rights(&request)?;
        let readable = Readable::wanted(request.metadata());
        let note = Note::of(&request);
        let message = request.into_inner();
        note.requests([&message]);
        let validate_only = message.validate_only;
        let allowed = rights.act_for(&message.tenant);
        let answer = match allowed.and_then(|()| read_admit(message, self.node.config.capacity.page_tokens)) {
            Ok((asked, _)) if validate_only => self.node.validate(&asked, call),
            Ok((asked, wait)) => self.node.admit(asked, wait, call).await,
            Err(refusal) => self.node.refuse_unread(refusal, call),
        };
        let (granted, capacity) = answer.map_err(|refusal| with_load(refusal, readable))?;
        // From the same poll on that brought the answer, so that no cancellation falls between.
        let handovers = self.node.hand_over([&granted]).into_iter().collect();
        let Granted { lease, repeated } = granted;
        let report = LoadReport::of(&capacity);
        let lease = self.shown(&lease);
        note.lease(0, &lease);
        let answer = proto::AdmitResponse { lease: Some(lease), capacity: Some(capacity), repeated_request: repeated };
        Ok(parting(answer, handovers, &report, readable))
    }

    async fn commit(&self, request: Request<proto::CommitRequest>) -> Result<Response<proto::CommitResponse>, Status> {
        let deadline = call_time(&request).deadline(Duration::ZERO);
        let session = self.session(&request);
        let (rights, note) = (peer::rights(&request)?, Note::of(&request));
        let message = request.into_inner();
        note.named(&message.lease_id, "", &message.tenant);
        rights.act_for(&message.tenant)?;
        let ttl = read_ttl(message.ttl)?;
        let lease = self.on_lease(deadline, (&message.lease_id, message.epoch), |state, id, epoch, now| {
            // An engine that names a ttl wants to renew, as a router does.
            let by = match (session, ttl) {
                (Some(session), None) => self.node.sessions.commit_by(session)?,
                _ => CommitBy::Router { ttl },
            };
            Ok(state.ledger.commit(id, Some(&message.tenant), epoch, by, now)?)
        })?;
        let lease = self.shown(&lease);
        note.lease(0, &lease);
        Ok(Response::new(proto::CommitResponse { lease: Some(lease) }))
    }

    async fn extend(&self, request: Request<proto::ExtendRequest>) -> Result<Response<proto::ExtendResponse>, Status> {
        let deadline = call_time(&request).deadline(Duration::ZERO);
        let (rights, note) = (peer::rights(&request)?, Note::of(&request));
        let message = request.into_inner();
        note.named(&message.lease_id, "", &message.tenant);
        rights.act_for(&message.tenant)?;
        let (id, epoch) = self.named(&message.lease_id, message.epoch)?;
        let tenant = message.tenant.as_str();
        let extended = self.node.decide_for_zeroes(deadline, |state, now| {
            match state.ledger.extend(id, Some(tenant), epoch, message.tokens, now) {
                Ok(lease) => (Ok(lease), false),
                Err(refusal) => {
                    let zeroes_will_do = state.ledger.lacks_only_zeroes(tenant, &refusal);
                    (Err(state.refused(refusal, now, &self.node.clock)), zeroes_will_do)
                }
            }
        });
        let lease = self.shown(&extended.await??);
        note.lease(0, &lease);
        Ok(Response::new(proto::ExtendResponse { lease: Some(lease) }))
    }

    async fn renew(&self, request: Request<proto::RenewRequest>) -> Result<Response<proto::RenewResponse>, Status> {
        let deadline = call_time(&request).deadline(Duration::ZERO);
        let (rights, note) = (peer::rights(&request)?, Note::of(&request));
        let message = request.into_inner();
        note.named(&message.lease_id, "", &message.tenant);
        rights.act_for(&message.tenant)?;
        let ttl = read_ttl(message.ttl)?;
        let lease = self.on_lease(deadline, (&message.lease_id, message.epoch), |state, id, epoch, now| {
            Ok(state.ledger.renew(id, Some(&message.tenant), epoch, ttl, now)?)
        })?;
        let lease = self.shown(&lease);
        note.lease(0, &lease);
        Ok(Response::new(proto::RenewResponse { lease: Some(lease) }))
    }

    async fn release(
        &self,
        request: Request<proto::ReleaseRequest>,
    ) -> Result<Response<proto::ReleaseResponse>, Status> {
        let deadline = call_time(&request).deadline(Duration::ZERO);
        let session = self.session(&request);
        let (rights, note) = (peer::rights(&request)?, Note::of(&request));
        let message = request.into_inner();
        note.named(&message.lease_id, &message.request_id, &message.tenant);
        rights.act_for(&message.tenant)?;
        let name = released_name(&message)?;
        let tenant = message.tenant.as_str();
        let released = self.node.decide(Some(deadline), |state, now| {
            let released = match name {
                Name::Lease(id) => state.ledger.release(id, Some(tenant), session, now)?,
                Name::Request(request_id) => state.ledger.release_request(&request_id.into(), tenant, session, now),
            };
            if released == Released::Freed {
                state.pace.freed(now);
            }
            Ok::<_, ledger::Refusal>(released)
        })?;
        let released = released.map_err(Refusal::from)?;
        Ok(Response::new(proto::ReleaseResponse {
            already_released: released == Released::Already,
            quarantined: released == Released::Quarantined,
        }))
    }

    async fn batch_admit(
        &self,
        request: Request<proto::BatchAdmitRequest>,
    ) -> Result<Response<proto::BatchAdmitResponse>, Status> {
        let (call, rights) = (call_time(&request), peer::rights(&request)?);
        let rate = request.extensions().get::<Arc<Rate>>().cloned();
        let readable = Readable::wanted(request.metadata());
        let note = Note::of(&request);
        let proto::BatchAdmitRequest { requests, partial } = request.into_inner();
        if requests.is_empty() || requests.len() as u64 > MAX_BATCH_REQUESTS {
            let rule = format!("must hold 1 to {MAX_BATCH_REQUESTS} requests");
            return Err(Refusal::field("requests", requests.len(), &rule, "send them in several batches").into());
        }
        note.requests(&requests);
        // All is read before anything is decided: a malformed batch changes nothing.
        let mut asked = Vec::with_capacity(requests.len());
        let mut reader = Reader::default();
        for (place, message) in requests.into_iter().enumerate() {
            for (field, set) in [("wait", message.wait.is_some()), ("validate_only", message.validate_only)] {
                if set {
                    let field = format!("requests[{place}].{field}");
                    reader.problem(&field, "set", "has no meaning in a batch", "leave it out, or call Admit");
                }
            }
            rights.act_for(&message.tenant)?;
            match read_admit(message, self.node.config.capacity.page_tokens) {
                Ok((request, _)) => asked.push(request),
                Err(refusal) => reader.refused(&format!("requests[{place}]"), refusal),
            }
        }
        reader.finish(())?;
        if let Some(rate) = rate {
            rate.charge(asked.len() as u64 - 1); // the layer has taken one
        }
        let Several { answers, capacity, handovers } = if partial {
            self.node.admit_each(asked, call).await?
        } else {
            let decided = self.node.admit_all(&asked, call).await;
            let (granted, capacity) = decided.map_err(|refusal| with_load(refusal, readable))?;
            let handovers = self.node.hand_over(&granted).into_iter().collect();
            Several { answers: granted.into_iter().map(Ok).collect(), capacity, handovers }
        };
        let report = LoadReport::of(&capacity);
        let results = answers.into_iter().enumerate().map(|(place, answer)| match answer {
            Ok(Granted { lease, repeated }) => {
                let lease = self.shown(&lease);
                note.lease(place, &lease);
                proto::BatchAdmitResult { outcome: Some(Outcome::Lease(lease)), repeated_request: repeated }
            }
            Err(refusal) => {
                let refusal = refusal.into();
                note.refused(place, &refusal);
                proto::BatchAdmitResult { outcome: Some(Outcome::Refusal(refusal)), repeated_request: false }
            }
        });
        let answer = proto::BatchAdmitResponse { results: results.collect(), capacity: Some(capacity) };
        Ok(parting(answer, handovers, &report, readable))
    }

    async fn get_lease(
        &self,
        request: Request<proto::GetLeaseRequest>,
    ) -> Result<Response<proto::GetLeaseResponse>, Status> {
        let deadline = call_time(&request).deadline(Duration::ZERO);
        let rights = peer::rights(&request)?;
        let message = request.into_inner();
        rights.act_for(&message.tenant)?;
        let id = wire::lease_id(&message.lease_id)?;
        let found = self.node.decide(Some(deadline), |state, _| state.ledger.get(id, Some(&message.tenant)))?;
        let lease = found.map_err(Refusal::from)?;
        Ok(Response::new(proto::GetLeaseResponse { lease: Some(self.shown(&lease)) }))
    }

    async fn list_leases(
        &self,
        request: Request<proto::ListLeasesRequest>,
    ) -> Result<Response<proto::ListLeasesResponse>, Status> {
        let deadline = call_time(&request).deadline(Duration::ZERO);
        let rights = peer::rights(&request)?;
        let message = request.into_inner();
        let most = match message.page_size as usize {
            0 => LIST_PAGE_LEASES,
            size => size.min(MAX_LIST_PAGE_LEASES),
        };
        let after = match message.page_token.as_str() {
            "" => None,
            token => Some(token.parse::<LeaseId>().map_err(|_| {
                let rule = "must be a token of an earlier answer";
                Refusal::field("page_token", format!("{token:.80}"), rule, "send `next_page_token`, or nothing")
            })?),
        };
        let tenants: Option<Vec<&str>> = match message.tenant.as_str() {
            "" => rights.tenants().map(|tenants| tenants.iter().map(String::as_str).collect()),
            tenant => {
                rights.act_for(tenant)?;
                Some(vec![tenant])
            }
        };
        // One more than asked for tells whether there is a next page.
        let listing = Listing::new(tenants.as_deref(), after, most + 1);
        let mut leases = self.node.list(listing, deadline).await?;
        let more = leases.len() > most;
        leases.truncate(most);
        let last = leases.last().filter(|_| more).and_then(|lease| lease.id);
        Ok(Response::new(proto::ListLeasesResponse {
            leases: leases.iter().map(|lease| wire::lease(lease, &self.node.clock, false)).collect(),
            next_page_token: last.map(|id| id.to_string()).unwrap_or_default(),
        }))
    }
}

/// An answer that hands leases over, and says how loaded the node is.
fn parting<T>(answer: T, handovers: Vec<Handover>, report: &LoadReport, readable: Option<Readable>) -> Response<T> {
    let mut response = Response::new(answer);
    if let Some(form) = readable {
        report.put_readable(form, response.metadata_mut());
    }
    let trailers = report.trailers().into_headers();
    response.extensions_mut().insert(Parting { handovers, trailers });
    response
}

/// A refusal that says how loaded the node is, where it knows.
fn with_load(refusal: Refusal, readable: Option<Readable>) -> Status {
    let report = refusal.capacity().map(LoadReport::of);
    let mut status = Status::from(refusal);
    if let Some(report) = report {
        *status.metadata_mut() = report.trailers();
        if let Some(form) = readable {
            report.put_readable(form, status.metadata_mut());
        }
    }
    status
}
