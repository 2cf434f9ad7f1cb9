//! Deadlines: every call has one, and work past it never touches the ledger.
//!
//! ```text
//!  grpc-timeout: 2S ──► deadline = arrival + 2 s, less the answer's own way home ──► handler, in CallTime
//!  (none)           ──► deadline = arrival + 10 s; for Admit and Drain + the longest wait
//!                            └─ over: DEADLINE_EXCEEDED, whatever the handler is doing (a body that never ends)
//! ```
//! `grpc-timeout` is relative, so the caller's clock does not matter. Streams are exempt once they have begun.

use std::time::Duration;

use hisparse_core::env::{Clock, Moment};
use hisparse_core::limits::{DEFAULT_DEADLINE, MAX_WAIT};
use http::{HeaderMap, Request};
use tonic::Status;
use tonic::body::Body;

use crate::env::MachineClock;
use crate::error::Refusal;
use crate::layers::gate::{Answer, Calls, Layer};
use crate::trace::TraceContext;

/// The calls that may wait.
const WAITING: [&str; 2] = ["/hisparse.v1.AdmissionService/Admit", "/hisparse.v1.AdminService/Drain"];
/// What the answer's way home may take of a deadline, at most; else a tenth of it.
const WAY_HOME: Duration = Duration::from_millis(50);

/// When a call came, and when its answer is worthless. Handlers find it in the request's extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTime {
    /// When its headers arrived.
    pub(crate) arrived: Moment,
    /// Its caller's own deadline, where one was given.
    given: Option<Moment>,
    /// Its caller's trace, where one was given.
    pub(crate) trace: Option<TraceContext>,
}

impl CallTime {
    /// When a decision comes too late, for a call that may wait so long.
    pub(crate) fn deadline(self, wait: Duration) -> Moment {
        self.given.unwrap_or_else(|| self.arrived.saturating_add(DEFAULT_DEADLINE).saturating_add(wait))
    }

    fn new(arrived: Moment, headers: &HeaderMap) -> Self {
        let given = headers.get("grpc-timeout").and_then(|value| parse(value.to_str().ok()?)).map(|timeout| {
            let way_home = WAY_HOME.min(timeout / 10);
            arrived.saturating_add(timeout.saturating_sub(way_home))
        });
        Self { arrived, given, trace: TraceContext::of(headers) }
    }
}

/// When this call came. The layer has put it there; a call that passed no layer came at the clock's origin, and is late.
pub(crate) fn call_time<T>(request: &tonic::Request<T>) -> CallTime {
    let unknown = CallTime { arrived: Moment::ORIGIN, given: None, trace: None };
    request.extensions().get().copied().unwrap_or(unknown)
}

/// `grpc-timeout`: up to eight digits and a unit. What is malformed counts as absent, as in every gRPC library.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3_600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// Puts a deadline on every call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    clock: MachineClock,
}

impl Deadlines {
    pub(crate) const fn new(clock: MachineClock) -> Self {
        Self { clock }
    }
}

impl Layer for Deadlines {
    fn pass(&self, mut request: Request<Body>, next: &mut impl Calls) -> Answer {
        let time = CallTime::new(self.clock.now(), request.headers());
        let longest_wait = if WAITING.contains(&request.uri().path()) { MAX_WAIT } else { Duration::ZERO };
        let end = self.clock.instant(time.deadline(longest_wait));
        request.extensions_mut().insert(time);
        let answer = next.call(request);
        Box::pin(async move {
            let Some(end) = end else { return answer.await };
            match tokio::time::timeout_at(end, answer).await {
                Ok(answer) => answer,
                Err(_) => Ok(Status::from(Refusal::Deadline).into_http()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_the_protocol_writes_them() {
        for (text, us) in [("1H", 3_600_000_000), ("2M", 120_000_000), ("3S", 3_000_000), ("4m", 4_000), ("5u", 5)] {
            assert_eq!(parse(text), Some(Duration::from_micros(us)), "{text}");
        }
        for text in ["", "S", "1", "1s", "-1S", "+1S", "1.5S", "123456789S", "é"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_given_deadline_counts_alone_and_the_default_grows_with_the_wait() {
        let arrived = Moment::from_origin(Duration::from_secs(100));
        let wait = Duration::from_secs(30);
        let mut headers = HeaderMap::new();
        let after = |headers: &HeaderMap| CallTime::new(arrived, headers).deadline(wait).saturating_since(arrived);
        assert_eq!(after(&headers), Duration::from_secs(40));
        headers.insert("grpc-timeout", "2S".parse().unwrap());
        assert_eq!(after(&headers), Duration::from_millis(1_950));
        headers.insert("grpc-timeout", "10m".parse().unwrap());
        assert_eq!(after(&headers), Duration::from_millis(9));
    }
}
