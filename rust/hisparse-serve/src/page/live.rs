//! The stream of the page: the newest state to each viewer, as server-sent events.
//!
//! ```text
//!  publisher ─► frame (the newest) ─┬─► viewer: node, pool        event "node": pools, fits, admits; at most 2 Hz
//!    └ rests while nobody looks     └─► viewer: node              event "pool": map and leases; when they have changed
//! ```
//! A frame is made once for all viewers. A viewer that reads slowly misses frames and gets the newest; one that reads
//! nothing holds the few bytes that the connection buffers, and is let go after [`PAGE_SEND_TIMEOUT`].

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hisparse_core::limits::{MAX_PAGE_VIEWERS, PAGE_REST, PAGE_SEND_TIMEOUT};
use http_body::{Body, Frame};
use serde::Serialize;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tokio_stream::Stream;
use tokio_stream::wrappers::WatchStream;

use crate::node::Node;
use crate::overview::{Depth, overview};
use crate::proto;

/// A map that nothing has changed is made anew so often all the same: leases get older.
const STALE_AFTER: Duration = Duration::from_secs(10);
/// The publisher rests at least so many times as long as it works.
const REST_SHARE: u32 = 4;

/// What viewers are shown: two events, and how often the second has changed.
#[derive(Clone, Debug, Default)]
struct Shown {
    node: Bytes,
    pool: Bytes,
    pools: u64,
}

/// The second event.
#[derive(Serialize)]
struct Pool<'a> {
    sequence: u64,
    map: &'a Option<proto::PageMap>,
    leases: &'a [proto::LeaseGlance],
    leases_total: u64,
}

/// The publisher and its viewers.
#[derive(Debug)]
pub(crate) struct Live {
    shown: watch::Sender<Shown>,
    places: Arc<Semaphore>,
    wanted: Arc<Notify>,
}

impl Live {
    /// Begins to publish, as soon as somebody looks. On a runtime.
    pub(crate) fn new(node: &Arc<Node>) -> Self {
        let live = Self {
            shown: watch::Sender::new(Shown::default()),
            places: Arc::new(Semaphore::new(MAX_PAGE_VIEWERS)),
            wanted: Arc::default(),
        };
        tokio::spawn(publish(Arc::clone(node), live.shown.clone(), Arc::clone(&live.wanted)));
        live
    }

    /// The events of one more viewer, while there are places.
    pub(super) fn events(&self, pulse: &Arc<Pulse>) -> Option<Events> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        // What is there may be of the time when somebody last looked.
        let frames = WatchStream::from_changes(self.shown.subscribe());
        self.wanted.notify_one();
        pulse.beat();
        Some(Events { frames, ready: VecDeque::new(), pools: 0, pulse: Arc::clone(pulse), _place: place })
    }
}

/// Publishes while anybody looks.
async fn publish(node: Arc<Node>, shown: watch::Sender<Shown>, wanted: Arc<Notify>) {
    let (mut last, mut whole_at) = (Shown::default(), None);
    loop {
        if shown.receiver_count() == 0 {
            wanted.notified().await;
        }
        let begun = Instant::now();
        let sequence = |seen: &proto::GetOverviewResponse| seen.capacity.as_ref().map(|capacity| capacity.sequence);
        let Ok(mut seen) = overview(&node, &[], Depth::Pools, None).await else {
            // A node that decides nothing any more: viewers are let go when they have heard nothing for long.
            tokio::time::sleep(STALE_AFTER).await;
            continue;
        };
        let is_old = whole_at.is_none_or(|(at, of)| Some(of) != sequence(&seen) || begun - at >= STALE_AFTER);
        if is_old {
            let Ok(mut whole) = overview(&node, &[], Depth::Whole, None).await else { continue };
            let (map, leases) = (whole.map.take(), std::mem::take(&mut whole.leases));
            let sequence = sequence(&whole).unwrap_or_default();
            last.pool = event("pool", &Pool { sequence, map: &map, leases: &leases, leases_total: whole.leases_total });
            last.pools += 1;
            whole_at = Some((begun, sequence));
            seen = whole;
        }
        last.node = event("node", &seen);
        shown.send_replace(last.clone());
        tokio::time::sleep(PAGE_REST.max(begun.elapsed() * REST_SHARE)).await;
    }
}

/// One event as it is sent.
fn event(name: &str, data: &impl Serialize) -> Bytes {
    // Numbers and text alone: there is nothing in it that JSON cannot say.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}

/// What one viewer is sent.
#[derive(Debug)]
pub(crate) struct Events {
    frames: WatchStream<Shown>,
    /// Parts of the newest frame that are still to be sent.
    ready: VecDeque<Bytes>,
    /// The second event that it has.
    pools: u64,
    pulse: Arc<Pulse>,
    _place: OwnedSemaphorePermit,
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    /// Asked for more only when what went before is on its way.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.pulse.beat();
        if self.ready.is_empty() {
            let Some(shown) = ready!(Pin::new(&mut self.frames).poll_next(context)) else { return Poll::Ready(None) };
            self.ready.push_back(shown.node);
            if shown.pools != self.pools {
                self.pools = shown.pools;
                self.ready.push_back(shown.pool);
            }
        }
        Poll::Ready(self.ready.pop_front().map(|part| Ok(Frame::data(part))))
    }
}

/// Until when a connection may live: a while after it came, and a while after its stream was last asked for more.
#[derive(Debug)]
pub(crate) struct Pulse(Mutex<Instant>);

impl Pulse {
    /// Of a connection that has so long.
    pub(crate) fn new(first: Duration) -> Self {
        Self(Mutex::new(Instant::now() + first))
    }

    fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + PAGE_SEND_TIMEOUT;
    }

    /// Returns when its time is over.
    pub(crate) async fn stops(&self) {
        loop {
            let end = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if Instant::now() >= end {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use hisparse_core::ledger::{Epoch, NodeCapacity};
    use http_body_util::BodyExt;

    use super::*;
    use crate::env::MachineClock;
    use crate::node::NodeConfig;

    fn node() -> Arc<Node> {
        let config = NodeConfig::of_capacity("test", NodeCapacity::of_host_pages(10, 4));
        Arc::new(Node::new(config, MachineClock::start(), Epoch::FIRST, Vec::new(), None).unwrap())
    }

    /// The next event: its name, and the sequence that it is of.
    async fn next(events: &mut Events) -> (String, u64) {
        let bytes = events.frame().await.unwrap().unwrap().into_data().unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (name, data) = text.strip_prefix("event: ").and_then(|rest| rest.split_once("\ndata: ")).unwrap();
        let data: serde_json::Value = serde_json::from_str(data.trim_end()).unwrap();
        let sequence = if name == "node" { &data["capacity"]["sequence"] } else { &data["sequence"] };
        (name.to_owned(), sequence.as_u64().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_viewer_that_reads_late_gets_the_newest_state_and_no_other() {
        let node = node();
        let live = Live::new(&node);
        let mut viewer = live.events(&Arc::new(Pulse::new(Duration::ZERO))).unwrap();
        let begun = node.overview().unwrap().capacity.sequence;
        assert_eq!(next(&mut viewer).await, ("node".to_owned(), begun));
        assert_eq!(next(&mut viewer).await, ("pool".to_owned(), begun));
        for round in 0..20 {
            node.decide(None, |state, _| state.ledger.set_draining(round % 2 == 0)).unwrap();
            tokio::time::sleep(PAGE_REST).await;
        }
        tokio::time::sleep(PAGE_REST).await;
        assert_eq!(next(&mut viewer).await, ("node".to_owned(), begun + 20));
        assert_eq!(next(&mut viewer).await, ("pool".to_owned(), begun + 20));
    }

    #[tokio::test(start_paused = true)]
    async fn where_nothing_changes_the_map_is_not_sent_again() {
        let node = node();
        let live = Live::new(&node);
        let mut viewer = live.events(&Arc::new(Pulse::new(Duration::ZERO))).unwrap();
        let mut names = Vec::new();
        for _ in 0..6 {
            names.push(next(&mut viewer).await.0);
        }
        assert_eq!(names, ["node", "pool", "node", "node", "node", "node"]);
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_so_many_places_and_who_goes_leaves_one() {
        let live = Live::new(&node());
        let pulse = Arc::new(Pulse::new(Duration::ZERO));
        let viewers: Vec<_> = (0..MAX_PAGE_VIEWERS).map(|_| live.events(&pulse).unwrap()).collect();
        assert!(live.events(&pulse).is_none());
        drop(viewers);
        assert!(live.events(&pulse).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_lives_as_long_as_its_stream_is_asked_for_more() {
        let pulse = Arc::new(Pulse::new(Duration::from_secs(10)));
        let begun = Instant::now();
        let beating = Arc::clone(&pulse);
        tokio::spawn(async move {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(9)).await;
                beating.beat();
            }
        });
        pulse.stops().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(45) + PAGE_SEND_TIMEOUT);
    }
}
