//! Records of requests, such as those of an audit log: from the authentication of a request to the
//! end of its answer, whatever the gate and the handlers do.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use tonic::{
    body::Body,
    codegen::{
        Service,
        http::{Request, Response},
    },
};

use crate::authentication::AuthenticationRefusal;

/// Records the requests of a socket.
pub trait RequestRecorder: fmt::Debug + Send + Sync {
    /// Begins the record of a request, whose extensions have its
    /// [`RequestContext`](crate::authentication::RequestContext). May read along with its body, and
    /// leave the record in its extensions for the gate.
    fn begin(&self, request: &mut Request<Body>) -> Box<dyn OpenRecord>;

    /// Records a request that is refused since its sender is not known.
    fn refused(
        &self,
        request: &Request<Body>,
        refusal: &AuthenticationRefusal,
        answer: &mut Response<Body>,
    );
}

/// The record of a request that has no answer yet. It is dropped if there is none: the client left,
/// or, if the thread is panicking, the handler panicked.
pub trait OpenRecord: Send {
    /// Goes on with the answer, and may read along with its body.
    fn answered(self: Box<Self>, answer: Response<Body>) -> Response<Body>;
}

/// A service whose requests are recorded, if there is a recorder.
#[derive(Clone, Debug)]
pub(crate) struct RecordedService<S> {
    pub(crate) service: S,
    pub(crate) recorder: Option<Arc<dyn RequestRecorder>>,
}

impl<S> Service<Request<Body>> for RecordedService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let Some(recorder) = &self.recorder else {
            return self.service.call(request).boxed();
        };
        let record = recorder.begin(&mut request);
        let answer = self.service.call(request);
        async move {
            let answer = answer.await?;
            Ok(record.answered(answer))
        }
        .boxed()
    }
}
