//! ValidatingAdmissionPolicies: expressions that refuse objects on their way into the store.

use jiff::Timestamp;

use crate::{
    admissionregistration::ValidatingAdmissionPolicy,
    kinds::pod::one_of,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, Subresource, generation_of, separate_status},
    table::{Column, TableRow, UNSET, always, created, integer},
    validation::{ErrorList, FieldPath, Validate, admission, metadata, values},
};

impl Object for ValidatingAdmissionPolicy {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "validatingadmissionpolicy";
    const CATEGORIES: &'static [&'static str] = &["api-extensions"];

    json_conversions_through_values!();
}

impl FieldSelectable for ValidatingAdmissionPolicy {}

impl Validate for ValidatingAdmissionPolicy {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("spec");
        let spec = self.spec.clone().unwrap_or_default();
        let policy = spec.failure_policy.as_deref();
        one_of(
            &path.child("failurePolicy"),
            policy,
            &["Fail", "Ignore"],
            &mut errors,
        );
        if let Some(param) = &spec.param_kind {
            let path = path.child("paramKind");
            for (field, text) in [("apiVersion", &param.api_version), ("kind", &param.kind)] {
                if text.as_deref().is_none_or(str::is_empty) {
                    errors.required(&path.child(field), "");
                }
            }
        }
        let rules = spec
            .match_constraints
            .as_ref()
            .and_then(|it| it.resource_rules.as_ref());
        if rules.is_none_or(Vec::is_empty) {
            let path = path.child("matchConstraints").child("resourceRules");
            errors.required(&path, "");
        }
        let conditions = spec.match_conditions.as_deref();
        admission::match_conditions(&path.child("matchConditions"), conditions, &mut errors);
        let has_annotations = spec.audit_annotations.iter().flatten().next().is_some();
        if spec.validations.iter().flatten().next().is_none() && !has_annotations {
            let detail = "validations or auditAnnotations must contain at least one item";
            errors.required(&path.child("validations"), detail);
        }
        for (index, rule) in spec.validations.iter().flatten().enumerate() {
            let path = path.child("validations").index(index);
            if rule.expression.trim().is_empty() {
                errors.required(&path.child("expression"), "expression is not specified");
            }
        }
        errors
    }
}

impl TableRow for ValidatingAdmissionPolicy {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        integer("VALIDATIONS"),
        always("PARAMKIND"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = self.spec.clone().unwrap_or_default();
        let param = spec.param_kind.map_or_else(
            || UNSET.into(),
            |param| {
                format!(
                    "{}/{}",
                    param.api_version.unwrap_or_default(),
                    param.kind.unwrap_or_default()
                )
            },
        );
        let validations = spec.validations.as_ref().map_or(0, Vec::len);
        vec![
            self.name().into(),
            validations.to_string(),
            param,
            created(self, now),
        ]
    }
}

impl Strategy for ValidatingAdmissionPolicy {
    const SERVICE: &'static str =
        "podplane.admissionregistration.v1.ValidatingAdmissionPolicyService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const UNCONDITIONAL_UPDATE: bool = false;

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        values::default_word(&mut spec.failure_policy, "Fail");
        if let Some(constraints) = &mut spec.match_constraints {
            values::default_word(&mut constraints.match_policy, "Equivalent");
            constraints.namespace_selector.get_or_insert_default();
            constraints.object_selector.get_or_insert_default();
            let rules = constraints.resource_rules.iter_mut().flatten();
            for rule in rules.chain(constraints.exclude_resource_rules.iter_mut().flatten()) {
                values::default_word(&mut rule.scope, "*");
            }
        }
    }

    separate_status!();

    generation_of!(spec);
}
