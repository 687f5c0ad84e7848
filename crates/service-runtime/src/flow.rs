//! Flow control: when each request is served, after its authentication and before the
//! [gate](crate::gate).

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Bytes, Service,
        http::{Request, Response, request::Parts},
    },
};

use crate::refusal;

/// Decides when requests are served.
pub trait RequestFlow: fmt::Debug + Send + Sync {
    /// Admits a request without its body. The request's extensions have its
    /// [`RequestContext`](crate::authentication::RequestContext).
    fn admit(self: Arc<Self>, request: &Parts) -> RequestAdmission;
}

/// The answer to a request that asks to be served.
pub enum RequestAdmission {
    /// It is served now.
    Now(RequestPermit),
    /// It waits for its turn, or is refused with this answer.
    Later(BoxFuture<'static, Result<RequestPermit, Response<Body>>>),
}

impl fmt::Debug for RequestAdmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Now(_) => "Now",
            Self::Later(_) => "Later",
        })
    }
}

/// A value that is only kept, and dropped in time.
pub type Kept = Box<dyn Send + Sync>;

/// The permit to serve a request. What it keeps is given back by being dropped.
#[derive(Default)]
pub struct RequestPermit {
    /// Kept until the answer begins.
    pub until_answer: Option<Kept>,
    /// Kept until the answer has ended, or its client has gone.
    pub until_end: Option<Kept>,
}

impl fmt::Debug for RequestPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestPermit").finish_non_exhaustive()
    }
}

/// A service whose requests wait for their turn, if there is flow control.
#[derive(Clone, Debug)]
pub(crate) struct FlowService<S> {
    pub(crate) service: S,
    pub(crate) flow: Option<Arc<dyn RequestFlow>>,
}

impl<S> Service<Request<Body>> for FlowService<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(flow) = &self.flow else {
            return self.service.call(request).boxed();
        };
        // The service that is ready is called, and its clone waits for the next request.
        let next = self.service.clone();
        let mut service = std::mem::replace(&mut self.service, next);
        let (parts, body) = request.into_parts();
        let admission = Arc::clone(flow).admit(&parts);
        async move {
            let permit = match admission {
                RequestAdmission::Now(permit) => permit,
                RequestAdmission::Later(turn) => match turn.await {
                    Ok(permit) => permit,
                    Err(refusal) => return Ok(refusal::after_body(body, refusal).await),
                },
            };
            let RequestPermit {
                until_answer,
                until_end,
            } = permit;
            let answered = service.call(Request::from_parts(parts, body)).await;
            drop(until_answer);
            Ok(match until_end {
                None => answered?,
                Some(kept) => answered?.map(|body| Body::new(PermittedBody { body, kept })),
            })
        }
        .boxed()
    }
}

/// A body that keeps the rest of a permit.
struct PermittedBody {
    body: Body,
    #[expect(dead_code, reason = "kept to be dropped with the body")]
    kept: Kept,
}

impl HttpBody for PermittedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
