//! The trace context and a leader's fence, which each request of the REST API carries, and the check
//! of the leader's term before each write.

use std::task::{Context, Poll};

use futures::{FutureExt as _, future::BoxFuture};
use http::{HeaderValue, Method, Request, Response};
use kube::client::Body;
use podplane_proto::fence::METADATA;
use tower::{BoxError, Service};

use crate::{leader::LeaseTerm, trace};

/// A client over the connection of another one, which sends the fence and refuses writes outside
/// the term.
pub(super) fn client(
    connection: &kube::Client,
    fence: Option<HeaderValue>,
    term: Option<LeaseTerm>,
) -> kube::Client {
    let service = GuardedService {
        connection: connection.clone(),
        fence,
        term,
    };
    kube::Client::new(service, connection.default_namespace())
}

struct GuardedService {
    connection: kube::Client,
    fence: Option<HeaderValue>,
    term: Option<LeaseTerm>,
}

impl Service<Request<Body>> for GuardedService {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // The connection is asked when a request is sent.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        trace::inject_headers(request.headers_mut());
        if let Some(fence) = &self.fence {
            request.headers_mut().insert(METADATA, fence.clone());
        }
        let checked = match &self.term {
            Some(term) if request.method() != Method::GET => term.check(),
            _ => Ok(()),
        };
        let connection = self.connection.clone();
        async move {
            checked?;
            Ok(connection.send(request).await?)
        }
        .boxed()
    }
}
