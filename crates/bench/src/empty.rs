//! The upper bound: a gRPC server whose only method does nothing.

use std::{
    convert::Infallible,
    net::SocketAddr,
    task::{Context, Poll},
};

use anyhow::Result;
use bytes::Bytes;
use futures::{
    FutureExt as _,
    future::{BoxFuture, Ready, ready},
};
use podplane_proto::transport::{Encoded, WireCodec};
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::Service,
    server::{Grpc, NamedService, UnaryService},
    transport::{Server, server::TcpIncoming},
};

pub(crate) const PATH: &str = "/bench.Empty/Call";

/// Serves until the process is killed, with tonic in its default configuration.
pub(crate) fn serve(address: SocketAddr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let incoming = TcpIncoming::bind(address)?.with_nodelay(Some(true));
        Server::builder()
            .add_service(EmptyService)
            .serve_with_incoming(incoming)
            .await?;
        Ok(())
    })
}

#[derive(Clone, Debug)]
struct EmptyService;

impl NamedService for EmptyService {
    const NAME: &'static str = "bench.Empty";
}

impl Service<http::Request<Body>> for EmptyService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        async move {
            let codec = WireCodec::<Encoded, Encoded>::default();
            Ok(Grpc::new(codec).unary(Self, request).await)
        }
        .boxed()
    }
}

impl UnaryService<Encoded> for EmptyService {
    type Response = Encoded;
    type Future = Ready<Result<Response<Encoded>, Status>>;

    fn call(&mut self, _request: Request<Encoded>) -> Self::Future {
        ready(Ok(Response::new(Encoded(Bytes::new()))))
    }
}
