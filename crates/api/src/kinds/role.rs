//! Roles: permissions in a namespace.

use jiff::Timestamp;

use crate::{
    names,
    object::{Object, Scope, json_conversions},
    rbac::Role,
    selector::FieldSelectable,
    strategy::Strategy,
    table::{Column, TableRow, always, created_at},
    validation::{ErrorList, Validate, metadata, rbac},
};

impl Object for Role {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "role";

    json_conversions!();
}

impl FieldSelectable for Role {}

impl Validate for Role {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::path_segment);
        rbac::rules(self.rules.as_deref(), Self::SCOPE, &mut errors);
        errors
    }
}

impl TableRow for Role {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("CREATED AT")];

    fn cells(&self, _: Timestamp) -> Vec<String> {
        vec![self.name().into(), created_at(self)]
    }
}

impl Strategy for Role {
    const SERVICE: &'static str = "podplane.rbac.v1.RoleService";
}
