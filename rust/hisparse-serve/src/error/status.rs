//! A refusal as it travels: a code, a message, and `google.rpc` details, the most important first.

use hisparse_core::error::Problems;
use hisparse_core::ledger;
use hisparse_core::limits::MAX_ERROR_DETAIL_BYTES;
use prost::Message;
use prost_types::Any;
use tonic::Status;
use tonic_types::pb;

use super::{Refusal, truncated};
use crate::proto;
use crate::wire::duration_to_proto;

/// Domain of every `ErrorInfo`.
const DOMAIN: &str = "hisparse.v1";
/// Most fields that one `BadRequest` names.
const MAX_VIOLATIONS: usize = 16;

impl Refusal {
    /// The details, most important first.
    fn details(&self) -> Vec<Any> {
        let mut details = Vec::new();
        if !self.reason().is_empty() {
            let metadata = self.metadata().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
            let info = pb::ErrorInfo { reason: self.reason().into(), domain: DOMAIN.into(), metadata };
            details.push(any("google.rpc.ErrorInfo", &info));
        }
        if let Some(retry) = self.retry() {
            let info = pb::RetryInfo { retry_delay: Some(duration_to_proto(retry)) };
            details.push(any("google.rpc.RetryInfo", &info));
        }
        match self.cause() {
            Self::Invalid(problems) | Self::Ledger(ledger::Refusal::Malformed(problems)) => {
                details.push(any("google.rpc.BadRequest", &bad_request(problems)));
            }
            Self::Busy { refusal, capacity, .. } => {
                details.push(quota_failure(refusal));
                details.push(any("hisparse.v1.Capacity", &**capacity));
            }
            _ => {}
        }
        details
    }
}

fn bad_request(problems: &Problems) -> pb::BadRequest {
    let violations = problems.iter().take(MAX_VIOLATIONS).map(|problem| pb::bad_request::FieldViolation {
        field: truncated(problem.field.clone(), 64),
        description: truncated(format!("{}; {}", problem.rule, problem.remedy), 128),
        ..Default::default()
    });
    pb::BadRequest { field_violations: violations.collect() }
}

/// Whose bound it is: a tenant's, or the pool's own.
fn quota_failure(refusal: &ledger::Refusal) -> Any {
    let pool = refusal.binding().unwrap_or_default();
    let subject = match refusal {
        ledger::Refusal::Quota { tenant, .. } => format!("tenant:{tenant}"),
        _ => format!("pool:{pool}"),
    };
    let violation = pb::quota_failure::Violation {
        subject,
        description: truncated(refusal.to_string(), 256),
        api_service: DOMAIN.to_owned(),
        quota_metric: pool.to_owned(),
        ..Default::default()
    };
    any("google.rpc.QuotaFailure", &pb::QuotaFailure { violations: vec![violation] })
}

fn any(name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec() }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = refusal.code();
        let mut rich = pb::Status { code: code.into(), message: refusal.message(), details: refusal.details() };
        // The last detail is the least important one.
        while rich.encoded_len() > MAX_ERROR_DETAIL_BYTES && rich.details.pop().is_some() {}
        Self::with_details(code, rich.message.clone(), rich.encode_to_vec().into())
    }
}

impl From<Refusal> for proto::Refusal {
    fn from(refusal: Refusal) -> Self {
        Self {
            code: refusal.code().into(),
            reason: refusal.reason().into(),
            message: refusal.message(),
            retry_delay: refusal.retry().map(duration_to_proto),
            binding: refusal.binding().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hisparse_core::error::Problem;
    use hisparse_core::ledger::Pool;
    use tonic::Code;
    use tonic_types::StatusExt;

    use super::super::MAX_MESSAGE_BYTES;
    use super::*;
    use crate::pool_bytes::PoolBytes;

    fn busy(numa_nodes: u32) -> Refusal {
        let pool = |node| proto::Pool {
            name: "host_pages".into(),
            numa_node: Some(node),
            total: u64::MAX,
            free: u64::MAX,
            reserved: u64::MAX,
            committed: u64::MAX,
            evictable: u64::MAX,
            scrubbing: u64::MAX,
            quarantined: u64::MAX,
        };
        let capacity = proto::Capacity { pools: (0..numa_nodes).map(pool).collect(), ..Default::default() };
        let refusal = ledger::Refusal::PoolBusy { pool: Pool::Seats, asked: 1, available: 0 };
        Refusal::Busy { refusal, waiting: 3, retry: Duration::from_millis(250), capacity: Box::new(capacity) }
    }

    #[test]
    fn busy_names_the_pool_the_delay_and_the_fresh_capacity() {
        let status = Status::from(busy(2));
        assert_eq!(status.code(), Code::ResourceExhausted);
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("POOL_BUSY", "hisparse.v1"));
        assert_eq!(details.retry_info().unwrap().retry_delay, Some(Duration::from_millis(250)));
        assert_eq!(details.quota_failure().unwrap().violations[0].subject, "pool:seats");
        let rich = pb::Status::decode(status.details()).unwrap();
        let capacity = rich.details.iter().find(|any| any.type_url.ends_with("hisparse.v1.Capacity")).unwrap();
        assert_eq!(proto::Capacity::decode(&*capacity.value).unwrap().pools.len(), 2);
    }

    #[test]
    fn details_stay_below_the_bound_whatever_they_hold() {
        let mut problems = Problems::new();
        for _ in 0..500 {
            problems.push(Problem::new("x".repeat(10_000), "y".repeat(10_000), "é".repeat(9_000), "use less"));
        }
        for refusal in [busy(1_000), Refusal::Invalid(problems)] {
            let status = Status::from(refusal.clone());
            assert!(status.details().len() <= MAX_ERROR_DETAIL_BYTES, "{refusal:?}");
            assert!(status.message().len() <= MAX_MESSAGE_BYTES, "{refusal:?}");
            assert!(!status.details().is_empty(), "{refusal:?}");
        }
    }

    #[test]
    fn a_batch_says_the_same_as_the_call_alone() {
        let alone = Status::from(busy(1));
        let batched = proto::Refusal::from(busy(1));
        assert_eq!((batched.code, batched.message.as_str()), (i32::from(alone.code()), alone.message()));
        assert_eq!((batched.reason.as_str(), batched.binding.as_str()), ("POOL_BUSY", "seats"));
    }

    #[test]
    fn a_pool_that_is_not_there_is_told_apart_by_what_helps() {
        let told = |bytes| {
            let status = Status::from(Refusal::NoPool(bytes));
            let details = status.get_error_details();
            let retry = details.retry_info().and_then(|info| info.retry_delay).unwrap();
            (status.message().to_owned(), retry)
        };
        let (making, elsewhere, failed) =
            (told(PoolBytes::Making), told(PoolBytes::Elsewhere), told(PoolBytes::Failed));
        assert!(making.0.contains("still being made"), "{making:?}");
        assert!(elsewhere.0.contains("with an engine"), "{elsewhere:?}");
        assert!(failed.0.contains("could not be made: use another node"), "{failed:?}");
        assert!(making.1 == elsewhere.1 && failed.1 > making.1, "what will not come soon is not asked for often");
    }
}
