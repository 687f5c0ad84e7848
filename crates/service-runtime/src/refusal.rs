//! Refusals of requests that no handler has read.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    time::Duration,
};

use http_body::Body as _;
use podplane_host::clock;
use tonic::{
    body::Body,
    codegen::{Bytes, http::Response},
};

/// The most of a body that is read before its request is refused, and the longest time for it.
const MAX_BYTES: usize = 64 << 10;
const MAX_TIME: Duration = Duration::from_millis(250);

/// Returns `refusal` once the request's body is read, or as much of it as is worth it.
///
/// An HTTP/2 server that answers earlier resets the stream, and some clients, curl 7.88 among them,
/// then report the reset in place of the answer.
pub(crate) async fn after_body(body: Body, refusal: Response<Body>) -> Response<Body> {
    if !body.is_end_stream() {
        // A client that sends for ever is answered as well.
        _ = clock::timeout(MAX_TIME, read(body)).await;
    }
    refusal
}

async fn read(body: Body) {
    let mut body = pin!(body);
    let mut left = MAX_BYTES;
    while let Some(Ok(frame)) = poll_fn(|context| Pin::as_mut(&mut body).poll_frame(context)).await
    {
        let size = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(size) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
