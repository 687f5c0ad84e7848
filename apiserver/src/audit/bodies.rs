//! Bodies that are read along while they pass.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use podplane_request_audit::MAX_LINE_BYTES;
use tonic::{Status, body::Body};

use super::record::SharedState;

/// The read part of a body: shared with the body, not copied.
#[derive(Debug, Default)]
pub(super) struct ReadBody {
    chunks: Vec<Bytes>,
    bytes: usize,
    is_too_long: bool,
}

impl ReadBody {
    /// Adds the next bytes. A body that fits into no line is dropped.
    fn push(&mut self, chunk: &Bytes) {
        self.bytes = self.bytes.saturating_add(chunk.len());
        if self.bytes > MAX_LINE_BYTES {
            self.is_too_long = true;
            self.chunks = Vec::new();
        } else if !self.is_too_long {
            self.chunks.push(chunk.clone());
        }
    }

    pub(super) fn is_too_long(&self) -> bool {
        self.is_too_long
    }

    /// All bytes.
    pub(super) fn whole(&mut self) -> Bytes {
        let chunks = std::mem::take(&mut self.chunks);
        match <[Bytes; 1]>::try_from(chunks) {
            Ok([only]) => only,
            Err(chunks) => {
                let mut whole = BytesMut::with_capacity(self.bytes);
                chunks
                    .iter()
                    .for_each(|chunk| whole.extend_from_slice(chunk));
                whole.freeze()
            }
        }
    }
}

/// The body of a request.
pub(super) struct RequestBody {
    pub(super) body: Body,
    pub(super) state: SharedState,
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(chunk) = frame.data_ref()
        {
            self.state.lock().sent.push(chunk);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer, whose end is the end of its request.
pub(super) struct AnswerBody {
    pub(super) body: Body,
    pub(super) is_read: bool,
    pub(super) end: RequestEnd,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { body, is_read, end } = self.get_mut();
        // Dropped before it is put back if the body panics.
        let polled = std::mem::take(end);
        let frame = Pin::new(&mut *body).poll_frame(context);
        *end = polled;
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(chunk) = frame.data_ref().filter(|_| *is_read) {
                    end.with(|state| state.lock().answered.push(chunk));
                }
                if let Some(trailers) = frame.trailers_ref() {
                    end.with(|state| trailed(state, trailers));
                }
                // The client has the answer no earlier than the log has its line.
                if frame.is_trailers() || body.is_end_stream() {
                    end.complete();
                }
            }
            Poll::Ready(Some(Err(_)) | None) => end.complete(),
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn trailed(state: &SharedState, trailers: &HeaderMap) {
    if let Some(status) = Status::from_header_map(trailers) {
        state.lock().called(&status);
    }
}

/// Ends the record of a request when it is dropped, at the latest.
#[derive(Default)]
pub(super) struct RequestEnd(Option<SharedState>);

impl RequestEnd {
    pub(super) fn new(state: SharedState) -> Self {
        Self(Some(state))
    }

    fn with(&self, act: impl FnOnce(&SharedState)) {
        if let Some(state) = &self.0 {
            act(state);
        }
    }

    pub(super) fn complete(&mut self) {
        if let Some(state) = self.0.take() {
            state.lock().complete();
        }
    }
}

impl Drop for RequestEnd {
    fn drop(&mut self) {
        match self.0.take() {
            Some(state) if std::thread::panicking() => state.lock().panicked(),
            Some(state) => state.lock().complete(),
            None => {}
        }
    }
}
