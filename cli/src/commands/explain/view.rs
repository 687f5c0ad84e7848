//! The forms of an explanation: a document and a sheet.

use podplane_api::table::NONE;
use podplane_proto::scheduler::{self as wire, ExplainPodResponse, PodState};
use serde::Serialize;

use crate::output::sheet::Sheet;

/// The explanation of a pod, as JSON and YAML have it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation {
    /// Namespace and name.
    pod: String,
    state: &'static str,
    /// The node that it is on, or would be placed on; empty if there is none.
    node: String,
    message: String,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_try_seconds: Option<f64>,
    rejected_by: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<Decision>,
    /// The present results: feasible nodes first, the best before the others.
    nodes: Vec<NodeResult>,
    suggestions: Vec<Suggestion>,
    /// The rules and settings that may decide on the place of the pod, and were not examined.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_considered: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Decision {
    node: String,
    time: String,
    attempt: u32,
    nodes: u32,
    examined: u32,
    feasible: u32,
    scores: Vec<NodeResult>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeResult {
    node: String,
    fits: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<Score>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<Refusal>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Score {
    total: i64,
    #[serde(rename = "freePodIPs")]
    free_pod_ips: u64,
    pods: u32,
    plugins: Vec<PluginScore>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PluginScore {
    plugin: String,
    raw: i64,
    normalised: i64,
    weight: i64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Refusal {
    plugin: String,
    reasons: Vec<String>,
    detail: String,
}

#[derive(Debug, Serialize)]
struct Suggestion {
    nodes: Vec<String>,
    text: String,
}

impl Explanation {
    pub(super) fn new(pod: String, answer: ExplainPodResponse) -> Self {
        let state = state(answer.state());
        let ExplainPodResponse {
            node_name,
            message,
            attempts,
            verdicts,
            decision,
            next_try_seconds,
            rejected_by,
            scores,
            suggestions,
            ..
        } = answer;
        let scores = scores.into_iter().map(feasible);
        Self {
            pod,
            state,
            node: node_name,
            message,
            attempts,
            next_try_seconds,
            rejected_by,
            decision: decision.map(|decision| Decision {
                node: decision.node_name,
                time: decision.time,
                attempt: decision.attempt,
                nodes: decision.nodes,
                examined: decision.examined,
                feasible: decision.feasible,
                scores: decision.scores.into_iter().map(feasible).collect(),
            }),
            nodes: scores.chain(verdicts.into_iter().map(refused)).collect(),
            suggestions: suggestions
                .into_iter()
                .map(|wire::Suggestion { nodes, text }| Suggestion { nodes, text })
                .collect(),
            not_considered: Vec::new(),
        }
    }

    /// The same explanation, which left these things out.
    pub(super) fn without(self, not_considered: Vec<String>) -> Self {
        Self {
            not_considered,
            ..self
        }
    }

    pub(super) fn sheet(&self) -> Sheet {
        let mut sheet = Sheet::default();
        sheet.field("Pod", &*self.pod);
        sheet.field("State", self.state);
        let node = Some(&*self.node).filter(|node| !node.is_empty());
        sheet.field("Node", node.unwrap_or(NONE));
        sheet.field("Message", &*self.message);
        if self.attempts > 0 {
            sheet.field("Attempts", self.attempts.to_string());
        }
        if let Some(seconds) = self.next_try_seconds {
            sheet.field(
                "Next Attempt",
                format!("in {seconds:.1}s, or after a change"),
            );
        }
        if let Some(decision) = &self.decision {
            sheet.field("Decided", &*decision.time);
            let rows = decision.scores.iter().map(NodeResult::row);
            sheet.table("Scores at the Decision", &COLUMNS, rows.collect());
        } else if ["on a node", "unknown"].contains(&self.state) && node.is_some() {
            sheet.field("Decision", "not known any more; the node as of now follows");
        }
        if !self.nodes.is_empty() {
            let rows = self.nodes.iter().map(NodeResult::row);
            sheet.table("Nodes", &COLUMNS, rows.collect());
        }
        if !self.suggestions.is_empty() {
            let texts = self.suggestions.iter().map(|one| one.text.clone());
            sheet.fields("To Make It Fit", texts);
        }
        if !self.not_considered.is_empty() {
            sheet.fields("Not Considered", self.not_considered.iter().cloned());
        }
        sheet
    }
}

const COLUMNS: [&str; 4] = ["Node", "Result", "By", "Details"];

impl NodeResult {
    fn row(&self) -> Vec<String> {
        let (result, by, details) = match (&self.score, &self.refusal) {
            (Some(score), _) => {
                let plugins = score.plugins.iter().filter(|one| one.weight != 0);
                let terms = plugins.map(|one| {
                    let PluginScore {
                        plugin,
                        raw,
                        normalised,
                        weight,
                    } = one;
                    format!("{plugin} {weight}*{normalised} (raw {raw})")
                });
                let terms: Vec<_> = terms.collect();
                let details = format!(
                    "{}; {} free, {}",
                    terms.join(" + "),
                    counted(score.free_pod_ips, "IP"),
                    counted(score.pods.into(), "pod")
                );
                (format!("score {}", score.total), NONE.to_owned(), details)
            }
            (None, Some(refusal)) => {
                let reasons = refusal.reasons.join(", ");
                let details = match refusal.detail.as_str() {
                    "" => reasons,
                    detail => format!("{reasons}: {detail}"),
                };
                ("refused".to_owned(), refusal.plugin.clone(), details)
            }
            (None, None) => (NONE.to_owned(), NONE.to_owned(), NONE.to_owned()),
        };
        vec![self.node.clone(), result, by, details]
    }
}

fn state(state: PodState) -> &'static str {
    match state {
        PodState::Unspecified | PodState::Unknown => "unknown",
        PodState::Queued => "queued",
        PodState::BackingOff => "backing off",
        PodState::Unschedulable => "unschedulable",
        PodState::Assumed => "being bound",
        PodState::Bound => "on a node",
        PodState::Hypothetical => "hypothetical",
    }
}

fn feasible(score: wire::NodeScore) -> NodeResult {
    let plugin = |one: wire::PluginScore| PluginScore {
        plugin: one.plugin,
        raw: one.raw,
        normalised: one.normalised,
        weight: one.weight,
    };
    NodeResult {
        node: score.node_name,
        fits: true,
        score: Some(Score {
            total: score.score,
            free_pod_ips: score.free_pod_ips,
            pods: score.pods,
            plugins: score.plugins.into_iter().map(plugin).collect(),
        }),
        refusal: None,
    }
}

fn refused(verdict: wire::NodeVerdict) -> NodeResult {
    let wire::NodeVerdict {
        node_name,
        reasons,
        detail,
        plugin,
    } = verdict;
    NodeResult {
        node: node_name,
        fits: false,
        score: None,
        refusal: Some(Refusal {
            plugin,
            reasons,
            detail,
        }),
    }
}

/// The count with its noun, as in "1 pod" and "2 pods".
fn counted(count: u64, noun: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{s}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_scores_refusals_and_suggestions() {
        let answer = ExplainPodResponse {
            state: PodState::Hypothetical.into(),
            message: "it would be placed on a".into(),
            node_name: "a".into(),
            scores: vec![wire::NodeScore {
                node_name: "a".into(),
                score: 398,
                free_pod_ips: 1,
                plugins: vec![wire::PluginScore {
                    plugin: "TaintToleration".into(),
                    raw: 0,
                    normalised: 100,
                    weight: 3,
                }],
                ..wire::NodeScore::default()
            }],
            verdicts: vec![wire::NodeVerdict {
                node_name: "b".into(),
                reasons: vec!["Insufficient cpu".into()],
                detail: "1 of 8 cpu free, 2 requested".into(),
                plugin: "NodeResourcesFit".into(),
            }],
            suggestions: vec![wire::Suggestion {
                nodes: vec!["b".into()],
                text: "1 node: free 1 of cpu".into(),
            }],
            ..ExplainPodResponse::default()
        };
        let explanation = Explanation::new("default/p".into(), answer);
        let want = "\
Pod:             default/p
State:           hypothetical
Node:            a
Message:         it would be placed on a
Nodes:
  Node   Result      By                 Details
  a      score 398   <none>             TaintToleration 3*100 (raw 0); 1 IP free, 0 pods
  b      refused     NodeResourcesFit   Insufficient cpu: 1 of 8 cpu free, 2 requested
To Make It Fit:  1 node: free 1 of cpu";
        assert_eq!(explanation.sheet().to_string(), want);
        let json = serde_json::to_value(&explanation).unwrap();
        assert_eq!(json["nodes"][0]["score"]["freePodIPs"], 1);
        assert_eq!(json["nodes"][1]["refusal"]["plugin"], "NodeResourcesFit");
        assert_eq!(json["suggestions"][0]["nodes"][0], "b");
    }
}
