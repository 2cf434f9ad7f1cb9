//! What the HTTP port answers with.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{Either, Full};

use super::live::Events;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// One whole text, or a stream.
pub(crate) type Answer = Response<Either<Full<Bytes>, Events>>;

/// A short answer.
pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Either::Left(Full::new(body.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}
