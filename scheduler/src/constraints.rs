//! The constraints that a pod's spec puts on its placement, parsed once per pod.

use std::collections::BTreeMap;

use podplane_api::{
    meta::{self, LabelSelectorRequirement},
    selector::LabelSelector,
};

pub mod affinity;
pub mod nodes;
pub mod spread;

/// Labels by key.
pub type LabelMap = BTreeMap<String, String>;

/// The selector of pods of a term or constraint, with a requirement added for each key of
/// `match_keys` and `mismatch_keys` that the pod has: the value of the selected pods is the pod's
/// own, or is not. `None`, which selects nothing, stays so.
fn pod_selector(
    selector: Option<&meta::LabelSelector>,
    labels: Option<&LabelMap>,
    match_keys: Option<&[String]>,
    mismatch_keys: Option<&[String]>,
) -> Option<LabelSelector> {
    let selector = selector?;
    let keys = [("In", match_keys), ("NotIn", mismatch_keys)];
    let own: Vec<_> = keys
        .into_iter()
        .flat_map(|(operator, keys)| {
            let keys = keys.unwrap_or_default().iter();
            keys.filter_map(move |key| {
                Some(LabelSelectorRequirement {
                    key: key.clone(),
                    operator: operator.to_owned(),
                    values: Some(vec![labels?.get(key)?.clone()]),
                })
            })
        })
        .collect();
    if own.is_empty() {
        return Some(selector.into());
    }
    let mut merged = selector.clone();
    merged.match_expressions.get_or_insert_default().extend(own);
    Some((&merged).into())
}
