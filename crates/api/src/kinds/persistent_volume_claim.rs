//! PersistentVolumeClaims: requests for storage.

use jiff::Timestamp;

use crate::{
    core::{PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus},
    kinds::pod::one_of,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, Subresource},
    table::{Column, TableRow, UNSET, always, created, storage, wide},
    validation::{ErrorList, FieldPath, Validate, metadata, values, workload},
};

const MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];

impl Object for PersistentVolumeClaim {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "persistentvolumeclaim";
    const SHORT_NAMES: &'static [&'static str] = &["pvc"];

    json_conversions_through_values!();
}

impl FieldSelectable for PersistentVolumeClaim {}

impl Validate for PersistentVolumeClaim {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let spec = self.spec.clone().unwrap_or_default();
        validate_spec(&FieldPath::new("spec"), &spec, &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        let (new, was) = (self.spec.clone(), old.spec.clone());
        let (new, was) = (new.unwrap_or_default(), was.unwrap_or_default());
        let path = FieldPath::new("spec");
        if fixed(&new, &was) != fixed(&was, &was) {
            errors.forbidden(
                &path,
                "spec is immutable after creation except resources.requests and \
                 volumeAttributesClassName for bound claims",
            );
        }
        let size = |spec: &PersistentVolumeClaimSpec| {
            let resources = spec.resources.as_ref()?;
            values::millis(resources.requests.as_ref()?.get("storage")?)
        };
        let capacity = self
            .status
            .as_ref()
            .and_then(|status| status.capacity.as_ref());
        let capacity = capacity.and_then(|all| values::millis(all.get("storage")?));
        if size(&new) < size(&was) && size(&new) < capacity.or(size(&was)) {
            let path = path.child("resources").child("requests").child("storage");
            errors.forbidden(&path, "field can not be less than status.capacity");
        }
        errors
    }
}

impl TableRow for PersistentVolumeClaim {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("STATUS"),
        always("VOLUME"),
        always("CAPACITY"),
        always("ACCESS MODES"),
        always("STORAGECLASS"),
        always("VOLUMEATTRIBUTESCLASS"),
        always("AGE"),
        wide("VOLUMEMODE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = self.spec.clone().unwrap_or_default();
        let status = self.status.clone().unwrap_or_default();
        let volume = spec.volume_name.unwrap_or_default();
        // An unbound claim shows neither.
        let [capacity, modes] = match volume.is_empty() {
            true => [String::new(), String::new()],
            false => [
                storage::size(status.capacity.as_ref()),
                storage::access_modes(status.access_modes.as_deref()),
            ],
        };
        let phase = status.phase.unwrap_or_default();
        vec![
            self.name().into(),
            storage::phase(self, &phase),
            volume,
            capacity,
            modes,
            storage::class(&self.metadata, spec.storage_class_name.as_deref()),
            spec.volume_attributes_class_name
                .unwrap_or_else(|| UNSET.into()),
            created(self, now),
            spec.volume_mode.unwrap_or_else(|| UNSET.into()),
        ]
    }
}

impl Strategy for PersistentVolumeClaim {
    const SERVICE: &'static str = "podplane.core.v1.PersistentVolumeClaimService";
    const RETURNS_DELETED: bool = true;
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.resources.get_or_insert_default();
        values::default_word(&mut spec.volume_mode, "Filesystem");
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(PersistentVolumeClaimStatus {
            phase: Some("Pending".to_owned()),
            ..PersistentVolumeClaimStatus::default()
        });
    }

    fn prepare_for_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn set_status(&mut self, update: &Self) {
        self.status.clone_from(&update.status);
    }
}

pub(super) fn validate_spec(
    path: &FieldPath,
    spec: &PersistentVolumeClaimSpec,
    errors: &mut ErrorList,
) {
    if let Some(selector) = &spec.selector {
        workload::label_selector(&path.child("selector"), selector, errors);
    }
    access_modes(
        &path.child("accessModes"),
        spec.access_modes.as_deref(),
        errors,
    );
    let size = path.child("resources").key("storage");
    let requests = spec.resources.as_ref().and_then(|it| it.requests.as_ref());
    match requests.and_then(|requests| requests.get("storage")) {
        None => errors.required(&size, ""),
        Some(quantity) => values::positive(&size, quantity, errors),
    }
    for (field, class) in [
        ("storageClassName", &spec.storage_class_name),
        (
            "volumeAttributesClassName",
            &spec.volume_attributes_class_name,
        ),
    ] {
        if let Some(class) = class.as_deref().filter(|class| !class.is_empty()) {
            errors.invalid_each(&path.child(field), class, names::dns1123_subdomain(class));
        }
    }
    if let Some(mode) = spec.volume_mode.as_deref() {
        one_of(
            &path.child("volumeMode"),
            Some(mode),
            &["Block", "Filesystem"],
            errors,
        );
    }
}

/// Checks the modes of a claim or a volume.
pub(super) fn access_modes(path: &FieldPath, modes: Option<&[String]>, errors: &mut ErrorList) {
    let modes = modes.unwrap_or_default();
    if modes.is_empty() {
        errors.required(path, "at least 1 access mode is required");
    }
    for mode in modes.iter().filter(|mode| !MODES.contains(&mode.as_str())) {
        errors.not_supported(path, mode, &MODES);
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.forbidden(path, detail);
    }
}

/// The parts of a spec that do not change. What a controller fills in once, and what a claim that
/// is bound may change, is that of `old`.
fn fixed(
    spec: &PersistentVolumeClaimSpec,
    old: &PersistentVolumeClaimSpec,
) -> PersistentVolumeClaimSpec {
    let mut fixed = spec.clone();
    let is_bound = old
        .volume_name
        .as_deref()
        .is_some_and(|name| !name.is_empty());
    if !is_bound {
        fixed.volume_name.clone_from(&old.volume_name);
    } else if let Some(resources) = &mut fixed.resources {
        let old = old.resources.as_ref();
        resources.requests = old.and_then(|old| old.requests.clone());
    }
    if old.storage_class_name.is_none() {
        fixed.storage_class_name = None;
    }
    fixed
        .volume_attributes_class_name
        .clone_from(&old.volume_attributes_class_name);
    fixed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(spec: serde_json::Value) -> PersistentVolumeClaim {
        let document = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec});
        let mut claim = PersistentVolumeClaim::from_json(document).unwrap();
        claim.set_defaults();
        claim.prepare_for_create();
        claim
    }

    fn sized(size: &str, more: serde_json::Value) -> PersistentVolumeClaim {
        let mut spec =
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}});
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        claim(spec)
    }

    #[test]
    fn a_claim_needs_modes_and_a_size() {
        assert!(sized("1Gi", json!({})).validate().is_empty());
        assert_eq!(
            claim(json!({})).validate().to_string(),
            "[spec.accessModes: Required value: at least 1 access mode is required, spec.resources[storage]: Required value]"
        );
        let wrong = sized(
            "0",
            json!({"accessModes": ["ReadWriteOncePod", "x"], "volumeMode": "Tape"}),
        );
        let errors = wrong.validate().to_string();
        for part in [
            r#"spec.accessModes: Unsupported value: "x""#,
            "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
            r#"spec.resources[storage]: Invalid value: "0": must be greater than zero"#,
            r#"spec.volumeMode: Unsupported value: "Tape": supported values: "Block", "Filesystem""#,
        ] {
            assert!(errors.contains(part), "{errors}");
        }
    }

    #[test]
    fn a_bound_claim_may_only_grow() {
        let bound = sized("1Gi", json!({"volumeName": "v", "storageClassName": "s"}));
        let grown = sized("2Gi", json!({"volumeName": "v", "storageClassName": "s"}));
        assert!(grown.validate_update(&bound).is_empty());
        assert_eq!(
            bound.validate_update(&grown).to_string(),
            "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"
        );
        let other = sized("1Gi", json!({"volumeName": "v", "storageClassName": "t"}));
        let refused = other.validate_update(&bound).to_string();
        assert!(
            refused.starts_with("spec: Forbidden: spec is immutable"),
            "{refused}"
        );
        let pending = sized("1Gi", json!({}));
        assert!(
            bound.validate_update(&pending).is_empty(),
            "a controller binds"
        );
        assert!(!grown.validate_update(&pending).is_empty());
    }

    #[test]
    fn the_table_shows_the_capacity_of_a_bound_claim() {
        let mut bound = sized("1Gi", json!({"volumeName": "v"}));
        bound.status = Some(PersistentVolumeClaimStatus {
            access_modes: Some(vec!["ReadWriteMany".into(), "ReadWriteOnce".into()]),
            capacity: Some([("storage".to_owned(), crate::Quantity("5Gi".into()))].into()),
            phase: Some("Bound".into()),
            ..PersistentVolumeClaimStatus::default()
        });
        assert_eq!(
            bound.cells(Timestamp::UNIX_EPOCH),
            [
                "a",
                "Bound",
                "v",
                "5Gi",
                "RWO,RWX",
                "",
                "<unset>",
                "<unknown>",
                "Filesystem"
            ]
        );
        let pending = sized("1Gi", json!({})).cells(Timestamp::UNIX_EPOCH);
        assert_eq!(pending[1..5], ["Pending", "", "", ""]);
    }
}
