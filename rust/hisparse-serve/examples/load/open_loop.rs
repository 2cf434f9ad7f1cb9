//! Admits by a clock, whether answers come or not, and a Release of each that is granted.
//!
//! ```text
//!  every 1/rate s: one Admit, a task of its own ─┬─ granted ─► Release             goodput, must not be refused
//!                                                ├─ OVERLOADED: how long that took  refusals
//!                                                └─ anything else                   by code
//!
//!  due ─── late ───► sent ─── tonic, HTTP/2, service and back ───► answer
//!   └──────────────────── latency of an Admit ────────────────────────┘    a Release is due with its Admit's answer
//! ```
//! An Admit's latency counts from when it was due, so that a stall shows as what it is, wherever it is; `late_us` says how
//! much of it is this generator's own. A caller that is itself out of breath sends less than it should: what was not
//! sent is counted, and is no refusal.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::{AdmitRequest, ReleaseRequest};
use serde_json::json;
use tokio::runtime::Handle;
use tonic::transport::Channel;

use crate::schedule::Schedule;
use crate::{Options, connect, quantiles, us};

/// Most calls that this process has on their way; beyond them it does not send.
const MOST_IN_FLIGHT: usize = 1_000;

/// What came of the calls.
#[derive(Debug, Default)]
struct Seen {
    late_us: Vec<u32>,
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

async fn call(mut client: AdmissionServiceClient<Channel>, number: u64, due: Instant, shared: Arc<Shared>) {
    shared.note(|seen| seen.late_us.push(us(due)));
    let request_id = format!("open-{}-{number}", std::process::id());
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

/// What became of the calls that were due.
struct Due {
    sent: u64,
    held_back: u64,
    /// Seconds that it took.
    elapsed: f64,
}

/// Sends for so long, from a thread that may block, on the runtime it was started from.
fn send(
    clients: &[AdmissionServiceClient<Channel>],
    admits_per_second: u64,
    last: Duration,
    shared: &Arc<Shared>,
) -> Due {
    let runtime = Handle::current();
    let begin = Instant::now();
    let mut schedule = Schedule::new(admits_per_second);
    let (mut sent, mut held_back) = (0, 0);
    for client in clients.iter().cycle() {
        let due = schedule.next();
        if begin.elapsed() >= last {
            break;
        }
        if shared.in_flight.load(Ordering::Relaxed) >= MOST_IN_FLIGHT {
            held_back += 1;
            continue;
        }
        shared.in_flight.fetch_add(1, Ordering::Relaxed);
        runtime.spawn(call(client.clone(), sent, due, Arc::clone(shared)));
        sent += 1;
    }
    Due { sent, held_back, elapsed: begin.elapsed().as_secs_f64() }
}

/// Runs it with so many Admits per second; the figures.
pub(crate) async fn measure(options: &Options, admits_per_second: u64, socket: &Path) -> serde_json::Value {
    let channels = connect(socket, options.connections).await;
    let clients: Vec<_> = channels.into_iter().map(AdmissionServiceClient::new).collect();
    let shared = Arc::new(Shared::default());
    let sending = {
        let (shared, last) = (Arc::clone(&shared), Duration::from_secs(options.seconds));
        tokio::task::spawn_blocking(move || send(&clients, admits_per_second, last, &shared))
    };
    let Due { sent, held_back, elapsed } = sending.await.unwrap();
    while shared.in_flight.load(Ordering::Relaxed) > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut seen = std::mem::take(&mut *shared.seen.lock().unwrap_or_else(PoisonError::into_inner));
    #[allow(clippy::cast_precision_loss)] // counts of one run
    let per_second = |count: usize| (count as f64 / elapsed).round();
    let mut both: Vec<_> = seen.granted_us.iter().chain(&seen.released_us).copied().collect();
    json!({
        "call": "Admit from an open loop, Release of what is granted",
        "seconds": elapsed,
        "offered_admits_per_second": admits_per_second,
        "sent": sent,
        "not_sent": held_back,
        "connections": options.connections,
        "calls_per_second": per_second(both.len()),
        "granted_per_second": per_second(seen.granted_us.len()),
        "refused_per_second": per_second(seen.refused_us.len()),
        "granted": seen.granted_us.len(),
        "refused": seen.refused_us.len(),
        "released": seen.released_us.len(),
        "releases_refused": seen.releases_refused,
        "others": seen.others,
        "late_us": quantiles(&mut seen.late_us),
        "latency_us": quantiles(&mut both),
        "granted_us": quantiles(&mut seen.granted_us),
        "refused_us": quantiles(&mut seen.refused_us),
        "released_us": quantiles(&mut seen.released_us),
    })
}
