//! Answers on their way out: what a call holds is held until its answer is taken, and a peer that takes nothing is found.
//!
//! ```text
//!  body ── polled ─► a frame: the peer is to take it, since now ── 20 s without another poll ─► stalled: closed
//!             └────► nothing to send, or the end: not waiting for the peer
//! ```
//! HTTP/2 polls a body only while the peer's window is open. So a peer that opens calls and reads no answers would keep
//! every one of them in memory; here it loses its connection instead.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hisparse_core::env::{Clock, Moment};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use crate::env::MachineClock;

/// A body that holds something until it is sent.
#[derive(Debug)]
pub(crate) struct Held<G> {
    body: Body,
    _guard: G,
}

impl<G> Held<G> {
    pub(crate) const fn new(body: Body, guard: G) -> Self {
        Self { body, _guard: guard }
    }
}

impl<G: Unpin> HttpBody for Held<G> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The answers of one connection that its peer has yet to take.
#[derive(Debug)]
pub(crate) struct Sendings {
    clock: MachineClock,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    next: u64,
    /// Since when.
    waiting: BTreeMap<u64, Moment>,
}

impl Sendings {
    pub(crate) fn new(clock: MachineClock) -> Self {
        Self { clock, book: Mutex::default() }
    }

    fn book<T>(&self, work: impl FnOnce(&mut Book) -> T) -> T {
        // Whole between any two statements, so a panic elsewhere leaves it usable.
        work(&mut self.book.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// This answer, watched.
    pub(crate) fn watch(self: &Arc<Self>, body: Body) -> Sending {
        let now = self.clock.now();
        let number = self.book(|book| {
            book.next += 1;
            book.waiting.insert(book.next, now);
            book.next
        });
        Sending { body, number, sendings: Arc::clone(self) }
    }

    /// Whether the peer has left some answer untaken for so long.
    pub(crate) fn stalled(&self, longest: Duration) -> bool {
        let now = self.clock.now();
        self.book(|book| book.waiting.values().any(|since| now.saturating_since(*since) >= longest))
    }
}

/// An answer whose taking is watched.
#[derive(Debug)]
pub(crate) struct Sending {
    body: Body,
    number: u64,
    sendings: Arc<Sendings>,
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let number = self.number;
        if polled.is_pending() {
            self.sendings.book(|book| book.waiting.remove(&number));
        } else {
            let now = self.sendings.clock.now();
            self.sendings.book(|book| book.waiting.insert(number, now));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let number = self.number;
        self.sendings.book(|book| book.waiting.remove(&number));
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    #[tokio::test]
    async fn an_answer_is_waiting_until_it_is_taken_and_one_with_nothing_to_send_is_not() {
        let sendings = Arc::new(Sendings::new(MachineClock::start()));
        let whole = || Body::new(Full::new(Bytes::from_static(b"answer")).map_err(|never| match never {}));
        assert!(!sendings.stalled(Duration::ZERO));
        let answer = sendings.watch(whole());
        assert!(sendings.stalled(Duration::ZERO) && !sendings.stalled(Duration::from_secs(60)));
        answer.collect().await.unwrap();
        assert!(!sendings.stalled(Duration::ZERO));

        let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, Status>>(1);
        let stream = http_body_util::StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(receiver));
        let mut watch = sendings.watch(Body::new(stream));
        assert!(futures_poll(&mut watch).await.is_pending());
        assert!(!sendings.stalled(Duration::ZERO), "it waits for the service, not for the peer");
        sender.send(Ok(Frame::data(Bytes::from_static(b"news")))).await.unwrap();
        assert!(futures_poll(&mut watch).await.is_ready());
        assert!(sendings.stalled(Duration::ZERO), "handed over, and not asked for more since");
        drop(watch);
        assert!(!sendings.stalled(Duration::ZERO));
    }

    async fn futures_poll(body: &mut Sending) -> Poll<bool> {
        std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *body).poll_frame(cx).map(|frame| frame.is_some()))).await
    }
}
