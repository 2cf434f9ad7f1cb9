//! The page on the HTTP port: what the node has, live, for a person at a browser.
//!
//! ```text
//!  GET /              the document ─┐
//!  GET /page/app.js …  its parts   ─┼─ guard: this machine alone, by its own name, with a right to look ─ else 403
//!  GET /page/events   the stream   ─┘
//!                        └─ one publisher for all viewers; each gets the newest state, never a queue of old ones
//! ```
//! It shows what `GetOverview` answers. Everything is in this binary: the page loads nothing from anywhere else.

mod answer;
mod assets;
mod guard;
mod live;

use std::net::SocketAddr;
use std::sync::Arc;

use hisparse_core::limits::MAX_PAGE_VIEWERS;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Either;

use self::answer::Answer;
pub(crate) use self::answer::text;
use self::live::Live;
pub(crate) use self::live::{Events, Pulse};
use crate::door::Door;

/// The page of one server.
#[derive(Debug)]
pub(crate) struct Page {
    live: Live,
}

impl Page {
    /// With nobody looking.
    pub(crate) fn new(door: &Door) -> Self {
        Self { live: Live::new(&door.node) }
    }

    /// Answers for a path of the page; `None` for any other.
    pub(crate) fn answer(
        &self,
        path: &str,
        peer: SocketAddr,
        headers: &HeaderMap,
        door: &Door,
        pulse: &Arc<Pulse>,
    ) -> Option<Answer> {
        let asset = assets::find(path);
        let is_stream = path == "/page/events";
        if asset.is_none() && !is_stream {
            return None;
        }
        if let Err(why) = guard::check(peer, headers, &door.access) {
            return Some(guarded(text(StatusCode::FORBIDDEN, why)));
        }
        if let Some((kind, content)) = asset {
            let mut response = text(StatusCode::OK, content);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            return Some(guarded(response));
        }
        let Some(events) = self.live.events(pulse) else {
            let why = format!("{MAX_PAGE_VIEWERS} viewers look at this page already: close one, or try again later\n");
            let mut refusal = text(StatusCode::SERVICE_UNAVAILABLE, why);
            refusal.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
            return Some(guarded(refusal));
        };
        let mut response = Response::new(Either::Right(events));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        Some(guarded(response))
    }
}

/// The page's parts may do nothing but what the page needs, and no other page may use them.
fn guarded(mut response: Answer) -> Answer {
    let headers = response.headers_mut();
    for (name, value) in guard::HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
