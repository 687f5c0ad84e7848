//! PersistentVolumes: pieces of storage of the cluster.

use jiff::Timestamp;
use serde_json::json;

use crate::{
    core::{PersistentVolume, PersistentVolumeSpec, PersistentVolumeStatus},
    kinds::{persistent_volume_claim::access_modes, pod::one_of},
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, Subresource},
    table::{Column, TableRow, UNSET, always, created, storage, wide},
    validation::{ErrorList, FieldPath, Validate, metadata, values},
};

const POLICIES: [&str; 3] = ["Delete", "Recycle", "Retain"];

impl Object for PersistentVolume {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "persistentvolume";
    const SHORT_NAMES: &'static [&'static str] = &["pv"];

    json_conversions_through_values!();
}

impl FieldSelectable for PersistentVolume {}

impl Validate for PersistentVolume {
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
        if source(&new) != source(&was) {
            let path = path.child("persistentvolumesource");
            errors.forbidden(
                &path,
                "spec.persistentvolumesource is immutable after creation",
            );
        }
        values::immutable(
            &path.child("volumeMode"),
            &new.volume_mode,
            &was.volume_mode,
            &mut errors,
        );
        if was.node_affinity.is_some() {
            let path = path.child("nodeAffinity");
            values::immutable(&path, &new.node_affinity, &was.node_affinity, &mut errors);
        }
        errors
    }
}

impl TableRow for PersistentVolume {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("CAPACITY"),
        always("ACCESS MODES"),
        always("RECLAIM POLICY"),
        always("STATUS"),
        always("CLAIM"),
        always("STORAGECLASS"),
        always("VOLUMEATTRIBUTESCLASS"),
        always("REASON"),
        always("AGE"),
        wide("VOLUMEMODE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = self.spec.clone().unwrap_or_default();
        let status = self.status.clone().unwrap_or_default();
        let claim = spec.claim_ref.map_or_else(String::new, |claim| {
            let part = |part: Option<String>| part.unwrap_or_default();
            format!("{}/{}", part(claim.namespace), part(claim.name))
        });
        let phase = status.phase.unwrap_or_default();
        vec![
            self.name().into(),
            storage::size(spec.capacity.as_ref()),
            storage::access_modes(spec.access_modes.as_deref()),
            spec.persistent_volume_reclaim_policy.unwrap_or_default(),
            storage::phase(self, &phase),
            claim,
            storage::class(&self.metadata, spec.storage_class_name.as_deref()),
            spec.volume_attributes_class_name
                .unwrap_or_else(|| UNSET.into()),
            status.reason.unwrap_or_default(),
            created(self, now),
            spec.volume_mode.unwrap_or_else(|| UNSET.into()),
        ]
    }
}

impl Strategy for PersistentVolume {
    const SERVICE: &'static str = "podplane.core.v1.PersistentVolumeService";
    const RETURNS_DELETED: bool = true;
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        values::default_word(&mut spec.volume_mode, "Filesystem");
        values::default_word(&mut spec.persistent_volume_reclaim_policy, "Retain");
        if let Some(path) = &mut spec.host_path {
            path.type_.get_or_insert_default();
        }
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(PersistentVolumeStatus {
            phase: Some("Pending".to_owned()),
            ..PersistentVolumeStatus::default()
        });
    }

    fn prepare_for_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn set_status(&mut self, update: &Self) {
        self.status.clone_from(&update.status);
    }
}

/// The spec with nothing but the source of the volume.
fn source(spec: &PersistentVolumeSpec) -> PersistentVolumeSpec {
    PersistentVolumeSpec {
        access_modes: None,
        capacity: None,
        claim_ref: None,
        mount_options: None,
        node_affinity: None,
        persistent_volume_reclaim_policy: None,
        storage_class_name: None,
        volume_attributes_class_name: None,
        volume_mode: None,
        ..spec.clone()
    }
}

fn validate_spec(path: &FieldPath, spec: &PersistentVolumeSpec, errors: &mut ErrorList) {
    access_modes(
        &path.child("accessModes"),
        spec.access_modes.as_deref(),
        errors,
    );
    let capacity = path.child("capacity");
    let sizes = spec.capacity.clone().unwrap_or_default();
    if sizes.is_empty() {
        errors.required(&capacity, "");
    } else if sizes.len() > 1 || !sizes.contains_key("storage") {
        errors.not_supported_value(&capacity, json!(sizes), &["storage"]);
    }
    for (name, size) in &sizes {
        values::positive(&capacity.key(name), size, errors);
    }
    if let Some(policy) = spec.persistent_volume_reclaim_policy.as_deref() {
        let path = path.child("persistentVolumeReclaimPolicy");
        one_of(&path, Some(policy), &POLICIES, errors);
    }
    if let Some(mode) = spec.volume_mode.as_deref() {
        one_of(
            &path.child("volumeMode"),
            Some(mode),
            &["Block", "Filesystem"],
            errors,
        );
    }
    if let Some(class) = spec
        .storage_class_name
        .as_deref()
        .filter(|class| !class.is_empty())
    {
        let path = path.child("storageClassName");
        errors.invalid_each(&path, class, names::dns1123_subdomain(class));
    }
    let sources = serde_json::to_value(source(spec)).unwrap_or_default();
    match sources.as_object().map_or(0, serde_json::Map::len) {
        0 => errors.required(path, "must specify a volume type"),
        1 => {}
        _ => errors.forbidden(path, "may not specify more than 1 volume type"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(spec: serde_json::Value) -> PersistentVolume {
        let document = json!({"metadata": {"name": "a"}, "spec": spec});
        let mut volume = PersistentVolume::from_json(document).unwrap();
        volume.set_defaults();
        volume.prepare_for_create();
        volume
    }

    #[test]
    fn a_volume_has_one_source_modes_and_a_size() {
        let good = volume(json!({
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/a"}, "claimRef": {"namespace": "n", "name": "c"}
        }));
        assert_eq!(good.validate().to_string(), "[]");
        assert_eq!(
            good.cells(Timestamp::UNIX_EPOCH),
            [
                "a",
                "1Gi",
                "RWO",
                "Retain",
                "Pending",
                "n/c",
                "",
                "<unset>",
                "",
                "<unknown>",
                "Filesystem"
            ]
        );
        assert_eq!(
            volume(json!({})).validate().to_string(),
            "[spec.accessModes: Required value: at least 1 access mode is required, spec.capacity: Required value, spec: Required value: must specify a volume type]"
        );
        let two = volume(json!({
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi", "cpu": "1"},
            "hostPath": {"path": "/a"}, "nfs": {"path": "/", "server": "s"}
        }));
        let errors = two.validate().to_string();
        assert!(errors.contains("spec: Forbidden: may not specify more than 1 volume type"));
        assert!(
            errors.contains("spec.capacity: Unsupported value"),
            "{errors}"
        );
    }

    #[test]
    fn the_source_of_a_volume_stays() {
        let spec = |path: &str| {
            json!({
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": path}
            })
        };
        let (old, mut new) = (volume(spec("/a")), volume(spec("/b")));
        new.spec.as_mut().unwrap().volume_mode = Some("Block".into());
        assert_eq!(
            new.validate_update(&old).to_string(),
            r#"[spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation, spec.volumeMode: Invalid value: "Block": field is immutable]"#
        );
    }
}
