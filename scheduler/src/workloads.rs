//! The selectors of Services and ReplicaSets, from which the default spread of a pod follows.

use std::collections::BTreeMap;

use podplane_api::{
    Object as _, ObjectKey,
    apps::ReplicaSet,
    core::Service,
    meta::{self, LabelSelectorRequirement},
    selector::LabelSelector,
};

use crate::{constraints::LabelMap, pod::PodInfo};

/// The services of one namespace: by the key and the value of one label that each of them selects,
/// then by name.
type ServicesByLabel = BTreeMap<String, BTreeMap<String, BTreeMap<String, LabelMap>>>;

/// The selectors of workloads.
#[derive(Clone, Debug, Default)]
pub struct WorkloadSelectors {
    /// By namespace. A pod is compared only with services that select one of its labels.
    services: BTreeMap<String, ServicesByLabel>,
    /// The label under which each service is found.
    service_labels: BTreeMap<ObjectKey, (String, String)>,
    replica_sets: BTreeMap<String, BTreeMap<String, Vec<LabelSelectorRequirement>>>,
}

impl WorkloadSelectors {
    /// Adds or updates a service. One without a selector selects nothing, and an empty selector
    /// adds nothing to a pod's.
    pub fn apply_service(&mut self, service: &Service) {
        let key = service.key();
        self.remove_service(&key);
        let spec = service.spec.as_ref();
        if let Some(selector) = spec.and_then(|spec| spec.selector.as_ref())
            && let Some((label, value)) = selector.first_key_value()
        {
            let services = self.services.entry(key.namespace.clone()).or_default();
            let services = services.entry(label.clone()).or_default();
            let services = services.entry(value.clone()).or_default();
            services.insert(key.name.clone(), selector.clone());
            self.service_labels
                .insert(key, (label.clone(), value.clone()));
        }
    }

    /// Removes a service.
    pub fn remove_service(&mut self, key: &ObjectKey) {
        if let Some((label, value)) = self.service_labels.remove(key) {
            remove_at(&mut self.services, &key.namespace, |by_label| {
                remove_at(by_label, &label, |by_value| {
                    remove_at(by_value, &value, |services| {
                        services.remove(&key.name);
                    });
                });
            });
        }
    }

    /// Adds or updates a ReplicaSet.
    pub fn apply_replica_set(&mut self, set: &ReplicaSet) {
        let key = set.key();
        let spec = set.spec.as_ref();
        let requirements = spec.map(|spec| requirements(&spec.selector));
        let sets = self.replica_sets.entry(key.namespace).or_default();
        sets.insert(key.name, requirements.unwrap_or_default());
    }

    /// Removes a ReplicaSet.
    pub fn remove_replica_set(&mut self, key: &ObjectKey) {
        remove_at(&mut self.replica_sets, &key.namespace, |sets| {
            sets.remove(&key.name);
        });
    }

    /// The requirements of all services that select the pod, and of the ReplicaSet that controls
    /// it. `None` if there are none.
    pub fn selector_of(&self, pod: &PodInfo) -> Option<LabelSelector> {
        let services = self.services.get(pod.namespace());
        let set = pod.needs.replica_set.as_ref().and_then(|name| {
            let sets = self.replica_sets.get(pod.namespace())?;
            sets.get(name)
        });
        let mut labels = LabelMap::new();
        if let Some(services) = services {
            let known = |(key, value): (&String, &String)| services.get(key)?.get(value);
            let candidates = pod.labels.iter().filter_map(known).flatten();
            for (_, selector) in candidates {
                if selector
                    .iter()
                    .all(|(key, value)| pod.labels.get(key) == Some(value))
                {
                    labels.extend(selector.clone());
                }
            }
        }
        let set = set.map(Vec::as_slice).unwrap_or_default();
        if labels.is_empty() && set.is_empty() {
            return None;
        }
        let selector = meta::LabelSelector {
            match_labels: Some(labels),
            match_expressions: Some(set.to_vec()),
        };
        Some((&selector).into())
    }
}

/// The ReplicaSet with no more than its selector: a template is larger than a pod.
#[must_use]
pub fn without_template(mut set: ReplicaSet) -> ReplicaSet {
    set.metadata.managed_fields = None;
    set.metadata.annotations = None;
    if let Some(spec) = &mut set.spec {
        spec.template = None;
    }
    set
}

/// All requirements of the selector as expressions, so that they can be joined with labels.
fn requirements(selector: &meta::LabelSelector) -> Vec<LabelSelectorRequirement> {
    let labels = selector.match_labels.iter().flatten();
    let labels = labels.map(|(key, value)| LabelSelectorRequirement {
        key: key.clone(),
        operator: "In".to_owned(),
        values: Some(vec![value.clone()]),
    });
    let expressions = selector.match_expressions.iter().flatten().cloned();
    labels.chain(expressions).collect()
}

/// Calls `remove` with the entry, and removes the entry if that leaves it empty.
fn remove_at<K: Ord, V>(
    map: &mut BTreeMap<String, BTreeMap<K, V>>,
    key: &str,
    remove: impl FnOnce(&mut BTreeMap<K, V>),
) {
    if let Some(entry) = map.get_mut(key) {
        remove(entry);
        if entry.is_empty() {
            map.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::testing::{AsInfo as _, PodBuilder};

    fn selector(workloads: &WorkloadSelectors, labels: Value) -> String {
        let pod = PodBuilder::new("p").set("/metadata/labels", labels);
        let selector = workloads.selector_of(&pod.info());
        selector.map_or_else(String::new, |selector| selector.to_string())
    }

    fn service(name: &str, selector: Value) -> Service {
        from_value(json!({"metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": selector}}))
        .unwrap()
    }

    #[test]
    fn services_are_found_by_their_present_selector() {
        let mut workloads = WorkloadSelectors::default();
        let labels = || json!({"app": "web", "tier": "x"});
        workloads.apply_service(&service("a", json!({"app": "web"})));
        workloads.apply_service(&service("b", json!({"app": "web", "tier": "y"})));
        assert_eq!(selector(&workloads, labels()), "app=web");
        workloads.apply_service(&service("b", json!({"tier": "x"})));
        assert_eq!(selector(&workloads, labels()), "app=web,tier=x");
        workloads.apply_service(&service("a", json!({"app": "db"})));
        assert_eq!(selector(&workloads, labels()), "tier=x");
        workloads.apply_service(&service("b", json!(null)));
        assert_eq!(selector(&workloads, labels()), "");
        workloads.remove_service(&service("a", json!(null)).key());
        assert!(workloads.services.is_empty() && workloads.service_labels.is_empty());
    }
}
