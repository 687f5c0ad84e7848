//! Objects of a kind, by their controller.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use podplane_api::{Object, ObjectKey};
use podplane_client::CacheChange;

use crate::owner::controller_of;

/// The observed objects, shared by several controllers. The index is updated before a key is
/// queued, so a reconciliation sees the change that caused it.
#[derive(Debug)]
pub(crate) struct ObjectIndex<K>(Mutex<Maps<K>>);

#[derive(Debug)]
struct Maps<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    /// By namespace and the controller's UID, which is empty for objects without a controller.
    owned: BTreeMap<(String, String), BTreeMap<String, Arc<K>>>,
}

impl<K> Default for ObjectIndex<K> {
    fn default() -> Self {
        Self(Mutex::new(Maps {
            objects: BTreeMap::new(),
            owned: BTreeMap::new(),
        }))
    }
}

impl<K: Object> ObjectIndex<K> {
    /// Applies a change.
    pub(crate) fn apply(&self, change: &CacheChange<K>) {
        let mut maps = self.lock();
        match change {
            CacheChange::Applied { new, .. } => {
                if let Some(old) = maps.objects.insert(new.key(), new.clone()) {
                    maps.disown(&old);
                }
                let of_owner = maps.owned.entry(owner(new.as_ref())).or_default();
                of_owner.insert(new.name().to_owned(), new.clone());
            }
            CacheChange::Deleted(old) => {
                if let Some(old) = maps.objects.remove(&old.key()) {
                    maps.disown(&old);
                }
            }
        }
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.lock().objects.get(key).cloned()
    }

    /// The keys of all objects, by namespace and name.
    pub(crate) fn keys(&self) -> Vec<ObjectKey> {
        self.lock().objects.keys().cloned().collect()
    }

    /// All objects of a namespace, by name.
    pub(crate) fn namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let first = ObjectKey::new(namespace, "");
        let maps = self.lock();
        let from = maps.objects.range(first..);
        let of_namespace = from.take_while(|(key, _)| key.namespace == namespace);
        of_namespace.map(|(_, object)| object.clone()).collect()
    }

    /// The objects that the controller of that UID controls, by name; for the empty UID, those
    /// without a controller.
    pub(crate) fn controlled(&self, namespace: &str, uid: &str) -> Vec<Arc<K>> {
        let maps = self.lock();
        let owned = maps.owned.get(&(namespace.to_owned(), uid.to_owned()));
        owned
            .into_iter()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Maps<K>> {
        // The maps are consistent whenever the lock is free, so a poisoned lock can be used.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Object> Maps<K> {
    fn disown(&mut self, old: &K) {
        let owner = owner(old);
        if let Some(of_owner) = self.owned.get_mut(&owner) {
            of_owner.remove(old.name());
            if of_owner.is_empty() {
                self.owned.remove(&owner);
            }
        }
    }
}

fn owner<K: Object>(object: &K) -> (String, String) {
    let uid = controller_of(object.metadata()).map(|owner| owner.uid.clone());
    (object.namespace().to_owned(), uid.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use podplane_api::{apps::ReplicaSet, core::Pod};

    use super::*;
    use crate::owner::controller_reference;

    fn applied(namespace: &str, name: &str, owner: Option<&str>) -> CacheChange<Pod> {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some(namespace.into());
        pod.metadata.name = Some(name.into());
        pod.metadata.owner_references = owner.map(|uid| {
            let mut set = ReplicaSet::default();
            set.metadata.uid = Some(uid.into());
            vec![controller_reference(&set)]
        });
        CacheChange::Applied {
            old: None,
            new: Arc::new(pod),
        }
    }

    fn names(pods: Vec<Arc<Pod>>) -> Vec<String> {
        pods.iter().map(|pod| pod.name().to_owned()).collect()
    }

    #[test]
    fn finds_objects_by_namespace_and_present_owner() {
        let index = ObjectIndex::default();
        for change in [
            applied("a", "1", Some("x")),
            applied("a", "2", None),
            applied("aa", "3", Some("x")),
            applied("a", "4", Some("x")),
            applied("a", "4", Some("y")),
        ] {
            index.apply(&change);
        }
        assert_eq!(names(index.namespace("a")), ["1", "2", "4"]);
        assert_eq!(names(index.controlled("a", "x")), ["1"]);
        assert_eq!(names(index.controlled("a", "")), ["2"]);
        assert_eq!(names(index.controlled("a", "y")), ["4"]);
        let gone = index.get(&ObjectKey::new("a", "4")).unwrap();
        index.apply(&CacheChange::Deleted(gone));
        assert_eq!(names(index.controlled("a", "y")), [""; 0]);
    }
}
