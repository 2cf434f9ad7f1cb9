//! The one place where a refusal becomes a gRPC status.
//!
//! ```text
//!  Refusal ──► code, message, google.rpc details ──► Status of a call
//!                                               └──► proto::Refusal inside a batch
//! ```
//! | refusal | code | reason |
//! |---|---|---|
//! | malformed, a bad field | `INVALID_ARGUMENT` | (none: `BadRequest` names the fields) |
//! | another tenant's lease | `PERMISSION_DENIED` | (none) |
//! | a call that needs another role | `PERMISSION_DENIED` | `WRONG_ROLE` |
//! | a tenant that the caller is not to act for | `PERMISSION_DENIED` | `WRONG_TENANT` |
//! | never fits | `FAILED_PRECONDITION` | `NEVER_FITS` |
//! | stale epoch | `FAILED_PRECONDITION` | `STALE_EPOCH` |
//! | busy | `RESOURCE_EXHAUSTED` | `POOL_BUSY` |
//! | tenant quota | `RESOURCE_EXHAUSTED` | `QUOTA` |
//! | draining, overloaded | `UNAVAILABLE` | `DRAINING`, `OVERLOADED` |
//! | no such lease, or not in that state | `NOT_FOUND` | `LEASE_NOT_FOUND` |
//! | request id reused | `ALREADY_EXISTS` | `REQUEST_ID_REUSED` |
//! | past its deadline | `DEADLINE_EXCEEDED` | `DEADLINE` |
//! | the pool is being made, or old leases may be in use | `UNAVAILABLE` | `RECOVERING` |
//! | not the engine it says it is | `PERMISSION_DENIED` | (none) |
//! | a fault of our own | `INTERNAL` | (none) |
//!
//! Everything variable in a message is in the details as well, so that no caller parses text.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::ledger::{self, Pool};
use hisparse_core::limits::{MAX_RETRY_DELAY, MIN_RETRY_DELAY};
use tonic::Code;

use crate::pool_bytes::PoolBytes;
use crate::proto;
use crate::role::Role;

mod status;

/// Longest message, in bytes; it travels twice.
const MAX_MESSAGE_BYTES: usize = 512;
/// When to try again while the pool is made: pages are made by the gigabyte per second.
const POOL_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Refusal {
    /// The ledger says no.
    Ledger(ledger::Refusal),
    /// The ledger says not now, while so many requests wait.
    Busy { refusal: ledger::Refusal, waiting: usize, retry: Duration, capacity: Box<proto::Capacity> },
    /// The request breaks a rule of the interface.
    Invalid(Problems),
    /// A bound of the service itself is reached.
    Overloaded { what: &'static str, limit: u64 },
    /// No decision before the call's deadline; nothing changed.
    Deadline,
    /// The server is stopping.
    Stopping,
    /// What an earlier start granted is unknown, and may be in use.
    Learning,
    /// The pool's bytes are not there: yet, or at all.
    NoPool(PoolBytes),
    /// The caller has none of the roles that the call needs.
    WrongRole { needed: &'static [Role] },
    /// The caller is held to other tenants.
    NotYourTenant { yours: Arc<BTreeSet<String>> },
    /// The caller has no session that writes.
    NotAttached,
    /// No session of that engine with that token has ended here.
    NotPredecessor,
    /// A decision panicked: what the ledger says may be wrong, so nothing more is decided.
    Poisoned,
    /// Something beside the ledger broke off.
    Failed(&'static str),
    /// A batch that is granted whole or not at all: the request at this place was refused, and so none is granted.
    OfBatch { place: usize, cause: Box<Refusal> },
}

impl Refusal {
    /// A request with one field at fault.
    pub(crate) fn field(field: &str, value: impl fmt::Display, rule: &str, remedy: &str) -> Self {
        Self::Invalid(Problems::one(Problem::new(field, value, rule, remedy)))
    }

    /// What is refused, where a batch is.
    fn cause(&self) -> &Self {
        match self {
            Self::OfBatch { cause, .. } => cause,
            other => other,
        }
    }

    /// The status code.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::OfBatch { cause, .. } => cause.code(),
            Self::Ledger(refusal) | Self::Busy { refusal, .. } => match refusal {
                ledger::Refusal::Malformed(_) => Code::InvalidArgument,
                ledger::Refusal::OtherTenant { .. } => Code::PermissionDenied,
                ledger::Refusal::NeverFits { .. } | ledger::Refusal::StaleEpoch { .. } => Code::FailedPrecondition,
                ledger::Refusal::PoolBusy { .. }
                | ledger::Refusal::Quota { .. }
                | ledger::Refusal::TooManyTenants { .. } => Code::ResourceExhausted,
                ledger::Refusal::Draining => Code::Unavailable,
                ledger::Refusal::LeaseNotFound { .. } | ledger::Refusal::WrongState { .. } => Code::NotFound,
                ledger::Refusal::RequestIdReused { .. } => Code::AlreadyExists,
                _ => Code::Internal,
            },
            Self::Invalid(_) => Code::InvalidArgument,
            Self::Overloaded { .. } | Self::Stopping | Self::Learning | Self::NoPool(_) => Code::Unavailable,
            Self::NotAttached | Self::NotPredecessor | Self::WrongRole { .. } | Self::NotYourTenant { .. } => {
                Code::PermissionDenied
            }
            Self::Deadline => Code::DeadlineExceeded,
            Self::Poisoned | Self::Failed(_) => Code::Internal,
        }
    }

    /// `ErrorInfo.reason`; empty where the code says it all.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::OfBatch { cause, .. } => cause.reason(),
            Self::Ledger(refusal) | Self::Busy { refusal, .. } => refusal.reason().unwrap_or_default(),
            Self::Overloaded { .. } => "OVERLOADED",
            Self::Stopping => "DRAINING",
            Self::Learning | Self::NoPool(_) => "RECOVERING",
            Self::Deadline => "DEADLINE",
            Self::WrongRole { .. } => "WRONG_ROLE",
            Self::NotYourTenant { .. } => "WRONG_TENANT",
            Self::Invalid(_) | Self::Poisoned | Self::Failed(_) | Self::NotAttached | Self::NotPredecessor => "",
        }
    }

    /// When trying again may help.
    fn retry(&self) -> Option<Duration> {
        match self.cause() {
            Self::Busy { retry, .. } => Some(*retry),
            Self::Overloaded { .. } => Some(MIN_RETRY_DELAY),
            Self::NoPool(PoolBytes::Making | PoolBytes::Elsewhere) => Some(POOL_RETRY_DELAY),
            Self::Stopping | Self::Learning | Self::NoPool(_) | Self::Ledger(ledger::Refusal::Draining) => {
                Some(MAX_RETRY_DELAY)
            }
            _ => None,
        }
    }

    /// The node as it is, where the refusal says.
    pub(crate) fn capacity(&self) -> Option<&proto::Capacity> {
        match self.cause() {
            Self::Busy { capacity, .. } => Some(capacity),
            _ => None,
        }
    }

    /// The pool or quota that refused.
    fn binding(&self) -> &'static str {
        match self.cause() {
            Self::Ledger(refusal) | Self::Busy { refusal, .. } => refusal.binding().unwrap_or_default(),
            _ => "",
        }
    }

    /// What it says to people.
    pub(crate) fn message(&self) -> String {
        let text = match self {
            Self::OfBatch { place, cause } => {
                format!("none of the batch is granted: requests[{place}]: {}", cause.message())
            }
            Self::Ledger(refusal) => refusal.to_string(),
            Self::Busy { refusal, waiting: 0, .. } => format!("{refusal}; try again, wait, or try another node"),
            Self::Busy { refusal, waiting, .. } => {
                format!("{refusal}; {waiting} requests wait already; try again, wait, or try another node")
            }
            Self::Invalid(problems) => problems.to_string(),
            Self::Overloaded { what, limit } => {
                format!("overloaded: {limit} {what} is the bound, and it is reached; try again later")
            }
            Self::Deadline => "the deadline passed before a decision, and nothing was reserved".into(),
            Self::Stopping => "the server is stopping; use another node".into(),
            Self::Learning => {
                "the service does not know what an earlier start of it granted: it grants again when every such lease has \
                 ended; use another node"
                    .into()
            }
            Self::NoPool(PoolBytes::Failed) => {
                "the host pool could not be made: use another node; its operator finds why in the service's log".into()
            }
            Self::NoPool(PoolBytes::Elsewhere) => {
                "the host pool is with an engine that has yet to hand it back: try again, or use another node".into()
            }
            Self::NoPool(_) => "the host pool is still being made: try again when /readyz says so".into(),
            Self::WrongRole { needed } => {
                format!("this call needs the role {}: have the access list give it to this user", roles(needed))
            }
            Self::NotYourTenant { yours } => {
                format!("this user may act for {} alone: name one of them", tenants(yours))
            }
            Self::NotAttached => {
                "only the process that attached as the engine's writer may call this: attach first, on this machine"
                    .into()
            }
            Self::NotPredecessor => {
                "no session of this engine with this token has ended here: what it held is gone, admit anew".into()
            }
            Self::Failed(what) => format!("{what} broke off; please report it with the request"),
            Self::Poisoned => "a decision failed half-way, so nothing more is decided: restart the service".into(),
        };
        truncated(text, MAX_MESSAGE_BYTES)
    }

    /// What the message says, for programs.
    fn metadata(&self) -> Vec<(&'static str, String)> {
        use ledger::Refusal as R;
        let pool_and = |pool: &Pool, asked: &u64| vec![("pool", pool.to_string()), ("asked", asked.to_string())];
        let (refusal, waiting) = match self {
            Self::OfBatch { place, cause } => {
                let mut metadata = cause.metadata();
                metadata.push(("request", place.to_string()));
                return metadata;
            }
            Self::Ledger(refusal) => (refusal, None),
            Self::Busy { refusal, waiting, .. } => (refusal, Some(waiting)),
            Self::Overloaded { what, limit } => {
                return vec![("what", (*what).to_owned()), ("limit", limit.to_string())];
            }
            Self::WrongRole { needed } => return vec![("role", roles(needed))],
            Self::NotYourTenant { yours } => return vec![("tenants", tenants(yours))],
            _ => return Vec::new(),
        };
        let mut metadata = match refusal {
            R::NeverFits { limit, value, asked } => {
                vec![("limit", limit.name().to_owned()), ("value", value.to_string()), ("asked", asked.to_string())]
            }
            R::PoolBusy { pool, asked, available } => {
                [pool_and(pool, asked), vec![("available", available.to_string())]].concat()
            }
            R::Quota { tenant, pool, asked, ceiling, used } => {
                let bounds =
                    [("tenant", tenant.to_string()), ("ceiling", ceiling.to_string()), ("used", used.to_string())];
                [pool_and(pool, asked), bounds.to_vec()].concat()
            }
            R::TooManyTenants { limit } => vec![("limit", limit.to_string())],
            R::StaleEpoch { given, current } => {
                vec![("epoch", given.to_string()), ("current_epoch", current.to_string())]
            }
            R::LeaseNotFound { id } | R::OtherTenant { id } => vec![("lease_id", id.to_string())],
            R::WrongState { id, state, .. } => {
                vec![("lease_id", id.to_string()), ("state", state.to_string().to_uppercase())]
            }
            R::RequestIdReused { lease } => vec![("lease_id", lease.to_string())],
            _ => Vec::new(),
        };
        metadata.extend(waiting.map(|waiting| ("waiting", waiting.to_string())));
        metadata
    }
}

impl From<ledger::Refusal> for Refusal {
    fn from(refusal: ledger::Refusal) -> Self {
        Self::Ledger(refusal)
    }
}

/// Roles in words.
fn roles(needed: &[Role]) -> String {
    needed.iter().map(|role| role.name()).collect::<Vec<_>>().join(" or ")
}

/// The first tenants of several.
fn tenants(all: &BTreeSet<String>) -> String {
    truncated(all.iter().map(|name| name.escape_debug().to_string()).collect::<Vec<_>>().join(", "), 256)
}

/// At most `limit` bytes of a text, cut between characters.
fn truncated(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        let mut end = limit - '…'.len_utf8();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}
