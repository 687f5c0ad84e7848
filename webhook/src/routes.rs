//! The HTTP paths of the webhooks: decoding, deadlines, answers, metrics.
//!
//! A review that cannot be judged is answered with an HTTP error and not with a refusal, so that
//! the `failurePolicy` of the configuration decides.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::post,
};
use podplane_api::{
    ObjectKey,
    core::{Node, Pod},
    pod_ips::PodIpResource,
};
use podplane_client::{Cache, Reason};
use podplane_error_chain::one_line;
use podplane_host::clock::{Instant, timeout};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    driver::GuardHandle,
    guard::{AllowReason, BindDecision, BindRequest},
    metrics::WebhookMetrics,
    mutation::{self, Mutation},
    review::{self, RefusalStatus, ReviewAnswer, ReviewRequest},
};

/// The path that adds requests for addresses to new pods.
pub const MUTATE_PODS: &str = "/mutate-pods";
/// The path that judges bindings.
pub const VALIDATE_BINDINGS: &str = "/validate-bindings";

/// The most bytes of a review. An API server takes objects of 3 MiB.
const MAX_REVIEW: usize = 4 << 20;
/// The time in which each review is answered.
const DEADLINE: Duration = Duration::from_secs(1);
/// The key of notes in the audit log of the API server.
const NOTE: &str = "pod-ips";

/// The state that the handlers share.
#[derive(Clone, Debug)]
pub struct Webhooks {
    /// The nodes.
    pub nodes: Cache<Node>,
    /// The resource that counts addresses.
    pub resource: PodIpResource,
    /// The guard of bindings.
    pub guard: GuardHandle,
    /// The metrics.
    pub metrics: WebhookMetrics,
}

/// The fields of a `Binding`.
#[derive(Debug, Deserialize)]
struct Binding {
    #[serde(default)]
    metadata: BindingMetadata,
    #[serde(default)]
    target: BindingTarget,
}

#[derive(Debug, Default, Deserialize)]
struct BindingMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct BindingTarget {
    kind: Option<String>,
    name: Option<String>,
}

/// The routes.
pub fn routes(webhooks: Webhooks) -> Router {
    Router::new()
        .route(MUTATE_PODS, post(mutate_pods))
        .route(VALIDATE_BINDINGS, post(validate_bindings))
        .layer(DefaultBodyLimit::max(MAX_REVIEW))
        .with_state(Arc::new(webhooks))
        .fallback(async || (StatusCode::NOT_FOUND, "404 page not found\n"))
}

/// Reads a review of media type JSON; `Err` is the answer to anything else.
fn request<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: &[u8],
) -> Result<ReviewRequest<T>, Box<Response>> {
    let media = headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    let media = media.and_then(|media| media.split(|byte| *byte == b';').next());
    if !media.is_some_and(|media| media.trim_ascii().eq_ignore_ascii_case(b"application/json")) {
        let want = "want Content-Type: application/json\n";
        return Err(Box::new(
            (StatusCode::UNSUPPORTED_MEDIA_TYPE, want).into_response(),
        ));
    }
    review::read(body).map_err(|error| {
        let text = format!("{}\n", one_line(&error));
        Box::new((StatusCode::BAD_REQUEST, text).into_response())
    })
}

fn document(answer: ReviewAnswer) -> Response {
    match answer.document() {
        Ok(document) => ([(CONTENT_TYPE, "application/json")], document).into_response(),
        Err(error) => internal(&error),
    }
}

fn internal(error: &serde_json::Error) -> Response {
    let text = format!("failed to write the answer: {error}\n");
    (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
}

fn undecided(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response()
}

async fn mutate_pods(
    State(webhooks): State<Arc<Webhooks>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let began = Instant::now();
    let answer = match request(&headers, &body) {
        Ok(request) => webhooks.mutate(&request),
        Err(refused) => *refused,
    };
    webhooks.metrics.review("mutate-pods", began.elapsed());
    answer
}

async fn validate_bindings(
    State(webhooks): State<Arc<Webhooks>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let began = Instant::now();
    let answer = match request(&headers, &body) {
        Ok(request) => webhooks.validate(request).await,
        Err(refused) => *refused,
    };
    webhooks
        .metrics
        .review("validate-bindings", began.elapsed());
    answer
}

impl Webhooks {
    fn mutate(&self, request: &ReviewRequest<Pod>) -> Response {
        let answer = ReviewAnswer::allowed(&*request.uid);
        let Some(pod) = request.object.as_ref().filter(|_| request.creates_pod()) else {
            return document(answer);
        };
        if !self.nodes.is_synced() {
            self.metrics.pod("undecided");
            return undecided("the nodes are not known yet: ask again");
        }
        let nodes = self.nodes.list();
        let nodes = nodes.iter().map(Arc::as_ref);
        let answer = match mutation::plan(pod, nodes, &self.resource) {
            Mutation::Keep(reason) => {
                self.metrics.pod(reason.label());
                Ok(answer.noted(NOTE, reason.to_string()))
            }
            Mutation::Add(patch) => {
                self.metrics.pod("added");
                answer.noted(NOTE, "added").patched(&patch)
            }
        };
        answer.map_or_else(|error| internal(&error), document)
    }

    async fn validate(&self, request: ReviewRequest<Binding>) -> Response {
        let uid = request.uid.clone();
        let Some(binding) = bind_request(request) else {
            return document(ReviewAnswer::allowed(uid));
        };
        let decided = timeout(DEADLINE, self.guard.decide(binding)).await;
        match decided {
            Err(_elapsed) => {
                self.metrics.binding("undecided");
                undecided("no decision in time: ask again")
            }
            Ok(Err(error)) => {
                self.metrics.binding("undecided");
                undecided(&one_line(&error))
            }
            Ok(Ok(BindDecision::UnknownPod)) => {
                self.metrics.binding("undecided");
                undecided("the pod is not known: ask again")
            }
            Ok(Ok(BindDecision::Allowed(reason))) => {
                self.metrics.binding(match reason {
                    AllowReason::Reserved => "reserved",
                    AllowReason::DryRun => "dry_run",
                    AllowReason::NoAddress => "no_address",
                    AllowReason::NotBindable => "not_bindable",
                });
                document(ReviewAnswer::allowed(uid))
            }
            Ok(Ok(BindDecision::Refused(message))) => {
                self.metrics.binding("refused");
                let status = RefusalStatus {
                    code: StatusCode::CONFLICT.as_u16(),
                    reason: Reason::InsufficientPodIps.as_str(),
                    message,
                };
                document(ReviewAnswer::refused(uid, status))
            }
        }
    }
}

/// The binding of a review; `None` if it is not one of a pod to a node.
fn bind_request(request: ReviewRequest<Binding>) -> Option<BindRequest> {
    if !request.creates_binding() {
        return None;
    }
    let is_dry_run = request.is_dry_run();
    let Binding { metadata, target } = request.object?;
    let or = |text: String, other: Option<String>| match text.is_empty() {
        true => other.unwrap_or_default(),
        false => text,
    };
    let pod = ObjectKey {
        namespace: or(request.namespace, metadata.namespace),
        name: or(request.name, metadata.name),
    };
    let kind = target.kind.as_deref().unwrap_or_default();
    let node = target
        .name
        .filter(|node| !node.is_empty() && matches!(kind, "" | "Node"))?;
    Some(BindRequest {
        pod,
        uid: metadata.uid.filter(|uid| !uid.is_empty()).map(Arc::from),
        node: node.into(),
        is_dry_run,
    })
}
