//! The body of a response, whose stream may panic long after its first byte was sent.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::{
    Status,
    body::Body,
    codegen::{Bytes, http::HeaderMap},
};

use super::{PANICKED, RequestLine};

/// A body that ends with an error if it panics.
#[derive(Debug, Default)]
pub(crate) struct GuardedBody {
    /// `None` once it has panicked.
    body: Option<Body>,
    /// `None` for bodies that are only bytes.
    line: Option<RequestLine>,
    is_grpc: bool,
}

impl GuardedBody {
    pub(super) fn new(body: Body, line: RequestLine, is_grpc: bool) -> Self {
        Self {
            body: Some(body),
            line: Some(line),
            is_grpc,
        }
    }

    pub(super) fn unguarded(body: Body) -> Self {
        Self {
            body: Some(body),
            line: None,
            is_grpc: false,
        }
    }
}

impl HttpBody for GuardedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(body).poll_frame(context)));
        polled.unwrap_or_else(|_panic| {
            let broken = self.body.take();
            // Dropping the rest of the stream may panic again.
            _ = catch_unwind(AssertUnwindSafe(|| drop(broken)));
            if let Some(line) = &self.line {
                line.panicked();
            }
            let status = Status::internal(PANICKED);
            if !self.is_grpc {
                return Poll::Ready(Some(Err(status)));
            }
            let mut trailers = HeaderMap::new();
            // The status is short and ASCII, so it is valid in headers.
            Poll::Ready(Some(match status.add_header(&mut trailers) {
                Ok(()) => Ok(Frame::trailers(trailers)),
                Err(status) => Err(status),
            }))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}
