//! The scheduler without I/O: takes events and the time, returns decisions.
//!
//! One owner feeds it and carries out its decisions. It has no clock either, so that a test can
//! replay any history.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use podplane_api::{
    Object, ObjectKey,
    apps::ReplicaSet,
    core::{Namespace, Node, Service},
    policy::PodDisruptionBudget,
};

use crate::{
    cache::{CacheSize, FreedPod, NodeCache, PlacementState},
    cluster::Cluster,
    config::PlacementPolicy,
    event::ClusterEvent,
    explain::{Examination, NodeVerdict, examine, examine_node},
    fit_error::FitError,
    framework::{CycleInput, Framework},
    names::{NodeName, PodUid},
    node::NodeChange,
    plan::{Choice, Decision, plan},
    pod::PodInfo,
    preemption::{DisruptionBudget, NoPreemption, Preemption, preempt},
    queue::{EventId, Queue, QueueLengths, RefusalCounts, Room, WaitingPod},
    remedy::{Suggestion, suggest},
};

#[cfg(test)]
mod tests;

/// The scheduler's state. A pod passes through these states:
///
/// - *queued*: it waits for a node, in a [`QueuePlace`](crate::queue::QueuePlace);
/// - *in flight*: [`attempt`](Self::attempt) took it, and its resources are assumed on a node until
///   the binding is confirmed or has failed;
/// - *bound*: the watch reported its node;
/// - *released*: it has ended and holds no resources, or it was deleted.
///
/// | from | to | by |
/// |---|---|---|
/// | (unknown) | queued | `apply_pod`: schedulable |
/// | queued | in flight | `attempt` finds a node |
/// | queued | queued | `attempt` finds no node; the pod waits for a change that helps, such as the end of its victims |
/// | in flight | queued | `bind_failed`; `bind_refused` |
/// | any | bound | `apply_pod`: the pod has a node, whoever bound it |
/// | any | released | `apply_pod`: ended; `delete_pod` |
/// | queued | (unknown) | `apply_pod`: not schedulable, such as in deletion |
///
/// The assumption of a pod that leaves the queue while it is in flight stays until the result of
/// its binding, or its release.
#[derive(Debug)]
pub struct Scheduler {
    /// The `spec.schedulerName` of the pods to schedule.
    scheduler_name: String,
    queue: Queue,
    cache: NodeCache,
    framework: Framework,
    /// The index of the node at which the next search starts, so that all nodes get their
    /// turn.
    next_start: usize,
    /// The placement decisions, each kept until its pod is released or deleted, or its binding has
    /// failed; for [`explain`](Self::explain).
    decisions: BTreeMap<PodUid, PlacementDecision>,
    /// The waiting pods that may become schedulable when another pod is placed. Without any, the
    /// queue is not searched after each placement.
    waiting_for_pods: BTreeSet<PodUid>,
    /// The nodes to which the API server refused to bind a pod for want of an address, with the
    /// time at which they are tried again.
    bind_refusals: BTreeMap<NodeName, Duration>,
    /// The last event.
    events: EventId,
    /// The disruption budgets, by namespace and name.
    budgets: BTreeMap<ObjectKey, DisruptionBudget>,
    /// The waiting pods that other pods were evicted for.
    nominations: BTreeMap<PodUid, Nomination>,
}

/// The node on which a pod is to fit once its victims have left.
#[derive(Clone, Debug)]
struct Nomination {
    node: NodeName,
    victims: Vec<PodUid>,
}

/// The time for which a node is left out after the API server refused to bind a pod to it. Until
/// then the watch delivers the pods that the API server has counted.
const BIND_REFUSAL: Duration = Duration::from_secs(1);

/// The decision for a pod's node.
#[derive(Clone, Debug)]
pub struct PlacementDecision {
    /// The time of the decision, on the clock of the `now` arguments.
    pub at: Duration,
    /// The number of the attempt that made the decision, from 1.
    pub attempt: u32,
    /// The chosen node, with the circumstances of its choice.
    pub choice: Choice,
}

/// An attempt to schedule a pod.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The pod in the version of the decision.
    pub pod: Arc<PodInfo>,
    /// The chosen node, with the pod's resources already reserved there; or the message that
    /// explains why no node fits.
    pub outcome: Result<NodeName, String>,
    /// The number of attempts, this one included.
    pub attempts: u32,
    /// The time at which the pod was first observed.
    pub arrived: Duration,
    /// The start of the pod's wait for this attempt.
    pub waiting_since: Duration,
    /// The pods to evict so that it fits, if no node fits now.
    pub preemption: Option<Preemption>,
    /// The node on which it is to fit once pods that were evicted for it have left.
    pub nominated: Option<NodeName>,
}

/// The state of a pod, for an explanation.
#[derive(Clone, Debug)]
pub enum PodExplanation {
    /// The pod is unknown.
    Unknown,
    /// The pod waits.
    Waiting {
        /// Its state in the queue.
        waiting: WaitingPod,
        /// The present results of all nodes.
        examination: Examination,
        /// The changes after which it would fit.
        suggestions: Vec<Suggestion>,
    },
    /// The pod has a node, with our decision if it is known.
    Placed(NodeName, PlacementState, Option<PlacementDecision>),
}

/// The place that a pod would get if it were created now.
#[derive(Clone, Debug)]
pub struct HypotheticalPlacement {
    /// The node, or the reasons why none fits.
    pub node: Result<Choice, FitError>,
    /// The pods that would be evicted so that it fits, if no node fits now.
    pub preemption: Option<Preemption>,
    /// The present results of all nodes.
    pub examination: Examination,
    /// The changes after which it would fit.
    pub suggestions: Vec<Suggestion>,
}

impl Scheduler {
    /// Creates a scheduler without pods and nodes.
    pub fn new(policy: impl Into<PlacementPolicy>) -> Self {
        let policy = policy.into();
        Self {
            scheduler_name: policy.scheduler_name.clone(),
            queue: Queue::default(),
            cache: NodeCache::new(policy.pod_ip_resource.clone()),
            next_start: usize::try_from(policy.seed).unwrap_or(usize::MAX),
            framework: Framework::new(policy),
            decisions: BTreeMap::new(),
            waiting_for_pods: BTreeSet::new(),
            bind_refusals: BTreeMap::new(),
            events: EventId::default(),
            budgets: BTreeMap::new(),
            nominations: BTreeMap::new(),
        }
    }

    /// The `spec.schedulerName` of the pods that it schedules.
    pub fn name(&self) -> &str {
        &self.scheduler_name
    }

    /// Handles a new or changed pod, by the first rule that applies:
    ///
    /// 1. It is released: forget it, and free its resources.
    /// 2. It has a node: it is bound there, whatever was assumed. If it was assumed elsewhere, free
    ///    the resources there.
    /// 3. It is schedulable: add it to the queue, or update it there.
    /// 4. Otherwise: remove it from the queue.
    pub fn apply_pod(&mut self, pod: Arc<PodInfo>, now: Duration) {
        if pod.is_released() {
            self.leave_queue(&pod.uid, now);
            self.decisions.remove(&pod.uid);
            let freed = self.cache.remove_pod(&pod.uid);
            // Mark the node as out of addresses only if the pod was cached on it, so that this is
            // news. A failure from before our start may be outdated: the node may have reported
            // free addresses after it.
            if let Some(freed) = &freed
                && pod.was_out_of_pod_ips()
            {
                self.cache.refuse_for_ips(&freed.node);
            }
            self.notify_freed(freed, now);
        } else if let Some(node) = pod.node_name.clone() {
            let room = self.dequeue(&pod.uid);
            self.cache.prepare(&pod);
            let is_news = self.cache.placement(&pod.uid).is_none();
            let freed = self.cache.confirm(pod.clone(), &node);
            self.notify_freed(freed, now);
            if is_news {
                self.notify_placed(&pod, now);
            }
            self.pass_on(room.filter(|room| room.node != node), now);
        } else if pod.is_schedulable_by(&self.scheduler_name) {
            // For a pod in flight (assumed, not yet bound) this event does not know our decision,
            // so it changes no place. Keep the new state in the queue: if the binding fails, the
            // next attempt needs it.
            self.cache.prepare(&pod);
            // A predecessor has evicted pods for it.
            if let Some(node) = pod.nominated_node.clone()
                && !self.nominations.contains_key(&pod.uid)
                && self.cache.placement(&pod.uid).is_none()
                && self.queue.get(&pod.uid).is_none()
            {
                self.nominate(pod.clone(), node, Vec::new());
            }
            self.queue.upsert(pod, now);
        } else {
            self.leave_queue(&pod.uid, now);
        }
    }

    /// Handles a deleted pod.
    pub fn delete_pod(&mut self, pod: &PodInfo, now: Duration) {
        self.leave_queue(&pod.uid, now);
        self.decisions.remove(&pod.uid);
        let freed = self.cache.remove_pod(&pod.uid);
        // The sandbox of a pod that has ended is removed before the object.
        if let Some(freed) = &freed
            && !pod.is_terminal()
        {
            self.cache.expect_orphans(&freed.node);
        }
        self.notify_freed(freed, now);
    }

    /// Handles a new or changed node.
    pub fn apply_node(&mut self, node: Arc<Node>, now: Duration) {
        let name = NodeName::from(node.name());
        let changes = self.cache.apply_node(node);
        if !changes.is_empty() {
            self.notify(now, |cluster| {
                let node = cluster.node(&name)?;
                let changes = &changes;
                Some(ClusterEvent::NodeChanged { node, changes })
            });
        }
    }

    /// Handles a deleted node. No pod becomes schedulable by that, so the queue is not woken.
    pub fn delete_node(&mut self, node: &Node) {
        self.cache.remove_node(&node.name().into());
    }

    /// Handles the passing of time: moves pods whose back-off has ended to the active ones, and
    /// retries pods that have been unschedulable for long.
    pub fn tick(&mut self, now: Duration) {
        self.queue.tick(now);
        let ended = self
            .bind_refusals
            .iter()
            .filter(|(_, until)| **until <= now);
        for name in ended.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.bind_refusals.remove(&name);
            self.cache.set_bind_refused(&name, false);
            self.notify(now, |cluster| {
                let (node, changes) = (cluster.node(&name)?, &[NodeChange::PodIps]);
                Some(ClusterEvent::NodeChanged { node, changes })
            });
        }
    }

    /// Takes the next pod and decides. `None` if no pod is ready.
    pub fn attempt(&mut self, now: Duration) -> Option<Attempt> {
        let pod = self.queue.pop(now)?;
        let waiting = self.queue.get(&pod.uid);
        let (attempts, arrived) = waiting.map_or((1, now), WaitingPod::history);
        let waiting_since = waiting.map_or(now, WaitingPod::since);
        let room = self.queue.take_room(&pod.uid);
        let cluster = self.cache.cluster();
        let Decision { node, next_start } = plan(cluster, &pod, &self.framework, self.next_start);
        self.next_start = next_start;
        let mut preemption = None;
        let outcome = match node {
            Ok(choice) => {
                let node = choice.node.clone();
                self.cache.assume(pod.clone(), &node);
                let decision = PlacementDecision {
                    at: now,
                    attempt: attempts,
                    choice,
                };
                self.decisions.insert(pod.uid.clone(), decision);
                self.waiting_for_pods.remove(&pod.uid);
                self.withdraw_nomination(&pod.uid);
                self.notify_placed(&pod, now);
                Ok(node)
            }
            Err(failure) => {
                let mut message = failure.to_string();
                match self.preempt(&pod, &failure, now) {
                    None => {}
                    Some(Ok(found)) => preemption = Some(found),
                    Some(Err(why)) => message = format!("{message} {why}"),
                }
                let rejected_by = failure.rejected_by;
                match self.framework.waits_for_pods(&rejected_by) {
                    true => self.waiting_for_pods.insert(pod.uid.clone()),
                    false => self.waiting_for_pods.remove(&pod.uid),
                };
                self.queue
                    .reject(&pod.uid, rejected_by, message.clone(), now);
                Err(message)
            }
        };
        let nominated = self.nominations.get(&pod.uid);
        let nominated = nominated.map(|nomination| nomination.node.clone());
        let chosen = outcome.as_ref().ok();
        self.pass_on(room.filter(|room| Some(&room.node) != chosen), now);
        Some(Attempt {
            pod,
            outcome,
            attempts,
            arrived,
            waiting_since,
            preemption,
            nominated,
        })
    }

    /// Looks for pods of lower priority without which the pod fits, and nominates their node. Pods
    /// of lower priority that were nominated for it are attempted again, after their back-off.
    /// `None` if there are no pods of lower priority at all.
    fn preempt(
        &mut self,
        pod: &Arc<PodInfo>,
        failure: &FitError,
        now: Duration,
    ) -> Option<Result<Preemption, NoPreemption>> {
        if !self.has_less_important_pods(pod, failure) {
            return None;
        }
        if let Some(nomination) = self.nominations.get(&pod.uid)
            && self.has_victims(nomination, pod.priority())
        {
            return Some(Err(NoPreemption::VictimsRemain));
        }
        self.withdraw_nomination(&pod.uid);
        let found = self.find_victims(pod);
        if let Ok(preemption) = &found {
            for other in &preemption.displaced {
                self.withdraw_nomination(&other.uid);
                self.queue.retry_unschedulable(&other.uid, now);
            }
            let victims = preemption.victims.iter();
            let victims = victims.map(|victim| victim.uid.clone()).collect();
            self.nominate(pod.clone(), preemption.node.clone(), victims);
        }
        Some(found)
    }

    /// Returns true if there are pods of lower priority, without which the pod could fit a node.
    fn has_less_important_pods(&self, pod: &PodInfo, failure: &FitError) -> bool {
        let lowest = self.cache.cluster().lowest_priority();
        lowest.is_some_and(|lowest| lowest < pod.priority()) && failure.rejection.is_none()
    }

    /// Chooses the pods whose eviction would make room for the pod. Evicts none.
    fn find_victims(&mut self, pod: &PodInfo) -> Result<Preemption, NoPreemption> {
        let budgets: Vec<_> = self.budgets.values().cloned().collect();
        let cluster = self.cache.cluster_mut();
        preempt(cluster, &self.framework, pod, &budgets, self.next_start)
    }

    /// Returns whether victims are still on the nominated node: ours, or pods of lower priority
    /// that are being deleted.
    fn has_victims(&self, nomination: &Nomination, priority: i32) -> bool {
        let Nomination { node, victims } = nomination;
        let is_victim = |other: &Arc<PodInfo>| {
            let is_leaving = other.is_deleting && other.priority() < priority;
            is_leaving || victims.contains(&other.uid)
        };
        let node = self.cache.node(node);
        node.is_some_and(|node| node.pods().iter().any(is_victim))
    }

    fn nominate(&mut self, pod: Arc<PodInfo>, node: NodeName, victims: Vec<PodUid>) {
        let uid = pod.uid.clone();
        self.cache.cluster_mut().nominate(pod, node.clone());
        self.nominations.insert(uid, Nomination { node, victims });
    }

    fn withdraw_nomination(&mut self, uid: &PodUid) {
        if self.nominations.remove(uid).is_some() {
            self.cache.cluster_mut().withdraw_nomination(uid);
        }
    }

    /// Handles the failure to evict the victims of a preemption: the pod is attempted again after a
    /// back-off, and may preempt again.
    pub fn preemption_failed(&mut self, uid: &PodUid, now: Duration) {
        self.withdraw_nomination(uid);
        self.queue.retry_unschedulable(uid, now);
    }

    /// Handles a new or changed disruption budget.
    pub fn apply_budget(&mut self, budget: &PodDisruptionBudget) {
        self.budgets
            .insert(budget.key(), DisruptionBudget::from(budget));
    }

    /// Handles a deleted disruption budget.
    pub fn delete_budget(&mut self, budget: &PodDisruptionBudget) {
        self.budgets.remove(&budget.key());
    }

    /// Undoes the assumption after the binding has failed: the pod's resources are free again, and
    /// the pod goes back to the queue, for another attempt after a back-off.
    ///
    /// A successful binding is not reported: the pod stays in flight until the watch delivers it.
    pub fn bind_failed(&mut self, uid: &PodUid, message: String, now: Duration) {
        let freed = self.forget_assumption(uid);
        self.queue.fail(uid, message, now);
        self.notify_freed(freed, now);
    }

    /// Undoes the assumption after the API server refused the binding because the node has no
    /// address for the pod: another client has bound pods there that the watch has not delivered
    /// yet. The pod is attempted at once, on the other nodes.
    pub fn bind_refused(&mut self, uid: &PodUid, node: &NodeName, message: String, now: Duration) {
        self.cache.set_bind_refused(node, true);
        self.bind_refusals.insert(node.clone(), now + BIND_REFUSAL);
        let freed = self.forget_assumption(uid);
        self.queue.retry_now(uid, message, now);
        self.notify_freed(freed, now);
    }

    /// Frees what the pod was assumed to take. If another client has bound it in the meantime, or
    /// the call succeeded after all, it stays bound and its decision is kept.
    fn forget_assumption(&mut self, uid: &PodUid) -> Option<FreedPod> {
        let freed = self.cache.forget(uid);
        if self.cache.placement(uid).is_none() {
            self.decisions.remove(uid);
        }
        freed
    }

    /// Returns true if a pod can be attempted now.
    pub fn is_ready(&self, now: Duration) -> bool {
        self.queue.is_ready(now)
    }

    /// The next time at which [`Scheduler::tick`] has work, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Duration> {
        let refusals = self.bind_refusals.values().min().copied();
        self.queue.next_deadline().into_iter().chain(refusals).min()
    }

    /// The numbers of waiting pods, by part of the queue.
    pub fn pending(&self) -> QueueLengths {
        self.queue.pending()
    }

    /// The numbers of waiting pods that each filter refused a node at the pod's last attempt.
    pub fn refusals(&self) -> &RefusalCounts {
        self.queue.refusals()
    }

    /// The numbers of nodes, pods and assumed pods in the cache.
    pub fn cache_size(&self) -> CacheSize {
        self.cache.size()
    }

    /// The time of the pod's next attempt, if nothing happens.
    pub fn next_attempt_at(&self, uid: &PodUid) -> Option<Duration> {
        self.queue.next_attempt_at(uid)
    }

    /// Explains the state of the pod of that UID. Refusals are the present ones, not those of the
    /// last attempt.
    pub fn explain(&self, uid: &PodUid) -> PodExplanation {
        if let Some((node, placement)) = self.cache.placement(uid) {
            let decision = self.decisions.get(uid).cloned();
            return PodExplanation::Placed(node.clone(), placement, decision);
        }
        let Some(waiting) = self.queue.get(uid) else {
            return PodExplanation::Unknown;
        };
        PodExplanation::Waiting {
            examination: examine(self.cache.cluster(), &self.framework, &waiting.pod),
            suggestions: suggest(self.cache.cluster(), &self.framework, &waiting.pod),
            waiting: waiting.clone(),
        }
    }

    /// Decides where the pod would be placed now. Changes nothing.
    pub fn place_hypothetically(&mut self, pod: &PodInfo) -> HypotheticalPlacement {
        let cluster = self.cache.cluster();
        let node = plan(cluster, pod, &self.framework, self.next_start).node;
        let examination = examine(cluster, &self.framework, pod);
        let suggestions = suggest(cluster, &self.framework, pod);
        let preemption = match &node {
            Err(failure) if self.has_less_important_pods(pod, failure) => {
                self.find_victims(pod).ok()
            }
            Ok(_) | Err(_) => None,
        };
        HypotheticalPlacement {
            node,
            preemption,
            examination,
            suggestions,
        }
    }

    /// Examines the node that the pod is or was on, without the pod itself. `None` if the pod has
    /// no node, or if that does not exist any more.
    pub fn examine_own_node(&mut self, pod: &PodInfo) -> Option<NodeVerdict> {
        let node = pod.node_name.as_ref()?;
        let framework = &self.framework;
        self.cache.without(&pod.uid, |cluster| {
            examine_node(cluster, framework, pod, node)
        })
    }

    /// Handles a new or changed namespace.
    pub fn apply_namespace(&mut self, namespace: &Namespace, now: Duration) {
        if self.cache.apply_namespace(namespace) {
            self.notify(now, |_| Some(ClusterEvent::NamespaceChanged));
        }
    }

    /// Handles a deleted namespace. Its last pods are reported on their own.
    pub fn delete_namespace(&mut self, namespace: &Namespace) {
        self.cache.remove_namespace(namespace.name());
    }

    /// Handles a new or changed service. It matters to scores only, so no pod is woken.
    pub fn apply_service(&mut self, service: &Service) {
        self.cache.cluster_mut().apply_service(service);
    }

    /// Handles a deleted service.
    pub fn delete_service(&mut self, service: &Service) {
        self.cache.cluster_mut().remove_service(service);
    }

    /// Handles a new or changed ReplicaSet. It matters to scores only, so no pod is woken.
    pub fn apply_replica_set(&mut self, set: &ReplicaSet) {
        self.cache.cluster_mut().apply_replica_set(set);
    }

    /// Handles a deleted ReplicaSet.
    pub fn delete_replica_set(&mut self, set: &ReplicaSet) {
        self.cache.cluster_mut().remove_replica_set(set);
    }

    fn dequeue(&mut self, uid: &PodUid) -> Option<Room> {
        self.waiting_for_pods.remove(uid);
        self.withdraw_nomination(uid);
        self.queue.remove(uid)
    }

    fn leave_queue(&mut self, uid: &PodUid, now: Duration) {
        let room = self.dequeue(uid);
        self.pass_on(room, now);
    }

    fn notify_freed(&mut self, freed: Option<FreedPod>, now: Duration) {
        if let Some(FreedPod { pod, node }) = freed {
            self.notify(now, |cluster| {
                let node = cluster.node(&node)?;
                Some(ClusterEvent::PodFreed { pod: &pod, node })
            });
        }
    }

    fn notify_placed(&mut self, pod: &PodInfo, now: Duration) {
        if !self.waiting_for_pods.is_empty() {
            self.notify(now, |_| Some(ClusterEvent::PodPlaced { pod }));
        }
    }

    fn notify<'e>(
        &'e mut self,
        now: Duration,
        event: impl FnOnce(&'e Cluster) -> Option<ClusterEvent<'e>>,
    ) {
        self.events.0 += 1;
        let id = self.events;
        let (cluster, framework) = (self.cache.cluster(), &self.framework);
        if let Some(event) = event(cluster) {
            let others = wake(&mut self.queue, cluster, framework, (event, id), now);
            if event.changes_reasons() {
                for uid in others {
                    self.queue.set_outdated(&uid);
                }
            }
        }
    }

    /// Offers the room that a pod was woken for and did not use to the others. A pod is woken at
    /// most once by one event, so this ends.
    fn pass_on(&mut self, room: Option<Room>, now: Duration) {
        let (cluster, framework) = (self.cache.cluster(), &self.framework);
        if let Some(Room { node, event }) = room
            && let Some(node) = cluster.node(&node)
        {
            // Every plugin heeds this change.
            let changes = &[NodeChange::Added];
            let change = ClusterEvent::NodeChanged { node, changes };
            wake(&mut self.queue, cluster, framework, (change, event), now);
        }
    }
}

/// Wakes the unschedulable pods that the event can help, in the order in which they are taken. Of
/// pods for which only the event's node matters as many are woken as fit there together, with those
/// that were woken for it before. Returns the others of these.
fn wake(
    queue: &mut Queue,
    cluster: &Cluster,
    framework: &Framework,
    (event, id): (ClusterEvent<'_>, EventId),
    now: Duration,
) -> Vec<PodUid> {
    let mut room = event.node().cloned();
    if let Some(node) = &mut room {
        let name = node.name.clone();
        for pod in queue.woken_for(&name) {
            node.add_pod(pod.clone());
        }
    }
    let (mut woken, mut others) = (Vec::new(), Vec::new());
    for WaitingPod {
        pod, rejected_by, ..
    } in queue.unschedulable(id)
    {
        let input = CycleInput { pod, cluster };
        if !framework.may_unblock(input, rejected_by, &event) {
            continue;
        }
        // A pod that found no nodes at all is attempted in any case: it gets another reason.
        let needs_room = !rejected_by.is_empty() && !framework.waits_for_pods(rejected_by);
        match room.as_mut().filter(|_| needs_room) {
            None => woken.push((pod.uid.clone(), None)),
            Some(node) if framework.fits_locally(input, node) => {
                node.add_pod(pod.clone());
                woken.push((pod.uid.clone(), Some(node.name.clone())));
            }
            Some(_) => others.push(pod.uid.clone()),
        }
    }
    for (uid, node) in woken {
        queue.wake(&uid, id, node, now);
    }
    others
}
