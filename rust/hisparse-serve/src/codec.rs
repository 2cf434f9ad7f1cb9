//! Messages on the wire: what cannot be read is the sender's fault, and is answered as such.
//!
//! ```text
//!  bytes ──prost──► message
//!     └─ no protobuf, or text that is not UTF-8 ──► INVALID_ARGUMENT     (tonic's own codec says INTERNAL)
//! ```
//! A message beyond the size bound never comes this far: tonic refuses it as `OUT_OF_RANGE`.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

use crate::error::Refusal;

/// Reads and writes messages of the interface. The build script names it in all generated code.
#[derive(Debug)]
pub(crate) struct WireCodec<Sent, Received>(PhantomData<(Sent, Received)>);

impl<Sent, Received> Default for WireCodec<Sent, Received> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<Sent, Received> Codec for WireCodec<Sent, Received>
where
    Sent: Message + Send + 'static,
    Received: Message + Default + Send + 'static,
{
    type Encode = Sent;
    type Decode = Received;
    type Encoder = ProstEncoder<Sent>;
    type Decoder = Reading<Received>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Reading(PhantomData)
    }
}

/// Reads messages.
#[derive(Debug)]
pub(crate) struct Reading<Received>(PhantomData<Received>);

impl<Received: Message + Default> Decoder for Reading<Received> {
    type Item = Received;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Received>, Status> {
        Received::decode(bytes).map(Some).map_err(|error| {
            let remedy = "send it as hisparse.v1 describes it, with text in UTF-8";
            Refusal::field("message", "unreadable", &error.to_string(), remedy).into()
        })
    }
}
