//! Who owns whom, by UID.
//!
//! Pure. It is drawn from separate streams, so what it says is a suspicion: that an owner is not here is no proof that it is nowhere.

use std::collections::{BTreeMap, BTreeSet};

use podplane_api::{ObjectKey, meta::ObjectMeta};

/// The finalizer of an object whose dependents go first.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents stay.
pub(crate) const ORPHAN: &str = "orphan";

/// A UID.
pub(crate) type Uid = String;

/// What the collector has to know of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// Which of the collector's kinds it is.
    pub(crate) kind: usize,
    pub(crate) key: ObjectKey,
    pub(crate) state: State,
    /// UIDs of owners, and whether each has to wait for this.
    pub(crate) owners: BTreeMap<Uid, bool>,
}

/// How an object is being deleted, if it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It is not.
    Live,
    /// Its dependents are to stay.
    Orphaning,
    /// Its dependents are to go first.
    DeletingDependents,
    /// Others have to be done with it.
    Deleting,
}

impl State {
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

impl Item {
    pub(crate) fn new(kind: usize, meta: &ObjectMeta) -> Self {
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        let owners = meta.owner_references.iter().flatten();
        let blocks =
            |owner: &podplane_api::meta::OwnerReference| owner.block_owner_deletion == Some(true);
        Self {
            kind,
            key: ObjectKey::new(name(&meta.namespace), name(&meta.name)),
            state: State::of(meta),
            owners: owners
                .map(|owner| (owner.uid.clone(), blocks(owner)))
                .collect(),
        }
    }
}

/// The objects, and for each owner, known or not, what it owns.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    items: BTreeMap<Uid, Item>,
    dependents: BTreeMap<Uid, BTreeSet<Uid>>,
}

impl Graph {
    pub(crate) fn get(&self, uid: &str) -> Option<&Item> {
        self.items.get(uid)
    }

    /// What the object owns.
    pub(crate) fn dependents(&self, uid: &str) -> impl Iterator<Item = (&Uid, &Item)> {
        let uids = self.dependents.get(uid).into_iter().flatten();
        uids.filter_map(|uid| self.items.get_key_value(uid))
    }

    /// Takes in an object as it is now. Returns the UIDs that need a look.
    pub(crate) fn apply(&mut self, uid: Uid, item: Item) -> BTreeSet<Uid> {
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
            // An owner that waits for this may wait no longer.
            look.extend(before.owners.into_keys());
            if before.state != state {
                look.extend(owners.into_keys());
            }
        }
        if state != State::Live {
            look.extend(self.dependents.get(&uid).into_iter().flatten().cloned());
        }
        look
    }

    /// The object is gone. Returns the UIDs that need a look: what it owned, and who may have waited for it.
    pub(crate) fn remove(&mut self, uid: &str) -> BTreeSet<Uid> {
        let owners = self.unlink(uid).map(|item| item.owners).unwrap_or_default();
        self.items.remove(uid);
        let dependents = self.dependents.get(uid).into_iter().flatten();
        owners.into_keys().chain(dependents.cloned()).collect()
    }

    /// Whether all owners of a live object are here and have no wish about it, so that there is nothing to do.
    pub(crate) fn is_owned(&self, item: &Item) -> bool {
        let here = |owner: &Uid| {
            self.items
                .get(owner)
                .is_some_and(|owner| owner.state != State::DeletingDependents)
        };
        item.owners.keys().all(here)
    }

    /// Takes the object out of the lists of its owners; returns what it was.
    fn unlink(&mut self, uid: &str) -> Option<Item> {
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

/// What is known of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// It is there.
    Solid,
    /// It is there until its dependents are gone.
    Waiting,
    /// It is nowhere.
    Absent,
}

/// What is to become of a live object with owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Keep,
    /// It has an owner to stay for; the references to these others go.
    Unlink(BTreeSet<Uid>),
    /// It goes after what it owns.
    DeleteForeground,
    /// It goes.
    Delete,
}

/// As Kubernetes' `attemptToDeleteItem`.
pub(crate) fn judge(owners: &BTreeMap<Uid, Owner>, has_dependents: bool) -> Verdict {
    let of = |what: Owner| owners.iter().filter(move |(_, owner)| **owner == what);
    let is_kept = owners.is_empty() || of(Owner::Solid).next().is_some();
    let others = of(Owner::Waiting).chain(of(Owner::Absent));
    let others: BTreeSet<Uid> = others.map(|(uid, _)| uid.clone()).collect();
    if is_kept && others.is_empty() {
        Verdict::Keep
    } else if is_kept {
        Verdict::Unlink(others)
    } else if has_dependents && of(Owner::Waiting).next().is_some() {
        Verdict::DeleteForeground
    } else {
        Verdict::Delete
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::{
        jiff::Timestamp,
        meta::{OwnerReference, Time},
    };

    use super::*;

    fn item(name: &str, owners: &[(&str, bool)], finalizers: Option<&[&str]>) -> Item {
        let owners = owners.iter().map(|(uid, blocks)| OwnerReference {
            uid: (*uid).into(),
            block_owner_deletion: Some(*blocks),
            ..OwnerReference::default()
        });
        Item::new(
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
    fn what_an_end_concerns_is_looked_at() {
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
        // The owner's foreground deletion concerns the pod, and those whom the owner belongs to.
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
    fn an_owner_that_was_given_up_is_looked_at() {
        let mut graph = Graph::default();
        graph.apply("pod".into(), item("p", &[("set", true)], None));
        assert_eq!(
            graph.apply("pod".into(), item("p", &[], None)),
            set(&["pod", "set"])
        );
        assert_eq!(graph.remove("set"), set(&[]));
    }

    #[test]
    fn how_an_object_is_deleted_is_in_its_finalizers() {
        for (finalizers, want) in [
            (None, State::Live),
            (Some(&[][..]), State::Deleting),
            (Some(&["example.com/x"][..]), State::Deleting),
            (
                Some(&["example.com/x", FOREGROUND][..]),
                State::DeletingDependents,
            ),
            (Some(&[ORPHAN][..]), State::Orphaning),
        ] {
            assert_eq!(item("x", &[], finalizers).state, want, "{finalizers:?}");
        }
    }

    #[test]
    fn an_object_goes_when_no_owner_is_left() {
        use Owner::{Absent, Solid, Waiting};
        let cases: [(&[Owner], bool, Verdict); 8] = [
            (&[], true, Verdict::Keep),
            (&[Solid], true, Verdict::Keep),
            (&[Solid, Absent], false, Verdict::Unlink(set(&["1"]))),
            (
                &[Absent, Waiting, Solid],
                true,
                Verdict::Unlink(set(&["0", "1"])),
            ),
            (&[Absent], true, Verdict::Delete),
            (&[Absent, Absent], false, Verdict::Delete),
            (&[Waiting], false, Verdict::Delete),
            (&[Waiting, Absent], true, Verdict::DeleteForeground),
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
