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
    /// There are none: the definition is deleted, which its objects are before.
    Gone,
}

#[derive(Default)]
pub(super) struct CollectedKinds {
    kinds: Vec<(Arc<dyn CollectedKind>, KindState)>,
    /// The followed custom kinds whose first list is missing, and since when.
    unlisted: BTreeMap<usize, Instant>,
}

impl CollectedKinds {
    /// Adds a kind with a type; returns its number.
    pub(super) fn add<K: Object>(&mut self) -> usize {
        self.push(Arc::new(TypedKind::<K>::new()))
    }

    /// Adds a custom kind, or changes the one of that group and name; returns its number. Its first
    /// list is missing.
    pub(super) fn follow_custom(&mut self, kind: CustomKind, now: Instant) -> usize {
        let resource = &kind.resource;
        let reference = OwnerReference {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
            ..OwnerReference::default()
        };
        let known = self.number_of(&reference);
        let kind = Arc::new(kind);
        let number = match known {
            Some(number) => {
                self.kinds[number] = (kind, KindState::Followed);
                number
            }
            None => self.push(kind),
        };
        self.unlisted.insert(number, now);
        number
    }

    fn push(&mut self, kind: Arc<dyn CollectedKind>) -> usize {
        self.kinds.push((kind, KindState::Followed));
        self.kinds.len() - 1
    }

    /// Follows a custom kind no more.
    pub(super) fn leave(&mut self, number: usize, state: KindState) {
        self.listed(number);
        self.kinds[number].1 = state;
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
        Arc::clone(&self.kinds[number].0)
    }

    /// The kind that a reference names.
    pub(super) fn named_by(
        &self,
        reference: &OwnerReference,
    ) -> Option<(Arc<dyn CollectedKind>, KindState)> {
        self.number_of(reference)
            .map(|number| self.kinds[number].clone())
    }

    fn number_of(&self, reference: &OwnerReference) -> Option<usize> {
        let mut kinds = self.kinds.iter();
        kinds.position(|(kind, _)| kind.is_named_by(reference))
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::{Scope, core::Pod};
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
        assert_eq!(kinds.follow_custom(gadgets("v1"), now), 1);
        kinds.leave(1, KindState::Gone);
        let reference = OwnerReference {
            api_version: "example.com/v1beta1".into(),
            kind: "Gadget".into(),
            ..OwnerReference::default()
        };
        assert_eq!(kinds.named_by(&reference).unwrap().1, KindState::Gone);
        assert_eq!(kinds.follow_custom(gadgets("v2"), now), 1);
        assert_eq!(kinds.named_by(&reference).unwrap().1, KindState::Followed);
        assert_eq!(kinds.get(0).name(), "Pod");
    }

    #[test]
    fn the_graph_is_complete_once_all_kinds_are_listed_or_too_late() {
        let mut kinds = CollectedKinds::default();
        let now = Instant::now();
        kinds.add::<Pod>();
        assert!(kinds.is_complete(now));
        let number = kinds.follow_custom(gadgets("v1"), now);
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
