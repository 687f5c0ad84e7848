//! StorageClasses: kinds of storage that claims ask for.

use jiff::Timestamp;

use crate::{
    kinds::pod::one_of,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    storage::StorageClass,
    strategy::Strategy,
    table::{Column, TableRow, always, created},
    validation::{ErrorList, FieldPath, Validate, metadata, values},
};

/// The annotations of the class for claims that name none, today's and that of old clients.
const DEFAULT_ANNOTATIONS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

const BINDING_MODES: [&str; 2] = ["Immediate", "WaitForFirstConsumer"];

impl Object for StorageClass {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "storageclass";
    const SHORT_NAMES: &'static [&'static str] = &["sc"];

    json_conversions_through_values!();
}

impl FieldSelectable for StorageClass {}

impl Validate for StorageClass {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("provisioner");
        values::named(&path, &self.provisioner, names::qualified_name, &mut errors);
        let parameters = FieldPath::new("parameters");
        for key in self.parameters.iter().flatten().map(|(key, _)| key) {
            if key.is_empty() {
                errors.invalid(&parameters, "", "field can not be empty.");
            }
        }
        if let Some(policy) = self.reclaim_policy.as_deref() {
            let path = FieldPath::new("reclaimPolicy");
            one_of(&path, Some(policy), &["Delete", "Retain"], &mut errors);
        }
        let path = FieldPath::new("volumeBindingMode");
        one_of(
            &path,
            self.volume_binding_mode.as_deref(),
            &BINDING_MODES,
            &mut errors,
        );
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        let why = "updates to parameters are forbidden.";
        if self.parameters != old.parameters {
            errors.forbidden(&FieldPath::new("parameters"), why);
        }
        if self.provisioner != old.provisioner {
            let why = "updates to provisioner are forbidden.";
            errors.forbidden(&FieldPath::new("provisioner"), why);
        }
        if self.reclaim_policy != old.reclaim_policy {
            let why = "updates to reclaimPolicy are forbidden.";
            errors.forbidden(&FieldPath::new("reclaimPolicy"), why);
        }
        let path = FieldPath::new("volumeBindingMode");
        values::immutable(
            &path,
            &self.volume_binding_mode,
            &old.volume_binding_mode,
            &mut errors,
        );
        errors
    }
}

impl TableRow for StorageClass {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("PROVISIONER"),
        always("RECLAIMPOLICY"),
        always("VOLUMEBINDINGMODE"),
        always("ALLOWVOLUMEEXPANSION"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let or =
            |value: &Option<String>, other: &str| value.clone().unwrap_or_else(|| other.to_owned());
        let annotations = self.metadata.annotations.as_ref();
        let is_default = DEFAULT_ANNOTATIONS.iter().any(|annotation| {
            annotations
                .and_then(|all| all.get(*annotation))
                .is_some_and(|value| value == "true")
        });
        let mark = if is_default { " (default)" } else { "" };
        vec![
            format!("{}{mark}", self.name()),
            self.provisioner.clone(),
            or(&self.reclaim_policy, "Delete"),
            or(&self.volume_binding_mode, "Immediate"),
            self.allow_volume_expansion.unwrap_or_default().to_string(),
            created(self, now),
        ]
    }
}

impl Strategy for StorageClass {
    const SERVICE: &'static str = "podplane.storage.v1.StorageClassService";
    const RETURNS_DELETED: bool = true;

    fn set_defaults(&mut self) {
        values::default_word(&mut self.reclaim_policy, "Delete");
        values::default_word(&mut self.volume_binding_mode, "Immediate");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(document: serde_json::Value) -> StorageClass {
        let mut class = StorageClass::from_json(document).unwrap();
        class.metadata.name.get_or_insert("a".into());
        class.set_defaults();
        class
    }

    #[test]
    fn only_the_expansion_of_volumes_may_change() {
        let old = class(json!({
            "metadata": {"name": "a", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "example.com/p"
        }));
        assert!(old.validate().is_empty());
        assert_eq!(
            old.cells(Timestamp::UNIX_EPOCH),
            [
                "a (default)",
                "example.com/p",
                "Delete",
                "Immediate",
                "false",
                "<unknown>"
            ]
        );
        let mut grown = old.clone();
        grown.allow_volume_expansion = Some(true);
        assert!(grown.validate_update(&old).is_empty());
        let other = class(json!({
            "provisioner": "q", "reclaimPolicy": "Retain", "parameters": {"a": "b"},
            "volumeBindingMode": "WaitForFirstConsumer"
        }));
        assert_eq!(
            other.validate_update(&old).to_string(),
            r#"[parameters: Forbidden: updates to parameters are forbidden., provisioner: Forbidden: updates to provisioner are forbidden., reclaimPolicy: Forbidden: updates to reclaimPolicy are forbidden., volumeBindingMode: Invalid value: "WaitForFirstConsumer": field is immutable]"#
        );
        let wrong =
            class(json!({"provisioner": "", "reclaimPolicy": "Recycle", "volumeBindingMode": "x"}));
        assert_eq!(
            wrong.validate().to_string(),
            r#"[provisioner: Required value, reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain", volumeBindingMode: Unsupported value: "x": supported values: "Immediate", "WaitForFirstConsumer"]"#
        );
    }
}
