//! More Admits than are let in, from an open loop: they are sent by a clock, whether answers come or not.
//!
//! ```text
//!  every ms: rate/1000 Admits, each a task ─┬─ granted ─► Release                      goodput, must not be refused
//!                                           ├─ OVERLOADED: how long until it was said  refusals
//!                                           └─ anything else                           by code
//! ```
//! A caller that is itself out of breath sends less than it should: what was not sent is counted, and is no refusal.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::{AdmitRequest, ReleaseRequest};
use serde_json::json;
use tonic::transport::Channel;

use crate::{Options, connect, quantiles};

/// Most calls that this process has on their way; beyond them it does not send.
const MOST_IN_FLIGHT: usize = 1_000;

/// What came of the calls.
#[derive(Debug, Default)]
struct Seen {
    granted_us: Vec<u32>,
    refused_us: Vec<u32>,
    released_us: Vec<u32>,
    releases_refused: u64,
    others: BTreeMap<String, u64>,
}

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Seen>,
    in_flight: AtomicUsize,
}

impl Shared {
    fn note(&self, work: impl FnOnce(&mut Seen)) {
        work(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn us(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}

async fn call(mut client: AdmissionServiceClient<Channel>, number: u64, due: Instant, shared: Arc<Shared>) {
    let request_id = format!("over-{}-{number}", std::process::id());
    let request = AdmitRequest { request_id, prompt_tokens: 1_024, max_new_tokens: 64, ..AdmitRequest::default() };
    match client.admit(request).await {
        Ok(answer) => {
            shared.note(|seen| seen.granted_us.push(us(due)));
            let lease = answer.into_inner().lease.unwrap();
            let sent = Instant::now();
            let release = ReleaseRequest { lease_id: lease.id, ..ReleaseRequest::default() };
            let released = client.release(release).await;
            shared.note(|seen| match released {
                Ok(_) => seen.released_us.push(us(sent)),
                Err(_) => seen.releases_refused += 1,
            });
        }
        Err(status) if status.code() == tonic::Code::Unavailable => {
            shared.note(|seen| seen.refused_us.push(us(due)));
        }
        Err(status) => {
            let what = format!("{:?}: {:.80}", status.code(), status.message());
            shared.note(|seen| *seen.others.entry(what).or_default() += 1);
        }
    }
    shared.in_flight.fetch_sub(1, Ordering::Relaxed);
}

/// Runs it; the figures.
pub(crate) async fn measure(options: &Options, socket: &Path) -> serde_json::Value {
    let rate = options.rate.expect("an open loop needs --rate");
    let channels = connect(socket, options.connections).await;
    let clients: Vec<_> = channels.into_iter().map(AdmissionServiceClient::new).collect();
    let shared = Arc::new(Shared::default());
    let begin = Instant::now();
    let (mut sent, mut not_sent) = (0_u64, 0_u64);
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    while begin.elapsed() < Duration::from_secs(options.seconds) {
        tick.tick().await;
        let due = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX).saturating_mul(rate) / 1_000_000;
        while sent + not_sent < due {
            if shared.in_flight.load(Ordering::Relaxed) >= MOST_IN_FLIGHT {
                not_sent += 1;
                continue;
            }
            shared.in_flight.fetch_add(1, Ordering::Relaxed);
            let at = begin + Duration::from_micros((sent + not_sent) * 1_000_000 / rate);
            let client = clients[usize::try_from(sent).unwrap_or_default() % clients.len()].clone();
            tokio::spawn(call(client, sent, at, Arc::clone(&shared)));
            sent += 1;
        }
    }
    let elapsed = begin.elapsed().as_secs_f64();
    while shared.in_flight.load(Ordering::Relaxed) > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut seen = std::mem::take(&mut *shared.seen.lock().unwrap_or_else(PoisonError::into_inner));
    #[allow(clippy::cast_precision_loss)] // counts of one run
    let per_second = |count: usize| (count as f64 / elapsed).round();
    json!({
        "call": "Admit from an open loop, Release of what is granted",
        "seconds": elapsed,
        "offered_per_second": rate,
        "sent": sent,
        "not_sent": not_sent,
        "connections": options.connections,
        "granted_per_second": per_second(seen.granted_us.len()),
        "refused_per_second": per_second(seen.refused_us.len()),
        "granted": seen.granted_us.len(),
        "refused": seen.refused_us.len(),
        "released": seen.released_us.len(),
        "releases_refused": seen.releases_refused,
        "others": seen.others,
        "granted_us": quantiles(&mut seen.granted_us),
        "refused_us": quantiles(&mut seen.refused_us),
        "released_us": quantiles(&mut seen.released_us),
    })
}
