//! The routes of a recording: those of a live cluster, at a moment.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Path, Query, State},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use podplane_api::{
    Object as _,
    core::Pod,
    selector::{FieldSelector, FieldSet},
};
use podplane_pki::kubeconfig::yaml_text;
use podplane_summary::{
    AddressPage, AddressQuery, AddressesRequest, MapQuery, MapRequest, MapScene, NodeDetails,
    NodeLocal, QueryError, StreamDocument,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::timeline::Timeline;
use crate::page::{document, refusal};

type Shared = State<Arc<Timeline>>;

/// The answer, or the answer of a refusal.
type Answer = Result<Response, Refusal>;

/// A refusal.
#[derive(Debug)]
struct Refusal(StatusCode, &'static str, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(code, reason, message) = self;
        refusal(code, reason, &message)
    }
}

/// The routes of the data.
pub(super) fn routes(timeline: Timeline) -> Router {
    Router::new()
        .route("/summary/v1alpha1/recording", get(recording))
        .route("/summary/v1alpha1/cluster", get(cluster))
        .route("/summary/v1alpha1/map", get(map))
        .route("/summary/v1alpha1/addresses", get(addresses))
        .route("/summary/v1alpha1/nodes/{name}", get(node_details))
        .route(
            "/summary/v1alpha1/pods/{namespace}/{name}/trace",
            get(no_trace),
        )
        .route(
            "/summary/v1alpha1/pods/{namespace}/{name}/explanation",
            get(no_explanation),
        )
        .route("/api/v1/nodes", get(nodes))
        .route("/api/v1/nodes/{name}", get(node))
        .route("/api/v1/pods", get(pods))
        .route("/api/v1/namespaces/{namespace}/pods/{name}", get(pod))
        .route("/api/v1/events", get(events))
        .fallback(
            |uri: Uri| async move { not_found(&format!("a recording has no {}", uri.path())) },
        )
        .with_state(Arc::new(timeline))
}

/// The moment of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MomentQuery {
    at: Option<String>,
    watch: Option<String>,
    #[serde(rename = "fieldSelector")]
    field_selector: String,
}

/// Reads the parameters of a request.
fn query<T: serde::de::DeserializeOwned>(uri: &Uri) -> Result<T, Refusal> {
    let parsed = Query::try_from_uri(uri);
    let Query(query) = parsed.map_err(|rejection| bad_request(&rejection.body_text()))?;
    Ok(query)
}

/// The time of a request, in seconds; without one, the end.
fn at(timeline: &Timeline, query: &MomentQuery) -> Result<f64, Refusal> {
    if query.watch.as_deref().is_some_and(|watch| watch != "false") {
        return Err(bad_request(
            "a recording does not change: ask without watch",
        ));
    }
    let Some(text) = query.at.as_deref().filter(|text| !text.is_empty()) else {
        return Ok(timeline.duration());
    };
    let parsed = text
        .parse()
        .ok()
        .filter(|at: &f64| at.is_finite() && *at >= 0.0);
    parsed.ok_or_else(|| bad_request(&format!("invalid at {text:?}: want seconds such as 1.25")))
}

fn moment_of(timeline: &Timeline, uri: &Uri) -> Result<f64, Refusal> {
    at(timeline, &query(uri)?)
}

fn bad_request(why: &str) -> Refusal {
    Refusal(StatusCode::BAD_REQUEST, "BadRequest", why.to_owned())
}

fn not_found(why: &str) -> Refusal {
    Refusal(StatusCode::NOT_FOUND, "NotFound", why.to_owned())
}

fn of_query(error: QueryError) -> Refusal {
    match error.is_not_found() {
        true => not_found(&error.to_string()),
        false => bad_request(&error.to_string()),
    }
}

fn json_answer(value: &impl Serialize) -> Answer {
    match serde_json::to_string(value) {
        Ok(text) => Ok(document(text)),
        Err(error) => {
            let code = StatusCode::INTERNAL_SERVER_ERROR;
            Err(Refusal(code, "InternalError", error.to_string()))
        }
    }
}

/// An object, as YAML if the client prefers that.
fn object_answer(object: &Value, headers: &HeaderMap) -> Answer {
    let accepted = headers.get(header::ACCEPT);
    let accepted = accepted.and_then(|accepted| accepted.to_str().ok());
    if !accepted.is_some_and(|accepted| accepted.starts_with("application/yaml")) {
        return json_answer(object);
    }
    let Ok(text) = yaml_text(object) else {
        return json_answer(object);
    };
    let mut answer = document(text);
    let media_type = HeaderValue::from_static("application/yaml");
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, media_type);
    Ok(answer)
}

async fn recording(State(timeline): Shared) -> Answer {
    json_answer(&timeline.document())
}

async fn cluster(State(timeline): Shared, uri: Uri) -> Answer {
    let moment = timeline.moment(moment_of(&timeline, &uri)?);
    json_answer(&StreamDocument::Cluster(&moment.summary))
}

async fn map(State(timeline): Shared, uri: Uri) -> Answer {
    let moment = timeline.moment(moment_of(&timeline, &uri)?);
    let request = MapRequest::try_from(&query::<MapQuery>(&uri)?).map_err(of_query)?;
    let scene = MapScene::new(&moment.space, &moment.summary.revision, &request);
    json_answer(&StreamDocument::Scene(&scene.map_err(of_query)?))
}

async fn addresses(State(timeline): Shared, uri: Uri) -> Answer {
    let moment = timeline.moment(moment_of(&timeline, &uri)?);
    let request = query::<AddressQuery>(&uri)?;
    let request = AddressesRequest::try_from(&request).map_err(of_query)?;
    json_answer(&AddressPage::new(&moment.space, &request))
}

async fn node_details(State(timeline): Shared, Path(name): Path<String>, uri: Uri) -> Answer {
    let moment = timeline.moment(moment_of(&timeline, &uri)?);
    let details = NodeDetails::of(
        &moment.space,
        &moment.summary,
        &name,
        NodeLocal::without_network("A recording does not have the networks of nodes."),
    );
    json_answer(&details.ok_or_else(|| not_found(&format!("no node {name:?} at that moment")))?)
}

async fn no_trace() -> Answer {
    Err(not_found("a recording has no traces"))
}

async fn no_explanation() -> Answer {
    Err(not_found(
        "a recording does not have what the scheduler saw",
    ))
}

fn list(kind: &str, items: &impl Serialize) -> Answer {
    json_answer(&json!({
        "kind": kind,
        "apiVersion": "v1",
        "metadata": {"resourceVersion": ""},
        "items": items,
    }))
}

async fn nodes(State(timeline): Shared, uri: Uri) -> Answer {
    list("NodeList", &timeline.nodes(moment_of(&timeline, &uri)?))
}

async fn pods(State(timeline): Shared, uri: Uri) -> Answer {
    let query = query::<MomentQuery>(&uri)?;
    let selector = FieldSelector::parse::<Pod>(&query.field_selector);
    let selector = selector.map_err(|error| bad_request(&error.to_string()))?;
    let mut pods = timeline.pods(at(&timeline, &query)?);
    pods.retain(|pod| selector.matches(&FieldSet::of(*pod)));
    list("PodList", &pods)
}

async fn events(State(timeline): Shared, uri: Uri) -> Answer {
    list("EventList", &timeline.events(moment_of(&timeline, &uri)?))
}

async fn node(
    State(timeline): Shared,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Answer {
    let nodes = timeline.nodes(moment_of(&timeline, &uri)?);
    let found = nodes.iter().find(|node| node.name() == name);
    let found = found.ok_or_else(|| not_found(&format!("nodes {name:?} not found")))?;
    let object = found
        .to_json()
        .map_err(|error| bad_request(&error.to_string()))?;
    object_answer(&object, &headers)
}

async fn pod(
    State(timeline): Shared,
    Path((namespace, name)): Path<(String, String)>,
    uri: Uri,
    headers: HeaderMap,
) -> Answer {
    let pods = timeline.pods(moment_of(&timeline, &uri)?);
    let found = pods
        .iter()
        .find(|pod| (pod.namespace(), pod.name()) == (&*namespace, &*name));
    let found = found.ok_or_else(|| not_found(&format!("pods {name:?} not found")))?;
    let object = found
        .to_json()
        .map_err(|error| bad_request(&error.to_string()))?;
    object_answer(&object, &headers)
}
