//! The summary of the cluster for the page and for other clients that draw it (docs/ui.md,
//! ADR 0077): `/summary/v1alpha1`, and the page itself at `/ui`.
//!
//! All requests share one [`Model`], which follows the watch cache while somebody looks. A request
//! is authorized like the lists that it stands for. The documents are those of `podplane-summary`.

mod answer;
mod model;
mod sources;
mod stream;

use std::sync::Arc;

use axum::{
    Router,
    extract::{Path, Query, State},
    routing::get,
};
use http::{Uri, header, request::Parts};
use podplane_access::ResourceTarget;
use podplane_proto::{
    error::{ApiError, Reason},
    trace::GetPodTraceRequest,
};
use podplane_service_runtime::{authentication::RequestContext, identity::AUTHENTICATED};
use podplane_summary::{
    AddressPage, AddressQuery, AddressesRequest, BlockListing, MapQuery, MapRequest, MapScene,
    NodeDetails, NodeLocal, QueryError, StreamDocument, TraceRow,
};
use podplane_ui::{PageServer, SERVER_PATH, SESSION_PATH, Session, SessionSource};
use tokio_util::sync::CancellationToken;

use self::{
    answer::{Answer, Refusal, json},
    model::{Snapshot, Subscription},
    stream::{ClusterView, MapView},
};
pub(crate) use self::{model::Model, sources::Sources};
use crate::{
    audit::RequestRecord,
    authorization::{Authorized, Gate, Gated},
    error,
    metrics::{ApiserverMetrics, InflightRequest, RequestLabels},
    renderers::Renderers,
    rest::request::RequestOptions,
    service::{BLOCK_GROUP, Traces},
};

/// The prefix of the paths whose rights the handlers judge.
const PREFIX: &str = "/summary/v1alpha1/";
const VERSION: &str = "v1alpha1";

/// The reason why a node has no links and routes here.
const NETWORK_UNKNOWN: &str = "The API server does not know the networks of nodes: `podplane ui` on the machine of the node shows this one, without --server and --kubeconfig.";

/// Returns true for the paths that [`routes`] authorizes by itself.
pub(crate) fn judges(path: &str) -> bool {
    path.starts_with(PREFIX)
}

/// The parts of the server that the summary uses.
pub(crate) struct SummaryContext {
    pub(crate) gate: Gate,
    pub(crate) model: Gated<Model>,
    pub(crate) traces: Traces,
    pub(crate) renderers: Renderers,
    pub(crate) metrics: ApiserverMetrics,
    /// Cancelled when open streams have to end.
    pub(crate) stop: CancellationToken,
}

type Context = Arc<SummaryContext>;

/// The routes of the summary and of the page.
pub(crate) fn routes(context: SummaryContext) -> Router {
    Router::new()
        .route("/summary/v1alpha1/cluster", get(cluster))
        .route("/summary/v1alpha1/map", get(map))
        .route("/summary/v1alpha1/addresses", get(addresses))
        .route("/summary/v1alpha1/blocks", get(blocks))
        .route("/summary/v1alpha1/nodes/{name}", get(node))
        .route(
            "/summary/v1alpha1/pods/{namespace}/{name}/trace",
            get(trace),
        )
        .route(
            "/summary/v1alpha1/pods/{namespace}/{name}/explanation",
            get(explanation),
        )
        .route("/summary/v1alpha1/recording", get(recording))
        .route(SESSION_PATH, get(session))
        .route(SERVER_PATH, get(server))
        .with_state(Arc::new(context))
        .merge(podplane_ui::router())
}

/// A request that may see the summary.
struct Looking {
    subscription: Subscription,
    is_watch: bool,
    running: InflightRequest,
}

impl Looking {
    /// Waits for the findings, which come after the first summary.
    async fn audited(mut self) -> Result<Self, ApiError> {
        self.subscription.audited().await?;
        Ok(self)
    }
}

impl SummaryContext {
    /// Authorizes a request, counts it, and looks at the summary.
    async fn look(&self, parts: &Parts, resource: &'static str) -> Result<Looking, ApiError> {
        let is_watch = RequestOptions::parse(&parts.uri)?.is_watch()?;
        let authorized = self.authorize(parts, is_watch).await?;
        let labels = RequestLabels {
            group: "summary".into(),
            resource: resource.into(),
            subresource: "",
            verb: if is_watch { "WATCH" } else { "GET" },
            version: VERSION.into(),
        };
        Ok(Looking {
            subscription: self.model.open(&authorized).subscribe(),
            is_watch,
            running: self.metrics.begins(labels),
        })
    }

    /// Judges a request like the lists that it stands for.
    async fn authorize(&self, parts: &Parts, is_watch: bool) -> Result<Authorized, ApiError> {
        let caller = RequestContext::of(&parts.extensions).identity;
        let record = RequestRecord::of(&parts.extensions);
        let verbs: &[&str] = if is_watch {
            &["list", "watch"]
        } else {
            &["list"]
        };
        for verb in verbs {
            // Addresses name the pods, nodes and Services that have them.
            for resource in ["pods", "nodes", "services"] {
                let target = of_all("", resource);
                self.gate.authorize(&caller, verb, target, &record).await?;
            }
        }
        let blocks = of_all(BLOCK_GROUP, "blocks");
        self.gate.authorize(&caller, "list", blocks, &record).await
    }

    /// Answers with a document that is made on a thread for long work.
    async fn answer(
        &self,
        looking: Looking,
        make: impl FnOnce(&Snapshot) -> Result<Vec<u8>, ApiError> + Send + 'static,
    ) -> Result<Answer, Refusal> {
        let Looking {
            mut subscription,
            running,
            ..
        } = looking;
        let snapshot = subscription.present().await?;
        let made = self.renderers.run(move || make(&snapshot)).await?;
        let answer = made.map_or_else(|error| answer::refused(&error), answer::document);
        running.answered(answer.status());
        Ok(answer)
    }
}

/// All objects of a resource, in all namespaces.
fn of_all(group: &'static str, resource: &'static str) -> ResourceTarget<'static> {
    ResourceTarget {
        group,
        version: "v1",
        resource,
        ..ResourceTarget::default()
    }
}

/// The error for a query that cannot be answered.
fn of_query(error: QueryError) -> ApiError {
    let reason = match error.is_not_found() {
        true => Reason::NotFound,
        false => Reason::BadRequest,
    };
    ApiError::new(reason, error.to_string())
}

/// Reads the parameters of a request.
fn query<T: serde::de::DeserializeOwned>(uri: &Uri) -> Result<T, ApiError> {
    let parsed = Query::try_from_uri(uri);
    let Query(query) = parsed.map_err(|rejection| error::bad_request(rejection.body_text()))?;
    Ok(query)
}

async fn cluster(State(context): State<Context>, parts: Parts) -> Result<Answer, Refusal> {
    let looking = context.look(&parts, "cluster").await?;
    if looking.is_watch {
        return stream::answer(&context, looking, ClusterView::default()).await;
    }
    let make = |snapshot: &Snapshot| json(&StreamDocument::Cluster(&snapshot.summary));
    context.answer(looking.audited().await?, make).await
}

async fn map(State(context): State<Context>, parts: Parts) -> Result<Answer, Refusal> {
    let looking = context.look(&parts, "map").await?;
    let request = MapRequest::try_from(&query::<MapQuery>(&parts.uri)?).map_err(of_query)?;
    if looking.is_watch {
        return stream::answer(&context, looking, MapView::new(request)).await;
    }
    let make = move |snapshot: &Snapshot| {
        let revision = &snapshot.summary.revision;
        let scene = MapScene::new(&snapshot.space, revision, &request);
        json(&StreamDocument::Scene(&scene.map_err(of_query)?))
    };
    context.answer(looking, make).await
}

async fn addresses(State(context): State<Context>, parts: Parts) -> Result<Answer, Refusal> {
    let looking = context.look(&parts, "addresses").await?;
    let query = query::<AddressQuery>(&parts.uri)?;
    let request = AddressesRequest::try_from(&query).map_err(of_query)?;
    let make = move |snapshot: &Snapshot| json(&AddressPage::new(&snapshot.space, &request));
    context.answer(looking, make).await
}

async fn blocks(State(context): State<Context>, parts: Parts) -> Result<Answer, Refusal> {
    let looking = context.look(&parts, "blocks").await?;
    let make = |snapshot: &Snapshot| json(&BlockListing::of(&snapshot.space));
    context.answer(looking, make).await
}

async fn node(
    State(context): State<Context>,
    Path(name): Path<String>,
    parts: Parts,
) -> Result<Answer, Refusal> {
    let looking = context.look(&parts, "nodes").await?;
    let make = move |snapshot: &Snapshot| {
        let local = NodeLocal::without_network(NETWORK_UNKNOWN);
        let details = NodeDetails::of(&snapshot.space, &snapshot.summary, &name, local);
        json(&details.ok_or_else(|| ApiError::not_found("nodes", &name))?)
    };
    context.answer(looking, make).await
}

async fn trace(
    State(context): State<Context>,
    Path((namespace, name)): Path<(String, String)>,
    parts: Parts,
) -> Result<Answer, Refusal> {
    let caller = RequestContext::of(&parts.extensions).identity;
    let record = RequestRecord::of(&parts.extensions);
    let request = GetPodTraceRequest {
        namespace,
        name,
        uid: String::new(),
    };
    let trace = context.traces.trace(request, &caller, &record).await?;
    let row = TraceRow::of(trace.creation.iter().chain(&trace.deletion));
    let row = row.ok_or_else(|| ApiError::new(Reason::NotFound, "the trace has no spans"))?;
    Ok(answer::document(json(&row)?))
}

async fn explanation(State(context): State<Context>, parts: Parts) -> Refusal {
    let why = "the API server does not explain decisions of the scheduler: `podplane ui` and `podplane explain` do";
    context.nothing(&parts, why).await
}

async fn recording(State(context): State<Context>, parts: Parts) -> Refusal {
    let why = "this is a live cluster and not a recording: `podplane replay --ui` shows those";
    context.nothing(&parts, why).await
}

impl SummaryContext {
    /// Says that a server of another kind has what was asked for, to those who may see the summary.
    async fn nothing(&self, parts: &Parts, why: &str) -> Refusal {
        let judged = self.authorize(parts, false).await;
        let nothing = || ApiError::new(Reason::NotFound, why);
        judged.err().unwrap_or_else(nothing).into()
    }

    /// Returns true if the client is nobody known, and rules decide.
    fn needs_login(&self, parts: &Parts) -> bool {
        let identity = RequestContext::of(&parts.extensions).identity;
        self.gate.has_rules() && !identity.is_in(AUTHENTICATED)
    }
}

/// Says to everybody which server it is.
async fn server(State(context): State<Context>, parts: Parts) -> Result<Answer, Refusal> {
    let server = PageServer {
        source: SessionSource::Apiserver,
        needs_login: context.needs_login(&parts),
    };
    Ok(answer::document(json(&server)?))
}

/// Says who the user is. Where no rules decide, nobody needs a login.
async fn session(State(context): State<Context>, parts: Parts) -> Result<Answer, Refusal> {
    let identity = RequestContext::of(&parts.extensions).identity;
    let is_known = identity.is_in(AUTHENTICATED);
    if context.needs_login(&parts) {
        let why = "log in: send a bearer token, or use `podplane ui`";
        return Err(ApiError::new(Reason::Unauthorized, why).into());
    }
    let host = parts.headers.get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok());
    let host = host.or_else(|| parts.uri.authority().map(|authority| authority.as_str()));
    let session = Session {
        source: SessionSource::Apiserver,
        user: is_known.then(|| identity.user.clone()),
        server: host.unwrap_or_default().to_owned(),
    };
    Ok(answer::document(json(&session)?))
}
