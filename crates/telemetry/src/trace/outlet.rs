//! Where spans go: queues that never make anybody wait, and tasks that empty them.

use std::{
    convert::Infallible,
    fmt,
    sync::{LazyLock, Mutex, PoisonError, RwLock},
    time::Duration,
};

use backon::{ExponentialBuilder, Retryable as _};
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
use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tokio::{
    sync::mpsc,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, transport::Channel};

/// Spans that wait. When there are so many, further ones are dropped and counted: whoever does the work that they are of never waits.
const QUEUE: usize = 8192;
/// Spans that are sent at once.
const BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const LINGER: Duration = Duration::from_millis(200);
/// How long all that is left may take when the process is stopping.
const LAST: Duration = Duration::from_secs(1);
/// How long the API server is tried; it may be starting again.
const TRIES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(100))
    .with_max_delay(Duration::from_secs(2))
    .with_max_times(8);

/// The flags of every process that has spans.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TraceConfig {
    /// Send the spans of pods' journeys to this collector too, by OTLP over gRPC, as in http://127.0.0.1:4317
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

/// A collector's address that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "use --otlp-endpoint {endpoint:?}: want the gRPC port of a collector, as in http://127.0.0.1:4317"
)]
pub struct UnusableEndpoint {
    endpoint: String,
    #[source]
    source: opentelemetry_otlp::ExporterBuildError,
}

/// The exporter to the collector, between [`init`] and the process's start.
static COLLECTOR: Mutex<Option<opentelemetry_otlp::SpanExporter>> = Mutex::new(None);

/// Prepares to send spans to the collector that the flags name, if they name one. What OpenTelemetry says of `OTEL_EXPORTER_OTLP_HEADERS`,
/// `…_TIMEOUT`, `…_INSECURE` and `OTEL_RESOURCE_ATTRIBUTES` holds. A tokio runtime must be there.
///
/// # Errors
///
/// [`UnusableEndpoint`]. A collector that does not answer is no error.
pub fn init(config: &TraceConfig) -> Result<(), UnusableEndpoint> {
    let endpoint = config.otlp_endpoint.as_deref().unwrap_or_default();
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

/// Who is given the spans of this process.
static QUEUES: RwLock<Vec<Queue>> = RwLock::new(Vec::new());

#[derive(Debug)]
struct Queue {
    to: &'static str,
    spans: mpsc::Sender<SpanData>,
}

/// How many spans went where.
static EXPORTED: LazyLock<Family<[(&str, &str); 1], Counter>> = LazyLock::new(Family::default);
/// How many did not, and why.
static DROPPED: LazyLock<Family<[(&str, &str); 2], Counter>> = LazyLock::new(Family::default);

/// Shows in `registry` what became of this process's spans.
pub(crate) fn register(registry: &mut Registry) {
    registry.register(
        "podplane_trace_spans_exported",
        "Spans of pods' journeys that were handed over",
        EXPORTED.clone(),
    );
    registry.register(
        "podplane_trace_spans_dropped",
        "Spans of pods' journeys that were not: the queue was full, or nobody took them",
        DROPPED.clone(),
    );
}

fn lose(to: &'static str, reason: &'static str, spans: usize) {
    let labels = [("to", to), ("reason", reason)];
    let spans = u64::try_from(spans).unwrap_or(u64::MAX);
    DROPPED.get_or_create(&labels).inc_by(spans);
}

/// Hands a span to every outlet.
pub(super) fn give(span: SpanData) {
    // Only whole entries are pushed, so a panic elsewhere does not spoil the list.
    let queues = QUEUES.read().unwrap_or_else(PoisonError::into_inner);
    for queue in queues.iter() {
        match queue.spans.try_send(span.clone()) {
            Err(mpsc::error::TrySendError::Full(_)) => lose(queue.to, "queue_full", 1),
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
        }
    }
}

/// Takes the spans that are recorded in this process from its making on, and hands them over in batches while [`Outlet::run`] does.
#[derive(Debug)]
#[must_use]
pub(crate) struct Outlet {
    to: Destination,
    resource: ResourceAttributesWithSchema,
    spans: mpsc::Receiver<SpanData>,
}

enum Destination {
    Collector(opentelemetry_otlp::SpanExporter),
    Server(TraceServiceClient<Channel>),
    Here(Box<dyn Fn(Vec<ResourceSpans>) + Send + Sync>),
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Destination {
    /// As in the label `to` of the metrics.
    fn name(&self) -> &'static str {
        match self {
            Self::Collector(_) => "collector",
            Self::Server(_) => "apiserver",
            Self::Here(_) => "memory",
        }
    }
}

impl Outlet {
    /// To the collector for which [`init`] prepared, if it did.
    pub(crate) fn to_collector(service: &'static str) -> Option<Self> {
        let mut collector = COLLECTOR.lock().unwrap_or_else(PoisonError::into_inner);
        let mut exporter = collector.take()?;
        exporter.set_resource(&resource(service));
        Some(Self::new(service, Destination::Collector(exporter)))
    }

    /// To the API server at the other end of a channel, which keeps them for those who ask.
    pub(crate) fn to_server(service: &'static str, channel: Channel) -> Self {
        let client = TraceServiceClient::new(channel);
        Self::new(service, Destination::Server(client))
    }

    /// To this process itself.
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
        // Where several services share a process, as in tests, one may have ended.
        queues.retain(|queue| !queue.spans.is_closed());
        queues.push(queue);
        Self {
            to,
            resource: (&resource(service)).into(),
            spans,
        }
    }

    /// Hands spans over until `stop`, and then what is left. That nobody takes them disturbs nothing else: they are dropped and counted.
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

    /// Waits for a span, and a little for more.
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
            // Received spans are in the batch the moment they are received, so losing the wait loses nothing.
            _ = time::timeout(LINGER, more).await;
        };
        // As above.
        stop.run_until_cancelled(gather).await;
    }

    /// Hands a batch over, if that is done by `end`, which is set when the process is stopping.
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
            time::sleep_until(end).await;
        };
        // Losing an export that takes too long loses its spans, which are counted.
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
                tracing::debug!(to = name, spans = count, error, "spans dropped");
                lose(name, "not_taken", count);
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
            Destination::Server(client) => {
                let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
                let request = ExportTraceServiceRequest { resource_spans };
                let export = async || client.clone().export(request.clone()).await;
                // Who is stopping does not wait for a server that may be stopping, too.
                let may_pass =
                    |status: &Status| status.code() == Code::Unavailable && !stop.is_cancelled();
                let exported = export.retry(TRIES).when(may_pass).await;
                exported.map(drop).map_err(|status| status.to_string())
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

    /// How long an outlet takes to end that has three batches for a server, when the server is connected to like this.
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
    async fn what_is_left_when_the_process_stops_has_a_second_together() {
        assert!(ending(std::future::pending).await < 2 * LAST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_gone_is_not_waited_for_when_the_process_stops() {
        let refused = || async { Err(io::ErrorKind::ConnectionRefused.into()) };
        assert_eq!(ending(refused).await, Duration::ZERO);
    }
}
