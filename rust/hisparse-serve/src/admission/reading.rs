//! What callers of `AdmissionService` send, read: every problem of one message together.

use std::time::Duration;

use hisparse_core::ledger::{AdmitRequest, Epoch, LeaseId, Length};
use hisparse_core::limits::MAX_WAIT;

use crate::error::Refusal;
use crate::wire::Reader;
use crate::{proto, wire};

/// What a release names.
pub(super) enum Name<'a> {
    Lease(LeaseId),
    Request(&'a str),
}

pub(super) fn released_name(message: &proto::ReleaseRequest) -> Result<Name<'_>, Refusal> {
    match (message.lease_id.as_str(), message.request_id.as_str()) {
        ("", "") => Err(Refusal::field("lease_id", "missing", "names what to release", "give lease_id or request_id")),
        (lease_id, "") => Ok(Name::Lease(wire::lease_id(lease_id)?)),
        ("", request_id) => Ok(Name::Request(request_id)),
        (_, request_id) => {
            let rule = "excludes lease_id";
            Err(Refusal::field("request_id", format!("{request_id:.80}"), rule, "give one of the two"))
        }
    }
}

/// How long a caller wants its lease to live.
///
/// # Errors
/// No length of time.
pub(super) fn read_ttl(given: Option<prost_types::Duration>) -> Result<Option<Duration>, Refusal> {
    let mut reader = Reader::default();
    let ttl = reader.duration("ttl", given);
    reader.finish(ttl)
}

/// Reads a request and its wait. The ledger's own rules are asked as well, so that everything wrong comes back together.
pub(super) fn read_admit(message: proto::AdmitRequest, page_tokens: u64) -> Result<(AdmitRequest, Duration), Refusal> {
    let mut reader = Reader::default();
    let tokens = [message.prompt_tokens, message.generated_tokens, message.max_new_tokens];
    let length = if message.pages == 0 {
        Length::Tokens { prompt: tokens[0], generated: tokens[1], max_new: tokens[2] }
    } else {
        if tokens.iter().any(|count| *count > 0) {
            reader.problem("pages", message.pages, "excludes token counts", "give either pages or tokens");
        }
        Length::Pages(message.pages)
    };
    let epoch = match message.epoch {
        0 => None,
        given => Epoch::new(given).or_else(|| {
            reader.problem("epoch", given, "is no epoch", "send `epoch` of GetCapacity's answer, or 0 for any");
            None
        }),
    };
    let wait = reader.duration("wait", message.wait).unwrap_or_default();
    if wait > MAX_WAIT {
        let rule = format!("must be at most {} s", MAX_WAIT.as_secs());
        reader.problem("wait", format!("{wait:?}"), &rule, "wait for less, and ask again");
    }
    let ttl = reader.duration("ttl", message.ttl);
    let prefix_hashes = reader.hashes("prefix_hashes", &message.prefix_hashes);
    let request = AdmitRequest {
        request_id: message.request_id.into(),
        tenant: message.tenant.into(),
        length,
        prefix_hashes,
        priority: message.priority,
        ttl,
        epoch,
    };
    if let Err(problems) = request.checked_tokens(page_tokens) {
        reader.problems(problems);
    }
    reader.finish((request, wait))
}
