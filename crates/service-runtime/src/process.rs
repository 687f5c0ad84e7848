//! A service process: its sockets, services and readiness.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{Router, extract::Request, http::HeaderMap, middleware, response::IntoResponse};
use futures::future::{BoxFuture, join_all};
use opentelemetry_proto::tonic::trace::v1::ResourceSpans;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tonic::{
    Status,
    body::Body,
    codegen::{Service, StdError, http},
    server::NamedService,
    service::{Routes, RoutesBuilder},
};
use tower::ServiceExt as _;

use crate::{
    Tasks,
    boundary::{self, is_grpc},
    health::{Health, Statuses},
    limits::LimitMetrics,
    probes::{self, Checks},
    reflection::reflection,
    server::Listener,
    trace::{self, Outlet},
    usage,
};

/// A service process with everything that it serves. Each of its sockets has, besides its own
/// services, health for each of them, reflection v1 and v1alpha, and over HTTP `/metrics`,
/// `/livez`, `/readyz` and `/debug/log-level`.
pub struct Process {
    descriptors: &'static [u8],
    names: BTreeSet<&'static str>,
    sockets: Vec<(Vec<Listener>, RoutesBuilder)>,
    http_sockets: Vec<Listener>,
    conditions: Vec<(&'static str, BoxFuture<'static, ()>)>,
    registry: Registry,
    http: Option<Router>,
    outlets: Vec<Outlet>,
    boundary: boundary::BoundaryMetrics,
    limits: LimitMetrics,
}

/// The services of one socket.
#[derive(Debug, Default)]
pub struct Services {
    routes: RoutesBuilder,
    names: Vec<&'static str>,
}

impl Services {
    /// Adds a service under its name.
    pub fn add<S>(&mut self, service: S) -> &mut Self
    where
        S: Service<http::Request<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Response: IntoResponse,
        S::Future: Send + 'static,
    {
        self.routes.add_service(service);
        self.names.push(S::NAME);
        self
    }

    /// Adds a service under a name that its type does not say, so that one type can serve several.
    pub fn add_named<S>(&mut self, name: &'static str, service: S) -> &mut Self
    where
        S: Service<http::Request<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
        S::Response: IntoResponse,
        S::Future: Send + 'static,
    {
        let routes = std::mem::take(&mut self.routes).routes().into_axum_router();
        let adapted =
            service.map_request(|request: http::Request<axum::body::Body>| request.map(Body::new));
        self.routes = routes
            .route_service(&format!("/{name}/{{*rest}}"), adapted)
            .into();
        self.names.push(name);
        self
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("names", &self.names)
            .field("sockets", &self.sockets)
            .finish_non_exhaustive()
    }
}

impl Process {
    /// Creates a process without sockets. `descriptors` is an encoded `FileDescriptorSet` with at
    /// least the process's services.
    pub fn new(descriptors: &'static [u8]) -> Self {
        let mut registry = Registry::default();
        usage::register(&mut registry);
        let boundary = boundary::BoundaryMetrics::new(&mut registry);
        let limits = LimitMetrics::new(&mut registry);
        Self {
            descriptors,
            names: BTreeSet::new(),
            sockets: Vec::new(),
            http_sockets: Vec::new(),
            conditions: Vec::new(),
            registry,
            http: None,
            outlets: Vec::new(),
            boundary,
            limits,
        }
    }

    /// The registry of `/metrics`.
    pub fn registry(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// Registers a readiness condition, which `/readyz` shows by its name. The process is ready
    /// once all conditions have completed.
    pub fn ready_when(
        &mut self,
        name: &'static str,
        met: impl Future<Output = ()> + Send + 'static,
    ) {
        self.conditions.push((name, Box::pin(met)));
    }

    /// Serves these services on a socket.
    pub fn serve(&mut self, listener: Listener, services: Services) {
        self.serve_at(vec![listener], services);
    }

    /// Serves these services on each of several sockets.
    pub fn serve_at(&mut self, listeners: Vec<Listener>, services: Services) {
        let Services { routes, names } = services;
        self.names.extend(names);
        self.sockets.push((listeners, routes));
    }

    /// Serves the HTTP endpoints on a socket of their own, too.
    pub fn serve_http(&mut self, listener: Listener) {
        self.http_sockets.push(listener);
    }

    /// Serves these routes over HTTP, too. Their fallback handles all requests that nothing else
    /// matches.
    pub fn with_http(&mut self, routes: Router) {
        self.http = Some(routes);
    }

    /// Records spans of pods' journeys under this service's name, and exports them to the API
    /// server at the other end of a channel, if given, and to the collector, if [`trace::init`]
    /// prepared one.
    pub fn trace<C>(&mut self, service: &'static str, server: Option<C>)
    where
        C: Service<http::Request<Body>, Response = http::Response<Body>>,
        C: Clone + Send + Sync + 'static,
        C::Error: Into<StdError>,
        C::Future: Send + 'static,
    {
        let to_server = server.map(|channel| Outlet::to_server(service, channel));
        self.outlets.extend(to_server);
        self.outlets.extend(Outlet::to_collector(service));
    }

    /// Does the same for the API server itself, which stores them.
    pub fn trace_to(
        &mut self,
        service: &'static str,
        keep: impl Fn(Vec<ResourceSpans>) + Send + Sync + 'static,
    ) {
        self.outlets.push(Outlet::to_memory(service, keep));
        self.outlets.extend(Outlet::to_collector(service));
    }

    /// Starts serving, until the tasks are stopped. Health is NOT_SERVING until the process is
    /// ready, and again when it stops.
    pub async fn start(self, tasks: &mut Tasks) {
        let Self {
            descriptors,
            names,
            sockets,
            http_sockets,
            conditions,
            mut registry,
            http,
            outlets,
            boundary,
            limits,
        } = self;
        let stop = tasks.stop();
        if !outlets.is_empty() {
            trace::register(&mut registry);
        }
        for outlet in outlets {
            tasks.spawn("spans", outlet.run(stop.clone()));
        }
        let add_reflection = reflection(names.clone(), descriptors);
        let statuses = Statuses::new(names).await;
        let health = Health::new(&statuses);
        let (readiness, conditions) = Readiness::of(conditions, stop.clone());
        let http = http.unwrap_or_else(|| Router::new().fallback(fallback));
        let http = http.merge(probes::routes(registry, move || readiness.checks()));
        for (listeners, mut routes) in sockets {
            routes.add_service(health.clone());
            add_reflection(&mut routes);
            // All sockets share one router; otherwise each would have a copy.
            let grpc = routes.routes().into_axum_router().reset_fallback();
            let grpc = grpc.route_layer(middleware::from_fn(only_grpc));
            let routes = Routes::from(grpc.fallback_service(http.clone()));
            for listener in listeners {
                let (stop, boundary) = (stop.clone(), boundary.clone());
                let served = listener.serve(routes.clone(), stop, boundary, limits.clone());
                tasks.spawn("server", served);
            }
        }
        for listener in http_sockets {
            let routes = Routes::from(http.clone());
            tasks.spawn(
                "HTTP server",
                listener.serve(routes, stop.clone(), boundary.clone(), limits.clone()),
            );
        }
        tasks.spawn("readiness", async move {
            // Cancelling the wait loses nothing: the process stops.
            if stop.run_until_cancelled(conditions).await.is_some() {
                statuses.serving().await;
                tracing::debug!("ready");
                stop.cancelled().await;
            }
            statuses.over().await;
            Ok::<_, Infallible>(())
        });
    }
}

/// Rejects calls of gRPC methods with another media type than gRPC's: a browser would send those
/// for any web page.
async fn only_grpc(request: Request, next: middleware::Next) -> axum::response::Response {
    if is_grpc(request.headers()) {
        return next.run(request).await;
    }
    let why = "gRPC methods require the media type application/grpc\n";
    (http::StatusCode::UNSUPPORTED_MEDIA_TYPE, why).into_response()
}

/// Fallback route: 404, or UNIMPLEMENTED for gRPC.
async fn fallback(headers: HeaderMap) -> axum::response::Response {
    if is_grpc(&headers) {
        return Status::unimplemented("").into_http();
    }
    (http::StatusCode::NOT_FOUND, "404 page not found\n").into_response()
}

/// The readiness conditions, with those that have completed.
#[derive(Clone, Debug)]
struct Readiness {
    conditions: Arc<[(&'static str, AtomicBool)]>,
    stop: CancellationToken,
}

impl Readiness {
    /// Returns the readiness, and a future that completes when all conditions have.
    fn of(
        conditions: Vec<(&'static str, BoxFuture<'static, ()>)>,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (names, futures): (Vec<_>, Vec<_>) = conditions.into_iter().unzip();
        let names = names.into_iter().map(|name| (name, AtomicBool::new(false)));
        let conditions: Arc<[_]> = names.collect();
        let noted = conditions.clone();
        let all = async move {
            let noted = futures
                .into_iter()
                .zip(noted.iter())
                .map(|(met, (_, is_met))| async {
                    met.await;
                    is_met.store(true, Ordering::Relaxed);
                });
            join_all(noted).await;
        };
        (Self { conditions, stop }, all)
    }

    fn checks(&self) -> Checks {
        let conditions = self.conditions.iter();
        let conditions = conditions.map(|(name, is_met)| (*name, is_met.load(Ordering::Relaxed)));
        let shutdown = ("shutdown", !self.stop.is_cancelled());
        std::iter::once(("ping", true))
            .chain(conditions)
            .chain([shutdown])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic::transport::Endpoint;
    use tonic_health::pb::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    };

    use super::*;

    #[tokio::test]
    async fn health_follows_readiness_and_reports_the_shutdown() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await;
        let listener = listener.unwrap();
        let address = format!("http://{}", listener.address());
        let (mut tasks, met) = (
            Tasks::new(CancellationToken::new()),
            CancellationToken::new(),
        );
        let mut process = Process::new(tonic_health::pb::FILE_DESCRIPTOR_SET);
        process.serve(listener, Services::default());
        process.ready_when("something", met.clone().cancelled_owned());
        process.start(&mut tasks).await;
        let stop = tasks.stop();

        let use_it = async {
            let channel = Endpoint::from_shared(address).unwrap().connect().await;
            let mut client = HealthClient::new(channel.unwrap());
            let watch = client.watch(HealthCheckRequest::default()).await;
            let mut watch = watch.unwrap().into_inner();
            let mut next = async || watch.message().await.unwrap().map(|status| status.status());
            assert_eq!(next().await, Some(ServingStatus::NotServing));
            met.cancel();
            assert_eq!(next().await, Some(ServingStatus::Serving));
            let unknown = HealthCheckRequest {
                service: "nobody".into(),
            };
            let refused = client.check(unknown).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::NotFound);
            stop.cancel();
            assert_eq!(next().await, Some(ServingStatus::NotServing));
            assert_eq!(next().await, None, "shutdown does not wait for the stream");
        };
        let both = async { tokio::join!(tasks.run(), use_it) };
        let ended = tokio::time::timeout(Duration::from_secs(4), both).await;
        ended.expect("nothing delays the shutdown").0.unwrap();
    }
}
