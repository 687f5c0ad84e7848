//! The kinds that the collector follows, by number.
//!
//! A number is never given to another kind, so that the graph can keep it with an object.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use podplane_api::{Object, meta::OwnerReference};
use podplane_host::clock::Instant;

use super::kind::{CollectedKind, CustomKind, TypedKind};

/// The time that the collector waits for the first list of a custom kind before it decides that an
/// object has no dependents. A kind whose conversion webhook is broken cannot be listed at all.
const LIST_WAIT: Duration = Duration::from_secs(30);

/// What is known of a kind's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KindState {
    /// They are followed.
    Followed,
    /// They cannot be read now: the kind is not established, or no version of it is served.
    Unserved,
    /// The definition is deleted, which its objects are before.
    Undefined,
}

#[derive(Clone)]
struct KnownKind {
    kind: Arc<dyn CollectedKind>,
    state: KindState,
    is_custom: bool,
}

#[derive(Default)]
pub(super) struct CollectedKinds {
    kinds: Vec<KnownKind>,
    /// The followed custom kinds whose first list is missing, and since when.
    unlisted: BTreeMap<usize, Instant>,
}

impl CollectedKinds {
    /// Adds a kind with a type; returns its number.
    pub(super) fn add<K: Object>(&mut self) -> usize {
        self.push(Arc::new(TypedKind::<K>::new()), false)
    }

    /// Adds a custom kind, or changes the one of that group and name, whose first list is missing
    /// then; returns its number. `None` if the program has a type of that group and name.
    pub(super) fn follow_custom(&mut self, kind: CustomKind, now: Instant) -> Option<usize> {
        let resource = &kind.resource;
        let reference = OwnerReference {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
            ..OwnerReference::default()
        };
        let number = match self.number_of(&reference) {
            Some(number) if !self.kinds[number].is_custom => return None,
            Some(number) => {
                self.kinds[number].kind = Arc::new(kind);
                self.kinds[number].state = KindState::Followed;
                number
            }
            None => self.push(Arc::new(kind), true),
        };
        self.unlisted.insert(number, now);
        Some(number)
    }

    fn push(&mut self, kind: Arc<dyn CollectedKind>, is_custom: bool) -> usize {
        self.kinds.push(KnownKind {
            kind,
            state: KindState::Followed,
            is_custom,
        });
        self.kinds.len() - 1
    }

    /// Follows a custom kind no more.
    pub(super) fn leave(&mut self, number: usize, state: KindState) {
        self.listed(number);
        self.kinds[number].state = state;
    }

    /// Notes the first list of a custom kind.
    pub(super) fn listed(&mut self, number: usize) {
        self.unlisted.remove(&number);
    }

    /// Returns true if all dependents of an object are known.
    pub(super) fn is_complete(&self, now: Instant) -> bool {
        let mut since = self.unlisted.values();
        since.all(|since| now - *since > LIST_WAIT)
    }

    pub(super) fn get(&self, number: usize) -> Arc<dyn CollectedKind> {
        Arc::clone(&self.kinds[number].kind)
    }

    /// The kind that a reference names.
    pub(super) fn named_by(
        &self,
        reference: &OwnerReference,
    ) -> Option<(Arc<dyn CollectedKind>, KindState)> {
        let known = &self.kinds[self.number_of(reference)?];
        Some((Arc::clone(&known.kind), known.state))
    }

    fn number_of(&self, reference: &OwnerReference) -> Option<usize> {
        let mut kinds = self.kinds.iter();
        kinds.position(|known| known.kind.is_named_by(reference))
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::{Scope, apps::Deployment, core::Pod};
    use podplane_client::ApiResource;

    use super::*;

    fn gadgets(version: &str) -> CustomKind {
        CustomKind {
            resource: ApiResource {
                group: "example.com".into(),
                version: version.into(),
                api_version: format!("example.com/{version}"),
                kind: "Gadget".into(),
                plural: "gadgets".into(),
            },
            scope: Scope::Namespaced,
        }
    }

    #[test]
    fn a_custom_kind_keeps_its_number() {
        let mut kinds = CollectedKinds::default();
        let now = Instant::now();
        assert_eq!(kinds.add::<Pod>(), 0);
        assert_eq!(kinds.follow_custom(gadgets("v1"), now), Some(1));
        kinds.leave(1, KindState::Undefined);
        let reference = OwnerReference {
            api_version: "example.com/v1beta1".into(),
            kind: "Gadget".into(),
            ..OwnerReference::default()
        };
        assert_eq!(kinds.named_by(&reference).unwrap().1, KindState::Undefined);
        assert_eq!(kinds.follow_custom(gadgets("v2"), now), Some(1));
        assert_eq!(kinds.named_by(&reference).unwrap().1, KindState::Followed);
        assert_eq!(kinds.get(0).name(), "Pod");
    }

    #[test]
    fn a_definition_does_not_take_the_place_of_a_type() {
        let mut kinds = CollectedKinds::default();
        kinds.add::<Deployment>();
        let resource = ApiResource {
            group: "apps".into(),
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            plural: "things".into(),
            ..gadgets("v1").resource
        };
        let things = CustomKind {
            resource,
            ..gadgets("v1")
        };
        assert_eq!(kinds.follow_custom(things, Instant::now()), None);
        assert!(kinds.is_complete(Instant::now()));
    }

    #[test]
    fn the_graph_is_complete_once_all_kinds_are_listed_or_too_late() {
        let mut kinds = CollectedKinds::default();
        let now = Instant::now();
        kinds.add::<Pod>();
        assert!(kinds.is_complete(now));
        let number = kinds.follow_custom(gadgets("v1"), now).unwrap();
        assert!(!kinds.is_complete(now + LIST_WAIT));
        assert!(kinds.is_complete(now + LIST_WAIT + Duration::from_secs(1)));
        kinds.listed(number);
        assert!(kinds.is_complete(now));
        kinds.follow_custom(gadgets("v2"), now);
        assert!(!kinds.is_complete(now));
        kinds.leave(number, KindState::Unserved);
        assert!(kinds.is_complete(now));
    }
}
