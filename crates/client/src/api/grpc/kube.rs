//! kube-rs over the connection of gRPC: podplane's API server has both interfaces on one port.

use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response};
use kube::client::Body as KubeBody;
use podplane_proto::fence::METADATA;
use tonic::{body::Body, transport};
use tower::Service;

use crate::Channel;

/// A client of the REST API, which sends the fence. It needs a tokio runtime.
pub(super) fn client(channel: Channel, fence: Option<HeaderValue>) -> kube::Client {
    kube::Client::new(RestService { channel, fence }, "")
}

/// The channel as kube-rs uses it.
struct RestService {
    channel: Channel,
    fence: Option<HeaderValue>,
}

impl Service<Request<KubeBody>> for RestService {
    type Response = Response<Body>;
    type Error = transport::Error;
    type Future = transport::channel::ResponseFuture;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(context)
    }

    fn call(&mut self, request: Request<KubeBody>) -> Self::Future {
        let mut request = request.map(Body::new);
        if let Some(fence) = &self.fence {
            request.headers_mut().insert(METADATA, fence.clone());
        }
        self.channel.call(request)
    }
}
