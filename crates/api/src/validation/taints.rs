//! Validation of the taints of nodes and the tolerations of pods.

use serde_json::json;

use super::field::{ErrorList, FieldPath};
use crate::{
    core::{Taint, Toleration},
    names,
};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(crate) fn taints(path: &FieldPath, taints: &[Taint], errors: &mut ErrorList) {
    for (index, taint) in taints.iter().enumerate() {
        let path = path.index(index);
        errors.invalid_each(
            &path.child("key"),
            &taint.key,
            names::qualified_name(&taint.key),
        );
        let value = taint.value.as_deref().unwrap_or_default();
        errors.invalid_each(&path.child("value"), value, names::label_value(value));
        effect(
            &path.child("effect"),
            Some(&taint.effect),
            Presence::Required,
            errors,
        );
        let same = |other: &&Taint| other.key == taint.key && other.effect == taint.effect;
        if taints[..index].iter().any(|other| same(&other)) {
            errors.duplicate(&path, json!(taint));
        }
    }
}

pub(crate) fn tolerations(path: &FieldPath, tolerations: &[Toleration], errors: &mut ErrorList) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = path.index(index);
        let key = toleration.key.as_deref().unwrap_or_default();
        let operator = toleration.operator.as_deref().unwrap_or_default();
        let value = toleration.value.as_deref().unwrap_or_default();
        if !key.is_empty() {
            errors.invalid_each(&path.child("key"), key, names::qualified_name(key));
        } else if operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.invalid(&path.child("operator"), operator, detail);
        }
        if toleration.toleration_seconds.is_some()
            && toleration.effect.as_deref() != Some("NoExecute")
        {
            let effect = toleration.effect.as_deref().unwrap_or_default();
            errors.invalid(
                &path.child("effect"),
                effect,
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            );
        }
        match operator {
            "" | "Equal" => {
                let broken = names::label_value(value);
                if !broken.is_empty() {
                    errors.invalid(&path.child("operator"), value, &broken.join(";"));
                }
            }
            "Exists" if value.is_empty() => {}
            "Exists" => errors.invalid(
                &path.child("operator"),
                json!(toleration),
                "value must be empty when `operator` is 'Exists'",
            ),
            other => errors.not_supported(&path.child("operator"), other, &["Equal", "Exists"]),
        }
        effect(
            &path.child("effect"),
            toleration.effect.as_deref(),
            Presence::Optional,
            errors,
        );
    }
}

enum Presence {
    Required,
    Optional,
}

fn effect(path: &FieldPath, effect: Option<&str>, presence: Presence, errors: &mut ErrorList) {
    match (effect.unwrap_or_default(), presence) {
        ("", Presence::Required) => errors.required(path, ""),
        ("", Presence::Optional) => {}
        (effect, _) if EFFECTS.contains(&effect) => {}
        (effect, _) => errors.not_supported(path, effect, &EFFECTS),
    }
}
