//! The gRPC services: one for each kind, all of them this one.

mod methods;
mod status;
mod store;
mod watch;

pub(crate) use self::store::Backups;

use std::{
    convert::Infallible,
    future::ready,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use podplane_proto::wire::Verb;
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, codegen::Service, server::NamedService};

use crate::{registry::Registry, strategy::Strategy};

type Response = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

/// Serves a kind: the uniform methods, and those that only it has.
#[derive(Debug)]
pub(crate) struct KindService<K> {
    registry: Registry<K>,
    /// Ends open watches.
    stop: CancellationToken,
}

impl<K> Clone for KindService<K> {
    fn clone(&self) -> Self {
        Self {
            registry: self.registry.clone(),
            stop: self.stop.clone(),
        }
    }
}

impl<K: Strategy> KindService<K> {
    pub(crate) fn new(registry: Registry<K>, stop: CancellationToken) -> Self {
        Self { registry, stop }
    }
}

impl<K: Strategy> NamedService for KindService<K> {
    const NAME: &'static str = K::SERVICE;
}

/// The methods that only one kind has.
pub(crate) trait NarrowMethods: Strategy {
    /// Answers a method that is none of the uniform ones.
    fn call(_registry: &Registry<Self>, method: &str, _request: http::Request<Body>) -> Response {
        unknown::<Self>(method)
    }
}

fn unknown<K: Strategy>(method: &str) -> Response {
    let unknown = Status::unimplemented(format!("{} has no method {method}", K::SERVICE));
    ready(Ok(unknown.into_http())).boxed()
}

impl<K: NarrowMethods> Service<http::Request<Body>> for KindService<K> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Response;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Response {
        let method = request
            .uri()
            .path()
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        match Verb::ALL
            .into_iter()
            .find(|verb| verb.method::<K>() == method)
        {
            Some(verb) => methods::call(self, verb, request),
            None => K::call(&self.registry, &method, request),
        }
    }
}
