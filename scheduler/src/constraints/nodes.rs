//! Requirements on the labels and the name of a node.

use podplane_api::{
    core::{self, NodeSelectorRequirement, PodSpec},
    meta,
    selector::LabelSelector,
};

use super::LabelMap;
use crate::names::NodeName;

/// The field that `matchFields` can name.
const NAME_FIELD: &str = "metadata.name";

/// A requirement on one label, or on the name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ValueRequirement {
    /// The key of the label.
    pub key: String,
    test: LabelSelector,
}

impl ValueRequirement {
    fn new(requirement: &NodeSelectorRequirement) -> Self {
        let NodeSelectorRequirement {
            key,
            operator,
            values,
        } = requirement;
        let expression = meta::LabelSelectorRequirement {
            key: key.clone(),
            operator: operator.clone(),
            values: values.clone(),
        };
        Self {
            key: key.clone(),
            test: (&meta::LabelSelector {
                match_expressions: Some(vec![expression]),
                match_labels: None,
            })
                .into(),
        }
    }

    fn equal(key: &str, value: &str) -> Self {
        Self::new(&NodeSelectorRequirement {
            key: key.to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![value.to_owned()]),
        })
    }

    /// Returns whether the value, `None` if absent, meets the requirement.
    pub fn holds(&self, value: Option<&str>) -> bool {
        self.test.matches_by(|_| value)
    }
}

/// A conjunction of requirements. The empty one selects no node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeTerm {
    /// The requirements on labels.
    pub labels: Vec<ValueRequirement>,
    /// The requirements on fields, of which only the name exists.
    pub fields: Vec<ValueRequirement>,
}

impl NodeTerm {
    fn new(term: &core::NodeSelectorTerm) -> Self {
        let parse = |list: &Option<Vec<NodeSelectorRequirement>>| {
            list.iter().flatten().map(ValueRequirement::new).collect()
        };
        Self {
            labels: parse(&term.match_expressions),
            fields: parse(&term.match_fields),
        }
    }

    /// Returns true if the term has no requirement.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns whether all requirements on fields hold.
    pub fn selects_name(&self, name: &str) -> bool {
        let field = |key: &str| (key == NAME_FIELD).then_some(name);
        self.fields.iter().all(|one| one.holds(field(&one.key)))
    }

    /// Returns true if the term selects a node with this name and these labels.
    pub fn selects(&self, name: &str, labels: Option<&LabelMap>) -> bool {
        let label = |key: &str| labels?.get(key).map(String::as_str);
        !self.is_empty()
            && self.selects_name(name)
            && self.labels.iter().all(|one| one.holds(label(&one.key)))
    }
}

/// The nodes that a pod requires: `nodeSelector` and the required terms of its node affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RequiredNodes {
    /// `nodeSelector`.
    pub selector: Vec<ValueRequirement>,
    /// The alternatives of the affinity. `None` if absent; an empty list selects no node.
    pub terms: Option<Vec<NodeTerm>>,
    /// The only nodes that the terms can select, if each term has their names.
    pub names: Option<Vec<NodeName>>,
}

impl RequiredNodes {
    pub(crate) fn of(spec: &PodSpec) -> Self {
        let selector = spec.node_selector.iter().flatten();
        let affinity = spec
            .affinity
            .as_ref()
            .and_then(|a| a.node_affinity.as_ref());
        let required = affinity
            .and_then(|a| {
                a.required_during_scheduling_ignored_during_execution
                    .as_ref()
            })
            .map(|required| required.node_selector_terms.as_slice());
        Self {
            selector: selector
                .map(|(key, value)| ValueRequirement::equal(key, value))
                .collect(),
            terms: required.map(|terms| terms.iter().map(NodeTerm::new).collect()),
            names: required.and_then(only_names),
        }
    }

    /// Returns true if every node meets the requirements.
    pub fn is_empty(&self) -> bool {
        self.selector.is_empty() && self.terms.is_none()
    }
}

/// The names that the terms are restricted to, sorted. `None` if one of the terms, or all for want
/// of any, names no node.
fn only_names(terms: &[core::NodeSelectorTerm]) -> Option<Vec<NodeName>> {
    let mut names = Vec::new();
    for term in terms {
        let fields = term.match_fields.iter().flatten();
        let mut lists = fields
            .filter(|one| one.key == NAME_FIELD && one.operator == "In")
            .map(|one| one.values.as_deref().unwrap_or_default());
        let first = lists.next()?;
        let others: Vec<_> = lists.collect();
        let common = first
            .iter()
            .filter(|name| others.iter().all(|list| list.contains(name)));
        names.extend(common.map(|name| NodeName::from(name.as_str())));
    }
    names.sort();
    names.dedup();
    (!terms.is_empty()).then_some(names)
}

/// The preferred terms of the pod's node affinity with their weights, without those that select no
/// node.
pub(crate) fn preferred(spec: &PodSpec) -> Vec<(i64, NodeTerm)> {
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref());
    let preferred = affinity
        .and_then(|a| {
            a.preferred_during_scheduling_ignored_during_execution
                .as_ref()
        })
        .into_iter()
        .flatten();
    preferred
        .map(|term| (i64::from(term.weight), NodeTerm::new(&term.preference)))
        .filter(|(weight, term)| *weight != 0 && !term.is_empty())
        .collect()
}
