//! The gate: authorization of each request of a socket, after its authentication and before any
//! handler sees it.

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
        http::{Request, Response, request::Parts},
    },
};

use crate::refusal;

/// Decides about requests.
pub trait RequestGate: fmt::Debug + Send + Sync {
    /// Judges a request without its body. The request's extensions have its
    /// [`RequestContext`](crate::authentication::RequestContext); the gate may change it, and leave
    /// its verdict there.
    ///
    /// # Errors
    ///
    /// The answer to a request that is refused.
    fn judge(self: Arc<Self>, request: Parts) -> BoxFuture<'static, Result<Parts, Response<Body>>>;
}

/// A service behind a gate, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct GateService<S> {
    pub(crate) service: S,
    pub(crate) gate: Option<Arc<dyn RequestGate>>,
}

impl<S> Service<Request<Body>> for GateService<S>
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
        let Some(gate) = &self.gate else {
            return self.service.call(request).boxed();
        };
        // The service that is ready is called, and its clone waits for the next request.
        let next = self.service.clone();
        let mut service = std::mem::replace(&mut self.service, next);
        let (parts, body) = request.into_parts();
        let judged = Arc::clone(gate).judge(parts);
        async move {
            match judged.await {
                Ok(parts) => service.call(Request::from_parts(parts, body)).await,
                Err(refusal) => Ok(refusal::after_body(body, refusal).await),
            }
        }
        .boxed()
    }
}
