use std::{collections::BTreeMap, fmt};

use super::LabelSelector;
use crate::{Object as _, core};

/// Labels by key.
type LabelMap = BTreeMap<String, String>;

/// A parsed node selector, by labels and by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSelector(Vec<NodeTerm>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeTerm {
    labels: LabelSelector,
    fields: LabelSelector,
}

impl NodeSelector {
    /// True if a term selects the node.
    pub fn matches(&self, node: &core::Node) -> bool {
        let labels = node.metadata.labels.as_ref();
        self.0.iter().any(|term| term.matches(node.name(), labels))
    }

    /// The number of requirements in the terms that select a node with this name and these labels;
    /// `None` if no term does.
    pub fn requirements_met(&self, name: &str, labels: &LabelMap) -> Option<usize> {
        let selects = |term: &&NodeTerm| term.matches(name, Some(labels));
        let met = self.0.iter().filter(selects);
        met.map(|term| term.labels.len() + term.fields.len())
            .reduce(|sum, count| sum + count)
    }
}

impl NodeTerm {
    /// True if all requirements hold. A term without requirements selects no node.
    fn matches(&self, name: &str, labels: Option<&LabelMap>) -> bool {
        let label = |key: &str| labels?.get(key).map(String::as_str);
        let field = |key: &str| (key == "metadata.name").then_some(name);
        !(self.labels.is_empty() && self.fields.is_empty())
            && self.labels.matches_by(label)
            && self.fields.matches_by(field)
    }
}

impl From<&core::NodeSelector> for NodeSelector {
    fn from(selector: &core::NodeSelector) -> Self {
        let terms = selector.node_selector_terms.iter().map(|term| NodeTerm {
            labels: LabelSelector::of_nodes(term.match_expressions.as_deref()),
            fields: LabelSelector::of_nodes(term.match_fields.as_deref()),
        });
        Self(terms.collect())
    }
}

impl fmt::Display for NodeSelector {
    /// Writes the requirements of all terms, sorted by key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.0.iter().flat_map(|term| [&term.labels, &term.fields]);
        LabelSelector::joined(parts).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selector(terms: &Value) -> NodeSelector {
        let terms = json!({"nodeSelectorTerms": terms});
        let selector: core::NodeSelector = serde_json::from_value(terms).unwrap();
        NodeSelector::from(&selector)
    }

    fn met(terms: &Value) -> Option<usize> {
        let labels = json!({"zone": "a", "size": "5", "empty": ""});
        let metadata = json!({"name": "node1", "labels": labels});
        let node: core::Node = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        let labels = node.metadata.labels.as_ref().unwrap();
        let met = selector(terms).requirements_met(node.name(), labels);
        assert_eq!(selector(terms).matches(&node), met.is_some());
        met
    }

    #[test]
    fn every_operator_matches_as_in_kubernetes() {
        for (key, operator, values, want) in [
            ("zone", "In", &["b", "a"][..], true),
            ("zone", "In", &["b"], false),
            ("none", "In", &["a"], false),
            ("zone", "NotIn", &["b"], true),
            ("zone", "NotIn", &["a"], false),
            ("none", "NotIn", &["a"], true),
            ("empty", "Exists", &[], true),
            ("none", "Exists", &[], false),
            ("none", "DoesNotExist", &[], true),
            ("zone", "DoesNotExist", &[], false),
            ("size", "Gt", &["4"], true),
            ("size", "Gt", &["5"], false),
            ("size", "Lt", &["6"], true),
            ("size", "Lt", &["4", "6"], false),
            ("zone", "Gt", &["0"], false),
            ("none", "Lt", &["9"], false),
            ("zone", "Is", &["a"], false),
        ] {
            let expression = json!({"key": key, "operator": operator, "values": values});
            let terms = json!([{"matchExpressions": [expression]}]);
            assert_eq!(met(&terms), want.then_some(1), "{terms}");
        }
    }

    #[test]
    fn matches_if_all_of_one_term_holds() {
        let zone = |zone: &str| json!({"key": "zone", "operator": "In", "values": [zone]});
        let size = json!({"key": "size", "operator": "Exists"});
        let name = |name: &str| json!({"key": "metadata.name", "operator": "In", "values": [name]});
        let labels = |all: &[&Value]| json!({"matchExpressions": all});
        let (a, b) = (&zone("a"), &zone("b"));
        for (terms, want) in [
            (json!([labels(&[a, &size])]), Some(2)),
            (json!([labels(&[b, &size])]), None),
            (json!([labels(&[b]), labels(&[&size])]), Some(1)),
            (json!([labels(&[a]), labels(&[&size])]), Some(2)),
            (json!([{"matchFields": [name("node1")]}]), Some(1)),
            (
                json!([{"matchExpressions": [a], "matchFields": [name("node2")]}]),
                None,
            ),
            // Without requirements nothing is selected.
            (json!([]), None),
            (json!([{}]), None),
        ] {
            assert_eq!(met(&terms), want, "{terms}");
        }
    }

    #[test]
    fn formats_all_requirements_sorted_by_key() {
        let of = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let terms = json!([
            {"matchExpressions": [of("zone", "In", &["b", "a"]), of("x", "Exists", &[])]},
            {"matchFields": [of("metadata.name", "NotIn", &["n"])]},
        ]);
        assert_eq!(
            selector(&terms).to_string(),
            "metadata.name notin (n),x,zone in (a,b)"
        );
    }
}
