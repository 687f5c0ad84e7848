//! The loop around the pure scheduler: feeds it, and carries out its decisions.

use std::time::Duration;

use podplane_api::{
    apps::ReplicaSet,
    core::{Namespace, Node, Service},
    policy::PodDisruptionBudget,
};
use podplane_client::{ApiError, Cache, CacheChange, Client, leader::LeadershipLost};
use podplane_host::{
    clock::{self, Instant},
    task,
};
use podplane_service_runtime::tasks::TaskError;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::{
    bind::BindOutcome,
    config::PlacementPolicy,
    metrics::{AttemptResult, SchedulerMetrics},
    names::PodUid,
    pod::PodInfo,
    preemption::evict,
    report::{self, Reporter},
    scheduler::{Attempt, Scheduler},
    service::Question,
    trace::{self, QueueStay},
    unplaceable::UnplaceablePods,
};

/// The most bindings in flight. At the limit no further pod is tried until one is done.
const MAX_BINDINGS: usize = 256;

/// The loop with its dependencies. It alone owns the scheduler, so there is no lock, and no event
/// can come between a decision and its input.
///
/// It follows all changes from the start, and attempts nothing before its process leads.
#[derive(Debug)]
pub struct Driver {
    /// The policy of placement.
    pub policy: PlacementPolicy,
    /// All pods.
    pub pods: Cache<PodInfo>,
    /// All nodes.
    pub nodes: Cache<Node>,
    /// All namespaces.
    pub namespaces: Cache<Namespace>,
    /// All disruption budgets.
    pub budgets: Cache<PodDisruptionBudget>,
    /// All services.
    pub services: Cache<Service>,
    /// All ReplicaSets.
    pub replica_sets: Cache<ReplicaSet>,
    /// The beginning of the process's leadership. Dropped when the driver has ended.
    pub terms: mpsc::Receiver<LeaderTerm>,
    /// Questions of the gRPC service.
    pub questions: mpsc::Receiver<Question>,
    /// The metrics.
    pub metrics: SchedulerMetrics,
}

/// The means of a leader to write; a standby has none.
#[derive(Debug)]
pub struct LeaderTerm {
    /// The client for bindings.
    pub client: Client,
    /// The writer of events and conditions.
    pub reporter: Reporter,
}

/// A finished binding, and the start of its attempt.
type BindingResult = (Attempt, BindOutcome, Instant);

/// The evictions of a preemption that have ended, and the pod that they are for.
type EvictionResult = (PodUid, Result<(), ApiError>);

impl Driver {
    /// Schedules until `stop`. Bindings in flight are then abandoned: the next scheduler reads
    /// their results.
    ///
    /// # Errors
    ///
    /// [`LeadershipLost`] if a binding was refused because another scheduler leads, and the panic
    /// of a binding.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), TaskError> {
        // Decisions from an incomplete cache would put pods on full nodes.
        let synced = async {
            tokio::join!(
                self.pods.synced(),
                self.nodes.synced(),
                self.namespaces.synced(),
                self.budgets.synced(),
                self.services.synced(),
                self.replica_sets.synced()
            )
        };
        if stop.run_until_cancelled(synced).await.is_none() {
            return Ok(());
        }
        if let Some(found) = UnplaceablePods::among(&self.pods.list(), &self.policy.scheduler_name)
        {
            found.log(&self.policy.scheduler_name);
        }
        let mut nodes = self.nodes.subscribe();
        let mut pods = self.pods.subscribe();
        let mut namespaces = self.namespaces.subscribe();
        let mut budgets = self.budgets.subscribe();
        let mut services = self.services.subscribe();
        let mut replica_sets = self.replica_sets.subscribe();
        let mut scheduler = Scheduler::new(self.policy.clone());
        let mut bindings = JoinSet::<BindingResult>::new();
        let mut evictions = JoinSet::<EvictionResult>::new();
        let mut term: Option<LeaderTerm> = None;
        let start = Instant::now();
        loop {
            let now = start.elapsed();
            scheduler.tick(now);
            self.metrics
                .sizes(scheduler.pending(), scheduler.cache_size());
            self.metrics.refused(scheduler.refusals());
            let can_try = term.is_some() && bindings.len() < MAX_BINDINGS;
            let try_next = can_try && scheduler.is_ready(now);
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
                change = budgets.next() => apply_budget(&mut scheduler, change),
                change = services.next() => apply_service(&mut scheduler, change),
                change = replica_sets.next() => apply_replica_set(&mut scheduler, change),
                change = nodes.next() => apply_node(&mut scheduler, change, start.elapsed()),
                change = pods.next() => apply_pod(&mut scheduler, change, start.elapsed()),
                Some(begun) = self.terms.recv(), if term.is_none() => term = Some(begun),
                Some(ended) = bindings.join_next() => {
                    if let Some(term) = &term {
                        self.finish(term, &mut scheduler, ended?, start.elapsed())?;
                    }
                }
                Some(ended) = evictions.join_next() => {
                    let (uid, result) = ended?;
                    if let Err(error) = result {
                        tracing::warn!(uid = uid.as_str(), %error, "failed to evict pods for the pod; trying again");
                        scheduler.preemption_failed(&uid, start.elapsed());
                    }
                }
                Some(question) = self.questions.recv() => {
                    question.answer(&mut scheduler, start.elapsed(), term.is_some());
                }
                // Yields to other tasks first, and then polls the branches above again.
                () = tokio::task::yield_now(), if try_next => {
                    let began = Instant::now();
                    if let Some(term) = &term && let Some(attempt) = scheduler.attempt(now) {
                        let turn = QueueStay {
                            arrived: start + attempt.waiting_since,
                            begun: began,
                        };
                        trace::attempt(&attempt, turn);
                        preempt(term, &mut evictions, &attempt);
                        self.begin(term, &mut bindings, attempt, began, now);
                    }
                }
                () = clock::sleep(deadline.saturating_sub(now)), if !try_next => {}
            }
        }
    }

    fn begin(
        &self,
        term: &LeaderTerm,
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
                let (pod, nominated) = (&attempt.pod, attempt.nominated.clone());
                term.reporter
                    .unscheduled(pod, report::UNSCHEDULABLE, message, nominated);
            }
            Ok(node) => {
                tracing::debug!(%node, "binding pod");
                let pods = term.client.namespaced(namespace);
                let pod_ips = self.policy.pod_ip_resource.clone();
                let bind = async move {
                    let outcome = trace::bind(&pods, &pod_ips, &attempt, &node).await;
                    (attempt, outcome, began)
                };
                task::spawn(bindings, bind.instrument(span.clone()));
            }
        }
    }

    fn finish(
        &self,
        term: &LeaderTerm,
        scheduler: &mut Scheduler,
        bound: BindingResult,
        now: Duration,
    ) -> Result<(), LeadershipLost> {
        let (attempt, outcome, began) = bound;
        let ended = match outcome {
            BindOutcome::Bound => AttemptResult::Scheduled,
            BindOutcome::Elsewhere
            | BindOutcome::Gone
            | BindOutcome::NoAddress(_)
            | BindOutcome::Failed(_)
            | BindOutcome::NotLeading(_) => AttemptResult::Error,
        };
        self.metrics
            .attempted(&attempt, ended, began.elapsed(), now);
        let (namespace, name, uid) = identity(&attempt);
        let pod = &attempt.pod;
        match (outcome, &attempt.outcome) {
            (BindOutcome::Bound, Ok(node)) => {
                tracing::debug!(namespace, name, uid, %node, "bound pod");
                term.reporter.scheduled(pod, node);
            }
            // The watch reports the pod's node, if it has one.
            (BindOutcome::Elsewhere, _) => {
                tracing::warn!(namespace, name, uid, "pod was bound by another client")
            }
            (BindOutcome::NoAddress(error), Ok(node)) => {
                tracing::debug!(namespace, name, uid, %node, %error, "the node has no address");
                scheduler.bind_refused(&pod.uid, node, error.to_string(), now);
            }
            (BindOutcome::Gone, _) => scheduler.bind_failed(&pod.uid, String::new(), now),
            (BindOutcome::Failed(error), _) => {
                tracing::warn!(namespace, name, uid, %error, "failed to bind the pod; trying again");
                let message = error.to_string();
                scheduler.bind_failed(&pod.uid, message.clone(), now);
                term.reporter
                    .unscheduled(pod, report::SCHEDULER_ERROR, message, None);
            }
            (BindOutcome::NotLeading(error), _) => return Err(LeadershipLost(error)),
            // Only attempts that have a node are bound.
            (BindOutcome::Bound | BindOutcome::NoAddress(_), Err(_)) => {}
        }
        Ok(())
    }
}

/// Evicts the victims of the attempt, if it has some.
fn preempt(term: &LeaderTerm, evictions: &mut JoinSet<EvictionResult>, attempt: &Attempt) {
    let Some(preemption) = attempt.preemption.clone() else {
        return;
    };
    for victim in &preemption.victims {
        let node = &preemption.node;
        let (pod, by) = (&victim.key, &attempt.pod.key);
        tracing::debug!(%pod, %by, %node, "preempting pod");
        term.reporter.preempted(victim, &attempt.pod, node);
    }
    for displaced in &preemption.displaced {
        term.reporter.not_nominated(displaced);
    }
    let (client, uid) = (term.client.clone(), attempt.pod.uid.clone());
    task::spawn(evictions, async move {
        (uid, evict(&client, &preemption).await)
    });
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

fn apply_service(scheduler: &mut Scheduler, change: CacheChange<Service>) {
    match change {
        CacheChange::Applied { new, .. } => scheduler.apply_service(&new),
        CacheChange::Deleted(service) => scheduler.delete_service(&service),
    }
}

fn apply_replica_set(scheduler: &mut Scheduler, change: CacheChange<ReplicaSet>) {
    match change {
        CacheChange::Applied { new, .. } => scheduler.apply_replica_set(&new),
        CacheChange::Deleted(set) => scheduler.delete_replica_set(&set),
    }
}

fn apply_node(scheduler: &mut Scheduler, change: CacheChange<Node>, now: Duration) {
    match change {
        CacheChange::Applied { new, .. } => scheduler.apply_node(new, now),
        CacheChange::Deleted(node) => scheduler.delete_node(&node),
    }
}

fn apply_pod(scheduler: &mut Scheduler, change: CacheChange<PodInfo>, now: Duration) {
    match change {
        CacheChange::Applied { new, .. } => scheduler.apply_pod(new, now),
        CacheChange::Deleted(pod) => scheduler.delete_pod(&pod, now),
    }
}

fn apply_budget(scheduler: &mut Scheduler, change: CacheChange<PodDisruptionBudget>) {
    match change {
        CacheChange::Applied { new, .. } => scheduler.apply_budget(&new),
        CacheChange::Deleted(budget) => scheduler.delete_budget(&budget),
    }
}
