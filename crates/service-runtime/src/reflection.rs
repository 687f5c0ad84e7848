//! gRPC reflection that is built at its first call: most processes never get one, and decoding all
//! descriptors, once for each version of the protocol, takes longer than the rest of their start.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fmt, future,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use tonic::{
    Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::NamedService,
    service::RoutesBuilder,
};
use tonic_reflection::server::{Builder, Error};

/// The input of the reflection services.
#[derive(Debug)]
struct DescriptorSource {
    names: BTreeSet<&'static str>,
    descriptors: &'static [u8],
}

/// Returns the services of both versions of the protocol, for a socket. All sockets share the
/// decoded descriptors, which take megabytes.
pub(crate) fn reflection(
    names: BTreeSet<&'static str>,
    descriptors: &'static [u8],
) -> impl Fn(&mut RoutesBuilder) {
    let described = Arc::new(DescriptorSource { names, descriptors });
    let v1 = LazyService::new(&described, |described| described.builder().build_v1());
    let v1alpha = LazyService::new(&described, |described| described.builder().build_v1alpha());
    move |routes| {
        routes.add_service(v1.clone()).add_service(v1alpha.clone());
    }
}

impl DescriptorSource {
    fn builder(&self) -> Builder<'static> {
        let builder = Builder::configure()
            .register_encoded_file_descriptor_set(self.descriptors)
            // Clients can decode the details of errors only if they are described, too.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(opentelemetry_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(
                tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
            )
            .with_service_name("grpc.health.v1.Health")
            .with_service_name("grpc.reflection.v1.ServerReflection")
            .with_service_name("grpc.reflection.v1alpha.ServerReflection");
        let names = self.names.iter();
        names.fold(builder, |builder, name| builder.with_service_name(*name))
    }
}

/// A service that is built by its first call.
struct LazyService<S> {
    described: Arc<DescriptorSource>,
    make: fn(&DescriptorSource) -> Result<S, Error>,
    made: Arc<OnceLock<Result<S, Error>>>,
}

impl<S> LazyService<S> {
    fn new(
        described: &Arc<DescriptorSource>,
        make: fn(&DescriptorSource) -> Result<S, Error>,
    ) -> Self {
        Self {
            described: Arc::clone(described),
            make,
            made: Arc::default(),
        }
    }
}

impl<S> Clone for LazyService<S> {
    fn clone(&self) -> Self {
        Self {
            described: Arc::clone(&self.described),
            make: self.make,
            made: Arc::clone(&self.made),
        }
    }
}

impl<S> fmt::Debug for LazyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyService")
            .field("described", &self.described.names)
            .finish_non_exhaustive()
    }
}

impl<S: NamedService> NamedService for LazyService<S> {
    const NAME: &'static str = S::NAME;
}

type ReflectionAnswer = Result<http::Response<Body>, Infallible>;

impl<S> Service<http::Request<Body>> for LazyService<S>
where
    S: Service<
            http::Request<Body>,
            Response = http::Response<Body>,
            Error = Infallible,
            Future = BoxFuture<http::Response<Body>, Infallible>,
        > + Clone,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match self.made.get_or_init(|| (self.make)(&self.described)) {
            // tonic's generated services are always ready.
            Ok(service) => service.clone().call(request),
            Err(error) => {
                let status = Status::internal(format!("failed to decode the descriptors: {error}"));
                let answer: ReflectionAnswer = Ok(status.into_http());
                Box::pin(future::ready(answer))
            }
        }
    }
}
