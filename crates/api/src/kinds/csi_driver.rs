//! CSIDrivers: what the cluster has to know of a storage driver.

use jiff::Timestamp;

use crate::{
    kinds::pod::one_of,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    storage::CSIDriver,
    strategy::{Strategy, generation_of},
    table::{Column, NONE, TableRow, UNSET, always, created},
    validation::{ErrorList, FieldPath, Validate, metadata, values},
};

const POLICIES: [&str; 3] = ["File", "None", "ReadWriteOnceWithFSType"];
const LIFECYCLE_MODES: [&str; 2] = ["Ephemeral", "Persistent"];

/// Checks the name of a driver: a subdomain of at most 63 characters.
pub(super) fn name(text: &str) -> Vec<String> {
    let mut broken = names::dns1123_subdomain(&text.to_lowercase());
    if text.len() > 63 {
        broken.push("must be 63 characters or less".to_owned());
    }
    broken
}

impl Object for CSIDriver {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "csidriver";

    json_conversions_through_values!();
}

impl FieldSelectable for CSIDriver {}

impl Validate for CSIDriver {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, name);
        let path = FieldPath::new("spec");
        if let Some(policy) = self.spec.fs_group_policy.as_deref() {
            one_of(
                &path.child("fsGroupPolicy"),
                Some(policy),
                &POLICIES,
                &mut errors,
            );
        }
        let modes = path.child("volumeLifecycleModes");
        for mode in self.spec.volume_lifecycle_modes.iter().flatten() {
            one_of(&modes, Some(mode), &LIFECYCLE_MODES, &mut errors);
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        let path = FieldPath::new("spec");
        let (new, old) = (&self.spec, &old.spec);
        let field = path.child("attachedRequired");
        values::immutable(
            &field,
            &new.attach_required,
            &old.attach_required,
            &mut errors,
        );
        let field = path.child("volumeLifecycleModes");
        values::immutable(
            &field,
            &new.volume_lifecycle_modes,
            &old.volume_lifecycle_modes,
            &mut errors,
        );
        errors
    }
}

impl TableRow for CSIDriver {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("ATTACHREQUIRED"),
        always("PODINFOONMOUNT"),
        always("STORAGECAPACITY"),
        always("TOKENREQUESTS"),
        always("REQUIRESREPUBLISH"),
        always("MODES"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = &self.spec;
        let or = |value: Option<bool>, other: bool| value.unwrap_or(other).to_string();
        let modes = spec.volume_lifecycle_modes.as_deref().unwrap_or_default();
        let audiences: Vec<_> = spec
            .token_requests
            .iter()
            .flatten()
            .map(|token| token.audience.as_str())
            .collect();
        vec![
            self.name().into(),
            or(spec.attach_required, true),
            or(spec.pod_info_on_mount, false),
            or(spec.storage_capacity, false),
            if audiences.is_empty() {
                UNSET.into()
            } else {
                audiences.join(",")
            },
            or(spec.requires_republish, false),
            if modes.is_empty() {
                NONE.into()
            } else {
                modes.join(",")
            },
            created(self, now),
        ]
    }
}

impl Strategy for CSIDriver {
    const SERVICE: &'static str = "podplane.storage.v1.CSIDriverService";
    const RETURNS_DELETED: bool = true;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn set_defaults(&mut self) {
        let spec = &mut self.spec;
        spec.attach_required.get_or_insert(true);
        spec.pod_info_on_mount.get_or_insert(false);
        spec.storage_capacity.get_or_insert(false);
        spec.requires_republish.get_or_insert(false);
        spec.se_linux_mount.get_or_insert(false);
        values::default_word(&mut spec.fs_group_policy, "ReadWriteOnceWithFSType");
        let modes = spec.volume_lifecycle_modes.get_or_insert_default();
        if modes.is_empty() {
            modes.push("Persistent".to_owned());
        }
    }

    generation_of!(spec);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_driver_does_by_default() {
        let document =
            json!({"metadata": {"name": "a.b"}, "spec": {"tokenRequests": [{"audience": "x"}]}});
        let mut driver = CSIDriver::from_json(document).unwrap();
        driver.set_defaults();
        assert!(driver.validate().is_empty());
        assert_eq!(
            driver.cells(Timestamp::UNIX_EPOCH),
            [
                "a.b",
                "true",
                "false",
                "false",
                "x",
                "false",
                "Persistent",
                "<unknown>"
            ]
        );
        let mut new = driver.clone();
        new.spec.attach_required = Some(false);
        new.spec.fs_group_policy = Some("All".into());
        assert_eq!(
            new.validate_update(&driver).to_string(),
            r#"[spec.fsGroupPolicy: Unsupported value: "All": supported values: "File", "None", "ReadWriteOnceWithFSType", spec.attachedRequired: Invalid value: false: field is immutable]"#
        );
        assert_eq!(name(&"a".repeat(64)), ["must be 63 characters or less"]);
    }
}
