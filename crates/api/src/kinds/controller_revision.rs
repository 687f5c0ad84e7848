//! ControllerRevisions: immutable data of a controller, numbered.

use jiff::Timestamp;
use serde_json::json;

use crate::{
    apps::ControllerRevision,
    names,
    object::{Object, Scope, json_conversions},
    selector::FieldSelectable,
    strategy::Strategy,
    table::{Column, NONE, TableRow, always, created, workload::controller},
    validation::{ErrorList, FieldPath, Validate, metadata, workload},
};

impl Object for ControllerRevision {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "controllerrevision";

    json_conversions!();
}

impl FieldSelectable for ControllerRevision {}

impl Validate for ControllerRevision {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        if self.data.as_ref().is_none_or(|data| data.0.is_null()) {
            errors.required(&FieldPath::new("data"), "data is mandatory");
        }
        workload::non_negative(
            &FieldPath::new("revision"),
            Some(self.revision),
            &mut errors,
        );
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        if self.data != old.data {
            let data = json!(self.data);
            errors.invalid(&FieldPath::new("data"), data, "field is immutable");
        }
        errors
    }
}

impl TableRow for ControllerRevision {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("CONTROLLER"),
        always("REVISION"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.name().into(),
            controller(&self.metadata).unwrap_or_else(|| NONE.into()),
            self.revision.to_string(),
            created(self, now),
        ]
    }
}

impl Strategy for ControllerRevision {
    const SERVICE: &'static str = "podplane.apps.v1.ControllerRevisionService";
}
