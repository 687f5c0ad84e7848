//! CSINodes: the storage drivers on a node.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::json;

use crate::{
    kinds::csi_driver,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    storage::{CSINode, CSINodeDriver},
    strategy::Strategy,
    table::{Column, TableRow, always, created, integer},
    validation::{ErrorList, FieldPath, Validate, metadata, values, workload},
};

impl Object for CSINode {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "csinode";

    json_conversions_through_values!();
}

impl FieldSelectable for CSINode {}

impl Validate for CSINode {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("spec").child("drivers");
        let mut seen = BTreeSet::new();
        for (index, driver) in self.spec.drivers.iter().enumerate() {
            let path = path.index(index);
            let name = path.child("name");
            values::named(&name, &driver.name, csi_driver::name, &mut errors);
            if !seen.insert(&driver.name) {
                errors.duplicate(&name, driver.name.as_str());
            }
            let id = path.child("nodeID");
            match driver.node_id.len() {
                0 => errors.required(&id, ""),
                1..=192 => {}
                _ => errors.invalid(
                    &id,
                    driver.node_id.as_str(),
                    "must be 192 characters or less",
                ),
            }
            let keys = path.child("topologyKeys");
            for key in driver.topology_keys.iter().flatten() {
                errors.invalid_each(&keys, key, names::qualified_name(key));
            }
            let count = driver.allocatable.as_ref().and_then(|it| it.count);
            workload::non_negative(
                &path.child("allocatable").child("count"),
                count,
                &mut errors,
            );
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        for driver in &self.spec.drivers {
            let mut before = old.spec.drivers.iter();
            let before = before.find(|before| before.name == driver.name);
            let id =
                |driver: &CSINodeDriver| (driver.node_id.clone(), driver.topology_keys.clone());
            if before.is_some_and(|before| id(before) != id(driver)) {
                let path = FieldPath::new("CSINode.Spec.Drivers");
                errors.invalid(&path, json!(driver), "field is immutable");
            }
        }
        errors
    }
}

impl TableRow for CSINode {
    const COLUMNS: &'static [Column] = &[always("NAME"), integer("DRIVERS"), always("AGE")];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.name().into(),
            self.spec.drivers.len().to_string(),
            created(self, now),
        ]
    }
}

impl Strategy for CSINode {
    const SERVICE: &'static str = "podplane.storage.v1.CSINodeService";
    const RETURNS_DELETED: bool = true;
    const UNCONDITIONAL_UPDATE: bool = false;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(drivers: serde_json::Value) -> CSINode {
        let document = json!({"metadata": {"name": "a"}, "spec": {"drivers": drivers}});
        CSINode::from_json(document).unwrap()
    }

    #[test]
    fn drivers_have_names_and_identities_that_stay() {
        let old = node(json!([{"name": "a.b", "nodeID": "1", "topologyKeys": ["zone"]}]));
        assert!(old.validate().is_empty());
        assert_eq!(old.cells(Timestamp::UNIX_EPOCH), ["a", "1", "<unknown>"]);
        let wrong = node(json!([
            {"name": "a.b", "nodeID": ""}, {"name": "a.b", "nodeID": "1", "allocatable": {"count": -1}}
        ]));
        assert_eq!(
            wrong.validate().to_string(),
            r#"[spec.drivers[0].nodeID: Required value, spec.drivers[1].name: Duplicate value: "a.b", spec.drivers[1].allocatable.count: Invalid value: -1: must be greater than or equal to 0]"#
        );
        let new = node(json!([{"name": "a.b", "nodeID": "2"}, {"name": "c", "nodeID": "1"}]));
        let errors = new.validate_update(&old);
        assert_eq!(errors.iter().count(), 1, "{errors}");
        assert!(node(json!([])).validate_update(&old).is_empty());
    }
}
