//! Export of spans: queues that never block, and the tasks that empty them.

use std::{
    convert::Infallible,
    fmt,
    sync::{LazyLock, Mutex, PoisonError, RwLock},
    time::Duration,
};

use backon::{ExponentialBuilder, Retryable as _};
use futures::{FutureExt as _, future::BoxFuture};
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_proto::{
    tonic::{
        collector::trace::v1::{
            ExportTraceServiceRequest, trace_service_client::TraceServiceClient,
        },
        trace::v1::ResourceSpans,
    },
    transform::{
        common::tonic::ResourceAttributesWithSchema,
        trace::tonic::group_spans_by_resource_and_scope,
    },
};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanExporter as _},
};
use podplane_host::clock::{self, Instant};
use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{
        Service, StdError,
        http::{Request, Response},
    },
};

use super::SamplingRatio;

/// An export to a server, over a channel of any type.
type ExportCall =
    Box<dyn Fn(ExportTraceServiceRequest) -> BoxFuture<'static, Result<(), Status>> + Send + Sync>;

/// The capacity of a queue. Further spans are dropped and counted, so recording one never blocks.
const QUEUE: usize = 8192;
/// The most spans of a batch.
const BATCH: usize = 512;
/// The time for which the first span of a batch waits for others.
const LINGER: Duration = Duration::from_millis(200);
/// The time in which all remaining spans are exported when the process stops.
const LAST: Duration = Duration::from_secs(1);
/// The retries of an export to the API server, which may be restarting.
const TRIES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(100))
    .with_max_delay(Duration::from_secs(2))
    .with_max_times(8);

/// The tracing flags of every process that records spans.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TraceConfig {
    /// Export pod traces (OpenTelemetry) to this OTLP/gRPC collector, such as http://127.0.0.1:4317
    /// [default: not exported]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// Record the traces of this share of pods, from 0.0 (none) to 1.0 (all); the pod's UID
    /// decides, so processes with the same ratio record the same pods [default: 1]
    #[arg(
        long,
        env = "PODPLANE_TRACE_SAMPLING_RATIO",
        hide_short_help = true,
        value_name = "RATIO"
    )]
    pub trace_sampling_ratio: Option<SamplingRatio>,
}

/// The collector's address is invalid.
#[derive(Debug, thiserror::Error)]
#[error(
    "invalid --otlp-endpoint {endpoint:?}: must be the gRPC port of a collector, as in http://127.0.0.1:4317"
)]
pub struct UnusableEndpoint {
    endpoint: String,
    #[source]
    source: opentelemetry_otlp::ExporterBuildError,
}

/// The exporter to the collector, between the call of [`init`] and the start of the process.
static COLLECTOR: Mutex<Option<opentelemetry_otlp::SpanExporter>> = Mutex::new(None);

/// Sets the sampling ratio of this process, and prepares the export of spans to the collector that
/// the flags name, if they name one.
///
/// OpenTelemetry's variables `OTEL_EXPORTER_OTLP_HEADERS`, `…_TIMEOUT`, `…_INSECURE` and
/// `OTEL_RESOURCE_ATTRIBUTES` apply. Must be called in a tokio runtime.
///
/// # Errors
///
/// [`UnusableEndpoint`]. A collector that does not answer is not an error.
pub fn init(config: &TraceConfig) -> Result<(), UnusableEndpoint> {
    let TraceConfig {
        otlp_endpoint,
        trace_sampling_ratio,
    } = config;
    trace_sampling_ratio.unwrap_or_default().apply();
    let endpoint = otlp_endpoint.as_deref().unwrap_or_default();
    if endpoint.is_empty() {
        return Ok(());
    }
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build();
    let exporter = exporter.map_err(|source| UnusableEndpoint {
        endpoint: endpoint.to_owned(),
        source,
    })?;
    *COLLECTOR.lock().unwrap_or_else(PoisonError::into_inner) = Some(exporter);
    Ok(())
}

/// The queues that get the spans of this process.
static QUEUES: RwLock<Vec<Queue>> = RwLock::new(Vec::new());

#[derive(Debug)]
struct Queue {
    to: &'static str,
    spans: mpsc::Sender<SpanData>,
}

/// The number of exported spans, by destination.
static EXPORTED: LazyLock<Family<[(&str, &str); 1], Counter>> = LazyLock::new(Family::default);
/// The number of dropped spans, by destination and reason.
static DROPPED: LazyLock<Family<[(&str, &str); 2], Counter>> = LazyLock::new(Family::default);

/// Registers the metrics of this process's spans.
pub(crate) fn register(registry: &mut Registry) {
    registry.register(
        "podplane_trace_spans_exported",
        "Spans of pods' journeys that were exported",
        EXPORTED.clone(),
    );
    registry.register(
        "podplane_trace_spans_dropped",
        "Spans of pods' journeys that were dropped, by reason",
        DROPPED.clone(),
    );
}

fn count_dropped(to: &'static str, reason: &'static str, spans: usize) {
    let labels = [("to", to), ("reason", reason)];
    let spans = u64::try_from(spans).unwrap_or(u64::MAX);
    DROPPED.get_or_create(&labels).inc_by(spans);
}

/// Enqueues a span at every outlet.
pub(super) fn enqueue(span: SpanData) {
    // Only whole entries are pushed, so a poisoned lock can be used.
    let queues = QUEUES.read().unwrap_or_else(PoisonError::into_inner);
    for queue in queues.iter() {
        match queue.spans.try_send(span.clone()) {
            Err(mpsc::error::TrySendError::Full(_)) => count_dropped(queue.to, "queue_full", 1),
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
        }
    }
}

/// An export of the spans that this process records from now on. [`Outlet::run`] sends them in
/// batches.
#[derive(Debug)]
#[must_use]
pub(crate) struct Outlet {
    to: Destination,
    resource: ResourceAttributesWithSchema,
    spans: mpsc::Receiver<SpanData>,
}

enum Destination {
    Collector(Box<opentelemetry_otlp::SpanExporter>),
    Server(ExportCall),
    Here(Box<dyn Fn(Vec<ResourceSpans>) + Send + Sync>),
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Destination {
    /// The label `to` of the metrics.
    fn name(&self) -> &'static str {
        match self {
            Self::Collector(_) => "collector",
            Self::Server(_) => "apiserver",
            Self::Here(_) => "memory",
        }
    }
}

impl Outlet {
    /// An outlet to the collector that [`init`] prepared, if it did.
    pub(crate) fn to_collector(service: &'static str) -> Option<Self> {
        let mut collector = COLLECTOR.lock().unwrap_or_else(PoisonError::into_inner);
        let mut exporter = collector.take()?;
        exporter.set_resource(&resource(service));
        Some(Self::new(
            service,
            Destination::Collector(Box::new(exporter)),
        ))
    }

    /// An outlet to the API server at the other end of a channel, which stores the spans.
    pub(crate) fn to_server<C>(service: &'static str, channel: C) -> Self
    where
        C: Service<Request<Body>, Response = Response<Body>> + Clone + Send + Sync + 'static,
        C::Error: Into<StdError>,
        C::Future: Send + 'static,
    {
        let client = TraceServiceClient::new(channel);
        let export = move |request| {
            let mut client = client.clone();
            async move { client.export(request).await.map(drop) }.boxed()
        };
        Self::new(service, Destination::Server(Box::new(export)))
    }

    /// An outlet to this process itself.
    pub(crate) fn to_memory(
        service: &'static str,
        keep: impl Fn(Vec<ResourceSpans>) + Send + Sync + 'static,
    ) -> Self {
        Self::new(service, Destination::Here(Box::new(keep)))
    }

    fn new(service: &'static str, to: Destination) -> Self {
        let (sender, spans) = mpsc::channel(QUEUE);
        let queue = Queue {
            to: to.name(),
            spans: sender,
        };
        let mut queues = QUEUES.write().unwrap_or_else(PoisonError::into_inner);
        // If several services share a process, as in tests, one may have ended.
        queues.retain(|queue| !queue.spans.is_closed());
        queues.push(queue);
        Self {
            to,
            resource: (&resource(service)).into(),
            spans,
        }
    }

    /// Exports spans until `stop`, and then the remaining ones. A failing destination disturbs
    /// nothing else: its spans are dropped and counted.
    ///
    /// # Errors
    ///
    /// Never.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), Infallible> {
        let mut batch = Vec::with_capacity(BATCH);
        let mut end = None;
        while !stop.is_cancelled() {
            self.gather(&mut batch, &stop).await;
            self.export(std::mem::take(&mut batch), &stop, &mut end)
                .await;
        }
        self.spans.close();
        while self.spans.recv_many(&mut batch, BATCH).await > 0 {
            self.export(std::mem::take(&mut batch), &stop, &mut end)
                .await;
        }
        Ok(())
    }

    /// Waits for a span, and for up to [`LINGER`] for more.
    async fn gather(&mut self, batch: &mut Vec<SpanData>, stop: &CancellationToken) {
        let gather = async {
            self.spans.recv_many(batch, BATCH).await;
            let more = async {
                while batch.len() < BATCH {
                    let room = BATCH - batch.len();
                    self.spans.recv_many(batch, room).await;
                }
            };
            if matches!(self.to, Destination::Here(_)) {
                return; // That costs nothing.
            }
            // Received spans are in the batch as soon as they are received, so cancelling the wait
            // loses nothing.
            _ = clock::timeout(LINGER, more).await;
        };
        // As above.
        stop.run_until_cancelled(gather).await;
    }

    /// Exports a batch before `end`, which is set once the process is stopping.
    async fn export(
        &mut self,
        batch: Vec<SpanData>,
        stop: &CancellationToken,
        end: &mut Option<Instant>,
    ) {
        let count = batch.len();
        if count == 0 {
            return;
        }
        let name = self.to.name();
        let too_late = async {
            stop.cancelled().await;
            let end = *end.get_or_insert_with(|| Instant::now() + LAST);
            clock::sleep_until(end).await;
        };
        // Cancelling an export that takes too long loses its spans, which are counted.
        let exported = tokio::select! {
            exported = self.hand_over(batch, stop) => exported,
            () = too_late => Err("the process is stopping".to_owned()),
        };
        match exported {
            Ok(()) => {
                let count = u64::try_from(count).unwrap_or(u64::MAX);
                EXPORTED.get_or_create(&[("to", name)]).inc_by(count);
            }
            Err(error) => {
                tracing::debug!(to = name, spans = count, error, "dropped spans");
                count_dropped(name, "not_taken", count);
            }
        }
    }

    async fn hand_over(
        &self,
        batch: Vec<SpanData>,
        stop: &CancellationToken,
    ) -> Result<(), String> {
        match &self.to {
            Destination::Collector(exporter) => {
                let exported = exporter.export(batch).await;
                exported.map_err(|error| error.to_string())
            }
            Destination::Server(call) => {
                let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
                let request = ExportTraceServiceRequest { resource_spans };
                let export = || call(request.clone());
                // A stopping process does not wait for a server that may be stopping, too.
                let may_pass =
                    |status: &Status| status.code() == Code::Unavailable && !stop.is_cancelled();
                let exported = export.retry(TRIES).when(may_pass).await;
                exported.map_err(|status| status.to_string())
            }
            Destination::Here(keep) => {
                keep(group_spans_by_resource_and_scope(batch, &self.resource));
                Ok(())
            }
        }
    }
}

fn resource(service: &'static str) -> Resource {
    Resource::builder()
        .with_service_name(service)
        .with_attribute(opentelemetry::KeyValue::new(
            "service.namespace",
            "podplane",
        ))
        .with_attribute(opentelemetry::KeyValue::new(
            "service.version",
            env!("CARGO_PKG_VERSION"),
        ))
        .build()
}

#[cfg(test)]
mod tests {
    use std::io;

    use hyper_util::rt::TokioIo;
    use tokio::io::DuplexStream;
    use tonic::transport::Endpoint;

    use super::*;
    use crate::trace::{Journey, Span};

    /// The time in which an outlet with three batches ends, for a server that is connected to by
    /// `connect`.
    async fn ending<F>(connect: impl Fn() -> F + Send + 'static) -> Duration
    where
        F: Future<Output = io::Result<DuplexStream>> + Send + 'static,
    {
        let connector = tower::service_fn(move |_| {
            let connected = connect();
            async move { connected.await.map(TokioIo::new) }
        });
        let server = Endpoint::from_static("http://server").connect_with_connector_lazy(connector);
        let outlet = Outlet::to_server("test", server);
        let journey = Journey::creation("1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed");
        for _ in 0..3 * BATCH {
            Span::of(journey, "step").end();
        }
        let stop = CancellationToken::new();
        stop.cancel();
        let begun = Instant::now();
        outlet.run(stop).await.unwrap();
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn exports_remaining_spans_within_a_second_of_the_stop() {
        assert!(ending(std::future::pending).await < 2 * LAST);
    }

    #[tokio::test(start_paused = true)]
    async fn does_not_wait_for_an_unreachable_server_at_the_stop() {
        let refused = || async { Err(io::ErrorKind::ConnectionRefused.into()) };
        assert_eq!(ending(refused).await, Duration::ZERO);
    }
}
