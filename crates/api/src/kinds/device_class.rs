//! DeviceClasses: kinds of devices that claims ask for.

use crate::{
    object::{Object, Scope, json_conversions_through_values},
    resource::DeviceClass,
    selector::FieldSelectable,
    strategy::{Strategy, generation_of},
    table::TableRow,
    validation::Validate,
};

impl Object for DeviceClass {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "deviceclass";

    json_conversions_through_values!();
}

impl FieldSelectable for DeviceClass {}

impl Validate for DeviceClass {}

impl TableRow for DeviceClass {}

impl Strategy for DeviceClass {
    const SERVICE: &'static str = "podplane.resource.v1.DeviceClassService";
    const RETURNS_DELETED: bool = true;

    generation_of!(spec);
}
