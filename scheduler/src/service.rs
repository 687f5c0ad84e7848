//! `podplane.scheduler.v1`: explains the placing of a pod.

pub mod hypothetical;
pub mod snapshot;

use std::{cmp::Reverse, sync::Arc, time::Duration};

use podplane_api::{
    ObjectKey,
    jiff::{Timestamp, Unit},
    pod_ips::PodIpResource,
    scheduling::PriorityClass,
};
use podplane_client::{ApiError, Cache, Client, ListParams, Reason};
use podplane_host::clock;
use podplane_proto::scheduler::{
    self as wire, ExplainPodRequest, ExplainPodResponse, NodeVerdict, PodState,
    scheduler_service_server::SchedulerService,
};
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status};

use crate::{
    cache::PlacementState,
    explain::{Examination, NodeRefusal},
    names::NodeName,
    plan::Choice,
    pod::{PodInfo, PodProgress},
    queue::QueuePlace,
    remedy::Suggestion,
    scheduler::{PlacementDecision, PodExplanation, Scheduler},
    score::{NodeScore, PluginScore},
};

/// The most questions that wait for the driver. At the limit, callers wait.
const QUESTIONS: usize = 16;

/// The explanation of a waiting pod by a scheduler that does not lead.
const STANDS_BY: &str = "this scheduler does not lead, so it tries no pod";

/// The pod of a question.
#[derive(Debug)]
enum Subject {
    Existing(Arc<PodInfo>),
    Hypothetical(Arc<PodInfo>),
}

/// A question, which the driver answers between two decisions.
#[derive(Debug)]
pub struct Question {
    pod: Subject,
    answer: oneshot::Sender<ExplainPodResponse>,
}

impl Question {
    /// Answers from the scheduler's present state. `leads` is false for a standby, which knows the
    /// waiting pods and attempts none.
    pub fn answer(self, scheduler: &mut Scheduler, now: Duration, leads: bool) {
        let mut answer = match &self.pod {
            Subject::Existing(pod) => response(pod, scheduler, now, clock::timestamp()),
            Subject::Hypothetical(pod) => hypothetical::response(pod, scheduler),
        };
        if !leads && answer.state() == PodState::Queued {
            answer.message = STANDS_BY.to_owned();
            answer.next_try_seconds = None;
        }
        // The caller may have gone, and then needs no answer.
        let _ = self.answer.send(answer);
    }
}

/// The service.
#[derive(Debug)]
pub struct PlacementService {
    client: Client,
    pods: Cache<PodInfo>,
    pod_ip_resource: PodIpResource,
    questions: mpsc::Sender<Question>,
}

impl PlacementService {
    /// Creates the service, and the receiver of its questions.
    pub fn new(
        client: Client,
        pods: Cache<PodInfo>,
        pod_ip_resource: PodIpResource,
    ) -> (Self, mpsc::Receiver<Question>) {
        let (questions, asked) = mpsc::channel(QUESTIONS);
        let service = Self {
            client,
            pods,
            pod_ip_resource,
            questions,
        };
        (service, asked)
    }

    async fn explain(&self, key: &ObjectKey) -> Result<ExplainPodResponse, ApiError> {
        let unavailable = |why: &str| ApiError::new(Reason::ServiceUnavailable, why);
        let Some(pod) = self.pods.get(key) else {
            if !self.pods.is_synced() {
                return Err(unavailable("the scheduler has not listed the pods yet"));
            }
            let mut response = ExplainPodResponse {
                message: format!("pod {key} does not exist"),
                ..ExplainPodResponse::default()
            };
            response.set_state(PodState::Unknown);
            return Ok(response);
        };
        self.ask(Subject::Existing(pod)).await
    }

    async fn ask(&self, pod: Subject) -> Result<ExplainPodResponse, ApiError> {
        let unavailable = |why: &str| ApiError::new(Reason::ServiceUnavailable, why);
        let stopping = || unavailable("the scheduler is stopping");
        let (answer, answered) = oneshot::channel();
        self.questions
            .send(Question { pod, answer })
            .await
            .map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())
    }
}

#[tonic::async_trait]
impl SchedulerService for PlacementService {
    async fn explain_pod(
        &self,
        request: Request<ExplainPodRequest>,
    ) -> Result<Response<ExplainPodResponse>, Status> {
        let ExplainPodRequest {
            mut namespace,
            name,
            pod,
        } = request.into_inner();
        if !pod.is_empty() {
            if !(namespace.is_empty() && name.is_empty()) {
                let why = "excludes name and namespace, which the pod itself has";
                return Err(ApiError::bad_field("pod", why.to_owned()).into());
            }
            let classes = self.client.all::<PriorityClass>();
            let classes = classes.list(&ListParams::default()).await?.items;
            let pod = hypothetical::admitted(&pod, classes)?;
            let pod = Arc::new(PodInfo::new(&pod, &self.pod_ip_resource));
            let pod = Subject::Hypothetical(pod);
            return Ok(Response::new(self.ask(pod).await?));
        }
        if name.is_empty() {
            return Err(ApiError::bad_field("name", "Required value".to_owned()).into());
        }
        if namespace.is_empty() {
            "default".clone_into(&mut namespace);
        }
        let answer = self.explain(&ObjectKey::new(namespace, name)).await;
        Ok(Response::new(answer?))
    }
}

fn response(
    pod: &PodInfo,
    scheduler: &mut Scheduler,
    now: Duration,
    clock: Timestamp,
) -> ExplainPodResponse {
    let uid = &pod.uid;
    let mut response = ExplainPodResponse {
        pod_uid: uid.to_string(),
        ..ExplainPodResponse::default()
    };
    let in_seconds = |until: Duration| until.saturating_sub(now).as_secs_f64();
    match scheduler.explain(uid) {
        PodExplanation::Unknown => {
            let node = pod.node_name.as_ref();
            response.node_name = node.map(ToString::to_string).unwrap_or_default();
            response.message = unknown(pod, scheduler.name());
            response.set_state(PodState::Unknown);
            add_own_node(&mut response, pod, scheduler);
        }
        PodExplanation::Placed(node, placement, decided) => {
            response.message = placed(pod, &node, placement, decided.as_ref());
            if placement == PlacementState::Bound {
                let time = pod.bound_at.as_ref().map(ToString::to_string);
                response.bound_at = time.unwrap_or_default();
            }
            response.node_name = node.to_string();
            response.attempts = decided.as_ref().map_or(0, |decided| decided.attempt);
            if decided.is_none() {
                add_own_node(&mut response, pod, scheduler);
            }
            response.decision = decided.map(|decided| {
                let ago = now.saturating_sub(decided.at);
                let at = clock.checked_sub(ago).unwrap_or(clock);
                decision(decided, at.round(Unit::Second).unwrap_or(at))
            });
            response.set_state(match placement {
                PlacementState::Assumed => PodState::Assumed,
                PlacementState::Bound => PodState::Bound,
            });
        }
        PodExplanation::Waiting {
            waiting,
            examination,
            suggestions: found,
        } => {
            response.next_try_seconds = scheduler.next_attempt_at(uid).map(in_seconds);
            response.message = match waiting.attempts {
                0 => "it was not tried yet".to_owned(),
                _ => waiting.message,
            };
            response.attempts = waiting.attempts;
            let rejected_by = waiting.rejected_by.into_iter();
            response.rejected_by = rejected_by.map(str::to_owned).collect();
            response.verdicts = verdicts(&examination);
            response.scores = scores(&examination);
            response.suggestions = suggestions(found);
            let state = match waiting.place {
                QueuePlace::Active | QueuePlace::InFlight => PodState::Queued,
                QueuePlace::Unschedulable => PodState::Unschedulable,
                QueuePlace::BackingOff(until) | QueuePlace::BackingOffError(until) => {
                    response.backoff_seconds = Some(in_seconds(until));
                    PodState::BackingOff
                }
            };
            response.set_state(state);
        }
    }
    response
}

/// Adds the present result of the node that the pod is or was on.
fn add_own_node(response: &mut ExplainPodResponse, pod: &PodInfo, scheduler: &mut Scheduler) {
    let examination = Examination {
        rejection: None,
        nodes: scheduler.examine_own_node(pod).into_iter().collect(),
    };
    response.verdicts = verdicts(&examination);
    response.scores = scores(&examination);
}

fn verdicts(examination: &Examination) -> Vec<NodeVerdict> {
    let verdict = |(node, refusal): (&NodeName, &NodeRefusal)| {
        let detail = refusal.detail.as_ref();
        NodeVerdict {
            node_name: node.to_string(),
            plugin: refusal.by.to_owned(),
            reasons: refusal.reasons.iter().map(ToString::to_string).collect(),
            detail: detail.map_or_else(String::new, |detail| detail.text.clone()),
        }
    };
    examination.refusals().map(verdict).collect()
}

/// The scores of the nodes that fit, the best first.
fn scores(examination: &Examination) -> Vec<wire::NodeScore> {
    let mut scores: Vec<_> = examination.scores().cloned().collect();
    scores.sort_by_key(|score| {
        (
            Reverse(score.total),
            Reverse(score.free_pod_ips),
            score.pods,
        )
    });
    scores.into_iter().map(node_score).collect()
}

fn suggestions(found: Vec<Suggestion>) -> Vec<wire::Suggestion> {
    let suggestion = |Suggestion { nodes, text }| wire::Suggestion {
        nodes: nodes.iter().map(ToString::to_string).collect(),
        text,
    };
    found.into_iter().map(suggestion).collect()
}

/// The reason why an existing pod is not in this scheduler's queue.
fn unknown(pod: &PodInfo, scheduler: &str) -> String {
    let needs = &pod.needs;
    let other = Some(pod.scheduler_name()).filter(|name| *name != scheduler);
    match (pod.end, other) {
        (Some(end), _) => format!("it has ended ({}) and needs no node", end.phase()),
        _ if pod.is_deleting => "it is being deleted, so it gets no node".to_owned(),
        (None, Some(other)) => format!("it is for another scheduler, {other:?}"),
        (None, None) if !needs.scheduling_gates.is_empty() => {
            let gates = needs.scheduling_gates.join(", ");
            format!("it waits for its scheduling gates: {gates}")
        }
        (None, None) => "the scheduler has not observed it yet".to_owned(),
    }
}

/// The state of a pod that has a node, and the reason why it is that node.
fn placed(
    pod: &PodInfo,
    node: &NodeName,
    placing: PlacementState,
    decided: Option<&PlacementDecision>,
) -> String {
    let state = match (placing, pod.progress) {
        (PlacementState::Assumed, _) => format!("being bound to {node}"),
        (PlacementState::Bound, PodProgress::Running) => format!("running on {node}"),
        (PlacementState::Bound, PodProgress::Pending) => format!("on {node}, not running yet"),
        (PlacementState::Bound, PodProgress::WithoutAddress) => {
            format!("on {node}, without an address yet")
        }
    };
    match decided {
        None => format!(
            "{state}; the node was not chosen here: the pod was created with it, another client bound it, or it was bound before this scheduler started"
        ),
        Some(PlacementDecision { choice, .. }) if choice.node != *node => format!(
            "{state}; another client bound it there, and this scheduler chose {}",
            choice.node
        ),
        Some(PlacementDecision {
            attempt, choice, ..
        }) => format!("{state}; attempt {attempt} chose {}", reason(choice)),
    }
}

/// The reason for a choice.
fn reason(choice: &Choice) -> String {
    let Choice {
        nodes,
        examined,
        feasible,
        ..
    } = choice;
    let of = match feasible {
        1 => "the only feasible node".to_owned(),
        _ => format!("the best of {feasible} feasible nodes"),
    };
    format!("{of}, of {examined} examined, of {nodes} in the cluster")
}

fn decision(decided: PlacementDecision, at: Timestamp) -> wire::Decision {
    let PlacementDecision {
        attempt, choice, ..
    } = decided;
    let Choice {
        node,
        nodes,
        examined,
        feasible,
        scores,
    } = choice;
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    wire::Decision {
        node_name: node.to_string(),
        time: at.to_string(),
        attempt,
        nodes: count(nodes),
        examined: count(examined),
        feasible: count(feasible),
        scores: scores.into_iter().map(node_score).collect(),
    }
}

fn node_score(score: NodeScore) -> wire::NodeScore {
    let normalised = |name: &str| {
        let mut plugins = score.plugins.iter();
        let plugin = plugins.find(|plugin| plugin.plugin == name);
        plugin.map_or(0, |plugin| plugin.normalised)
    };
    wire::NodeScore {
        score: score.total,
        least_allocated: normalised("NodeResourcesFit"),
        taint_toleration: normalised("TaintToleration"),
        free_pod_ips: u64::try_from(score.free_pod_ips).unwrap_or(0),
        pods: u32::try_from(score.pods).unwrap_or(u32::MAX),
        node_name: score.node.to_string(),
        plugins: score.plugins.into_iter().map(plugin_score).collect(),
    }
}

fn plugin_score(score: PluginScore) -> wire::PluginScore {
    let PluginScore {
        plugin,
        raw,
        normalised,
        weight,
    } = score;
    wire::PluginScore {
        plugin: plugin.to_owned(),
        raw,
        normalised,
        weight,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::{
        config::IpPolicy,
        testing::{AsInfo as _, NodeBuilder, PodBuilder},
    };

    #[test]
    fn explains_a_pod_in_each_state() {
        let now = Duration::from_secs(5);
        let mut scheduler = Scheduler::new(IpPolicy::Resource);
        let clock = Timestamp::UNIX_EPOCH;
        let pod = PodBuilder::new("p").info();
        let ask = |scheduler: &mut Scheduler| response(&pod, scheduler, now, clock);
        assert_eq!(ask(&mut scheduler).state(), PodState::Unknown);

        scheduler.apply_node(Arc::new(NodeBuilder::new("n").node()), now);
        scheduler.apply_pod(PodBuilder::new("p").info(), now);
        assert_eq!(ask(&mut scheduler).state(), PodState::Queued);
        assert_eq!(ask(&mut scheduler).next_try_seconds, Some(0.0));

        scheduler.attempt(now);
        let answer = ask(&mut scheduler);
        assert_eq!(answer.state(), PodState::Unschedulable);
        assert_eq!(
            answer.message,
            "0/1 nodes are available: 1 Insufficient pod IPs. n: waits for its podCIDR."
        );
        assert_eq!(answer.attempts, 1);
        let refused = NodeVerdict {
            node_name: "n".to_owned(),
            reasons: vec!["Insufficient pod IPs".to_owned()],
            detail: "waits for its podCIDR".to_owned(),
            plugin: "PodIPs".to_owned(),
        };
        assert_eq!(answer.verdicts, [refused]);
        assert_eq!(answer.rejected_by, ["PodIPs"]);
        assert_eq!(
            answer.suggestions[0].text,
            "1 node: wait for the podCIDR of n"
        );
        assert_eq!(answer.next_try_seconds, Some(300.0));

        let node = NodeBuilder::new("n").block("10.0.0.0/24", 253);
        scheduler.apply_node(Arc::new(node.node()), now);
        let answer = ask(&mut scheduler);
        assert_eq!(answer.state(), PodState::BackingOff);
        assert_eq!(answer.backoff_seconds, Some(2.0));

        scheduler.attempt(now);
        let answer = ask(&mut scheduler);
        assert_eq!(answer.state(), PodState::Assumed);
        assert_eq!(answer.node_name, "n");
        scheduler.apply_pod(PodBuilder::new("p").on("n").info(), now);
        let answer = ask(&mut scheduler);
        assert_eq!(answer.state(), PodState::Bound);
        let want = "attempt 2 chose the only feasible node, of 1 examined, of 1 in the cluster";
        assert_eq!(
            answer.message,
            format!("on n, without an address yet; {want}")
        );
        let states = [
            (
                json!({"phase": "Pending", "podIP": "10.0.0.2"}),
                "on n, not running yet",
            ),
            (
                json!({"phase": "Running", "podIP": "10.0.0.2"}),
                "running on n",
            ),
        ];
        for (status, state) in states {
            let pod = PodBuilder::new("p").on("n").set("/status", status);
            scheduler.apply_pod(pod.info(), now);
            let answer = response(&pod.info(), &mut scheduler, now, clock);
            assert_eq!(answer.message, format!("{state}; {want}"));
        }
        let decision = answer.decision.unwrap();
        assert_eq!(decision.time, "1970-01-01T00:00:00Z");
        let score = &decision.scores[0];
        assert_eq!(score.free_pod_ips, 253);
        let plugins = score
            .plugins
            .iter()
            .map(|one| (&*one.plugin, one.normalised));
        let plugins: Vec<_> = plugins.collect();
        let want = [
            ("TaintToleration", 100),
            ("NodeResourcesFit", 98),
            ("PodIPs", 99),
        ];
        assert_eq!(plugins, want);
        let total: i64 = score
            .plugins
            .iter()
            .map(|one| one.weight * one.normalised)
            .sum();
        assert_eq!(score.score, total);

        // Another client bound it first.
        scheduler.apply_pod(PodBuilder::new("p").on("m").info(), now);
        let want = "on m, without an address yet; another client bound it there, and this scheduler chose n";
        assert_eq!(ask(&mut scheduler).message, want);
        scheduler.delete_pod(&pod, now);
        scheduler.apply_pod(PodBuilder::new("p").on("m").info(), now);
        let answer = ask(&mut scheduler);
        assert!(
            answer.message.contains("was not chosen here"),
            "{}",
            answer.message
        );
        assert_eq!(answer.decision, None);
        assert!(answer.verdicts.is_empty() && answer.scores.is_empty());
        // Of a node that exists, the present result is shown, without the pod itself.
        scheduler.apply_pod(PodBuilder::new("p").on("n").info(), now);
        let on_n = PodBuilder::new("p").on("n").info();
        let answer = response(&on_n, &mut scheduler, now, clock);
        assert_eq!(answer.decision, None);
        assert_eq!(answer.scores[0].free_pod_ips, 253);
        let ended = PodBuilder::new("p").on("n").ended("Succeeded", "");
        let ended = ended
            .set("/status/conditions", serde_json::json!([]))
            .info();
        scheduler.delete_pod(&on_n, now);
        let answer = response(&ended, &mut scheduler, now, clock);
        assert_eq!(answer.message, "it has ended (Succeeded) and needs no node");
        assert_eq!(answer.scores[0].node_name, "n");
    }

    #[test]
    fn explains_a_hypothetical_pod_without_an_effect() {
        let now = Duration::from_secs(5);
        let mut scheduler = Scheduler::new(IpPolicy::Resource);
        for (name, block) in [("a", "10.0.0.0/24"), ("b", "10.0.1.0/24")] {
            let node = NodeBuilder::new(name).block(block, 253);
            scheduler.apply_node(Arc::new(node.node()), now);
        }
        let answer = hypothetical::response(&PodBuilder::new("p").info(), &mut scheduler);
        assert_eq!(answer.state(), PodState::Hypothetical);
        assert_eq!((&*answer.node_name, answer.scores.len()), ("a", 2));
        let large = PodBuilder::new("p").ask("cpu", "9").info();
        let answer = hypothetical::response(&large, &mut scheduler);
        let want = "0/2 nodes are available: 2 Insufficient cpu.";
        assert_eq!(answer.message, want);
        assert_eq!(answer.verdicts[0].detail, "8 of 8 cpu free, 9 requested");
        assert_eq!(
            answer.suggestions[0].text,
            "2 nodes: lower the cpu request from 9 to 8 or less (for a)"
        );
        assert_eq!(scheduler.cache_size().pods, 0);

        let low = PodBuilder::new("low").ask("cpu", "8");
        for node in ["a", "b"] {
            let pod = low.clone().set("/metadata/uid", node.into()).on(node);
            scheduler.apply_pod(pod.info(), now);
        }
        let vip = PodBuilder::new("vip").ask("cpu", "8").priority(10).info();
        let answer = hypothetical::response(&vip, &mut scheduler);
        let want = "0/2 nodes are available: 2 Insufficient cpu. It would preempt default/low on ";
        assert!(answer.message.starts_with(want), "{}", answer.message);
        assert_eq!(scheduler.cache_size().pods, 2);
    }
}
