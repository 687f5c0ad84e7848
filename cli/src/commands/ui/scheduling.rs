//! The decision of the scheduler about a pod, for the page.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::{Path, State},
    response::Response,
};
use http::StatusCode;
use podplane_api::{ObjectKey, pod_ips::PodIpResource};
use podplane_ipam::IpPolicy;
use podplane_proto::scheduler::{ExplainPodRequest, ExplainPodResponse, NodeScore, PodState};
use serde::Serialize;
use tokio::sync::Mutex;

use super::UiParts;
use crate::{
    commands::explain::live,
    explanation,
    page::{document, refusal},
};

/// The time in which a scheduler answers, even for thousands of nodes.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The time for which an explanation is kept, in terms of the time that it took to make.
const KEPT: u32 = 10;

/// Recent explanations of a cluster elsewhere, of which each lists its objects. The page asks again
/// every few seconds; so listing takes a tenth of the time at most, however large the cluster is.
#[derive(Debug, Default)]
pub(super) struct Explanations(Mutex<BTreeMap<ObjectKey, RecentExplanation>>);

#[derive(Debug)]
struct RecentExplanation {
    explained: Explained,
    kept_until: Instant,
}

/// The decision about a pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExplanationDocument {
    /// `NAMESPACE/NAME`
    pod: String,
    decision: String,
    attempts: u32,
    /// The time until the next attempt; it comes earlier if something changes.
    next_try_seconds: Option<f64>,
    /// The changes after which the pod would fit, in words.
    suggestions: Vec<String>,
    /// The rules that may decide and were not examined.
    not_considered: Vec<String>,
    /// Those that fit first, the best before the others.
    nodes: Vec<NodeDocument>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeDocument {
    name: String,
    feasible: bool,
    reasons: Vec<String>,
    /// The normalised scores by plugin, times their weights.
    scores: BTreeMap<String, i64>,
    total: Option<i64>,
}

impl ExplanationDocument {
    fn of(key: &ObjectKey, explained: Explained) -> Self {
        let Explained {
            response,
            not_considered,
        } = explained;
        let made = response.decision.map(|decision| decision.scores);
        let scores = made.filter(|scores| !scores.is_empty());
        let scores = scores.unwrap_or(response.scores);
        let mut nodes: Vec<_> = scores.into_iter().map(NodeDocument::of_score).collect();
        nodes.extend(response.verdicts.into_iter().map(|verdict| {
            let detail = Some(verdict.detail).filter(|detail| !detail.is_empty());
            NodeDocument {
                name: verdict.node_name,
                feasible: false,
                reasons: verdict.reasons.into_iter().chain(detail).collect(),
                scores: BTreeMap::new(),
                total: None,
            }
        }));
        let decision = match (response.message.is_empty(), response.node_name.as_str()) {
            (false, _) => response.message,
            (true, "") => "on no node".to_owned(),
            (true, node) => format!("on {node}"),
        };
        Self {
            pod: key.to_string(),
            decision,
            attempts: response.attempts,
            next_try_seconds: response.next_try_seconds,
            suggestions: response.suggestions.into_iter().map(|it| it.text).collect(),
            not_considered,
            nodes,
        }
    }
}

impl NodeDocument {
    fn of_score(score: NodeScore) -> Self {
        let plugins = score.plugins.into_iter();
        Self {
            name: score.node_name,
            feasible: true,
            reasons: Vec::new(),
            scores: plugins
                .map(|plugin| {
                    (
                        plugin.plugin,
                        plugin.normalised.saturating_mul(plugin.weight),
                    )
                })
                .collect(),
            total: Some(score.score),
        }
    }
}

/// An answer, and the rules that it left out.
#[derive(Clone, Debug)]
struct Explained {
    response: ExplainPodResponse,
    not_considered: Vec<String>,
}

/// Explains a pod: by its scheduler where that runs, else by the rules of podplane's scheduler.
pub(super) async fn explanation(
    State(parts): State<Arc<UiParts>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let key = ObjectKey::new(namespace.as_str(), name.as_str());
    let explained = match parts.explain(&key).await {
        Ok(Some(explained)) if explained.response.state() != PodState::Unknown => explained,
        Ok(_) => {
            let why = format!("pod {key} does not exist, or has ended");
            return refusal(StatusCode::NOT_FOUND, "NotFound", &why);
        }
        Err(error) => {
            let why = format!("failed to explain pod {key}: {error:#}");
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &why);
        }
    };
    match serde_json::to_string(&ExplanationDocument::of(&key, explained)) {
        Ok(explained) => document(explained),
        Err(error) => {
            let code = StatusCode::INTERNAL_SERVER_ERROR;
            refusal(code, "InternalError", &error.to_string())
        }
    }
}

impl UiParts {
    async fn explain(&self, key: &ObjectKey) -> anyhow::Result<Option<Explained>> {
        if self.local.is_some() {
            let request = ExplainPodRequest {
                namespace: key.namespace.clone(),
                name: key.name.clone(),
                ..ExplainPodRequest::default()
            };
            let asked = explanation::explain(&self.global, None, &request, TIMEOUT).await;
            return asked.map(|response| {
                Some(Explained {
                    response,
                    not_considered: Vec::new(),
                })
            });
        }
        // One at a time.
        let mut recent = self.explanations.0.lock().await;
        let begun = Instant::now();
        recent.retain(|_, one| one.kept_until > begun);
        if let Some(one) = recent.get(key) {
            return Ok(Some(one.explained.clone()));
        }
        let client = match self.cluster.is_given() {
            true => self.cluster.client().await?.0,
            false => self.global.client()?,
        };
        let resource = PodIpResource::default();
        let snapshot = live::snapshot(&client, &resource).await?;
        let Some(explained) = snapshot.explain(key, IpPolicy::default().into()) else {
            return Ok(None);
        };
        let explained = Explained {
            response: explained.response,
            not_considered: explained.not_considered,
        };
        let one = RecentExplanation {
            explained: explained.clone(),
            kept_until: Instant::now() + begun.elapsed() * KEPT,
        };
        recent.insert(key.clone(), one);
        Ok(Some(explained))
    }
}
