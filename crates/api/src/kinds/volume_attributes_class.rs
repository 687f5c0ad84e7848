//! VolumeAttributesClasses: attributes of volumes that claims may change.

use jiff::Timestamp;

use crate::{
    kinds::csi_driver,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    storage::VolumeAttributesClass,
    strategy::Strategy,
    table::{Column, TableRow, always, created},
    validation::{ErrorList, FieldPath, Validate, metadata, values},
};

/// The annotation of the class for claims that name none.
const DEFAULT_ANNOTATION: &str = "volumeattributesclass.alpha.kubernetes.io/is-default-class";

impl Object for VolumeAttributesClass {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "volumeattributesclass";
    const SHORT_NAMES: &'static [&'static str] = &["vac"];

    json_conversions_through_values!();
}

impl FieldSelectable for VolumeAttributesClass {}

impl Validate for VolumeAttributesClass {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("driverName");
        values::named(&path, &self.driver_name, csi_driver::name, &mut errors);
        if self.parameters.iter().flatten().next().is_none() {
            errors.required(&FieldPath::new("parameters"), "");
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        if self.driver_name != old.driver_name {
            let why = "updates to driverName are forbidden.";
            errors.forbidden(&FieldPath::new("driverName"), why);
        }
        if self.parameters != old.parameters {
            let why = "updates to parameters are forbidden.";
            errors.forbidden(&FieldPath::new("parameters"), why);
        }
        errors
    }
}

impl TableRow for VolumeAttributesClass {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("DRIVERNAME"), always("AGE")];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let annotations = self.metadata.annotations.as_ref();
        let is_default = annotations
            .and_then(|all| all.get(DEFAULT_ANNOTATION))
            .is_some_and(|value| value == "true");
        let mark = if is_default { " (default)" } else { "" };
        vec![
            format!("{}{mark}", self.name()),
            self.driver_name.clone(),
            created(self, now),
        ]
    }
}

impl Strategy for VolumeAttributesClass {
    const SERVICE: &'static str = "podplane.storage.v1.VolumeAttributesClassService";
    const RETURNS_DELETED: bool = true;
}
