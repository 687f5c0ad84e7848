//! Ownership of objects, and the rules for adoption and release.

use podplane_api::{
    Object,
    meta::{ObjectMeta, OwnerReference},
    selector::LabelSelector,
};

/// The reference of the controller that manages the object.
pub(crate) fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = meta.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

/// Returns whether `owner` manages the object.
pub(crate) fn is_controlled_by<K: Object>(meta: &ObjectMeta, owner: &K) -> bool {
    controller_of(meta).is_some_and(|controller| controller.uid == owner.uid())
}

/// The reference that `owner` puts on objects that it creates.
pub(crate) fn controller_reference<K: Object>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::API_VERSION.to_owned(),
        kind: K::KIND.to_owned(),
        name: owner.name().to_owned(),
        uid: owner.uid().to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The action of a controller on an object of the kind that it manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The object is its own and matches.
    Keep,
    /// The object has no controller and matches: adopt it, once the server has confirmed that the
    /// owner is not being deleted.
    Adopt,
    /// The object is its own and no longer matches.
    Release,
    /// The object is another controller's, or does not match.
    Ignore,
}

/// Decides as Kubernetes' `ControllerRefManager`: only an object that is not being deleted is
/// adopted or released, and only by an owner that is not being deleted either.
pub(crate) fn claim<O: Object, K: Object>(
    owner: &O,
    selector: &LabelSelector,
    object: &K,
) -> Claim {
    let meta = object.metadata();
    let matches = meta.labels.as_ref().map_or_else(
        || selector.matches(&Default::default()),
        |labels| selector.matches(labels),
    );
    match controller_of(meta) {
        Some(controller) if controller.uid != owner.uid() => Claim::Ignore,
        Some(_) if matches => Claim::Keep,
        Some(_) if owner.is_deleting() => Claim::Ignore,
        Some(_) => Claim::Release,
        None if !matches || owner.is_deleting() || object.is_deleting() => Claim::Ignore,
        None if owner.namespace() != object.namespace() => Claim::Ignore,
        None => Claim::Adopt,
    }
}

/// Removes the reference to the owner of that UID. Returns whether there was one.
pub(crate) fn remove_reference(meta: &mut ObjectMeta, uid: &str) -> bool {
    let Some(owners) = &mut meta.owner_references else {
        return false;
    };
    let before = owners.len();
    owners.retain(|owner| owner.uid != uid);
    let removed = owners.len() < before;
    if owners.is_empty() {
        meta.owner_references = None;
    }
    removed
}

#[cfg(test)]
mod tests {
    use podplane_api::{apps::ReplicaSet, core::Pod, jiff::Timestamp, meta::Time};

    use super::*;

    fn owner() -> ReplicaSet {
        let mut owner = ReplicaSet::default();
        owner.metadata.uid = Some("owner".into());
        owner.metadata.name = Some("web".into());
        owner
    }

    fn pod(app: &str, owner: Option<&ReplicaSet>) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.labels = Some([("app".to_owned(), app.to_owned())].into());
        pod.metadata.owner_references = owner.map(|owner| vec![controller_reference(owner)]);
        pod
    }

    fn deleting<K: Object>(mut object: K) -> K {
        object.metadata_mut().deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        object
    }

    #[test]
    fn claims_pods_as_kubernetes_does() {
        let selector: LabelSelector = "app=web".parse().unwrap();
        let mut other = owner();
        other.metadata.uid = Some("other".into());
        let cases = [
            ("own", owner(), pod("web", Some(&owner())), Claim::Keep),
            (
                "own, other labels",
                owner(),
                pod("db", Some(&owner())),
                Claim::Release,
            ),
            ("nobody's", owner(), pod("web", None), Claim::Adopt),
            (
                "nobody's, other labels",
                owner(),
                pod("db", None),
                Claim::Ignore,
            ),
            (
                "another's",
                owner(),
                pod("web", Some(&other)),
                Claim::Ignore,
            ),
            (
                "nobody's, going",
                owner(),
                deleting(pod("web", None)),
                Claim::Ignore,
            ),
            (
                "the owner goes",
                deleting(owner()),
                pod("web", None),
                Claim::Ignore,
            ),
            (
                "the owner goes, other labels",
                deleting(owner()),
                pod("db", Some(&owner())),
                Claim::Ignore,
            ),
            (
                "the owner goes, own",
                deleting(owner()),
                pod("web", Some(&owner())),
                Claim::Keep,
            ),
        ];
        for (what, owner, pod, want) in cases {
            assert_eq!(claim(&owner, &selector, &pod), want, "{what}");
        }
    }

    #[test]
    fn removes_a_reference_by_uid() {
        let mut pod = pod("web", Some(&owner()));
        assert!(!remove_reference(&mut pod.metadata, "other"));
        assert!(remove_reference(&mut pod.metadata, "owner"));
        assert_eq!(pod.metadata.owner_references, None);
    }
}
