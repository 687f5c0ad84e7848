//! VolumeAttachments: volumes to attach to nodes.

use jiff::Timestamp;

use crate::{
    kinds::csi_driver,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    storage::VolumeAttachment,
    strategy::{Strategy, Subresource, separate_status},
    table::{Column, TableRow, always, created},
    validation::{ErrorList, FieldPath, Validate, metadata, values},
};

impl Object for VolumeAttachment {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "volumeattachment";

    json_conversions_through_values!();
}

impl FieldSelectable for VolumeAttachment {}

impl Validate for VolumeAttachment {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("spec");
        let attacher = path.child("attacher");
        values::named(
            &attacher,
            &self.spec.attacher,
            csi_driver::name,
            &mut errors,
        );
        let node = path.child("nodeName");
        values::named(
            &node,
            &self.spec.node_name,
            names::dns1123_subdomain,
            &mut errors,
        );
        let source = path.child("source");
        let volume = self.spec.source.persistent_volume_name.as_deref();
        match (volume, &self.spec.source.inline_volume_spec) {
            (None, None) => errors.required(
                &source,
                "must specify one of inlineVolumeSpec and persistentVolumeName",
            ),
            (Some(_), Some(_)) => errors.forbidden(
                &source,
                "must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            ),
            (Some(""), None) => errors.required(&source.child("persistentVolumeName"), ""),
            (Some(_), None) | (None, Some(_)) => {}
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        values::immutable(&FieldPath::new("spec"), &self.spec, &old.spec, &mut errors);
        errors
    }
}

impl TableRow for VolumeAttachment {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("ATTACHER"),
        always("PV"),
        always("NODE"),
        always("ATTACHED"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let attached = self.status.as_ref().is_some_and(|status| status.attached);
        vec![
            self.name().into(),
            self.spec.attacher.clone(),
            self.spec
                .source
                .persistent_volume_name
                .clone()
                .unwrap_or_default(),
            self.spec.node_name.clone(),
            attached.to_string(),
            created(self, now),
        ]
    }
}

impl Strategy for VolumeAttachment {
    const SERVICE: &'static str = "podplane.storage.v1.VolumeAttachmentService";
    const RETURNS_DELETED: bool = true;
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const UNCONDITIONAL_UPDATE: bool = false;

    separate_status!();
}
