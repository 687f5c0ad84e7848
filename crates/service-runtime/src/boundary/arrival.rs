//! The deadline for the body of a request.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http_body::{Body as HttpBody, Frame, SizeHint};
use podplane_host::clock::{Instant, sleep_until};
use tokio::time::Sleep;
use tonic::{
    Status,
    body::Body,
    codegen::{
        Bytes, StdError,
        http::{Request, Uri},
    },
};

use crate::limits::{LimitMetrics, Slowness};

/// The time in which the body of a request must arrive. Without it, a client that sends a byte now
/// and then would hold memory and a stream for ever.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// A body that ends with `DEADLINE_EXCEEDED` when it takes longer than [`BODY_TIMEOUT`].
struct TimedBody<B> {
    body: Pin<Box<B>>,
    deadline: Instant,
    /// Created when the body is first waited for; most bodies are there already.
    timer: Option<Pin<Box<Sleep>>>,
    metrics: LimitMetrics,
}

/// Adds the deadline to the request's body, unless the client may take any time.
pub(super) fn timed<B>(request: Request<B>, metrics: &LimitMetrics) -> Request<Body>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError>,
{
    match is_conversation(request.uri()) || request.body().is_end_stream() {
        true => request.map(Body::new),
        false => request.map(|body| {
            Body::new(TimedBody {
                body: Box::pin(body),
                deadline: Instant::now() + BODY_TIMEOUT,
                timer: None,
                metrics: metrics.clone(),
            })
        }),
    }
}

/// Returns whether the client goes on sending after the first answers: reflection is the only such
/// service.
fn is_conversation(uri: &Uri) -> bool {
    uri.path().starts_with("/grpc.reflection.")
}

impl<B> HttpBody for TimedBody<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<StdError>,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        if let Poll::Ready(frame) = self.body.as_mut().poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let deadline = self.deadline;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        ready!(timer.as_mut().poll(context));
        self.metrics.cut_off(Slowness::Body);
        let why = format!(
            "the body of the request did not arrive within {} seconds",
            BODY_TIMEOUT.as_secs()
        );
        Poll::Ready(Some(Err(Status::deadline_exceeded(why).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::body;
    use futures::{StreamExt as _, stream};
    use http_body_util::BodyExt as _;
    use tonic::Code;

    use super::*;

    /// A request whose body has one chunk at once, and one after each pause.
    fn request(path: &str, pauses: &'static [u64]) -> Request<Body> {
        let pieces = stream::iter(pauses).then(|pause| async move {
            tokio::time::sleep(Duration::from_secs(*pause)).await;
            Ok::<_, std::io::Error>(Bytes::from_static(b"piece"))
        });
        let body = body::Body::from_stream(pieces);
        timed(
            Request::builder().uri(path).body(body).unwrap(),
            &LimitMetrics::default(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn ends_a_slow_body_with_an_error() {
        let whole = request("/a", &[0, 14, 15]).into_body().collect().await;
        assert_eq!(whole.unwrap().to_bytes().len(), 15);
        for late in [&[31][..], &[0, 20, 20], &[0, 10, 10, 10, 10]] {
            let cut = request("/a", late).into_body().collect().await;
            let status = cut.unwrap_err();
            assert_eq!(status.code(), Code::DeadlineExceeded, "{late:?}");
        }
        let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        let whole = request(reflection, &[0, 60]).into_body().collect().await;
        assert_eq!(whole.unwrap().to_bytes().len(), 10);
    }
}
