//! The loop around the pure scheduler: feeds it, and carries out its decisions.

use std::time::Duration;

use podplane_api::core::{Namespace, Node, Pod};
use podplane_client::{Cache, CacheChange, Client};
use podplane_host::{
    clock::{self, Instant},
    task,
};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::{
    bind::BindOutcome,
    config::PlacementPolicy,
    metrics::{AttemptResult, SchedulerMetrics},
    names::PodUid,
    report::{self, Reporter},
    scheduler::{Attempt, Scheduler},
    service::Question,
    trace::{self, QueueStay},
};

/// The most bindings in flight. At the limit no further pod is tried until one is done.
const MAX_BINDINGS: usize = 256;

/// The loop with its dependencies. It alone owns the scheduler, so there is no lock, and no event
/// can come between a decision and its input.
#[derive(Debug)]
pub struct Driver {
    /// The client for bindings.
    pub client: Client,
    /// All pods.
    pub pods: Cache<Pod>,
    /// All nodes.
    pub nodes: Cache<Node>,
    /// All namespaces.
    pub namespaces: Cache<Namespace>,
    /// The writer of events and conditions.
    pub reporter: Reporter,
    /// Questions of the gRPC service.
    pub questions: mpsc::Receiver<Question>,
    /// The metrics.
    pub metrics: SchedulerMetrics,
}

/// A finished binding, and the start of its attempt.
type BindingResult = (Attempt, BindOutcome, Instant);

impl Driver {
    /// Schedules until `stop`. Bindings in flight are then abandoned: the next scheduler reads
    /// their results.
    ///
    /// # Errors
    ///
    /// If a binding panicked.
    pub async fn run(
        mut self,
        policy: PlacementPolicy,
        stop: CancellationToken,
    ) -> Result<(), JoinError> {
        // Decisions from an incomplete cache would put pods on full nodes.
        let synced = async {
            tokio::join!(
                self.pods.synced(),
                self.nodes.synced(),
                self.namespaces.synced()
            )
        };
        if stop.run_until_cancelled(synced).await.is_none() {
            return Ok(());
        }
        let mut nodes = self.nodes.subscribe();
        let mut pods = self.pods.subscribe();
        let mut namespaces = self.namespaces.subscribe();
        let mut scheduler = Scheduler::new(policy);
        let mut bindings = JoinSet::<BindingResult>::new();
        let start = Instant::now();
        loop {
            let now = start.elapsed();
            scheduler.tick(now);
            self.metrics
                .sizes(scheduler.pending(), scheduler.cache_size());
            let try_next = bindings.len() < MAX_BINDINGS && scheduler.is_ready(now);
            let deadline = scheduler.next_deadline().unwrap_or(Duration::MAX);
            // In this order, so that all known events are applied before the next decision.
            // Cancelling any of these waits loses nothing: each consumes an item only when it
            // returns it.
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                change = namespaces.next() => {
                    apply_namespace(&mut scheduler, change, start.elapsed());
                }
                change = nodes.next() => apply_node(&mut scheduler, change, start.elapsed()),
                change = pods.next() => apply_pod(&mut scheduler, change, start.elapsed()),
                Some(ended) = bindings.join_next() => match ended {
                    Ok(bound) => self.finish(&mut scheduler, bound, start.elapsed()),
                    Err(panic) => return Err(panic),
                },
                Some(question) = self.questions.recv() => question.answer(&scheduler, start.elapsed()),
                // Yields to other tasks first, and then polls the branches above again.
                () = tokio::task::yield_now(), if try_next => {
                    let began = Instant::now();
                    if let Some(attempt) = scheduler.attempt(now) {
                        let turn = QueueStay {
                            arrived: start + attempt.waiting_since,
                            begun: began,
                        };
                        trace::attempt(&attempt, turn);
                        self.begin(&mut bindings, attempt, began, now);
                    }
                }
                () = clock::sleep(deadline.saturating_sub(now)), if !try_next => {}
            }
        }
    }

    fn begin(
        &self,
        bindings: &mut JoinSet<BindingResult>,
        attempt: Attempt,
        began: Instant,
        now: Duration,
    ) {
        let (namespace, name, uid) = identity(&attempt);
        let span = tracing::info_span!("schedule", namespace, name, uid);
        let _entered = span.enter();
        match attempt.outcome.clone() {
            Err(message) => {
                tracing::debug!(message, "no node fits");
                let metrics = &self.metrics;
                metrics.attempted(&attempt, AttemptResult::Unschedulable, began.elapsed(), now);
                self.reporter
                    .unscheduled(&attempt.pod, report::UNSCHEDULABLE, message);
            }
            Ok(node) => {
                tracing::debug!(%node, "binding pod");
                let pods = self.client.namespaced(namespace);
                let bind = async move {
                    let outcome = trace::bind(&pods, &attempt, &node).await;
                    (attempt, outcome, began)
                };
                task::spawn(bindings, bind.instrument(span.clone()));
            }
        }
    }

    fn finish(&self, scheduler: &mut Scheduler, bound: BindingResult, now: Duration) {
        let (attempt, outcome, began) = bound;
        let ended = match outcome {
            BindOutcome::Bound => AttemptResult::Scheduled,
            BindOutcome::Elsewhere | BindOutcome::Gone | BindOutcome::Failed(_) => {
                AttemptResult::Error
            }
        };
        self.metrics
            .attempted(&attempt, ended, began.elapsed(), now);
        let (namespace, name, uid) = identity(&attempt);
        let pod = &attempt.pod;
        match (outcome, &attempt.outcome) {
            (BindOutcome::Bound, Ok(node)) => {
                tracing::debug!(namespace, name, uid, %node, "bound pod");
                self.reporter.scheduled(pod, node);
            }
            // The watch reports the pod's node, if it has one.
            (BindOutcome::Elsewhere, _) => {
                tracing::warn!(namespace, name, uid, "pod was bound by another client")
            }
            (BindOutcome::Gone, _) => scheduler.bind_failed(&pod.uid, String::new(), now),
            (BindOutcome::Failed(error), _) => {
                tracing::warn!(namespace, name, uid, %error, "failed to bind the pod; trying again");
                let message = error.to_string();
                scheduler.bind_failed(&pod.uid, message.clone(), now);
                self.reporter
                    .unscheduled(pod, report::SCHEDULER_ERROR, message);
            }
            (BindOutcome::Bound, Err(_)) => {} // Only attempts that have a node are bound.
        }
    }
}

fn identity(attempt: &Attempt) -> (&str, &str, &str) {
    let pod = &attempt.pod;
    let uid: &PodUid = &pod.uid;
    (&pod.key.namespace, &pod.key.name, uid.as_str())
}

fn apply_namespace(scheduler: &mut Scheduler, change: CacheChange<Namespace>, now: Duration) {
    match change {
        CacheChange::Applied { new, .. } => scheduler.apply_namespace(&new, now),
        CacheChange::Deleted(namespace) => scheduler.delete_namespace(&namespace),
    }
}

fn apply_node(scheduler: &mut Scheduler, change: CacheChange<Node>, now: Duration) {
    match change {
        CacheChange::Applied { new, .. } => scheduler.apply_node(new, now),
        CacheChange::Deleted(node) => scheduler.delete_node(&node),
    }
}

fn apply_pod(scheduler: &mut Scheduler, change: CacheChange<Pod>, now: Duration) {
    match change {
        CacheChange::Applied { new, .. } => scheduler.apply_pod(new, now),
        CacheChange::Deleted(pod) => scheduler.delete_pod(&pod, now),
    }
}
