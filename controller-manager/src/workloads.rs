//! The observed workloads, and the queues of the keys to reconcile when they change.

use podplane_api::{
    Object, ObjectKey,
    apps::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::Job,
    core::{Node, PersistentVolumeClaim, Pod},
    selector::LabelSelector,
};
use podplane_client::{Cache, CacheChange, WorkQueue};

use crate::{
    deployment::is_recreate, index::ObjectIndex, job::is_tracked, owner::controller_of, work::Latch,
};

/// A controller of pods, or of other objects that it selects by labels.
pub(crate) trait PodOwner: Object {
    /// The selector of the objects that are its own, or that it adopts. An empty one selects
    /// nothing: no owner wants every object.
    fn selector(&self) -> LabelSelector;
}

/// Implements [`PodOwner`] for kinds whose selector is required.
macro_rules! select {
    ($($kind:ty),*) => {$(
        impl PodOwner for $kind {
            fn selector(&self) -> LabelSelector {
                let spec = self.spec.as_ref();
                spec.map(|spec| LabelSelector::from(&spec.selector)).unwrap_or_default()
            }
        }
    )*};
}

select!(Deployment, ReplicaSet, DaemonSet, StatefulSet);

impl PodOwner for Job {
    fn selector(&self) -> LabelSelector {
        let selector = self.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        selector.map(LabelSelector::from).unwrap_or_default()
    }
}

/// The objects of a kind that owns others, and the queue of those to reconcile.
#[derive(Debug)]
pub(crate) struct Owners<O> {
    pub(crate) objects: ObjectIndex<O>,
    pub(crate) queue: WorkQueue<ObjectKey>,
}

impl<O: PodOwner> Owners<O> {
    /// No objects, and a closed queue.
    fn new() -> Self {
        Self {
            objects: ObjectIndex::default(),
            queue: WorkQueue::closed(),
        }
    }

    /// Opens the queue, and queues all present keys.
    fn open(&self) {
        self.queue.open();
        self.queue_all();
    }

    pub(crate) fn queue_all(&self) {
        for key in self.objects.keys() {
            self.queue.add(key);
        }
    }

    fn changed(&self, change: &CacheChange<O>) {
        self.objects.apply(change);
        for object in affected(change) {
            self.queue.add(object.key());
        }
    }

    /// Queues the owner of an object that changed, or those that may adopt it.
    fn dependent_changed<K: Object>(&self, change: &CacheChange<K>) {
        for dependent in affected(change) {
            match controller_of(dependent.metadata()) {
                Some(_) => controller::<O, _>(dependent)
                    .into_iter()
                    .for_each(|owner| self.queue.add(owner)),
                None => self.queue_selecting(dependent),
            }
        }
    }

    fn queue_selecting<K: Object>(&self, dependent: &K) {
        let labels = dependent.metadata().labels.clone().unwrap_or_default();
        for owner in self.objects.namespace(dependent.namespace()) {
            let selector = owner.selector();
            if !selector.is_empty() && selector.matches(&labels) {
                self.queue.add(owner.key());
            }
        }
    }
}

/// The watched kinds of workloads.
#[derive(Debug)]
pub(crate) struct WorkloadInputs {
    pub(crate) deployments: Cache<Deployment>,
    pub(crate) sets: Cache<ReplicaSet>,
    pub(crate) daemon_sets: Cache<DaemonSet>,
    pub(crate) stateful_sets: Cache<StatefulSet>,
    pub(crate) jobs: Cache<Job>,
    pub(crate) revisions: Cache<ControllerRevision>,
    pub(crate) claims: Cache<PersistentVolumeClaim>,
    pub(crate) nodes: Cache<Node>,
    pub(crate) pods: Cache<Pod>,
}

/// The workloads with what belongs to them, and the queues of keys to reconcile.
#[derive(Debug)]
pub(crate) struct WorkloadCache {
    pub(crate) deployments: Owners<Deployment>,
    pub(crate) sets: Owners<ReplicaSet>,
    pub(crate) daemon_sets: Owners<DaemonSet>,
    pub(crate) stateful_sets: Owners<StatefulSet>,
    pub(crate) jobs: Owners<Job>,
    pub(crate) revisions: ObjectIndex<ControllerRevision>,
    pub(crate) claims: ObjectIndex<PersistentVolumeClaim>,
    pub(crate) nodes: ObjectIndex<Node>,
    pub(crate) pods: ObjectIndex<Pod>,
}

impl WorkloadCache {
    /// A cache without objects. Its queues are closed.
    pub(crate) fn new() -> Self {
        Self {
            deployments: Owners::new(),
            sets: Owners::new(),
            daemon_sets: Owners::new(),
            stateful_sets: Owners::new(),
            jobs: Owners::new(),
            revisions: ObjectIndex::default(),
            claims: ObjectIndex::default(),
            nodes: ObjectIndex::default(),
            pods: ObjectIndex::default(),
        }
    }

    /// Opens the queues, and queues all present keys.
    pub(crate) fn open(&self) {
        self.deployments.open();
        self.sets.open();
        self.daemon_sets.open();
        self.stateful_sets.open();
        self.jobs.open();
        // A Job that was deleted while nobody led has left its mark on its pods.
        for key in self.pods.keys() {
            let pod = self.pods.get(&key);
            pod.into_iter().for_each(|pod| self.queue_orphan(&pod));
        }
    }

    /// Observes changes, for ever; `ready` is notified when the first lists have been observed.
    pub(crate) async fn follow(&self, inputs: WorkloadInputs, ready: &Latch) {
        let WorkloadInputs {
            deployments,
            sets,
            daemon_sets,
            stateful_sets,
            jobs,
            revisions,
            claims,
            nodes,
            pods,
        } = inputs;
        tokio::join!(
            deployments.synced(),
            sets.synced(),
            daemon_sets.synced(),
            stateful_sets.synced(),
            jobs.synced(),
            revisions.synced(),
            claims.synced(),
            nodes.synced(),
            pods.synced()
        );
        let (mut deployments, mut sets) = (deployments.subscribe(), sets.subscribe());
        let (mut daemon_sets, mut jobs) = (daemon_sets.subscribe(), jobs.subscribe());
        let (mut stateful_sets, mut claims) = (stateful_sets.subscribe(), claims.subscribe());
        let (mut revisions, mut nodes) = (revisions.subscribe(), nodes.subscribe());
        let mut pods = pods.subscribe();
        // The owners come first, so that nothing of theirs looks abandoned.
        while let Some(change) = deployments.try_next() {
            self.deployments.changed(&change);
        }
        while let Some(change) = sets.try_next() {
            self.set_changed(&change);
        }
        while let Some(change) = daemon_sets.try_next() {
            self.daemon_sets.changed(&change);
        }
        while let Some(change) = stateful_sets.try_next() {
            self.stateful_sets.changed(&change);
        }
        while let Some(change) = jobs.try_next() {
            self.job_changed(&change);
        }
        while let Some(change) = revisions.try_next() {
            self.revision_changed(&change);
        }
        while let Some(change) = claims.try_next() {
            self.claims.apply(&change);
        }
        while let Some(change) = nodes.try_next() {
            self.node_changed(&change);
        }
        while let Some(change) = pods.try_next() {
            self.pod_changed(&change);
        }
        ready.arrive();
        loop {
            // A change is consumed only when it is returned, so cancelling a wait loses nothing.
            tokio::select! {
                change = deployments.next() => self.deployments.changed(&change),
                change = sets.next() => self.set_changed(&change),
                change = daemon_sets.next() => self.daemon_sets.changed(&change),
                change = stateful_sets.next() => self.stateful_sets.changed(&change),
                change = jobs.next() => self.job_changed(&change),
                change = revisions.next() => self.revision_changed(&change),
                change = claims.next() => self.claims.apply(&change),
                change = nodes.next() => self.node_changed(&change),
                change = pods.next() => self.pod_changed(&change),
            }
        }
    }

    fn set_changed(&self, change: &CacheChange<ReplicaSet>) {
        self.sets.changed(change);
        self.deployments.dependent_changed(change);
    }

    fn revision_changed(&self, change: &CacheChange<ControllerRevision>) {
        self.revisions.apply(change);
        self.daemon_sets.dependent_changed(change);
        self.stateful_sets.dependent_changed(change);
    }

    /// Queues all DaemonSets if other pods of theirs may run on the node.
    fn node_changed(&self, change: &CacheChange<Node>) {
        self.nodes.apply(change);
        let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone());
        let is_same = match change {
            CacheChange::Applied {
                old: Some(old),
                new,
            } => old.metadata.labels == new.metadata.labels && taints(old) == taints(new),
            _ => false,
        };
        if !is_same {
            self.daemon_sets.queue_all();
        }
    }

    fn pod_changed(&self, change: &CacheChange<Pod>) {
        self.pods.apply(change);
        for pod in affected(change) {
            if let Some(set) = controller::<ReplicaSet, _>(pod) {
                self.queue_recreation(&set);
            }
            self.queue_orphan(pod);
        }
        self.sets.dependent_changed(change);
        self.daemon_sets.dependent_changed(change);
        self.stateful_sets.dependent_changed(change);
        self.jobs.dependent_changed(change);
    }

    /// Returns whether the pod has the finalizer of Jobs, and its Job no more.
    pub(crate) fn is_orphan(&self, pod: &Pod) -> bool {
        let job = controller_of(&pod.metadata).and_then(|owner| {
            let key = ObjectKey::new(pod.namespace(), owner.name.as_str());
            let job = self.jobs.objects.get(&key);
            job.filter(|job| job.uid() == owner.uid)
        });
        is_tracked(pod) && job.is_none()
    }

    /// Queues the namespace of an orphan: the key without a name.
    fn queue_orphan(&self, pod: &Pod) {
        if self.is_orphan(pod) {
            self.jobs.queue.add(ObjectKey::new(pod.namespace(), ""));
        }
    }

    fn job_changed(&self, change: &CacheChange<Job>) {
        self.jobs.changed(change);
        if let CacheChange::Deleted(job) = change {
            for pod in self.pods.controlled(job.namespace(), job.uid()) {
                self.queue_orphan(&pod);
            }
        }
    }

    /// Queues the owner if it waits for old pods to end: such a Deployment depends on the pods
    /// directly.
    fn queue_recreation(&self, set: &ObjectKey) {
        let owner = self
            .sets
            .objects
            .get(set)
            .and_then(|set| controller::<Deployment, _>(&*set));
        let deployment = owner.and_then(|owner| self.deployments.objects.get(&owner));
        if let Some(deployment) = deployment.filter(|deployment| is_recreate(deployment)) {
            self.deployments.queue.add(deployment.key());
        }
    }
}

/// The object's present state, and its former one if that had another owner.
fn affected<K: Object>(change: &CacheChange<K>) -> impl Iterator<Item = &K> {
    let (new, old) = match change {
        CacheChange::Applied { old, new } => {
            let uid = |object: &K| controller_of(object.metadata()).map(|owner| owner.uid.clone());
            let changed_hands = |old: &&_| uid(old) != uid(new);
            (Some(&**new), old.as_deref().filter(changed_hands))
        }
        CacheChange::Deleted(old) => (None, Some(&**old)),
    };
    new.into_iter().chain(old)
}

/// The key of the object's controller, if that is an `O`.
pub(crate) fn controller<O: Object, K: Object>(object: &K) -> Option<ObjectKey> {
    let owner = controller_of(object.metadata())?;
    let is_one = owner.kind == O::KIND && owner.api_version == O::API_VERSION;
    is_one.then(|| ObjectKey::new(object.namespace(), owner.name.as_str()))
}
