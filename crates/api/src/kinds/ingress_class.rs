//! IngressClasses: which controller serves an ingress.

use jiff::Timestamp;

use crate::{
    kinds::pod::one_of,
    names,
    networking::IngressClass,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, generation_of},
    table::{Column, NONE, TableRow, always, created},
    validation::{ErrorList, FieldPath, Validate, metadata, values},
};

const CONTROLLER_MAX: usize = 250;

impl Object for IngressClass {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "ingressclass";

    json_conversions_through_values!();
}

impl FieldSelectable for IngressClass {}

impl Validate for IngressClass {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("spec");
        let spec = self.spec.clone().unwrap_or_default();
        let controller = spec.controller.unwrap_or_default();
        let field = path.child("controller");
        values::named(&field, &controller, names::qualified_name, &mut errors);
        if controller.len() > CONTROLLER_MAX {
            errors.too_long(&field, CONTROLLER_MAX);
        }
        if let Some(parameters) = spec.parameters {
            let path = path.child("parameters");
            let segment = names::path_segment;
            values::named(&path.child("kind"), &parameters.kind, segment, &mut errors);
            values::named(&path.child("name"), &parameters.name, segment, &mut errors);
            let scope = parameters.scope.as_deref();
            let scopes = ["Cluster", "Namespace"];
            one_of(&path.child("scope"), scope, &scopes, &mut errors);
            let has_namespace = parameters.namespace.is_some_and(|it| !it.is_empty());
            let path = path.child("namespace");
            match (scope, has_namespace) {
                (Some("Namespace"), false) => {
                    errors.required(&path, "`parameters.scope` is set to 'Namespace'");
                }
                (Some("Cluster"), true) => {
                    errors.forbidden(&path, "`parameters.scope` is set to 'Cluster'");
                }
                _ => {}
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        let controller = |class: &Self| class.spec.as_ref().and_then(|it| it.controller.clone());
        let path = FieldPath::new("spec").child("controller");
        values::immutable(&path, &controller(self), &controller(old), &mut errors);
        errors
    }
}

impl TableRow for IngressClass {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("CONTROLLER"),
        always("PARAMETERS"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = self.spec.clone().unwrap_or_default();
        let parameters = spec.parameters.map_or_else(
            || NONE.into(),
            |parameters| {
                let group = parameters
                    .api_group
                    .map_or_else(String::new, |group| format!(".{group}"));
                format!("{}{group}/{}", parameters.kind, parameters.name)
            },
        );
        vec![
            self.name().into(),
            spec.controller.unwrap_or_default(),
            parameters,
            created(self, now),
        ]
    }
}

impl Strategy for IngressClass {
    const SERVICE: &'static str = "podplane.networking.v1.IngressClassService";

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        if let Some(parameters) = &mut spec.parameters {
            values::default_word(&mut parameters.scope, "Cluster");
        }
    }

    generation_of!(spec);
}
