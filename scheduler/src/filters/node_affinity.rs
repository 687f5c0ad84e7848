//! A pod chooses nodes by their labels: `nodeSelector`, and the required terms of its node affinity.

use podplane_api::core::{NodeSelectorRequirement, NodeSelectorTerm};

use super::{Filter, Objection};
use crate::{
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
};

/// See the module.
#[derive(Debug)]
pub struct NodeAffinity;

impl Filter for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Objection> {
        if selected(pod, node) && affine(pod, node) {
            return Ok(());
        }
        Err(Objection::unresolvable(
            "node(s) didn't match Pod's node affinity/selector",
        ))
    }

    fn heeds(&self, change: NodeChange) -> bool {
        change == NodeChange::Labels
    }
}

fn label<'a>(node: &'a NodeInfo, key: &str) -> Option<&'a str> {
    let labels = node.node.metadata.labels.as_ref()?;
    labels.get(key).map(String::as_str)
}

fn selected(pod: &PodInfo, node: &NodeInfo) -> bool {
    let spec = pod.pod.spec.as_ref();
    let selector = spec.and_then(|s| s.node_selector.as_ref());
    let mut selector = selector.into_iter().flatten();
    selector.all(|(key, value)| label(node, key) == Some(value))
}

fn affine(pod: &PodInfo, node: &NodeInfo) -> bool {
    let spec = pod.pod.spec.as_ref();
    let affinity = spec
        .and_then(|s| s.affinity.as_ref())
        .and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| {
        a.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    // One term is enough.
    required.is_none_or(|required| {
        let mut terms = required.node_selector_terms.iter();
        terms.any(|term| matches(term, node))
    })
}

/// All requirements of a term must hold. A term without any matches no node.
fn matches(term: &NodeSelectorTerm, node: &NodeInfo) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |key: &str| (key == "metadata.name").then(|| node.name.as_str());
    (!expressions.is_empty() || !fields.is_empty())
        && expressions.iter().all(|r| holds(r, label(node, &r.key)))
        && fields.iter().all(|r| holds(r, field(&r.key)))
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|v| v == value));
    // Both sides of a comparison must be integers, and there must be one of each.
    let compared = || match values {
        [bound] => Some((value?.parse::<i64>().ok()?, bound.parse::<i64>().ok()?)),
        _ => None,
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(|(value, bound)| value > bound),
        "Lt" => compared().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}
