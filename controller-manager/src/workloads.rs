//! The observed workloads, and the queues of the keys to reconcile when they change.

use podplane_api::{
    Object, ObjectKey,
    apps::{Deployment, ReplicaSet},
    core::Pod,
    selector::LabelSelector,
};
use podplane_client::{Cache, CacheChange, WorkQueue};

use crate::{deployment::is_recreate, index::ObjectIndex, owner::controller_of, work::Latch};

/// Deployments, their ReplicaSets and pods, and the queues of keys to reconcile.
#[derive(Debug)]
pub(crate) struct WorkloadCache {
    pub(crate) deployments: ObjectIndex<Deployment>,
    pub(crate) sets: ObjectIndex<ReplicaSet>,
    pub(crate) pods: ObjectIndex<Pod>,
    pub(crate) deployment_queue: WorkQueue<ObjectKey>,
    pub(crate) set_queue: WorkQueue<ObjectKey>,
}

impl WorkloadCache {
    /// A cache without objects. Its queues are closed.
    pub(crate) fn new() -> Self {
        Self {
            deployments: ObjectIndex::default(),
            sets: ObjectIndex::default(),
            pods: ObjectIndex::default(),
            deployment_queue: WorkQueue::closed(),
            set_queue: WorkQueue::closed(),
        }
    }

    /// Opens the queues, and queues all present keys.
    pub(crate) fn open(&self) {
        self.deployment_queue.open();
        self.set_queue.open();
        for key in self.deployments.keys() {
            self.deployment_queue.add(key);
        }
        for key in self.sets.keys() {
            self.set_queue.add(key);
        }
    }

    /// Observes changes, for ever; `ready` is notified when the first lists have been observed.
    pub(crate) async fn follow(
        &self,
        deployments: Cache<Deployment>,
        sets: Cache<ReplicaSet>,
        pods: Cache<Pod>,
        ready: &Latch,
    ) {
        tokio::join!(deployments.synced(), sets.synced(), pods.synced());
        let (mut deployments, mut sets, mut pods) =
            (deployments.subscribe(), sets.subscribe(), pods.subscribe());
        while let Some(change) = deployments.try_next() {
            self.deployment_changed(&change);
        }
        while let Some(change) = sets.try_next() {
            self.set_changed(&change);
        }
        while let Some(change) = pods.try_next() {
            self.pod_changed(&change);
        }
        ready.arrive();
        loop {
            // A change is consumed only when it is returned, so cancelling a wait loses nothing.
            tokio::select! {
                change = deployments.next() => self.deployment_changed(&change),
                change = sets.next() => self.set_changed(&change),
                change = pods.next() => self.pod_changed(&change),
            }
        }
    }

    fn deployment_changed(&self, change: &CacheChange<Deployment>) {
        self.deployments.apply(change);
        for deployment in affected(change) {
            self.deployment_queue.add(deployment.key());
        }
    }

    fn set_changed(&self, change: &CacheChange<ReplicaSet>) {
        self.sets.apply(change);
        for set in affected(change) {
            self.set_queue.add(set.key());
            match controller::<Deployment, _>(set) {
                Some(owner) => self.deployment_queue.add(owner),
                None => self.queue_deployments(set),
            }
        }
    }

    fn pod_changed(&self, change: &CacheChange<Pod>) {
        self.pods.apply(change);
        for pod in affected(change) {
            match controller::<ReplicaSet, _>(pod) {
                Some(owner) => {
                    self.queue_recreation(&owner);
                    self.set_queue.add(owner);
                }
                None => self.queue_sets(pod),
            }
        }
    }

    /// Queues the owner if it waits for old pods to end: such a Deployment depends on the pods
    /// directly.
    fn queue_recreation(&self, set: &ObjectKey) {
        let owner = self
            .sets
            .get(set)
            .and_then(|set| controller::<Deployment, _>(&*set));
        let deployment = owner.and_then(|owner| self.deployments.get(&owner));
        if let Some(deployment) = deployment.filter(|deployment| is_recreate(deployment)) {
            self.deployment_queue.add(deployment.key());
        }
    }

    /// Queues Deployments that may adopt the ReplicaSet, if it has no controller.
    fn queue_deployments(&self, set: &ReplicaSet) {
        if controller_of(&set.metadata).is_some() {
            return;
        }
        for deployment in self.deployments.namespace(set.namespace()) {
            let selector = deployment
                .spec
                .as_ref()
                .map(|spec| LabelSelector::from(&spec.selector));
            if selector.is_some_and(|selector| selects(&selector, set)) {
                self.deployment_queue.add(deployment.key());
            }
        }
    }

    fn queue_sets(&self, pod: &Pod) {
        if controller_of(&pod.metadata).is_some() {
            return;
        }
        for set in self.sets.namespace(pod.namespace()) {
            let selector = set
                .spec
                .as_ref()
                .map(|spec| LabelSelector::from(&spec.selector));
            if selector.is_some_and(|selector| selects(&selector, pod)) {
                self.set_queue.add(set.key());
            }
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
fn controller<O: Object, K: Object>(object: &K) -> Option<ObjectKey> {
    let owner = controller_of(object.metadata())?;
    let is_one = owner.kind == O::KIND && owner.api_version == O::API_VERSION;
    is_one.then(|| ObjectKey::new(object.namespace(), owner.name.as_str()))
}

/// Matches labels, except that the empty selector matches nothing: no owner wants every object.
fn selects<K: Object>(selector: &LabelSelector, object: &K) -> bool {
    let labels = object.metadata().labels.clone().unwrap_or_default();
    !selector.is_empty() && selector.matches(&labels)
}
