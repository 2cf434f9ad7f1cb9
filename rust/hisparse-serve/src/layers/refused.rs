//! A call that a layer turns away.

use hisparse_core::limits::REFUSED_MESSAGE_TIME;
use http_body_util::BodyExt;
use tonic::Status;
use tonic::body::Body;

use super::gate::Answer;
use crate::error::Refusal;

/// A refusal as an answer, once the request has come in whole.
///
/// Its message is of no use any more, but answered before it is here the stream would be reset, the message would arrive on a
/// stream that HTTP/2 has forgotten, and a thousand of those end the connection: a peer that is merely shed would lose its
/// other calls with it.
pub(crate) fn refused(refusal: Refusal, message: Body) -> Answer {
    Box::pin(async move {
        // Whoever does not send what it began has had its time.
        let _ = tokio::time::timeout(REFUSED_MESSAGE_TIME, taken(message)).await;
        Ok(Status::from(refusal).into_http())
    })
}

/// Takes a message to its end, and keeps nothing of it.
async fn taken(mut message: Body) {
    while let Some(Ok(_)) = message.frame().await {}
}
