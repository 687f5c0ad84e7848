//! Selectors of labels, and of nodes.

use serde_json::Value;

use super::{list, name};

/// True if the `LabelSelector` selects labels: all of its pairs and expressions hold. A missing
/// selector selects nothing, an empty one everything.
pub(crate) fn selects(selector: &Value, labels: &Value) -> bool {
    let Some(fields) = selector.as_object() else {
        return false;
    };
    let pairs = fields.get("matchLabels").and_then(Value::as_object);
    let mut pairs = pairs.into_iter().flatten();
    let mut expressions = list(&selector["matchExpressions"]).iter();
    pairs.all(|(key, value)| labels[key] == *value)
        && expressions.all(|expression| holds(expression, value_of(labels, expression)))
}

/// True if a selector has neither pairs nor expressions, and so selects everything.
pub(crate) fn is_empty(selector: &Value) -> bool {
    let pairs = selector["matchLabels"].as_object();
    selector.is_object()
        && pairs.is_none_or(serde_json::Map::is_empty)
        && list(&selector["matchExpressions"]).is_empty()
}

fn value_of<'a>(labels: &'a Value, expression: &Value) -> Option<&'a str> {
    labels[expression["key"].as_str().unwrap_or_default()].as_str()
}

/// True if the requirement holds for a value; `None` if the key is missing. `NotIn` and
/// `DoesNotExist` hold for a missing key. `Gt` and `Lt` compare integers, and hold for nothing
/// else.
fn holds(requirement: &Value, value: Option<&str>) -> bool {
    let values = list(&requirement["values"]);
    let is_listed = value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let number = value.and_then(|value| value.parse::<i64>().ok());
    let bound = values.first().and_then(Value::as_str);
    let bound = bound.and_then(|bound| bound.parse::<i64>().ok());
    match requirement["operator"].as_str() {
        Some("In") => is_listed,
        Some("NotIn") => !is_listed,
        Some("Exists") => value.is_some(),
        Some("DoesNotExist") => value.is_none(),
        Some("Gt") => number
            .zip(bound)
            .is_some_and(|(number, bound)| number > bound),
        Some("Lt") => number
            .zip(bound)
            .is_some_and(|(number, bound)| number < bound),
        _ => false,
    }
}

/// True if the term of a node selector matches: all of its expressions on labels, and of those on
/// fields, of which there is only `metadata.name`. An empty term matches no node.
pub(crate) fn term_matches(term: &Value, node: &Value) -> bool {
    let labels = list(&term["matchExpressions"]);
    let fields = list(&term["matchFields"]);
    let of_labels = |e: &Value| holds(e, value_of(&node["metadata"]["labels"], e));
    let of_fields = |e: &Value| e["key"] == "metadata.name" && holds(e, Some(name(node)));
    !is_empty_term(term) && labels.iter().all(of_labels) && fields.iter().all(of_fields)
}

/// True if the term of a node selector has no expressions.
pub(crate) fn is_empty_term(term: &Value) -> bool {
    list(&term["matchExpressions"]).is_empty() && list(&term["matchFields"]).is_empty()
}

/// True if the node has all pairs of the pod's `nodeSelector`, and matches one of the terms of its
/// required node affinity if it has any.
pub(crate) fn node_matches(pod: &Value, node: &Value) -> bool {
    let pairs = pod["spec"]["nodeSelector"].as_object();
    let mut pairs = pairs.into_iter().flatten();
    let required = super::node_affinity::required(pod);
    let terms = list(&required["nodeSelectorTerms"]);
    pairs.all(|(key, value)| node["metadata"]["labels"][key] == *value)
        && (required.is_null() || terms.iter().any(|term| term_matches(term, node)))
}
