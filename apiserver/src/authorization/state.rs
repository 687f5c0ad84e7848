//! The authorizers' view of the store: roles, bindings, nodes and what belongs to them, kept by
//! the feeder of the watch cache.

use std::{
    marker::PhantomData,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use podplane_access::{Policy, relations::RelationIndex};
use podplane_api::{
    Object,
    core::{Node, PersistentVolume, Pod},
    rbac::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
    resource::ResourceSlice,
    storage::VolumeAttachment,
};
use podplane_store::{Item, KeyEvent, Prefix, Revision};

use crate::{
    cache::{Feeder, Sink},
    fatal::or_abort,
    storage,
};

/// The state that a panic would leave half-changed, for the log.
const STATE: &str = "authorization state";

/// The roles and bindings, and the objects that belong to nodes.
#[derive(Debug, Default)]
pub(super) struct AccessState {
    pub(super) policy: Policy,
    pub(super) relations: RelationIndex,
}

/// A state that `feeder` keeps.
pub(super) fn follow(feeder: &mut Feeder) -> Arc<RwLock<AccessState>> {
    let state = Arc::default();
    feeder.add(sink::<ClusterRole>(&state));
    feeder.add(sink::<Role>(&state));
    feeder.add(sink::<ClusterRoleBinding>(&state));
    feeder.add(sink::<RoleBinding>(&state));
    feeder.add(sink::<Pod>(&state));
    feeder.add(sink::<Node>(&state));
    feeder.add(sink::<PersistentVolume>(&state));
    feeder.add(sink::<VolumeAttachment>(&state));
    feeder.add(sink::<ResourceSlice>(&state));
    state
}

pub(super) fn read(state: &RwLock<AccessState>) -> RwLockReadGuard<'_, AccessState> {
    // A panic while the state changes ends the process.
    state.read().unwrap_or_else(PoisonError::into_inner)
}

/// A kind that decisions depend on.
trait Known: Object {
    fn apply(&self, state: &mut AccessState);
    fn remove(&self, state: &mut AccessState);
}

macro_rules! known {
    ($($kind:ident),*) => {$(
        impl Known for $kind {
            fn apply(&self, state: &mut AccessState) {
                state.policy.apply(self);
            }

            fn remove(&self, state: &mut AccessState) {
                state.policy.delete(self);
            }
        }
    )*};
}

known!(ClusterRole, Role, ClusterRoleBinding, RoleBinding);

impl Known for Pod {
    fn apply(&self, state: &mut AccessState) {
        state.relations.apply_pod(self);
    }

    fn remove(&self, state: &mut AccessState) {
        state.relations.delete_pod(self.namespace(), self.name());
    }
}

impl Known for Node {
    fn apply(&self, state: &mut AccessState) {
        state.relations.apply_node(self.name(), self.uid());
    }

    fn remove(&self, state: &mut AccessState) {
        state.relations.delete_node(self.name());
    }
}

impl Known for PersistentVolume {
    fn apply(&self, state: &mut AccessState) {
        state.relations.apply_volume(self);
    }

    fn remove(&self, state: &mut AccessState) {
        state.relations.delete_volume(self.name());
    }
}

impl Known for VolumeAttachment {
    fn apply(&self, state: &mut AccessState) {
        let node = &self.spec.node_name;
        state.relations.apply_attachment(self.name(), node);
    }

    fn remove(&self, state: &mut AccessState) {
        state.relations.delete_attachment(self.name());
    }
}

impl Known for ResourceSlice {
    fn apply(&self, state: &mut AccessState) {
        let node = self.spec.node_name.as_deref();
        state.relations.apply_slice(self.name(), node);
    }

    fn remove(&self, state: &mut AccessState) {
        state.relations.delete_slice(self.name());
    }
}

/// Carries the objects of a kind into the state.
struct KnownSink<K> {
    prefix: Prefix,
    state: Arc<RwLock<AccessState>>,
    kind: PhantomData<fn() -> K>,
}

fn sink<K: Known>(state: &Arc<RwLock<AccessState>>) -> Arc<dyn Sink> {
    Arc::new(KnownSink::<K> {
        prefix: storage::prefix::<K>(),
        state: Arc::clone(state),
        kind: PhantomData,
    })
}

/// Decodes an object. The cache of its kind logs one that cannot be read; here it grants nothing.
fn decoded<K: Object>(item: &Item) -> Option<K> {
    K::from_slice(&item.value()).ok()
}

impl<K: Known> KnownSink<K> {
    fn change(&self, change: impl FnOnce(&mut AccessState)) {
        or_abort(STATE, || {
            change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner));
        });
    }
}

impl<K: Known> Sink for KnownSink<K> {
    fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    fn load(&self, items: &[Arc<Item>], _at: Revision) {
        let objects: Vec<K> = items.iter().filter_map(|item| decoded(item)).collect();
        self.change(|state| objects.iter().for_each(|object| object.apply(state)));
    }

    fn apply(&self, _revision: Revision, events: &[KeyEvent]) {
        // Decoded before the lock is taken.
        let changes: Vec<(Option<K>, Option<K>)> = events
            .iter()
            .map(|event| match event {
                KeyEvent::Put { item, previous } => match decoded(item) {
                    Some(object) => (None, Some(object)),
                    None => (previous.as_deref().and_then(decoded), None),
                },
                KeyEvent::Delete { previous } => (decoded(previous), None),
            })
            .collect();
        self.change(|state| {
            for (gone, present) in &changes {
                gone.iter().for_each(|object| object.remove(state));
                present.iter().for_each(|object| object.apply(state));
            }
        });
    }

    fn watches(&self) -> usize {
        0
    }

    fn wake(&self) {}
}
