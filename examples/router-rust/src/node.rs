//! One node, and what its answers mean.
//!
//! ```text
//!  OK                          ─► Granted
//!  a status with ErrorInfo     ─► Refused: decided, nothing is held      (RetryInfo says when to come back)
//!  INVALID_ARGUMENT, …         ─► Refused: nothing is held
//!  anything else, or nothing   ─► Unknown: the call may have been done
//! ```

use std::time::Duration;

use tonic::transport::{Channel, Endpoint, Error};
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt;

use crate::proto::admission_service_client::AdmissionServiceClient;
use crate::proto::capacity_service_client::CapacityServiceClient;
use crate::proto::{AdmitRequest, CommitRequest, GetCapacityRequest, Lease, ReleaseRequest, RenewRequest};

/// Longest that one node may take to answer.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(1);
/// Life of a lease without Commit or Renew: also the longest time that a lost attempt can hold anything.
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// How a call ended.
#[derive(Debug)]
pub(crate) enum Ended<T> {
    /// Done.
    Granted(T),
    /// Decided, and nothing is held.
    Refused {
        /// `POOL_BUSY`, `NEVER_FITS`, …; the name of the code where there is none.
        reason: String,
        /// When to try again on this node, where that can help.
        retry: Option<Duration>,
    },
    /// Nobody knows.
    Unknown(&'static str),
}

/// A connection to one node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) target: String,
    channel: Channel,
}

impl Node {
    /// `unix:PATH` or `HOST:PORT`. Connects with the first call, and again where it was cut.
    pub(crate) fn new(target: &str) -> Result<Self, Error> {
        let uri = if target.starts_with("unix:") { target.to_owned() } else { format!("http://{target}") };
        Ok(Self { target: target.to_owned(), channel: Endpoint::from_shared(uri)?.connect_lazy() })
    }

    /// Further requests of a length that would be granted now.
    pub(crate) async fn room(&self, tokens: u64) -> Ended<u64> {
        let asked = timed(GetCapacityRequest { lengths: vec![tokens], ..Default::default() });
        let answer = self.ended(CapacityServiceClient::new(self.channel.clone()).get_capacity(asked)).await;
        answer.map(|seen| seen.fits.first().map_or(0, |fit| fit.count))
    }

    /// Reserves.
    pub(crate) async fn admit(&self, request_id: &str, prompt_tokens: u64, max_new_tokens: u64) -> Ended<Lease> {
        let asked = timed(AdmitRequest {
            request_id: request_id.to_owned(),
            prompt_tokens,
            max_new_tokens,
            ttl: ttl(),
            ..Default::default()
        });
        let answer = self.ended(self.admission().admit(asked)).await;
        answer.map(|granted| granted.lease.unwrap_or_default())
    }

    /// Turns a reservation into use.
    pub(crate) async fn commit(&self, lease: &Lease) -> Ended<()> {
        let (lease_id, epoch, tenant) = named(lease);
        let asked = timed(CommitRequest { lease_id, epoch, tenant, ttl: ttl() });
        self.ended(self.admission().commit(asked)).await.map(|_| ())
    }

    /// Puts off the end.
    pub(crate) async fn renew(&self, lease: &Lease) -> Ended<()> {
        let (lease_id, epoch, tenant) = named(lease);
        let asked = timed(RenewRequest { lease_id, epoch, tenant, ttl: ttl() });
        self.ended(self.admission().renew(asked)).await.map(|_| ())
    }

    /// Gives back whatever a request holds here. Of nothing it succeeds too.
    pub(crate) async fn release(&self, request_id: &str) -> Ended<()> {
        let asked = timed(ReleaseRequest { request_id: request_id.to_owned(), ..Default::default() });
        self.ended(self.admission().release(asked)).await.map(|_| ())
    }

    fn admission(&self) -> AdmissionServiceClient<Channel> {
        AdmissionServiceClient::new(self.channel.clone())
    }

    async fn ended<T>(&self, call: impl Future<Output = Result<Response<T>, Status>>) -> Ended<T> {
        // The deadline travels with the call; this bounds a node that does not even say that it is over.
        match tokio::time::timeout(ATTEMPT, call).await {
            Ok(Ok(answer)) => Ended::Granted(answer.into_inner()),
            Ok(Err(status)) => read(&status),
            Err(_) => Ended::Unknown("NO_ANSWER"),
        }
    }
}

impl<T> Ended<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> Ended<U> {
        match self {
            Self::Granted(value) => Ended::Granted(change(value)),
            Self::Refused { reason, retry } => Ended::Refused { reason, retry },
            Self::Unknown(why) => Ended::Unknown(why),
        }
    }
}

fn read<T>(status: &Status) -> Ended<T> {
    let details = status.get_error_details();
    if let Some(info) = details.error_info().filter(|info| info.domain == "hisparse.v1") {
        let retry = details.retry_info().and_then(|info| info.retry_delay);
        return Ended::Refused { reason: info.reason.clone(), retry };
    }
    match status.code() {
        code @ (Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated | Code::Unimplemented) => {
            Ended::Refused { reason: format!("{code:?}"), retry: None }
        }
        Code::Unavailable => Ended::Unknown("UNREACHABLE"),
        _ => Ended::Unknown("NO_ANSWER"),
    }
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(ATTEMPT);
    request
}

fn ttl() -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(TTL).ok()
}

fn named(lease: &Lease) -> (String, u64, String) {
    (lease.id.clone(), lease.epoch, lease.tenant.clone())
}
