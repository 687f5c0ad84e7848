//! The services for the journeys of pods: spans come in by OTLP, and traces are read.

use std::sync::Arc;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse, trace_service_server,
};
use podplane_access::ResourceTarget;
use podplane_api::ObjectKey;
use podplane_proto::{
    error::{ApiError, Reason},
    trace::{
        Attribute, GetPodTraceRequest, GetPodTraceResponse, Span, Trace,
        trace_service_server as ours,
    },
};
use podplane_service_runtime::{
    authentication::RequestContext,
    identity::Identity,
    trace::{Journey, ReceivedSpan, SamplingRatio},
};
use tonic::{Request, Response, Status};

use super::status;
use crate::{
    audit::RequestRecord,
    authorization::{Authorized, Gate, Gated, MethodRule},
    error,
    journeys::{Journeys, TraceSnapshot, TracedPod, traced_pod},
    rest::resource::Resource,
};

/// The rights that the collector's methods need.
pub(crate) const COLLECTOR_RULES: [MethodRule; 1] = [MethodRule::Needs(
    "Export",
    "create",
    "trace.podplane.io",
    "spans",
)];

/// Receives spans, as any OTLP collector does.
#[derive(Debug)]
pub(crate) struct SpanCollector(pub(crate) Gated<Journeys>);

#[tonic::async_trait]
impl trace_service_server::TraceService for SpanCollector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let authorized = Authorized::of(request.extensions()).map_err(status::of)?;
        let journeys = self.0.open(&authorized);
        journeys.take(request.into_inner().resource_spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Serves the traces. Clones share them.
#[derive(Clone)]
pub(crate) struct Traces {
    pub(crate) gate: Gate,
    pub(crate) journeys: Gated<Journeys>,
    pub(crate) pods: Gated<Arc<dyn Resource>>,
}

#[tonic::async_trait]
impl ours::TraceService for Traces {
    async fn get_pod_trace(
        &self,
        request: Request<GetPodTraceRequest>,
    ) -> Result<Response<GetPodTraceResponse>, Status> {
        let caller = RequestContext::of(request.extensions()).identity;
        let record = RequestRecord::of(request.extensions());
        let trace = self.trace(request.into_inner(), &caller, &record).await;
        trace.map(Response::new).map_err(status::of)
    }
}

/// The error for a pod without a trace, whose UID or name may be unknown.
fn not_found(pod: &TracedPod) -> ApiError {
    let TracedPod {
        namespace,
        name,
        uid,
    } = pod;
    let pod = match (name.as_str(), uid.as_str()) {
        ("", uid) => uid.to_owned(),
        (name, "") => format!("{namespace}/{name}"),
        (name, uid) => format!("{namespace}/{name} ({uid})"),
    };
    let ratio = SamplingRatio::of_process();
    let not_sampled = match Journey::creation(uid) {
        Some(journey) if !ratio.samples(journey.trace()) => {
            let why = format!(
                "pod {pod} is not traced: its UID is not among the share of pods that --trace-sampling-ratio {ratio} records"
            );
            return ApiError::new(Reason::NotFound, why);
        }
        // A pod that is gone is found by its trace alone.
        None if ratio != SamplingRatio::ALL => {
            format!(" it was not sampled (--trace-sampling-ratio {ratio}),")
        }
        _ => String::new(),
    };
    let why = format!(
        "no trace of pod {pod} is remembered: there was no such pod,{not_sampled} it was long ago, or the API server has been restarted since"
    );
    ApiError::new(Reason::NotFound, why)
}

impl Traces {
    /// The traces of a pod, for a caller who may see them.
    ///
    /// # Errors
    ///
    /// `Forbidden`; `NotFound` if there is no trace.
    pub(crate) async fn trace(
        &self,
        mut request: GetPodTraceRequest,
        caller: &Arc<Identity>,
        record: &RequestRecord,
    ) -> Result<GetPodTraceResponse, ApiError> {
        if request.uid.is_empty() && request.namespace.is_empty() {
            "default".clone_into(&mut request.namespace);
        }
        // Who asks by uid alone may ask about every pod.
        let (namespace, name) = match request.uid.is_empty() {
            true => (&*request.namespace, &*request.name),
            false => ("", ""),
        };
        let target = ResourceTarget {
            version: "v1",
            resource: "pods",
            subresource: "trace",
            namespace,
            name,
            ..ResourceTarget::default()
        };
        let authorized = self.gate.authorize(caller, "get", target, record).await?;
        let journeys = self.journeys.open(&authorized);
        let pod = self.find(request, &authorized).await?;
        let get = |journey: Option<Journey>| journeys.get(journey?);
        let creation = get(Journey::creation(&pod.uid));
        let deletion = get(Journey::deletion(&pod.uid));
        if creation.is_none() && deletion.is_none() {
            return Err(not_found(&pod));
        }
        let roots = creation.iter().chain(&deletion).flat_map(|of| &of.spans);
        let known = roots.filter_map(traced_pod).next();
        let TracedPod {
            namespace,
            name,
            uid,
        } = known.unwrap_or(pod);
        Ok(GetPodTraceResponse {
            namespace,
            name,
            uid,
            creation: creation.map(Trace::from),
            deletion: deletion.map(Trace::from),
        })
    }

    /// Finds the requested pod.
    async fn find(
        &self,
        request: GetPodTraceRequest,
        authorized: &Authorized,
    ) -> Result<TracedPod, ApiError> {
        let GetPodTraceRequest {
            namespace,
            name,
            uid,
        } = request;
        if !uid.is_empty() {
            return Ok(TracedPod {
                uid,
                ..TracedPod::default()
            });
        }
        if name.is_empty() {
            return Err(error::bad_request("name or uid is required"));
        }
        let key = ObjectKey::new(namespace.as_str(), name.as_str());
        if let Ok(pod) = self.pods.open(authorized).get(&key).await
            && let Some(uid) = pod["metadata"]["uid"].as_str()
        {
            return Ok(TracedPod {
                uid: uid.to_owned(),
                namespace,
                name,
            });
        }
        let last = self.journeys.open(authorized).last_of(&namespace, &name);
        last.ok_or_else(|| {
            not_found(&TracedPod {
                namespace,
                name,
                uid: String::new(),
            })
        })
    }
}

impl From<TraceSnapshot> for Trace {
    fn from(snapshot: TraceSnapshot) -> Self {
        let TraceSnapshot {
            id,
            spans,
            dropped,
            received,
        } = snapshot;
        Self {
            trace_id: format!("{id:032x}"),
            spans: spans.into_iter().map(wire).collect(),
            dropped_spans: dropped.count,
            received: Some(received.into()),
            dropped_attempts: dropped.attempts.into_iter().map(Into::into).collect(),
        }
    }
}

fn wire(seen: ReceivedSpan) -> Span {
    let ReceivedSpan {
        id,
        parent,
        name,
        service,
        start_unix_nano,
        end_unix_nano,
        error,
        attributes,
        links,
    } = seen;
    let attributes = attributes.into_iter();
    Span {
        span_id: format!("{id:016x}"),
        parent_span_id: match parent {
            0 => String::new(),
            parent => format!("{parent:016x}"),
        },
        name,
        service,
        start_time_unix_nano: start_unix_nano,
        end_time_unix_nano: end_unix_nano,
        error,
        attributes: attributes
            .map(|(key, value)| Attribute { key, value })
            .collect(),
        links,
    }
}
