//! `podplane.scheduler.v1`: answers why a pod is where it is.

use std::time::Duration;

use podplane_api::{Object as _, ObjectKey, core::Pod};
use podplane_client::{ApiError, Cache, Reason};
use podplane_proto::scheduler::{
    ExplainPodRequest, ExplainPodResponse, NodeVerdict, PodState,
    scheduler_service_server::SchedulerService,
};
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status};

use crate::{
    cache::Placing,
    names::PodUid,
    queue::Place,
    scheduler::{Explanation, Scheduler},
};

/// Questions that wait for the driver. When there are so many, callers wait to ask.
const QUESTIONS: usize = 16;

/// What the driver is asked between two decisions.
#[derive(Debug)]
pub struct Question {
    uid: PodUid,
    answer: oneshot::Sender<ExplainPodResponse>,
}

impl Question {
    /// Answers from what the scheduler knows now.
    pub fn answer(self, scheduler: &Scheduler, now: Duration) {
        let answer = response(scheduler.explain(&self.uid), now);
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
        let Some(pod) = self.pods.get(key) else {
            return Ok(response(Explanation::Unknown, Duration::ZERO));
        };
        let stopping = || ApiError::new(Reason::ServiceUnavailable, "the scheduler is stopping");
        let (answer, answered) = oneshot::channel();
        let question = Question {
            uid: pod.uid().into(),
            answer,
        };
        self.questions
            .send(question)
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
        let ExplainPodRequest { namespace, name } = request.into_inner();
        let answer = self.explain(&ObjectKey::new(namespace, name)).await;
        Ok(Response::new(answer?))
    }
}

fn response(explanation: Explanation, now: Duration) -> ExplainPodResponse {
    let mut response = ExplainPodResponse::default();
    match explanation {
        Explanation::Unknown => response.set_state(PodState::Unknown),
        Explanation::Placed(node, placing) => {
            response.node_name = node.to_string();
            response.set_state(match placing {
                Placing::Assumed => PodState::Assumed,
                Placing::Bound => PodState::Bound,
            });
        }
        Explanation::Waiting { waiting, verdicts } => {
            response.message = waiting.message;
            response.attempts = waiting.attempts;
            let verdicts = verdicts.refusals.into_iter();
            response.verdicts = verdicts
                .map(|(node, refusal)| NodeVerdict {
                    node_name: node.to_string(),
                    reasons: refusal.reasons.into_iter().map(Into::into).collect(),
                })
                .collect();
            let state = match waiting.place {
                Place::Active | Place::InFlight => PodState::Queued,
                Place::Unschedulable => PodState::Unschedulable,
                Place::BackingOff(until) | Place::BackingOffError(until) => {
                    response.backoff_seconds = Some(until.saturating_sub(now).as_secs_f64());
                    PodState::BackingOff
                }
            };
            response.set_state(state);
        }
    }
    response
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
        let ask = |scheduler: &Scheduler| response(scheduler.explain(&"p".into()), now);
        assert_eq!(ask(&scheduler).state(), PodState::Unknown);

        scheduler.apply_node(Arc::new(NodeBuilder::new("n").node()), now);
        scheduler.apply_pod(PodBuilder::new("p").pod(), now);
        assert_eq!(ask(&scheduler).state(), PodState::Queued);

        scheduler.attempt(now);
        let answer = ask(&scheduler);
        assert_eq!(answer.state(), PodState::Unschedulable);
        assert_eq!(
            answer.message,
            "0/1 nodes are available: 1 Insufficient pod IPs."
        );
        assert_eq!(answer.attempts, 1);
        let refused = NodeVerdict {
            node_name: "n".to_owned(),
            reasons: vec!["Insufficient pod IPs".to_owned()],
        };
        assert_eq!(answer.verdicts, [refused]);

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
        assert_eq!(ask(&scheduler).state(), PodState::Bound);
    }
}
