//! One reader's watch of the node's capacity.
//!
//! ```text
//!  change ─► changes (a number) ─► watch: look again, send what differs ─► buffer of one ─► reader
//!                                     └─ then rest 50 ms                        └─ full: look later, see newer
//!
//!  begin ─┬─ no token ──────────────────────────► snapshot, sync
//!         ├─ a token of this pool's life ───────► what is so now, if anything changed, sync (resumed)
//!         └─ any other token ──────────────────► resync (and why), snapshot, sync
//! ```
//! A watch never queues history: it sends the difference between what its reader has and what is so now, each pool
//! whole. So a slow reader costs one message of memory and misses no state that still holds; and a reader that comes
//! back needs no history either, only to be known as one who saw an earlier state of the same pool. One that takes
//! nothing for [`WATCH_SEND_TIMEOUT`] loses its place.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use hisparse_core::limits::{MAX_RESUME_TOKEN_BYTES, MAX_WATCH_HZ, WATCH_SEND_TIMEOUT};
use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;

use crate::error::Refusal;
use crate::look::look;
use crate::meeting;
use crate::node::{Node, WatchPlace};
use crate::proto;
use crate::proto::watch_capacity_response::Event;

/// Rest between two messages of one watch.
const REST: Duration = Duration::from_millis(1_000 / MAX_WATCH_HZ as u64);

/// First byte of a resume token: its layout. Then the node's life, the epoch and the sequence, 8 bytes each.
const LAYOUT: u8 = 1;
const TOKEN_BYTES: usize = 25;

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Its reader knows nothing.
    Fresh,
    /// Its reader has this pool as it was at that sequence.
    From(u64),
    /// What its reader has does not lead to here, and why.
    Resync(&'static str),
}

impl Start {
    /// Reads a resume token.
    ///
    /// # Errors
    /// One that is longer than any.
    pub(crate) fn read(node: &Node, token: &[u8]) -> Result<Self, Refusal> {
        if token.len() > MAX_RESUME_TOKEN_BYTES {
            let rule = format!("must have at most {MAX_RESUME_TOKEN_BYTES} bytes");
            return Err(Refusal::field("resume_token", token.len(), &rule, "send the token of a message, or none"));
        }
        if token.is_empty() {
            return Ok(Self::Fresh);
        }
        let Ok([LAYOUT, words @ ..]) = <&[u8; TOKEN_BYTES]>::try_from(token) else {
            return Ok(Self::Resync("it is no resume token of this service"));
        };
        let mut words = words.chunks_exact(8).map(|word| word.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
        let mut word = || words.next().unwrap_or_default();
        let (life, epoch, sequence) = (word(), word(), word());
        Ok(match (life == node.life(), epoch == node.epoch().get()) {
            (true, true) => Self::From(sequence),
            (_, false) => Self::Resync("it is of another generation of the pool"),
            (false, true) => Self::Resync("it is of another node, or of this one before a restart"),
        })
    }
}

/// The token of a reader that has this node as of that sequence.
fn token(node: &Node, sequence: u64) -> Vec<u8> {
    let mut token = Vec::with_capacity(TOKEN_BYTES);
    token.push(LAYOUT);
    for word in [node.life(), node.epoch().get(), sequence] {
        token.extend(word.to_be_bytes());
    }
    token
}

/// What a reader wants to be told of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// As whom; empty: as one without settings that holds nothing.
    pub(crate) tenant: String,
    pub(crate) lengths: Vec<u64>,
}

impl Asked {
    /// The node as this reader sees it now.
    fn look(&self, node: &Node) -> Result<(proto::Capacity, Vec<proto::Fit>), Refusal> {
        look(node, &self.tenant, &self.lengths, None)
    }

    /// Whether a reader that names a sequence may yet know less than another who does: of other lengths, as another tenant.
    fn is_special(&self) -> bool {
        !self.lengths.is_empty() || !self.tenant.is_empty()
    }
}

/// A watch at work.
pub(crate) struct Watch {
    node: Arc<Node>,
    asked: Asked,
    /// What the reader has.
    seen: proto::Capacity,
    sender: mpsc::Sender<proto::WatchCapacityResponse>,
    _place: WatchPlace,
}

impl Watch {
    /// Starts one, and gives what its reader is told.
    ///
    /// # Errors
    /// Lengths that no node could hold.
    pub(crate) fn begin(
        node: &Arc<Node>,
        start: Start,
        asked: Asked,
        place: WatchPlace,
        stopping: watch::Receiver<bool>,
    ) -> Result<Told, Refusal> {
        // Changes are listened to before the first look, so that none falls between the two.
        let changes = node.changes();
        meeting::point();
        let (seen, fits) = asked.look(node)?;
        let (sender, messages) = mpsc::channel(1);
        let (last_word, end) = oneshot::channel();
        let watch = Self { node: Arc::clone(node), asked, seen, sender, _place: place };
        meeting::spawn(async move {
            if let Some(refusal) = watch.run(start, fits, changes, stopping).await {
                // A reader that is gone needs no last word.
                let _ = last_word.send(refusal.into());
            }
        });
        Ok(Told { messages, end: Some(end) })
    }

    /// Until the reader goes, or the returned word ends it.
    async fn run(
        mut self,
        start: Start,
        fits: Vec<proto::Fit>,
        mut changes: watch::Receiver<u64>,
        mut stopping: watch::Receiver<bool>,
    ) -> Option<Refusal> {
        let told = async {
            self.open(start, fits).await?;
            loop {
                tokio::select! {
                    biased;
                    () = self.sender.closed() => return Err(End::Gone),
                    news = changes.changed() => news.map_err(|_| End::Gone)?,
                }
                // What was asked was right at the start, so an error is a node that decides nothing any more.
                let (now, fits) = self.asked.look(&self.node).map_err(End::Said)?;
                if now.sequence == self.seen.sequence {
                    continue;
                }
                let pools = now.pools.iter().filter(|pool| !self.seen.pools.contains(pool)).cloned().collect();
                self.seen = now;
                self.send(Event::Delta(self.delta(pools)), fits).await?;
                meeting::rest(REST).await;
            }
        };
        let ended: Result<(), End> = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => Err(End::Said(Refusal::Stopping)),
            ended = told => ended,
        };
        match ended {
            Err(End::Said(refusal)) => Some(refusal),
            Ok(()) | Err(End::Gone) => None,
        }
    }

    /// Brings the reader to the state that `seen` is.
    async fn open(&self, start: Start, fits: Vec<proto::Fit>) -> Result<(), End> {
        let resumed = match start {
            Start::From(sequence) if sequence <= self.seen.sequence => {
                if sequence < self.seen.sequence || self.asked.is_special() {
                    self.send(Event::Delta(self.delta(self.seen.pools.clone())), fits).await?;
                }
                true
            }
            Start::Fresh | Start::Resync(_) | Start::From(_) => {
                let reason = match start {
                    Start::Fresh => None,
                    Start::Resync(reason) => Some(reason),
                    Start::From(_) => Some("it is ahead of the pool"),
                };
                if let Some(reason) = reason {
                    self.send(Event::Resync(proto::WatchResync { reason: reason.to_owned() }), Vec::new()).await?;
                }
                self.send(Event::Snapshot(self.seen.clone()), fits).await?;
                false
            }
        };
        self.send(Event::Sync(proto::WatchSync { resumed }), Vec::new()).await
    }

    fn delta(&self, pools: Vec<proto::Pool>) -> proto::CapacityDelta {
        proto::CapacityDelta {
            observed_at: self.seen.observed_at,
            pools,
            largest_grant_tokens: self.seen.largest_grant_tokens,
            max_request_tokens: self.seen.max_request_tokens,
            draining: self.seen.draining,
            largest_extent_pages: self.seen.largest_extent_pages,
        }
    }

    async fn send(&self, event: Event, fits: Vec<proto::Fit>) -> Result<(), End> {
        let nothing_yet = matches!(event, Event::Resync(_));
        let resume_token = if nothing_yet { Vec::new() } else { token(&self.node, self.seen.sequence) };
        let (epoch, sequence) = (self.seen.epoch, self.seen.sequence);
        let message = proto::WatchCapacityResponse { epoch, sequence, event: Some(event), fits, resume_token };
        let slow = Refusal::Overloaded { what: "seconds without a message taken", limit: WATCH_SEND_TIMEOUT.as_secs() };
        let sent = tokio::time::timeout(WATCH_SEND_TIMEOUT, self.sender.send(message)).await;
        sent.map_err(|_| End::Said(slow))?.map_err(|_| End::Gone)
    }
}

/// Why a watch ends.
enum End {
    /// The reader is gone.
    Gone,
    /// The reader is told.
    Said(Refusal),
}

/// What a reader is told: messages, and at the end why. The last word needs no room in the buffer.
#[derive(Debug)]
pub(crate) struct Told {
    messages: mpsc::Receiver<proto::WatchCapacityResponse>,
    end: Option<oneshot::Receiver<Status>>,
}

impl Stream for Told {
    type Item = Result<proto::WatchCapacityResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(message) = ready!(self.messages.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(message)));
        }
        let Some(end) = self.end.as_mut() else { return Poll::Ready(None) };
        let last_word = ready!(Pin::new(end).poll(cx));
        self.end = None;
        Poll::Ready(last_word.ok().map(Err))
    }
}

#[cfg(test)]
mod tests {
    use hisparse_core::ledger::{Epoch, NodeCapacity};

    use super::*;
    use crate::env::MachineClock;
    use crate::node::NodeConfig;

    fn node(epoch: Epoch) -> Node {
        let config = NodeConfig::of_capacity("test", NodeCapacity::of_host_pages(10, 4));
        Node::new(config, MachineClock::start(), epoch, Vec::new(), None).unwrap()
    }

    #[tokio::test]
    async fn a_reader_that_takes_nothing_costs_one_message_and_then_reads_the_truth() {
        let node = Arc::new(node(Epoch::FIRST));
        let (_stop, stopping) = watch::channel(false);
        let place = node.enter_watch(1).unwrap();
        let mut told = Watch::begin(&node, Start::Fresh, Asked::default(), place, stopping).unwrap();
        for round in 0..200 {
            node.decide(None, |state, _| state.ledger.set_draining(round % 2 == 0)).unwrap();
            tokio::task::yield_now().await;
        }
        let truth = node.overview().unwrap().capacity.sequence;
        let (mut messages, mut sequence) = (0, 0);
        while sequence < truth {
            let message = std::future::poll_fn(|cx| Pin::new(&mut told).poll_next(cx)).await.unwrap().unwrap();
            assert!(message.sequence >= sequence && !message.resume_token.is_empty(), "{message:?}");
            (messages, sequence) = (messages + 1, message.sequence);
        }
        assert!((2..=4).contains(&messages), "snapshot, sync and what is so now, but {messages} messages");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_for_long_loses_its_place_and_is_told() {
        let node = Arc::new(node(Epoch::FIRST));
        let (_stop, stopping) = watch::channel(false);
        let place = node.enter_watch(1).unwrap();
        let mut told = Watch::begin(&node, Start::Fresh, Asked::default(), place, stopping).unwrap();
        tokio::time::sleep(WATCH_SEND_TIMEOUT + Duration::from_secs(1)).await;
        assert!(node.enter_watch(1).is_some(), "its place is free");
        let mut next = async || std::future::poll_fn(|cx| Pin::new(&mut told).poll_next(cx)).await;
        next().await.unwrap().unwrap();
        let status = next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
        assert!(next().await.is_none());
    }

    #[test]
    fn a_token_leads_back_to_its_own_node_and_epoch_alone() {
        let (ours, others) = (node(Epoch::FIRST), node(Epoch::FIRST));
        let next = node(Epoch::new(2).unwrap());
        assert_eq!(Start::read(&ours, &token(&ours, 7)).unwrap(), Start::From(7));
        assert_eq!(Start::read(&ours, &[]).unwrap(), Start::Fresh);
        for foreign in [token(&others, 7), token(&next, 7), vec![LAYOUT], vec![0; TOKEN_BYTES], vec![9; 64]] {
            assert!(matches!(Start::read(&ours, &foreign).unwrap(), Start::Resync(_)), "{foreign:?}");
        }
        assert!(Start::read(&ours, &[1; MAX_RESUME_TOKEN_BYTES + 1]).is_err());
    }
}
