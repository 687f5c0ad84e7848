//! The smallest cluster that still shows a difference.

use serde_json::Value;

/// Fields without which an object is not valid, or is another one.
const KEPT: [&str; 24] = [
    "name",
    "uid",
    "namespace",
    "metadata",
    "spec",
    "nodes",
    "pods",
    "namespaces",
    "services",
    "replicaSets",
    "pod",
    "policy",
    "key",
    "operator",
    "values",
    "topologyKey",
    "maxSkew",
    "whenUnsatisfiable",
    "weight",
    "podAffinityTerm",
    "preference",
    "apiVersion",
    "kind",
    "selector",
];

/// A step from a value to one inside of it.
#[derive(Clone, Debug)]
enum Step {
    Field(String),
    Element(usize),
}

/// Removes elements and fields, the outer ones first, as long as the difference stays.
pub(crate) fn shrink(cluster: &Value, differs: impl Fn(&Value) -> bool) -> Value {
    let mut smallest = cluster.clone();
    while let Some(smaller) = paths(&smallest)
        .iter()
        .map(|path| without(&smallest, path))
        .find(|candidate| differs(candidate))
    {
        smallest = smaller;
    }
    smallest
}

/// The paths of everything that may be removed, the outer ones first.
fn paths(of: &Value) -> Vec<Vec<Step>> {
    let mut found = Vec::new();
    let mut level = vec![(Vec::new(), of)];
    while !level.is_empty() {
        let mut next = Vec::new();
        for (path, value) in level {
            for (step, inner) in children(value) {
                let path: Vec<Step> = [path.as_slice(), std::slice::from_ref(&step)].concat();
                if !matches!(&step, Step::Field(key) if KEPT.contains(&key.as_str())) {
                    found.push(path.clone());
                }
                next.push((path, inner));
            }
        }
        level = next;
    }
    found
}

fn children(value: &Value) -> Vec<(Step, &Value)> {
    match value {
        Value::Array(list) => {
            let elements = list.iter().enumerate();
            elements
                .map(|(index, inner)| (Step::Element(index), inner))
                .collect()
        }
        Value::Object(fields) => {
            let fields = fields.iter();
            fields
                .map(|(key, inner)| (Step::Field(key.clone()), inner))
                .collect()
        }
        _ => Vec::new(),
    }
}

fn without(value: &Value, path: &[Step]) -> Value {
    let mut result = value.clone();
    let Some((last, outer)) = path.split_last() else {
        return result;
    };
    let mut at = &mut result;
    for step in outer {
        at = match step {
            Step::Field(key) => &mut at[key.as_str()],
            Step::Element(index) => &mut at[*index],
        };
    }
    match (last, at) {
        (Step::Field(key), Value::Object(fields)) => {
            fields.remove(key);
        }
        (Step::Element(index), Value::Array(list)) => {
            list.remove(*index);
        }
        _ => {}
    }
    result
}
