//! RuntimeClasses: names for the ways in which a node runs containers.

use jiff::Timestamp;

use crate::{
    names,
    node_api::RuntimeClass,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::Strategy,
    table::{Column, TableRow, always, created},
    validation::{ErrorList, FieldPath, Validate, metadata, values},
};

impl Object for RuntimeClass {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "runtimeclass";

    json_conversions_through_values!();
}

impl FieldSelectable for RuntimeClass {}

impl Validate for RuntimeClass {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("handler");
        errors.invalid_each(&path, &self.handler, names::dns1123_label(&self.handler));
        let path = FieldPath::new("overhead").child("podFixed");
        let overhead = self.overhead.as_ref().and_then(|it| it.pod_fixed.as_ref());
        values::quantities(&path, overhead, names::qualified_name, &mut errors);
        let path = FieldPath::new("scheduling").child("nodeSelector");
        let labels = self
            .scheduling
            .as_ref()
            .and_then(|it| it.node_selector.as_ref());
        metadata::labels(&path, labels, &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        let path = FieldPath::new("handler");
        values::immutable(&path, &self.handler, &old.handler, &mut errors);
        errors
    }
}

impl TableRow for RuntimeClass {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("HANDLER"), always("AGE")];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![self.name().into(), self.handler.clone(), created(self, now)]
    }
}

impl Strategy for RuntimeClass {
    const SERVICE: &'static str = "podplane.node.v1.RuntimeClassService";
    const UNCONDITIONAL_UPDATE: bool = false;
}
