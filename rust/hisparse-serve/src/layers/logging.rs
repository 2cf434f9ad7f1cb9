//! One line in the log for each call that reserves, keeps or gives back, and for each request of a batch.
//!
//! ```text
//!  call ─► Note in its extensions ─► … ─► handler writes down request, tenant, lease
//!    └── answer, or nobody waits any more (CANCELLED) ◄── line per subject: code, reason, time, who, trace
//! ```
//! Without a log the layer hands calls on as they are. Looks at the node are not logged: they change nothing, and a
//! router takes twenty a second.

use std::sync::{Arc, Mutex, PoisonError};

use hisparse_core::env::{Clock, Moment};
use http::{HeaderMap, Request};
use serde::Serialize;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::layers::gate::{Answer, Calls, Layer};
use crate::log::{Level, Log, us};
use crate::peer::Peer;
use crate::proto;
use crate::trace::TraceContext;

/// Services whose calls are logged.
const LOGGED: [&str; 3] = ["AdmissionService", "EngineService", "AdminService"];
/// Of these, the ones that only look.
const LOOKS: [&str; 4] = ["GetLease", "ListLeases", "GetServerInfo", "Dump"];

/// What a call is about, as its handler knows it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Subject {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) request_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) tenant: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) lease_id: String,
    /// Tokens reserved.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) tokens: u64,
    /// Its own refusal, where it is one of a batch that was decided on one by one.
    #[serde(skip)]
    refused: Option<(Code, String)>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde hands it a reference
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Where a handler writes down what its call is about. Without a log it is nowhere, and costs nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Note(Option<Arc<Mutex<Vec<Subject>>>>);

impl Note {
    /// That of a call.
    pub(crate) fn of<T>(request: &tonic::Request<T>) -> Self {
        request.extensions().get().cloned().unwrap_or_default()
    }

    fn subjects<T>(&self, work: impl FnOnce(&mut Vec<Subject>) -> T) -> Option<T> {
        let subjects = self.0.as_ref()?;
        Some(work(&mut subjects.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// It is about these requests.
    pub(crate) fn requests<'a>(&self, asked: impl IntoIterator<Item = &'a proto::AdmitRequest>) {
        self.subjects(|subjects| {
            subjects.extend(asked.into_iter().map(|asked| Subject {
                request_id: asked.request_id.clone(),
                tenant: asked.tenant.clone(),
                ..Subject::default()
            }));
        });
    }

    /// It is about one lease or request, as the caller names it.
    pub(crate) fn named(&self, lease_id: &str, request_id: &str, tenant: &str) {
        self.subjects(|subjects| {
            subjects.push(Subject {
                lease_id: lease_id.to_owned(),
                request_id: request_id.to_owned(),
                tenant: tenant.to_owned(),
                ..Subject::default()
            });
        });
    }

    /// The request at this place has a lease.
    pub(crate) fn lease(&self, place: usize, lease: &proto::Lease) {
        self.subjects(|subjects| {
            if let Some(subject) = subjects.get_mut(place) {
                subject.lease_id.clone_from(&lease.id);
                subject.request_id.clone_from(&lease.request_id);
                subject.tenant.clone_from(&lease.tenant);
                subject.tokens = lease.tokens;
            }
        });
    }

    /// The request at this place was refused by itself.
    pub(crate) fn refused(&self, place: usize, refusal: &proto::Refusal) {
        self.subjects(|subjects| {
            if let Some(subject) = subjects.get_mut(place) {
                subject.refused = Some((Code::from(refusal.code), refusal.reason.clone()));
            }
        });
    }
}

/// Writes down what became of calls.
#[derive(Clone, Debug)]
pub(crate) struct Logging {
    log: Option<Arc<Log>>,
    peer: Arc<Peer>,
}

impl Logging {
    pub(crate) const fn new(log: Option<Arc<Log>>, peer: Arc<Peer>) -> Self {
        Self { log, peer }
    }
}

impl Layer for Logging {
    fn pass(&self, mut request: Request<Body>, next: &mut impl Calls) -> Answer {
        let Logging { log, peer } = self;
        let (Some(log), Some(call)) = (log, logged(request.uri().path())) else { return next.call(request) };
        let mut entry = Entry {
            arrived: log.clock().now(),
            log: Arc::clone(log),
            call: call.to_owned(),
            peer: Arc::clone(peer),
            trace: TraceContext::of(request.headers()),
            note: Note(Some(Arc::default())),
            ended: None,
        };
        request.extensions_mut().insert(entry.note.clone());
        let answer = next.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            entry.answered(answer.headers());
            Ok(answer)
        })
    }
}

/// The method's name, where its calls are logged.
fn logged(path: &str) -> Option<&str> {
    let (service, method) = path.strip_prefix("/hisparse.v1.")?.split_once('/')?;
    (LOGGED.contains(&service) && !LOOKS.contains(&method)).then_some(method)
}

/// A call whose line is written when it is dropped: with its answer, or because nobody waits for one.
struct Entry {
    log: Arc<Log>,
    call: String,
    peer: Arc<Peer>,
    trace: Option<TraceContext>,
    arrived: Moment,
    note: Note,
    ended: Option<(Code, String)>,
}

impl Entry {
    /// The call has its answer; one that is a refusal alone has it in its headers.
    fn answered(&mut self, headers: &HeaderMap) {
        self.ended = Some(match Status::from_header_map(headers) {
            None => (Code::Ok, String::new()),
            Some(status) => {
                let reason = status.get_details_error_info().map(|info| info.reason);
                (status.code(), reason.unwrap_or_default())
            }
        });
    }
}

/// A call as the log has it.
#[derive(Serialize)]
struct Told<'a> {
    call: &'a str,
    code: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    took_us: u64,
    peer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    span_id: Option<String>,
    #[serde(flatten)]
    subject: &'a Subject,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let cancelled = || (Code::Cancelled, String::new());
        let (code, reason) = self.ended.take().unwrap_or_else(cancelled);
        let took_us = us(self.log.clock().now().saturating_since(self.arrived));
        let subjects = self.note.subjects(std::mem::take).unwrap_or_default();
        // A call that was turned away before its message was read is about nothing that is known.
        let unknown = [Subject::default()];
        for subject in if subjects.is_empty() { &unknown[..] } else { &subjects } {
            let (code, reason) = subject.refused.as_ref().map_or((code, &reason), |(code, reason)| (*code, reason));
            // The caller's own fault, a full node and a node that drains are its caller's to know.
            let level = if matches!(code, Code::Internal | Code::Unknown) { Level::Error } else { Level::Info };
            let told = Told {
                call: &self.call,
                code: name(code),
                reason,
                took_us,
                peer: self.peer.user.to_string(),
                pid: self.peer.pid,
                trace_id: self.trace.map(TraceContext::trace_id),
                span_id: self.trace.map(TraceContext::span_id),
                subject,
            };
            self.log.write(level, "call", told);
        }
    }
}

/// A code as gRPC writes it: `RESOURCE_EXHAUSTED`.
fn name(code: Code) -> String {
    let words = format!("{code:?}");
    let mut name = String::with_capacity(words.len() + 4);
    for (place, letter) in words.chars().enumerate() {
        if letter.is_ascii_uppercase() && place > 0 {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_names_of_the_protocol() {
        for (code, wanted) in
            [(Code::Ok, "OK"), (Code::ResourceExhausted, "RESOURCE_EXHAUSTED"), (Code::Unavailable, "UNAVAILABLE")]
        {
            assert_eq!(name(code), wanted);
        }
    }

    #[test]
    fn what_changes_something_is_logged_and_a_look_is_not() {
        assert_eq!(logged("/hisparse.v1.AdmissionService/Admit"), Some("Admit"));
        assert_eq!(logged("/hisparse.v1.AdminService/Drain"), Some("Drain"));
        for path in [
            "/hisparse.v1.AdmissionService/GetLease",
            "/hisparse.v1.CapacityService/GetCapacity",
            "/grpc.health.v1.Health/Check",
            "/x",
            "",
        ] {
            assert_eq!(logged(path), None, "{path}");
        }
    }
}
