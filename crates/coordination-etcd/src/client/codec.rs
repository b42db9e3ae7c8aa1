//! A gRPC codec that takes a request already encoded.
//!
//! A call may be repeated, on another member or with a fresh token. Encoding once and sharing the bytes keeps that free.

use core::marker::PhantomData;

use bytes::{BufMut, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

pub(super) struct EncodedCodec<Response>(PhantomData<fn() -> Response>);

impl<Response> EncodedCodec<Response> {
    pub(super) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<Response: prost::Message + Default + 'static> Codec for EncodedCodec<Response> {
    type Encode = Bytes;
    type Decode = Response;
    type Encoder = BytesEncoder;
    type Decoder = MessageDecoder<Response>;

    fn encoder(&mut self) -> Self::Encoder {
        BytesEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        MessageDecoder(PhantomData)
    }
}

pub(super) struct BytesEncoder;

impl Encoder for BytesEncoder {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

pub(super) struct MessageDecoder<Response>(PhantomData<fn() -> Response>);

impl<Response: prost::Message + Default> Decoder for MessageDecoder<Response> {
    type Item = Response;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Response>, Status> {
        // A message that does not decode is `Internal`, hence ambiguous: the server has acted, we cannot tell how.
        Response::decode(buffer)
            .map(Some)
            .map_err(|error| Status::internal(format!("the answer does not decode: {error}")))
    }
}
