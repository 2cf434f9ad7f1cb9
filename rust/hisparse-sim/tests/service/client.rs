//! One caller: random calls one after the other, each written down with its answer and its times.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::capacity_service_client::CapacityServiceClient;
use hisparse_serve::proto::{
    AdmitRequest, CommitRequest, ExtendRequest, GetCapacityRequest, GetCapacityResponse, Lease, ReleaseRequest,
    ReleaseResponse,
};
use hisparse_sim::linear::check::Entry;
use hisparse_sim::linear::node::{Gone, Got, Op};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt;

const PAGE_TOKENS: u64 = 64;

/// All calls of a history.
pub(crate) struct Recorder {
    origin: Instant,
    entries: Mutex<Vec<Entry<Op>>>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), entries: Mutex::new(Vec::new()) }
    }

    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap()
    }

    pub(crate) fn add(&self, op: Op, invoked: u64, answered: Option<u64>) {
        self.entries.lock().unwrap().push(Entry { op, invoked, answered });
    }

    pub(crate) fn into_entries(self) -> Vec<Entry<Op>> {
        self.entries.into_inner().unwrap()
    }
}

/// How much happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) calls: u64,
    pub(crate) granted: u64,
    pub(crate) busy: u64,
    pub(crate) released: u64,
    pub(crate) unanswered: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.granted += other.granted;
        self.busy += other.busy;
        self.released += other.released;
        self.unanswered += other.unanswered;
    }
}

pub(crate) struct Client {
    name: String,
    seed: u64,
    epoch: u64,
    recorder: Arc<Recorder>,
    drawn: u64,
    requests: u64,
    leases: Vec<(String, Lease)>,
    tally: Tally,
}

async fn connect(socket: &Path) -> Channel {
    Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap().connect().await.unwrap()
}

/// The epoch of the server at this socket.
pub(crate) async fn epoch(socket: &Path) -> u64 {
    let mut client = CapacityServiceClient::new(connect(socket).await);
    client.get_capacity(GetCapacityRequest::default()).await.unwrap().into_inner().epoch
}

/// What a refusal says of a lease; `None` where there was no answer.
fn refused(status: &Status) -> Option<Got> {
    match status.get_error_details().error_info().map(|info| info.reason.as_str()) {
        Some("POOL_BUSY") => Some(Got::Busy),
        Some("STALE_EPOCH" | "LEASE_NOT_FOUND") => Some(Got::Refused),
        Some(reason) => panic!("no call here is refused with {reason}: {status:?}"),
        None => None,
    }
}

fn got(answer: Result<&Lease, &Status>) -> Got {
    match answer {
        Ok(lease) => Got::Lease(u128::from_str_radix(&lease.id, 16).unwrap()),
        Err(status) => refused(status).unwrap_or(Got::Unknown),
    }
}

impl Client {
    pub(crate) fn new(seed: u64, place: u64, epoch: u64, recorder: Arc<Recorder>) -> Self {
        let (name, leases) = (format!("c{place}"), Vec::new());
        Self { name, seed, epoch, recorder, drawn: 0, requests: 0, leases, tally: Tally::default() }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.drawn += 1;
        let mut hasher = DefaultHasher::new();
        (self.seed, &self.name, self.drawn).hash(&mut hasher);
        hasher.finish() % bound
    }

    /// Calls until a call goes unanswered: the server is dead then.
    pub(crate) async fn run(mut self, socket: PathBuf, longest: Duration) -> Tally {
        // The server may be killed before the first call.
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
        let Ok(channel) = endpoint.connect().await else { return self.tally };
        let mut admission = AdmissionServiceClient::new(channel.clone());
        let mut capacity = CapacityServiceClient::new(channel);
        let end = Instant::now() + longest;
        while Instant::now() < end {
            let alive = match (self.below(10), self.leases.is_empty()) {
                (0..4, _) | (_, true) => self.admit(&mut admission).await,
                (4, false) => self.commit(&mut admission).await,
                (5, false) => self.extend(&mut admission).await,
                (6..9, false) => self.release(&mut admission).await,
                _ => self.look(&mut capacity).await,
            };
            self.tally.calls += 1;
            if !alive {
                self.tally.unanswered += 1;
                break;
            }
        }
        self.tally
    }

    /// Writes a call down. One that failed has taken effect before its failure was seen, or never: the process that
    /// could have done it is dead.
    fn note(&self, op: Op, invoked: u64) {
        self.recorder.add(op, invoked, Some(self.recorder.now()));
    }

    async fn admit(&mut self, client: &mut AdmissionServiceClient<Channel>) -> bool {
        // One time in five, the name of the request before: it may be granted already, or again.
        let again = self.requests > 0 && self.below(5) == 0;
        self.requests += u64::from(!again);
        let request = format!("{}.{}", self.name, self.requests);
        let pages = 1 + self.requests % 4;
        let message = AdmitRequest {
            request_id: request.clone(),
            prompt_tokens: 1 + (pages - 1) * PAGE_TOKENS,
            ..AdmitRequest::default()
        };
        let invoked = self.recorder.now();
        let answer = client.admit(message).await.map(|answer| answer.into_inner().lease.unwrap());
        let got = got(answer.as_ref());
        self.note(Op::Admit { request: request.clone(), pages, got }, invoked);
        match (answer, got) {
            (Ok(lease), _) => {
                self.tally.granted += 1;
                self.leases.retain(|(_, held)| held.id != lease.id);
                self.leases.push((request, lease));
            }
            (Err(_), Got::Busy) => self.tally.busy += 1,
            _ => {}
        }
        got != Got::Unknown
    }

    fn some_lease(&mut self) -> (u128, Lease) {
        let bound = self.leases.len() as u64;
        let place = usize::try_from(self.below(bound)).unwrap();
        let lease = self.leases[place].1.clone();
        (u128::from_str_radix(&lease.id, 16).unwrap(), lease)
    }

    /// Now and then the epoch before.
    fn some_epoch(&mut self) -> u64 {
        if self.below(5) == 0 { self.epoch - 1 } else { self.epoch }
    }

    async fn commit(&mut self, client: &mut AdmissionServiceClient<Channel>) -> bool {
        let ((id, lease), epoch) = (self.some_lease(), self.some_epoch());
        let invoked = self.recorder.now();
        let answer = client.commit(CommitRequest { lease_id: lease.id, epoch, ..CommitRequest::default() }).await;
        let done = match got(answer.map(|answer| answer.into_inner().lease.unwrap()).as_ref()) {
            Got::Lease(_) => Some(true),
            Got::Unknown => None,
            Got::Busy | Got::Refused => Some(false),
        };
        self.note(Op::Commit { id, epoch, session: None, done }, invoked);
        done.is_some()
    }

    async fn extend(&mut self, client: &mut AdmissionServiceClient<Channel>) -> bool {
        let ((id, lease), epoch) = (self.some_lease(), self.some_epoch());
        let pages = 1 + self.below(6);
        let tokens = pages * PAGE_TOKENS;
        let message = ExtendRequest { lease_id: lease.id, epoch, tokens, ..ExtendRequest::default() };
        let invoked = self.recorder.now();
        let answer = client.extend(message).await.map(|answer| answer.into_inner().lease.unwrap());
        let got = got(answer.as_ref());
        self.note(Op::Extend { id, epoch, pages, got }, invoked);
        got != Got::Unknown
    }

    async fn release(&mut self, client: &mut AdmissionServiceClient<Channel>) -> bool {
        let bound = self.leases.len() as u64;
        let place = usize::try_from(self.below(bound)).unwrap();
        let (request, lease) = self.leases[place].clone();
        // Now and then kept, to be released again.
        if self.below(4) > 0 {
            self.leases.remove(place);
        }
        let by_name = self.below(4) == 0;
        let message = if by_name {
            ReleaseRequest { request_id: request.clone(), ..ReleaseRequest::default() }
        } else {
            ReleaseRequest { lease_id: lease.id.clone(), ..ReleaseRequest::default() }
        };
        let invoked = self.recorder.now();
        let answer = client.release(message).await.map(tonic::Response::into_inner);
        let gone = match answer {
            Ok(ReleaseResponse { already_released: true, .. }) => Gone::Already,
            Ok(ReleaseResponse { quarantined: true, .. }) => Gone::Quarantined,
            Ok(_) => Gone::Freed,
            Err(_) => Gone::Unknown,
        };
        self.tally.released += u64::from(gone == Gone::Freed);
        let op = if by_name {
            Op::ReleaseRequest { request, gone }
        } else {
            Op::Release { id: u128::from_str_radix(&lease.id, 16).unwrap(), session: None, gone }
        };
        self.note(op, invoked);
        gone != Gone::Unknown
    }

    async fn look(&mut self, client: &mut CapacityServiceClient<Channel>) -> bool {
        let invoked = self.recorder.now();
        let Ok(answer) = client.get_capacity(GetCapacityRequest::default()).await else { return false };
        let GetCapacityResponse { pools, epoch, .. } = answer.into_inner();
        let free = |name: &str| pools.iter().find(|pool| pool.name == name).unwrap().free;
        let op = Op::GetCapacity { free_pages: free("host_pages"), free_requests: free("seats"), epoch };
        self.note(op, invoked);
        true
    }
}
