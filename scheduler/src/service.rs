//! `podplane.scheduler.v1`: answers why a pod is where it is.

use std::{sync::Arc, time::Duration};

use podplane_api::{
    Object as _, ObjectKey,
    core::Pod,
    jiff::{Timestamp, Unit},
    pod_ips,
};
use podplane_client::{ApiError, Cache, Reason};
use podplane_proto::scheduler::{
    self as wire, ExplainPodRequest, ExplainPodResponse, NodeVerdict, PodState,
    scheduler_service_server::SchedulerService,
};
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status};

use crate::{
    cache::Placing,
    names::{NodeName, PodUid},
    plan::Choice,
    pod::SCHEDULER_NAME,
    queue::Place,
    scheduler::{Decided, Explanation, Scheduler},
    score::NodeScore,
};

/// Questions that wait for the driver. When there are so many, callers wait to ask.
const QUESTIONS: usize = 16;

/// What the driver is asked between two decisions.
#[derive(Debug)]
pub struct Question {
    pod: Arc<Pod>,
    answer: oneshot::Sender<ExplainPodResponse>,
}

impl Question {
    /// Answers from what the scheduler knows now.
    pub fn answer(self, scheduler: &Scheduler, now: Duration) {
        let answer = response(&self.pod, scheduler, now, Timestamp::now());
        // Whoever asked may have gone; then nobody misses the answer.
        let _ = self.answer.send(answer);
    }
}

/// The service.
#[derive(Debug)]
pub struct Service {
    pods: Cache<Pod>,
    questions: mpsc::Sender<Question>,
}

impl Service {
    /// The service and the questions that it passes on.
    pub fn new(pods: Cache<Pod>) -> (Self, mpsc::Receiver<Question>) {
        let (questions, asked) = mpsc::channel(QUESTIONS);
        (Self { pods, questions }, asked)
    }

    async fn explain(&self, key: &ObjectKey) -> Result<ExplainPodResponse, ApiError> {
        let unavailable = |why: &str| ApiError::new(Reason::ServiceUnavailable, why);
        let Some(pod) = self.pods.get(key) else {
            if !self.pods.is_synced() {
                return Err(unavailable("the scheduler has not listed the pods yet"));
            }
            let mut response = ExplainPodResponse {
                message: format!("there is no pod {key}, or no more"),
                ..ExplainPodResponse::default()
            };
            response.set_state(PodState::Unknown);
            return Ok(response);
        };
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
impl SchedulerService for Service {
    async fn explain_pod(
        &self,
        request: Request<ExplainPodRequest>,
    ) -> Result<Response<ExplainPodResponse>, Status> {
        let ExplainPodRequest {
            mut namespace,
            name,
        } = request.into_inner();
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
    pod: &Pod,
    scheduler: &Scheduler,
    now: Duration,
    clock: Timestamp,
) -> ExplainPodResponse {
    let uid = PodUid::from(pod.uid());
    let mut response = ExplainPodResponse {
        pod_uid: uid.to_string(),
        ..ExplainPodResponse::default()
    };
    let in_seconds = |until: Duration| until.saturating_sub(now).as_secs_f64();
    match scheduler.explain(&uid) {
        Explanation::Unknown => {
            let spec = pod.spec.as_ref();
            response.node_name = spec.and_then(|s| s.node_name.clone()).unwrap_or_default();
            response.message = unknown(pod);
            response.set_state(PodState::Unknown);
        }
        Explanation::Placed(node, placing, decided) => {
            response.message = placed(&node, placing, decided.as_ref());
            if placing == Placing::Bound {
                response.bound_at = bound_at(pod).unwrap_or_default();
            }
            response.node_name = node.to_string();
            response.attempts = decided.as_ref().map_or(0, |decided| decided.attempt);
            response.decision = decided.map(|decided| {
                let ago = now.saturating_sub(decided.at);
                let at = clock.checked_sub(ago).unwrap_or(clock);
                decision(decided, at.round(Unit::Second).unwrap_or(at))
            });
            response.set_state(match placing {
                Placing::Assumed => PodState::Assumed,
                Placing::Bound => PodState::Bound,
            });
        }
        Explanation::Waiting { waiting, verdicts } => {
            response.next_try_seconds = scheduler.next_try(&uid).map(in_seconds);
            response.message = match waiting.attempts {
                0 => "it was not tried yet".to_owned(),
                _ => waiting.message,
            };
            response.attempts = waiting.attempts;
            let rejected_by = waiting.rejected_by.into_iter();
            response.rejected_by = rejected_by.map(str::to_owned).collect();
            let verdicts = verdicts.refusals.into_iter();
            response.verdicts = verdicts
                .map(|(node, refusal)| NodeVerdict {
                    node_name: node.to_string(),
                    reasons: refusal.reasons.into_iter().map(Into::into).collect(),
                    detail: refusal
                        .detail
                        .map_or_else(String::new, |detail| detail.text),
                })
                .collect();
            let state = match waiting.place {
                Place::Active | Place::InFlight => PodState::Queued,
                Place::Unschedulable => PodState::Unschedulable,
                Place::BackingOff(until) | Place::BackingOffError(until) => {
                    response.backoff_seconds = Some(in_seconds(until));
                    PodState::BackingOff
                }
            };
            response.set_state(state);
        }
    }
    response
}

/// Why a pod that is there is none of this scheduler's.
fn unknown(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    let other = spec
        .and_then(|spec| spec.scheduler_name.as_deref())
        .filter(|name| *name != SCHEDULER_NAME);
    let gates = spec.and_then(|spec| spec.scheduling_gates.as_deref());
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    match (other, gates) {
        _ if pod_ips::is_terminal(pod) => {
            format!(
                "it has ended ({}) and needs no node",
                phase.unwrap_or_default()
            )
        }
        _ if pod.is_deleting() => "it is being deleted and gets no node any more".to_owned(),
        (Some(other), _) => format!("it is for another scheduler, {other:?}"),
        (None, Some(gates @ [_, ..])) => {
            let gates: Vec<_> = gates.iter().map(|gate| gate.name.as_str()).collect();
            format!("it waits for its scheduling gates: {}", gates.join(", "))
        }
        (None, _) => "the scheduler is only just hearing of it".to_owned(),
    }
}

fn placed(node: &NodeName, placing: Placing, decided: Option<&Decided>) -> String {
    let Some(Decided {
        attempt, choice, ..
    }) = decided
    else {
        return format!(
            "on {node}, which was not chosen here: it was created with that node, another bound it, or it was bound before this scheduler started"
        );
    };
    let Choice {
        node: chosen,
        nodes,
        examined,
        feasible,
        ..
    } = choice;
    if chosen != node {
        return format!("on {node}, where another bound it; this scheduler chose {chosen}");
    }
    let state = match placing {
        Placing::Assumed => "being bound to",
        Placing::Bound => "on",
    };
    format!(
        "{state} {node}, the best of {feasible} that could take it, of {examined} looked at, of {nodes} nodes, at try {attempt}"
    )
}

/// When the API server bound it.
fn bound_at(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "True")?;
    Some(scheduled.last_transition_time.as_ref()?.0.to_string())
}

fn decision(decided: Decided, at: Timestamp) -> wire::Decision {
    let Decided {
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
    let amount = |amount| i64::try_from(amount).unwrap_or(i64::MAX);
    let score = |score: NodeScore| wire::NodeScore {
        node_name: score.node.to_string(),
        score: amount(score.total),
        least_allocated: amount(score.least_allocated),
        taint_toleration: amount(score.taint_toleration),
        free_pod_ips: u64::try_from(score.free_pod_ips).unwrap_or(u64::MAX),
        pods: count(score.pods),
    };
    wire::Decision {
        node_name: node.to_string(),
        time: at.to_string(),
        attempt,
        nodes: count(nodes),
        examined: count(examined),
        feasible: count(feasible),
        scores: scores.into_iter().map(score).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        config::IpPolicy,
        testing::{NodeBuilder, PodBuilder},
    };

    #[test]
    fn a_pod_is_explained_at_each_step() {
        let now = Duration::from_secs(5);
        let mut scheduler = Scheduler::new(IpPolicy::Resource);
        let clock = Timestamp::UNIX_EPOCH;
        let pod = PodBuilder::new("p").pod();
        let ask = |scheduler: &Scheduler| response(&pod, scheduler, now, clock);
        assert_eq!(ask(&scheduler).state(), PodState::Unknown);

        scheduler.apply_node(Arc::new(NodeBuilder::new("n").node()), now);
        scheduler.apply_pod(PodBuilder::new("p").pod(), now);
        assert_eq!(ask(&scheduler).state(), PodState::Queued);
        assert_eq!(ask(&scheduler).next_try_seconds, Some(0.0));

        scheduler.attempt(now);
        let answer = ask(&scheduler);
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
        };
        assert_eq!(answer.verdicts, [refused]);
        assert_eq!(answer.rejected_by, ["PodIPs"]);
        assert_eq!(answer.next_try_seconds, Some(300.0));

        let node = NodeBuilder::new("n").block("10.0.0.0/24", 253);
        scheduler.apply_node(Arc::new(node.node()), now);
        let answer = ask(&scheduler);
        assert_eq!(answer.state(), PodState::BackingOff);
        assert_eq!(answer.backoff_seconds, Some(1.0));

        scheduler.attempt(now);
        let answer = ask(&scheduler);
        assert_eq!(answer.state(), PodState::Assumed);
        assert_eq!(answer.node_name, "n");
        scheduler.apply_pod(PodBuilder::new("p").on("n").pod(), now);
        let answer = ask(&scheduler);
        assert_eq!(answer.state(), PodState::Bound);
        let told = "on n, the best of 1 that could take it, of 1 looked at, of 1 nodes, at try 2";
        assert_eq!(answer.message, told);
        let decision = answer.decision.unwrap();
        assert_eq!(decision.time, "1970-01-01T00:00:00Z");
        assert_eq!(decision.scores[0].free_pod_ips, 253);

        // Somebody else was quicker.
        scheduler.apply_pod(PodBuilder::new("p").on("m").pod(), now);
        let told = "on m, where another bound it; this scheduler chose n";
        assert_eq!(ask(&scheduler).message, told);
        scheduler.delete_pod(&pod, now);
        scheduler.apply_pod(PodBuilder::new("p").on("m").pod(), now);
        let answer = ask(&scheduler);
        assert!(
            answer.message.contains("was not chosen here"),
            "{}",
            answer.message
        );
        assert_eq!(answer.decision, None);
    }
}
