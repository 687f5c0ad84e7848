//! The graph of owners and dependents, by UID.
//!
//! Pure. It is built from separate watches, so a missing owner is only a suspicion: the owner may
//! exist on the server.

use std::collections::{BTreeMap, BTreeSet};

use podplane_api::{ObjectKey, meta::ObjectMeta};

/// The finalizer of an object whose dependents are deleted first.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents are kept.
pub(crate) const ORPHAN: &str = "orphan";

/// The UID of an object.
pub(crate) type Uid = String;

/// The properties of an object that the collector uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrackedObject {
    /// The index of its kind in the collector.
    pub(crate) kind: usize,
    pub(crate) key: ObjectKey,
    pub(crate) state: DeletionState,
    /// UIDs of owners, each with `blockOwnerDeletion`: whether its deletion waits for this object.
    pub(crate) owners: BTreeMap<Uid, bool>,
}

/// The progress of an object's deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeletionState {
    /// The object is not being deleted.
    Live,
    /// Its dependents are to be kept.
    Orphaning,
    /// Its dependents are to be deleted first.
    DeletingDependents,
    /// It waits for other finalizers.
    Deleting,
}

impl DeletionState {
    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        let has = |finalizer| {
            meta.finalizers
                .iter()
                .flatten()
                .any(|other| other == finalizer)
        };
        match meta.deletion_timestamp {
            None => Self::Live,
            Some(_) if has(ORPHAN) => Self::Orphaning,
            Some(_) if has(FOREGROUND) => Self::DeletingDependents,
            Some(_) => Self::Deleting,
        }
    }
}

impl TrackedObject {
    pub(crate) fn new(kind: usize, meta: &ObjectMeta) -> Self {
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        let owners = meta.owner_references.iter().flatten();
        let blocks =
            |owner: &podplane_api::meta::OwnerReference| owner.block_owner_deletion == Some(true);
        Self {
            kind,
            key: ObjectKey::new(name(&meta.namespace), name(&meta.name)),
            state: DeletionState::of(meta),
            owners: owners
                .map(|owner| (owner.uid.clone(), blocks(owner)))
                .collect(),
        }
    }
}

/// The objects, and the dependents of each owner, known or not.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    items: BTreeMap<Uid, TrackedObject>,
    dependents: BTreeMap<Uid, BTreeSet<Uid>>,
}

impl Graph {
    pub(crate) fn get(&self, uid: &str) -> Option<&TrackedObject> {
        self.items.get(uid)
    }

    /// The UIDs of all objects.
    pub(crate) fn uids(&self) -> Vec<Uid> {
        self.items.keys().cloned().collect()
    }

    /// The dependents of the object.
    pub(crate) fn dependents(&self, uid: &str) -> impl Iterator<Item = (&Uid, &TrackedObject)> {
        let uids = self.dependents.get(uid).into_iter().flatten();
        uids.filter_map(|uid| self.items.get_key_value(uid))
    }

    /// Records an object's present state. Returns the UIDs to reconcile.
    pub(crate) fn apply(&mut self, uid: Uid, item: TrackedObject) -> BTreeSet<Uid> {
        let mut look = BTreeSet::from([uid.clone()]);
        let before = self.unlink(&uid);
        for owner in item.owners.keys() {
            self.dependents
                .entry(owner.clone())
                .or_default()
                .insert(uid.clone());
        }
        let (state, owners) = (item.state, item.owners.clone());
        self.items.insert(uid.clone(), item);
        if let Some(before) = before {
            // An owner that waits for this object may be done.
            look.extend(before.owners.into_keys());
            if before.state != state {
                look.extend(owners.into_keys());
            }
        }
        if state != DeletionState::Live {
            look.extend(self.dependents.get(&uid).into_iter().flatten().cloned());
        }
        look
    }

    /// Removes a deleted object. Returns the UIDs to reconcile: its dependents, and owners that may
    /// have waited for it.
    pub(crate) fn remove(&mut self, uid: &str) -> BTreeSet<Uid> {
        let owners = self.unlink(uid).map(|item| item.owners).unwrap_or_default();
        self.items.remove(uid);
        let dependents = self.dependents.get(uid).into_iter().flatten();
        owners.into_keys().chain(dependents.cloned()).collect()
    }

    /// Removes the objects of a kind but those of these UIDs. Returns the UIDs to reconcile.
    pub(crate) fn retain(&mut self, kind: usize, uids: &BTreeSet<Uid>) -> BTreeSet<Uid> {
        let of_kind = self.items.iter().filter(|(_, item)| item.kind == kind);
        let gone = of_kind
            .map(|(uid, _)| uid)
            .filter(|uid| !uids.contains(*uid));
        let gone: Vec<Uid> = gone.cloned().collect();
        gone.iter().flat_map(|uid| self.remove(uid)).collect()
    }

    /// Returns true if all owners of a live object exist and are not being deleted: then the object
    /// needs no work.
    pub(crate) fn is_owned(&self, item: &TrackedObject) -> bool {
        let here = |owner: &Uid| {
            self.items
                .get(owner)
                .is_some_and(|owner| owner.state != DeletionState::DeletingDependents)
        };
        item.owners.keys().all(here)
    }

    /// Removes the object from its owners' lists, and returns it.
    fn unlink(&mut self, uid: &str) -> Option<TrackedObject> {
        let item = self.items.get(uid)?.clone();
        for owner in item.owners.keys() {
            if let Some(dependents) = self.dependents.get_mut(owner) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(owner);
                }
            }
        }
        Some(item)
    }
}

/// The state of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerState {
    /// It exists.
    Solid,
    /// It exists until its dependents are deleted.
    Waiting,
    /// It does not exist.
    Absent,
}

/// The decision about a live object with owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OwnerVerdict {
    Keep,
    /// Some owner exists; the references to these others are removed.
    Unlink(BTreeSet<Uid>),
    /// It is deleted after its dependents.
    DeleteForeground,
    /// It is deleted.
    Delete,
}

/// Decides as Kubernetes' `attemptToDeleteItem`.
pub(crate) fn judge(owners: &BTreeMap<Uid, OwnerState>, has_dependents: bool) -> OwnerVerdict {
    let of = |what: OwnerState| owners.iter().filter(move |(_, owner)| **owner == what);
    let is_kept = owners.is_empty() || of(OwnerState::Solid).next().is_some();
    let others = of(OwnerState::Waiting).chain(of(OwnerState::Absent));
    let others: BTreeSet<Uid> = others.map(|(uid, _)| uid.clone()).collect();
    if is_kept && others.is_empty() {
        OwnerVerdict::Keep
    } else if is_kept {
        OwnerVerdict::Unlink(others)
    } else if has_dependents && of(OwnerState::Waiting).next().is_some() {
        OwnerVerdict::DeleteForeground
    } else {
        OwnerVerdict::Delete
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::{
        jiff::Timestamp,
        meta::{OwnerReference, Time},
    };

    use super::*;

    fn item(name: &str, owners: &[(&str, bool)], finalizers: Option<&[&str]>) -> TrackedObject {
        let owners = owners.iter().map(|(uid, blocks)| OwnerReference {
            uid: (*uid).into(),
            block_owner_deletion: Some(*blocks),
            ..OwnerReference::default()
        });
        TrackedObject::new(
            0,
            &ObjectMeta {
                name: Some(name.into()),
                owner_references: Some(owners.collect()),
                deletion_timestamp: finalizers.map(|_| Time(Timestamp::UNIX_EPOCH)),
                finalizers: finalizers.map(|all| all.iter().map(|one| (*one).into()).collect()),
                ..ObjectMeta::default()
            },
        )
    }

    fn set(uids: &[&str]) -> BTreeSet<Uid> {
        uids.iter().map(|uid| (*uid).to_owned()).collect()
    }

    #[test]
    fn a_deletion_queues_owners_and_dependents() {
        let mut graph = Graph::default();
        assert_eq!(
            graph.apply("pod".into(), item("p", &[("set", true)], None)),
            set(&["pod"])
        );
        assert!(!graph.is_owned(graph.get("pod").unwrap()));
        graph.apply("set".into(), item("s", &[("deployment", true)], None));
        assert!(graph.is_owned(graph.get("pod").unwrap()));
        assert_eq!(
            graph
                .dependents("set")
                .map(|(uid, _)| uid.as_str())
                .collect::<Vec<_>>(),
            ["pod"]
        );
        // The owner's foreground deletion concerns the pod, and the owner's own owner.
        let deleting = item("s", &[("deployment", true)], Some(&[FOREGROUND]));
        assert_eq!(
            graph.apply("set".into(), deleting),
            set(&["deployment", "pod", "set"])
        );
        assert!(!graph.is_owned(graph.get("pod").unwrap()));
        assert_eq!(graph.remove("pod"), set(&["set"]));
        assert_eq!(graph.dependents("set").count(), 0);
        assert_eq!(graph.remove("set"), set(&["deployment"]));
    }

    #[test]
    fn a_removed_reference_queues_the_former_owner() {
        let mut graph = Graph::default();
        graph.apply("pod".into(), item("p", &[("set", true)], None));
        assert_eq!(
            graph.apply("pod".into(), item("p", &[], None)),
            set(&["pod", "set"])
        );
        assert_eq!(graph.remove("set"), set(&[]));
    }

    #[test]
    fn finalizers_determine_the_deletion_state() {
        for (finalizers, want) in [
            (None, DeletionState::Live),
            (Some(&[][..]), DeletionState::Deleting),
            (Some(&["example.com/x"][..]), DeletionState::Deleting),
            (
                Some(&["example.com/x", FOREGROUND][..]),
                DeletionState::DeletingDependents,
            ),
            (Some(&[ORPHAN][..]), DeletionState::Orphaning),
        ] {
            assert_eq!(item("x", &[], finalizers).state, want, "{finalizers:?}");
        }
    }

    #[test]
    fn deletes_an_object_without_owners_left() {
        use OwnerState::{Absent, Solid, Waiting};
        let cases: [(&[OwnerState], bool, OwnerVerdict); 8] = [
            (&[], true, OwnerVerdict::Keep),
            (&[Solid], true, OwnerVerdict::Keep),
            (&[Solid, Absent], false, OwnerVerdict::Unlink(set(&["1"]))),
            (
                &[Absent, Waiting, Solid],
                true,
                OwnerVerdict::Unlink(set(&["0", "1"])),
            ),
            (&[Absent], true, OwnerVerdict::Delete),
            (&[Absent, Absent], false, OwnerVerdict::Delete),
            (&[Waiting], false, OwnerVerdict::Delete),
            (&[Waiting, Absent], true, OwnerVerdict::DeleteForeground),
        ];
        for (owners, has_dependents, want) in cases {
            let owners = owners
                .iter()
                .enumerate()
                .map(|(uid, owner)| (uid.to_string(), *owner));
            assert_eq!(judge(&owners.collect(), has_dependents), want);
        }
    }
}
