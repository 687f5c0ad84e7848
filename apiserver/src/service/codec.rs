//! Answers whose message is encoded already.

use std::marker::PhantomData;

use bytes::{BufMut as _, Bytes};
use prost::Message;
use tonic::{
    Status,
    codec::{Codec, EncodeBuf, Encoder},
};
use tonic_prost::ProstCodec;

/// Decodes requests as prost does and sends answers as they are.
#[derive(Debug)]
pub(super) struct EncodedCodec<Request>(PhantomData<Request>);

impl<Request> Default for EncodedCodec<Request> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<Request: Message + Default + Send + 'static> Codec for EncodedCodec<Request> {
    type Encode = Bytes;
    type Decode = Request;
    type Encoder = Encoded;
    type Decoder = <ProstCodec<Request, Request> as Codec>::Decoder;

    fn encoder(&mut self) -> Encoded {
        Encoded
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<Request, Request>::default().decoder()
    }
}

#[derive(Debug)]
pub(super) struct Encoded;

impl Encoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}
