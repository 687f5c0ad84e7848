//! What the controllers of workloads know, and who looks when it changes.

use podplane_api::{
    Object, ObjectKey,
    apps::{Deployment, ReplicaSet},
    core::Pod,
    selector::LabelSelector,
};
use podplane_client::{Cache, Change, WorkQueue};

use crate::{deployment::is_recreate, index::Index, owner::controller_of, work::Latch};

/// Deployments, their ReplicaSets, their pods, and the keys that need a look.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) deployments: Index<Deployment>,
    pub(crate) sets: Index<ReplicaSet>,
    pub(crate) pods: Index<Pod>,
    pub(crate) deployment_queue: WorkQueue<ObjectKey>,
    pub(crate) set_queue: WorkQueue<ObjectKey>,
}

impl World {
    /// Takes changes in, for ever; `ready` is told when all that was there at first is known.
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
            // A change is taken only when it is returned, so losing a wait loses nothing.
            tokio::select! {
                change = deployments.next() => self.deployment_changed(&change),
                change = sets.next() => self.set_changed(&change),
                change = pods.next() => self.pod_changed(&change),
            }
        }
    }

    fn deployment_changed(&self, change: &Change<Deployment>) {
        self.deployments.apply(change);
        for deployment in told_of(change) {
            self.deployment_queue.add(deployment.key());
        }
    }

    fn set_changed(&self, change: &Change<ReplicaSet>) {
        self.sets.apply(change);
        for set in told_of(change) {
            self.set_queue.add(set.key());
            match controller::<Deployment, _>(set) {
                Some(owner) => self.deployment_queue.add(owner),
                None => self.look_for_deployment(set),
            }
        }
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        self.pods.apply(change);
        for pod in told_of(change) {
            match controller::<ReplicaSet, _>(pod) {
                Some(owner) => {
                    self.tell_recreation(&owner);
                    self.set_queue.add(owner);
                }
                None => self.look_for_set(pod),
            }
        }
    }

    /// A Deployment that waits until old pods have gone looks at the pods itself.
    fn tell_recreation(&self, set: &ObjectKey) {
        let owner = self
            .sets
            .get(set)
            .and_then(|set| controller::<Deployment, _>(&*set));
        let deployment = owner.and_then(|owner| self.deployments.get(&owner));
        if let Some(deployment) = deployment.filter(|deployment| is_recreate(deployment)) {
            self.deployment_queue.add(deployment.key());
        }
    }

    /// What nobody controls may be adopted.
    fn look_for_deployment(&self, set: &ReplicaSet) {
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

    fn look_for_set(&self, pod: &Pod) {
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

/// What it is, and what it was if it was another's then.
fn told_of<K: Object>(change: &Change<K>) -> impl Iterator<Item = &K> {
    let (new, old) = match change {
        Change::Applied { old, new } => {
            let uid = |object: &K| controller_of(object.metadata()).map(|owner| owner.uid.clone());
            let changed_hands = |old: &&_| uid(old) != uid(new);
            (Some(&**new), old.as_deref().filter(changed_hands))
        }
        Change::Deleted(old) => (None, Some(&**old)),
    };
    new.into_iter().chain(old)
}

/// The key of the object's controller, if that is an `O`.
fn controller<O: Object, K: Object>(object: &K) -> Option<ObjectKey> {
    let owner = controller_of(object.metadata())?;
    let is_one = owner.kind == O::KIND && owner.api_version == O::API_VERSION;
    is_one.then(|| ObjectKey::new(object.namespace(), owner.name.as_str()))
}

/// The empty selector selects nothing here: nobody wants all that there is.
fn selects<K: Object>(selector: &LabelSelector, object: &K) -> bool {
    let labels = object.metadata().labels.clone().unwrap_or_default();
    !selector.is_empty() && selector.matches(&labels)
}
