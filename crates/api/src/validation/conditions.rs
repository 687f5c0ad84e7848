//! Validation of `metav1.Condition` (source: `ValidateConditions` of
//! `apimachinery/pkg/apis/meta/v1/validation`).

use std::collections::BTreeSet;

use super::{ErrorList, FieldPath, workload};
use crate::{meta::Condition, names};

const STATES: [&str; 3] = ["False", "True", "Unknown"];
const REASON_MAX: usize = 1024;
const MESSAGE_MAX: usize = 32 * 1024;
const REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or \
     '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or \
     'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";

pub(crate) fn validate(path: &FieldPath, conditions: &[Condition], errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        if !seen.insert(&condition.type_) {
            errors.duplicate(&path.child("type"), condition.type_.as_str());
        }
        one(&path, condition, errors);
    }
}

fn one(path: &FieldPath, condition: &Condition, errors: &mut ErrorList) {
    let Condition {
        last_transition_time: _,
        message,
        observed_generation,
        reason,
        status,
        type_,
    } = condition;
    let type_path = path.child("type");
    errors.invalid_each(&type_path, type_, names::qualified_name(type_));
    if !STATES.contains(&status.as_str()) {
        errors.not_supported(&path.child("status"), status, &STATES);
    }
    let path_of_generation = path.child("observedGeneration");
    workload::non_negative(&path_of_generation, *observed_generation, errors);
    let reason_path = path.child("reason");
    if reason.is_empty() {
        errors.required(&reason_path, "");
    } else {
        if !is_reason(reason) {
            errors.invalid(&reason_path, reason.as_str(), REASON);
        }
        if reason.len() > REASON_MAX {
            errors.too_long(&reason_path, REASON_MAX);
        }
    }
    if message.len() > MESSAGE_MAX {
        errors.too_long(&path.child("message"), MESSAGE_MAX);
    }
}

fn is_reason(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"_,:".contains(&byte);
    let last = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(inner)
        && text.bytes().next_back().is_some_and(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_words() {
        for good in ["A", "InsufficientPods", "a_", "A,B:C"] {
            assert!(is_reason(good), "{good}");
        }
        for bad in ["", "1a", "a,", "a b", "_a", "a-b"] {
            assert!(!is_reason(bad), "{bad}");
        }
    }
}
