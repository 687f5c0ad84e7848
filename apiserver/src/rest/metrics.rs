//! `/metrics`: what the server does, under the reference's names where it has one.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64},
};

use http::{Method, StatusCode};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::Registry,
};

use super::resource::{Names, Resource, Subresource};
use crate::cache::Position;

/// The counters and gauges of the REST API. Cloning shares them.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    requests: Family<Request, Counter<u64, AtomicU64>>,
    running: Family<Running, Gauge<i64, AtomicI64>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    code: u16,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    verb: &'static str,
    version: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Running {
    group: &'static str,
    resource: &'static str,
    verb: &'static str,
    version: &'static str,
}

/// Counts a request that goes on for as long as this lives.
#[derive(Debug)]
pub(super) struct Goes(Gauge<i64, AtomicI64>);

impl Drop for Goes {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub(super) fn new(
        registry: &mut Registry,
        kinds: Arc<[Arc<dyn Resource>]>,
        position: Position,
    ) -> Self {
        let requests = Family::default();
        let running = Family::default();
        // The encoder adds `_total`.
        registry.register(
            "apiserver_request",
            "Requests answered through the REST API, by verb, resource and code",
            requests.clone(),
        );
        registry.register(
            "apiserver_longrunning_requests",
            "Watches that are open through the REST API",
            running.clone(),
        );
        registry.register_collector(Box::new(Stored { kinds, position }));
        Self { requests, running }
    }

    /// Counts a request that has been answered.
    pub(super) fn answered(
        &self,
        names: &Names,
        subresource: Option<Subresource>,
        verb: &'static str,
        code: StatusCode,
    ) {
        let request = Request {
            code: code.as_u16(),
            group: names.group,
            resource: names.plural,
            subresource: subresource.map_or("", Subresource::name),
            verb,
            version: names.version,
        };
        self.requests.get_or_create(&request).inc();
    }

    /// Counts a watch until what is returned is dropped.
    pub(super) fn watches(&self, names: &Names) -> Goes {
        let running = Running {
            group: names.group,
            resource: names.plural,
            verb: "WATCH",
            version: names.version,
        };
        let gauge = self.running.get_or_create(&running).clone();
        gauge.inc();
        Goes(gauge)
    }
}

/// The verb of a request, as the reference's metrics have it.
pub(super) fn verb(method: &Method, is_named: bool, is_watch: bool) -> &'static str {
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

/// What is counted when it is asked for.
struct Stored {
    kinds: Arc<[Arc<dyn Resource>]>,
    position: Position,
}

impl std::fmt::Debug for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stored(..)")
    }
}

impl Collector for Stored {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let name = "apiserver_storage_objects";
        let help = "Stored objects, by resource";
        let gauge = prometheus_client::metrics::MetricType::Gauge;
        let mut objects = encoder.encode_descriptor(name, help, None, gauge)?;
        for kind in self.kinds.iter() {
            let Some(count) = kind.count() else { continue };
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            let names = kind.names();
            let resource = match names.group {
                "" => names.plural.to_owned(),
                group => format!("{}.{group}", names.plural),
            };
            let labels = [("resource", resource)];
            ConstGauge::new(count).encode(objects.encode_family(&labels)?)?;
        }
        let name = "podplane_apiserver_store_revision";
        let help = "The revision that reads are served at";
        let revision = encoder.encode_descriptor(name, help, None, gauge)?;
        ConstGauge::new(self.position.current().number()).encode(revision)
    }
}
