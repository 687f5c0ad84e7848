//! `spec.affinity.podAffinity` and `podAntiAffinity`.

use std::sync::Arc;

use podplane_api::{
    core::{self, PodSpec},
    selector::LabelSelector,
};

use super::{LabelMap, pod_selector};

/// A set of pods, and the label whose value says which nodes are near them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AffinityTerm {
    /// The key of the node label whose values are the domains.
    pub topology_key: String,
    /// The namespaces of the pods; the pod's own if the term has neither namespaces nor a selector.
    pub namespaces: Vec<String>,
    /// The labels of further namespaces. `None` selects none, the empty selector selects all.
    pub namespace_selector: Option<LabelSelector>,
    /// The labels of the pods. `None` selects none.
    pub selector: Option<LabelSelector>,
}

impl AffinityTerm {
    fn new(term: &core::PodAffinityTerm, namespace: &str, labels: Option<&LabelMap>) -> Self {
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(namespace.to_owned());
        }
        Self {
            topology_key: term.topology_key.clone(),
            namespaces,
            namespace_selector: term.namespace_selector.as_ref().map(LabelSelector::from),
            selector: pod_selector(
                term.label_selector.as_ref(),
                labels,
                term.match_label_keys.as_deref(),
                term.mismatch_label_keys.as_deref(),
            ),
        }
    }

    /// Returns whether the term selects pods with these labels in its namespaces.
    pub fn selects_labels(&self, labels: &LabelMap) -> bool {
        let selector = self.selector.as_ref();
        selector.is_some_and(|selector| selector.matches(labels))
    }

    /// Returns whether the term of a pod to be scheduled selects pods of a namespace, which has
    /// these labels. Of an unknown namespace (`None`) only the name can be selected.
    pub fn selects_namespace(&self, name: &str, labels: Option<&LabelMap>) -> bool {
        self.namespaces.iter().any(|one| one == name)
            || self.namespace_selector.as_ref().is_some_and(|selector| {
                selector.is_empty() || labels.is_some_and(|labels| selector.matches(labels))
            })
    }

    /// Returns whether the term of an existing pod selects pods of a namespace. As in the reference
    /// an unknown namespace counts here as one without labels.
    pub fn selects_namespace_of_new_pod(&self, name: &str, labels: Option<&LabelMap>) -> bool {
        self.namespaces.iter().any(|one| one == name)
            || self.namespace_selector.as_ref().is_some_and(|selector| {
                labels.map_or_else(
                    || selector.matches(&LabelMap::new()),
                    |labels| selector.matches(labels),
                )
            })
    }
}

/// The effect of a term on the pods that it selects, and of these pods on the term's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AffinityEffect {
    /// They must be in one domain.
    Required,
    /// They must not be in one domain.
    Forbidden,
    /// They attract each other, or repel if the weight is negative.
    Preferred(i64),
}

/// A term with its effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AffinityRule {
    /// The effect.
    pub effect: AffinityEffect,
    /// The pods that it concerns.
    pub term: AffinityTerm,
}

/// The rules of a pod's affinity to other pods.
pub(crate) fn rules(
    spec: &PodSpec,
    namespace: &str,
    labels: Option<&LabelMap>,
) -> Vec<Arc<AffinityRule>> {
    let Some(affinity) = &spec.affinity else {
        return Vec::new();
    };
    let mut rules = Vec::new();
    let mut add = |effect, term: &core::PodAffinityTerm| {
        let term = AffinityTerm::new(term, namespace, labels);
        rules.push(Arc::new(AffinityRule { effect, term }));
    };
    if let Some(near) = &affinity.pod_affinity {
        let required = near
            .required_during_scheduling_ignored_during_execution
            .iter();
        required
            .flatten()
            .for_each(|term| add(AffinityEffect::Required, term));
        let preferred = near
            .preferred_during_scheduling_ignored_during_execution
            .iter();
        for one in preferred.flatten() {
            let effect = AffinityEffect::Preferred(one.weight.into());
            add(effect, &one.pod_affinity_term);
        }
    }
    if let Some(apart) = &affinity.pod_anti_affinity {
        let required = apart
            .required_during_scheduling_ignored_during_execution
            .iter();
        required
            .flatten()
            .for_each(|term| add(AffinityEffect::Forbidden, term));
        let preferred = apart
            .preferred_during_scheduling_ignored_during_execution
            .iter();
        for one in preferred.flatten() {
            let effect = AffinityEffect::Preferred(-i64::from(one.weight));
            add(effect, &one.pod_affinity_term);
        }
    }
    rules
}
