//! The codec that tonic uses for the object services: messages are encoded by prost, objects are
//! bytes already.

use std::marker::PhantomData;

use bytes::{Buf as _, BufMut as _, Bytes};
use prost::Message;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

/// An encoded object where the published method has the object itself:
/// `rpc GetPod(..) returns (Pod)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded(pub Bytes);

/// A complete request or response.
pub trait Wire: Send + Sync + Sized + 'static {
    /// Encodes the message.
    fn put(self, buf: &mut EncodeBuf<'_>);

    /// Decodes a message from all of `buf`.
    ///
    /// # Errors
    ///
    /// prost's, if the bytes are not such a message.
    fn take(buf: &mut DecodeBuf<'_>) -> Result<Self, prost::DecodeError>;
}

impl Wire for Encoded {
    fn put(self, buf: &mut EncodeBuf<'_>) {
        buf.put(self.0);
    }

    fn take(buf: &mut DecodeBuf<'_>) -> Result<Self, prost::DecodeError> {
        Ok(Self(buf.copy_to_bytes(buf.remaining())))
    }
}

impl<M: Message + Default + 'static> Wire for M {
    fn put(self, buf: &mut EncodeBuf<'_>) {
        self.encode(buf).expect("the buffer grows as needed");
    }

    fn take(buf: &mut DecodeBuf<'_>) -> Result<Self, prost::DecodeError> {
        M::decode(buf)
    }
}

/// The bytes before a message of that many bytes, which is not compressed; `None` if it is too
/// long for gRPC. tonic writes them itself, except for a message that is sent in parts.
#[must_use]
pub fn message_prefix(bytes: usize) -> Option<[u8; 5]> {
    let [a, b, c, d] = u32::try_from(bytes).ok()?.to_be_bytes();
    Some([0, a, b, c, d])
}

/// A codec that sends `E` and receives `D`.
#[derive(Debug)]
pub struct WireCodec<E, D>(PhantomData<fn(E) -> D>);

impl<E, D> Default for WireCodec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E: Wire, D: Wire> Codec for WireCodec<E, D> {
    type Encode = E;
    type Decode = D;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<E: Wire, D> Encoder for WireCodec<E, D> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, item: E, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.put(buf);
        Ok(())
    }
}

impl<E, D: Wire> Decoder for WireCodec<E, D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        let item = D::take(buf)
            .map_err(|error| Status::internal(format!("not a message of this method: {error}")))?;
        Ok(Some(item))
    }
}
