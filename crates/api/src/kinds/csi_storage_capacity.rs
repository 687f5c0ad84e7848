//! CSIStorageCapacities: the free storage of a segment of the cluster.

use jiff::Timestamp;

use crate::{
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    storage::CSIStorageCapacity,
    strategy::Strategy,
    table::{Column, TableRow, UNSET, always},
    validation::{ErrorList, FieldPath, Validate, metadata, values, workload},
};

impl Object for CSIStorageCapacity {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "csistoragecapacity";

    json_conversions_through_values!();
}

impl FieldSelectable for CSIStorageCapacity {}

impl Validate for CSIStorageCapacity {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("storageClassName");
        values::named(
            &path,
            &self.storage_class_name,
            names::dns1123_subdomain,
            &mut errors,
        );
        for (field, quantity) in [
            ("capacity", &self.capacity),
            ("maximumVolumeSize", &self.maximum_volume_size),
        ] {
            if let Some(quantity) = quantity {
                values::quantity(&FieldPath::new(field), quantity, &mut errors);
            }
        }
        if let Some(topology) = &self.node_topology {
            workload::label_selector(&FieldPath::new("nodeTopology"), topology, &mut errors);
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        let path = FieldPath::new("nodeTopology");
        values::immutable(&path, &self.node_topology, &old.node_topology, &mut errors);
        let path = FieldPath::new("storageClassName");
        values::immutable(
            &path,
            &self.storage_class_name,
            &old.storage_class_name,
            &mut errors,
        );
        errors
    }
}

impl TableRow for CSIStorageCapacity {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("STORAGECLASSNAME"),
        always("CAPACITY"),
    ];

    fn cells(&self, _: Timestamp) -> Vec<String> {
        let capacity = self.capacity.as_ref().map_or(UNSET, |capacity| &capacity.0);
        vec![
            self.name().into(),
            self.storage_class_name.clone(),
            capacity.into(),
        ]
    }
}

impl Strategy for CSIStorageCapacity {
    const SERVICE: &'static str = "podplane.storage.v1.CSIStorageCapacityService";
}
