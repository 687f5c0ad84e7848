//! The bindings of one scope.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use podplane_api::rbac::{RoleRef, Subject};

use crate::identity::{Identity, service_account_user};

/// The ClusterRoleBindings, or the RoleBindings of a namespace, by name and by subject.
#[derive(Clone, Debug, Default)]
pub(super) struct BindingMap {
    bindings: BTreeMap<Arc<str>, Binding>,
    /// By user name; ServiceAccounts are users.
    of_users: SubjectIndex,
    of_groups: SubjectIndex,
}

/// By the name of a subject, the names of its bindings, each with the subject's first place.
type SubjectIndex = HashMap<Box<str>, BTreeMap<Arc<str>, usize>>;

/// A binding.
#[derive(Clone, Debug)]
pub(super) struct Binding {
    pub(super) role: RoleRef,
    subjects: Vec<BoundSubject>,
}

/// A subject that can match an identity.
#[derive(Clone, Debug)]
pub(super) struct BoundSubject {
    matches: SubjectMatch,
    /// As reasons name it.
    pub(super) description: String,
}

#[derive(Clone, Debug)]
enum SubjectMatch {
    User(String),
    Group(String),
}

impl BoundSubject {
    /// The subject of a binding in `namespace`, which is empty for a ClusterRoleBinding. `None` for
    /// one that matches nobody: of another kind, or a ServiceAccount without a namespace.
    fn of(subject: &Subject, namespace: &str) -> Option<Self> {
        let name = &subject.name;
        let of_subject = subject.namespace.as_deref().unwrap_or_default();
        let namespace = if of_subject.is_empty() {
            namespace
        } else {
            of_subject
        };
        let matches = match &*subject.kind {
            "User" => SubjectMatch::User(name.clone()),
            "Group" => SubjectMatch::Group(name.clone()),
            "ServiceAccount" if !namespace.is_empty() => {
                SubjectMatch::User(service_account_user(namespace, name))
            }
            _ => return None,
        };
        let description = match &*subject.kind {
            // The reference's order.
            "ServiceAccount" => format!("ServiceAccount {:?}", format!("{name}/{namespace}")),
            kind => format!("{kind} {name:?}"),
        };
        Some(Self {
            matches,
            description,
        })
    }
}

impl BindingMap {
    pub(super) fn insert(
        &mut self,
        name: &str,
        role: &RoleRef,
        subjects: &[Subject],
        namespace: &str,
    ) {
        self.remove(name);
        let name: Arc<str> = Arc::from(name);
        let subjects: Vec<BoundSubject> = subjects
            .iter()
            .filter_map(|subject| BoundSubject::of(subject, namespace))
            .collect();
        for (place, subject) in subjects.iter().enumerate() {
            let (index, key) = self.index_of(subject);
            let places = index.entry(key).or_default();
            places.entry(Arc::clone(&name)).or_insert(place);
        }
        let role = role.clone();
        self.bindings.insert(name, Binding { role, subjects });
    }

    pub(super) fn remove(&mut self, name: &str) {
        let Some(binding) = self.bindings.remove(name) else {
            return;
        };
        for subject in &binding.subjects {
            let (index, key) = self.index_of(subject);
            if let Some(places) = index.get_mut(&key) {
                places.remove(name);
                if places.is_empty() {
                    index.remove(&key);
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }

    fn index_of(&mut self, subject: &BoundSubject) -> (&mut SubjectIndex, Box<str>) {
        match &subject.matches {
            SubjectMatch::User(user) => (&mut self.of_users, Box::from(&**user)),
            SubjectMatch::Group(group) => (&mut self.of_groups, Box::from(&**group)),
        }
    }

    /// The bindings of the identity in the order of their names, each with its first subject that
    /// is the identity.
    pub(super) fn of(&self, identity: &Identity) -> Vec<(&str, &Binding, &BoundSubject)> {
        let of_user = self.of_users.get(&*identity.user);
        let groups = identity.groups.iter();
        let of_groups = groups.filter_map(|group| self.of_groups.get(&**group));
        let places = of_user.into_iter().chain(of_groups).flatten();
        let mut places: Vec<(&str, usize)> =
            places.map(|(name, place)| (&**name, *place)).collect();
        places.sort_unstable();
        places.dedup_by_key(|(name, _)| *name);
        let bindings = places.into_iter().filter_map(|(name, place)| {
            let binding = self.bindings.get(name)?;
            Some((name, binding, binding.subjects.get(place)?))
        });
        bindings.collect()
    }
}
