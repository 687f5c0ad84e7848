//! The loop around the pure scheduler: feeds it, and carries out what it decides.

use std::time::Duration;

use podplane_api::core::{Node, Pod};
use podplane_client::{Cache, Change, Client};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::{
    bind::Outcome,
    config::IpPolicy,
    metrics::{Ended, Metrics},
    names::PodUid,
    report::{self, Reporter},
    scheduler::{Attempt, Scheduler},
    service::Question,
    trace::{self, Turn},
};

/// Bindings under way at once. When there are so many, no further pod is tried until one is done.
const MAX_BINDINGS: usize = 256;

/// What the loop works with. It alone owns the scheduler, so there is nothing to lock, and no event can come between a decision and
/// what it was based on.
#[derive(Debug)]
pub struct Driver {
    /// To bind with.
    pub client: Client,
    /// All pods.
    pub pods: Cache<Pod>,
    /// All nodes.
    pub nodes: Cache<Node>,
    /// To tell people.
    pub reporter: Reporter,
    /// From the gRPC service.
    pub questions: mpsc::Receiver<Question>,
    /// What is counted.
    pub metrics: Metrics,
}

/// A binding that has been decided one way or the other, and when its attempt began.
type Bound = (Attempt, Outcome, Instant);

impl Driver {
    /// Schedules until `stop`. Bindings under way are then left to their fate: whoever comes next reads what became of them.
    ///
    /// # Errors
    ///
    /// If a binding panicked.
    pub async fn run(mut self, policy: IpPolicy, stop: CancellationToken) -> Result<(), JoinError> {
        // Deciding from half a picture would put pods on nodes that are full.
        let synced = async { tokio::join!(self.pods.synced(), self.nodes.synced()) };
        if stop.run_until_cancelled(synced).await.is_none() {
            return Ok(());
        }
        let mut nodes = self.nodes.subscribe();
        let mut pods = self.pods.subscribe();
        let mut scheduler = Scheduler::new(policy);
        let mut bindings = JoinSet::<Bound>::new();
        let start = Instant::now();
        loop {
            let now = start.elapsed();
            scheduler.tick(now);
            self.metrics
                .sizes(scheduler.pending(), scheduler.cache_size());
            let try_next = bindings.len() < MAX_BINDINGS && scheduler.is_ready(now);
            let deadline = scheduler.next_deadline().unwrap_or(Duration::MAX);
            // In this order, so that all that is known is taken in before the next decision. Losing any of these waits
            // loses nothing: each takes what it returns in the moment it returns it.
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                change = nodes.next() => apply_node(&mut scheduler, change, start.elapsed()),
                change = pods.next() => apply_pod(&mut scheduler, change, start.elapsed()),
                Some(ended) = bindings.join_next() => match ended {
                    Ok(bound) => self.finish(&mut scheduler, bound, start.elapsed()),
                    Err(panic) => return Err(panic),
                },
                Some(question) = self.questions.recv() => question.answer(&scheduler, start.elapsed()),
                // Gives other tasks a turn first, and the arms above another look.
                () = tokio::task::yield_now(), if try_next => {
                    let began = Instant::now();
                    if let Some(attempt) = scheduler.attempt(now) {
                        let turn = Turn {
                            arrived: (start + attempt.since).into_std(),
                            begun: began.into_std(),
                        };
                        trace::attempt(&attempt, turn);
                        self.begin(&mut bindings, attempt, began, now);
                    }
                }
                () = tokio::time::sleep(deadline.saturating_sub(now)), if !try_next => {}
            }
        }
    }

    fn begin(
        &self,
        bindings: &mut JoinSet<Bound>,
        attempt: Attempt,
        began: Instant,
        now: Duration,
    ) {
        let (namespace, name, uid) = identity(&attempt);
        let span = tracing::info_span!("schedule", namespace, name, uid);
        let _entered = span.enter();
        match attempt.outcome.clone() {
            Err(message) => {
                tracing::debug!(message, "no node");
                let metrics = &self.metrics;
                metrics.attempted(&attempt, Ended::Unschedulable, began.elapsed(), now);
                self.reporter
                    .unscheduled(&attempt.pod, report::UNSCHEDULABLE, message);
            }
            Ok(node) => {
                tracing::debug!(%node, "binding");
                let pods = self.client.namespaced(namespace);
                let bind = async move {
                    let outcome = trace::bind(&pods, &attempt, &node).await;
                    (attempt, outcome, began)
                };
                bindings.spawn(bind.instrument(span.clone()));
            }
        }
    }

    fn finish(&self, scheduler: &mut Scheduler, bound: Bound, now: Duration) {
        let (attempt, outcome, began) = bound;
        let ended = match outcome {
            Outcome::Bound => Ended::Scheduled,
            Outcome::Elsewhere | Outcome::Gone | Outcome::Failed(_) => Ended::Error,
        };
        self.metrics
            .attempted(&attempt, ended, began.elapsed(), now);
        let (namespace, name, uid) = identity(&attempt);
        let pod = &attempt.pod;
        match (outcome, &attempt.outcome) {
            (Outcome::Bound, Ok(node)) => {
                tracing::info!(namespace, name, uid, %node, "bound");
                self.reporter.scheduled(pod, node);
            }
            // The watch says where it is, if it is anywhere.
            (Outcome::Elsewhere, _) => tracing::warn!(namespace, name, uid, "bound by another"),
            (Outcome::Gone, _) => scheduler.bind_failed(&pod.uid, String::new(), now),
            (Outcome::Failed(error), _) => {
                tracing::warn!(namespace, name, uid, %error, "not bound; trying again later");
                let message = error.to_string();
                scheduler.bind_failed(&pod.uid, message.clone(), now);
                self.reporter
                    .unscheduled(pod, report::SCHEDULER_ERROR, message);
            }
            (Outcome::Bound, Err(_)) => {} // Only attempts that have a node are bound.
        }
    }
}

fn identity(attempt: &Attempt) -> (&str, &str, &str) {
    let pod = &attempt.pod;
    let uid: &PodUid = &pod.uid;
    (&pod.key.namespace, &pod.key.name, uid.as_str())
}

fn apply_node(scheduler: &mut Scheduler, change: Change<Node>, now: Duration) {
    match change {
        Change::Applied { new, .. } => scheduler.apply_node(new, now),
        Change::Deleted(node) => scheduler.delete_node(&node),
    }
}

fn apply_pod(scheduler: &mut Scheduler, change: Change<Pod>, now: Duration) {
    match change {
        Change::Applied { new, .. } => scheduler.apply_pod(new, now),
        Change::Deleted(pod) => scheduler.delete_pod(&pod, now),
    }
}
