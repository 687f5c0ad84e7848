//! The server's metrics, for gRPC and REST together, with Kubernetes' names where there are any.

use std::{
    borrow::Cow,
    sync::atomic::{AtomicI64, AtomicU64},
};

use http::{Method, StatusCode};
use podplane_host::clock::Instant;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::Registry,
};
use tonic::Code;

use crate::{cache::Position, error, rest::resource::KindNames, served::ServedKinds};

/// Buckets in seconds, as in Kubernetes.
const DURATIONS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// The counters and gauges. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct ApiserverMetrics {
    requests: Family<AnswerLabels, Counter<u64, AtomicU64>>,
    seconds: Family<RequestLabels, Histogram, fn() -> Histogram>,
    inflight: Family<[(&'static str, &'static str); 1], Gauge<i64, AtomicI64>>,
    watches: Family<RequestLabels, Gauge<i64, AtomicI64>>,
    events: Family<WatchEventLabels, Counter<u64, AtomicU64>>,
}

/// The labels of a request. The verbs are those of Kubernetes' metrics.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) group: Cow<'static, str>,
    pub(crate) resource: Cow<'static, str>,
    pub(crate) subresource: &'static str,
    pub(crate) verb: &'static str,
    pub(crate) version: Cow<'static, str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    code: u16,
    group: Cow<'static, str>,
    resource: Cow<'static, str>,
    subresource: &'static str,
    verb: &'static str,
    version: Cow<'static, str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchEventLabels {
    group: Cow<'static, str>,
    kind: Cow<'static, str>,
    version: Cow<'static, str>,
}

impl RequestLabels {
    pub(crate) fn new(names: &KindNames, subresource: &'static str, verb: &'static str) -> Self {
        Self {
            group: names.group.clone(),
            resource: names.plural.clone(),
            subresource,
            verb,
            version: names.version.clone(),
        }
    }
}

/// A request in progress. A request that its client gives up is not counted.
#[derive(Debug)]
pub(crate) struct InflightRequest {
    request: RequestLabels,
    began: Instant,
    _inflight: GaugeGuard,
    metrics: ApiserverMetrics,
}

impl InflightRequest {
    /// Counts the answered request.
    pub(crate) fn answered(self, code: StatusCode) {
        let RequestLabels {
            group,
            resource,
            subresource,
            verb,
            version,
        } = self.request.clone();
        let answered = AnswerLabels {
            code: code.as_u16(),
            group,
            resource,
            subresource,
            verb,
            version,
        };
        self.metrics.requests.get_or_create(&answered).inc();
        // The duration of a watch says nothing about the server.
        if verb != "WATCH" {
            let seconds = self.metrics.seconds.get_or_create(&self.request);
            seconds.observe(self.began.elapsed().as_secs_f64());
        }
    }
}

/// A gauge that is incremented for as long as this value lives.
#[derive(Debug)]
pub(crate) struct GaugeGuard(Gauge<i64, AtomicI64>);

impl GaugeGuard {
    fn on(gauge: &Gauge<i64, AtomicI64>) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// An open watch.
#[derive(Debug)]
pub(crate) struct OpenWatch {
    _open: GaugeGuard,
    sent: Counter<u64, AtomicU64>,
}

impl OpenWatch {
    /// Counts an event that was sent.
    pub(crate) fn sent(&self) {
        self.sent.inc();
    }
}

impl ApiserverMetrics {
    /// Creates the counters and registers them for `/metrics`.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(DURATIONS)),
            inflight: Family::default(),
            watches: Family::default(),
            events: Family::default(),
        };
        // The encoder adds `_total`.
        registry.register(
            "apiserver_request",
            "Requests answered, through gRPC and REST, by verb, resource and code",
            metrics.requests.clone(),
        );
        registry.register(
            "apiserver_request_duration_seconds",
            "Seconds per request, without watches, by verb and resource",
            metrics.seconds.clone(),
        );
        registry.register(
            "apiserver_current_inflight_requests",
            "Requests in flight",
            metrics.inflight.clone(),
        );
        registry.register(
            "apiserver_longrunning_requests",
            "Open watches",
            metrics.watches.clone(),
        );
        registry.register(
            "apiserver_watch_events",
            "Events sent to watchers, by kind",
            metrics.events.clone(),
        );
        for kind in ["mutating", "readOnly"] {
            drop(metrics.inflight.get_or_create(&[("request_kind", kind)]));
        }
        metrics
    }

    /// Registers the numbers of stored objects.
    pub(crate) fn show_stored(registry: &mut Registry, kinds: ServedKinds, position: Position) {
        registry.register_collector(Box::new(ObjectCountCollector { kinds, position }));
    }

    /// Starts to count a request.
    pub(crate) fn begins(&self, request: RequestLabels) -> InflightRequest {
        let kind = match request.verb {
            "GET" | "LIST" | "WATCH" => "readOnly",
            _ => "mutating",
        };
        let inflight = self.inflight.get_or_create(&[("request_kind", kind)]);
        InflightRequest {
            _inflight: GaugeGuard::on(&inflight),
            request,
            began: Instant::now(),
            metrics: self.clone(),
        }
    }

    /// Counts an open watch until the returned value is dropped.
    pub(crate) fn watches(&self, names: &KindNames) -> OpenWatch {
        let sent = WatchEventLabels {
            group: names.group.clone(),
            kind: names.kind.clone(),
            version: names.version.clone(),
        };
        let open = self
            .watches
            .get_or_create(&RequestLabels::new(names, "", "WATCH"));
        OpenWatch {
            _open: GaugeGuard::on(&open),
            sent: self.events.get_or_create(&sent).clone(),
        }
    }
}

/// The verb of a REST request, as in Kubernetes' metrics.
pub(crate) fn verb(method: &Method, is_named: bool, is_watch: bool) -> &'static str {
    match (method.as_str(), is_named) {
        (_, _) if is_watch => "WATCH",
        ("GET", true) => "GET",
        ("GET", false) => "LIST",
        ("POST", _) => "POST",
        ("PUT", _) => "PUT",
        ("PATCH", _) => "PATCH",
        ("DELETE", true) => "DELETE",
        ("DELETE", false) => "DELETECOLLECTION",
        _ => "other",
    }
}

/// The HTTP status with which REST would have answered in place of this gRPC code.
pub(crate) fn http_code(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted | Code::FailedPrecondition => StatusCode::CONFLICT,
        Code::InvalidArgument => StatusCode::UNPROCESSABLE_ENTITY,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::OutOfRange => StatusCode::GONE,
        Code::DeadlineExceeded | Code::Cancelled => StatusCode::GATEWAY_TIMEOUT,
        Code::ResourceExhausted => StatusCode::PAYLOAD_TOO_LARGE,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unimplemented => StatusCode::METHOD_NOT_ALLOWED,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A collector of the numbers of stored objects, counted at each scrape.
struct ObjectCountCollector {
    kinds: ServedKinds,
    position: Position,
}

impl std::fmt::Debug for ObjectCountCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stored(..)")
    }
}

impl Collector for ObjectCountCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let name = "apiserver_storage_objects";
        let help = "Stored objects, by resource";
        let gauge = prometheus_client::metrics::MetricType::Gauge;
        let mut objects = encoder.encode_descriptor(name, help, None, gauge)?;
        for kind in &self.kinds.now().resources {
            let Some(count) = kind.count() else { continue };
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            let names = kind.names();
            let labels = [("resource", error::resource_in(names))];
            ConstGauge::new(count).encode(objects.encode_family(&labels)?)?;
        }
        let name = "podplane_apiserver_store_revision";
        let help = "The revision that reads are served at";
        let revision = encoder.encode_descriptor(name, help, None, gauge)?;
        ConstGauge::new(self.position.current().number()).encode(revision)
    }
}
