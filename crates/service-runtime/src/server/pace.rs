//! The pace at which a client takes an answer over HTTP/2.
//!
//! Each stream of HTTP/2 has a window of its own: a client can stop taking one answer and go on
//! with the others. hyper then neither polls the answer's body nor wakes anyone, and the answer
//! would keep its memory, and its seats of flow control, as long as the connection lives. hyper
//! gives the task of each stream to an executor, so it is there that a stream is timed, while a
//! part of its answer waits for the window. A stream whose task is dropped is reset (`CANCEL`).

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;
use podplane_host::clock;
use tokio::time::Sleep;
use tonic::codegen::Bytes;

use crate::limits::{LimitMetrics, Slowness};

/// The most bytes that are given to HTTP/2 at once. It buffers what it is given, however small the
/// client's window is.
const PART: usize = 64 << 10;

tokio::task_local! {
    /// The progress of the stream whose task is being polled.
    static PROGRESS: Arc<Progress>;
}

/// The part of an answer that waits to be sent: its number, from 1 on, or 0 if none waits.
#[derive(Debug, Default)]
struct Progress(AtomicU64);

/// An executor whose streams end when their client takes nothing for too long.
#[derive(Clone, Debug)]
pub(super) struct PacedExecutor {
    pub(super) stall: Duration,
    pub(super) metrics: LimitMetrics,
}

impl<F> Executor<F> for PacedExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        TokioExecutor::new().execute(PacedStream {
            stream: Box::pin(stream),
            progress: Arc::default(),
            waiting: None,
            stall: self.stall,
            metrics: self.metrics.clone(),
        });
    }
}

/// The task of a stream.
struct PacedStream<F> {
    stream: Pin<Box<F>>,
    progress: Arc<Progress>,
    /// The number of the part that waits for the client, and the end of its time.
    waiting: Option<(u64, Pin<Box<Sleep>>)>,
    stall: Duration,
    metrics: LimitMetrics,
}

impl<F: Future<Output = ()>> Future for PacedStream<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let progress = Arc::clone(&this.progress);
        let polled = PROGRESS.sync_scope(progress, || this.stream.as_mut().poll(context));
        if polled.is_ready() {
            return Poll::Ready(());
        }
        let part = this.progress.0.load(Ordering::Relaxed);
        if part == 0 {
            this.waiting = None;
            return Poll::Pending;
        }
        let stall = this.stall;
        let waiting = this.waiting.take().filter(|(number, _)| *number == part);
        let (_, timer) = this
            .waiting
            .insert(waiting.unwrap_or_else(|| (part, Box::pin(clock::sleep(stall)))));
        ready!(timer.as_mut().poll(context));
        this.metrics.cut_off(Slowness::Stream);
        Poll::Ready(())
    }
}

/// The body of an answer, in parts whose progress is noted.
#[derive(Debug)]
pub(super) struct PacedBody<B> {
    body: B,
    /// The rest of a large frame.
    rest: Bytes,
    sent: u64,
}

impl<B> PacedBody<B> {
    pub(super) fn new(body: B) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            sent: 0,
        }
    }

    /// The next part of the rest.
    fn part(&mut self) -> Frame<Bytes> {
        let part = self.rest.split_to(self.rest.len().min(PART));
        self.sent += 1;
        note(self.sent);
        Frame::data(part)
    }
}

/// Notes the part that waits, if the body is that of a stream.
fn note(part: u64) {
    _ = PROGRESS.try_with(|progress| progress.0.store(part, Ordering::Relaxed));
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for PacedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        // The part before was sent.
        note(0);
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(self.part())));
        }
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        Poll::Ready(Some(match frame?.into_data() {
            Ok(data) if data.is_empty() => Ok(Frame::data(data)),
            Ok(data) => {
                self.rest = data;
                Ok(self.part())
            }
            Err(trailers) => Ok(trailers),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let inner = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper().and_then(|upper| upper.checked_add(rest)) {
            hint.set_upper(upper);
        }
        hint
    }
}
