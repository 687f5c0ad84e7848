//! ValidatingAdmissionPolicyBindings: where admission policies apply, and with which parameters.

use jiff::Timestamp;

use crate::{
    admissionregistration::{ParamRef, ValidatingAdmissionPolicyBinding},
    kinds::pod::one_of,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, generation_of},
    table::{Column, TableRow, UNSET, always, created, workload},
    validation::{ErrorList, FieldPath, Validate, metadata, values, workload as workload_rules},
};

const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];

impl Object for ValidatingAdmissionPolicyBinding {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "validatingadmissionpolicybinding";
    const CATEGORIES: &'static [&'static str] = &["api-extensions"];

    json_conversions_through_values!();
}

impl FieldSelectable for ValidatingAdmissionPolicyBinding {}

impl Validate for ValidatingAdmissionPolicyBinding {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("spec");
        let policy = path.child("policyName");
        values::named(
            &policy,
            &self.spec.policy_name,
            names::dns1123_subdomain,
            &mut errors,
        );
        if let Some(params) = &self.spec.param_ref {
            param_ref(&path.child("paramRef"), params, &mut errors);
        }
        let actions = &self.spec.validation_actions;
        let path = path.child("validationActions");
        if actions.is_empty() {
            errors.required(&path, "");
        }
        for (index, action) in actions.iter().enumerate() {
            one_of(&path.index(index), Some(action), &ACTIONS, &mut errors);
        }
        let has = |action: &str| actions.iter().any(|given| given == action);
        if has("Deny") && has("Warn") {
            let detail = "must not contain both Deny and Warn (repeating the same validation failure \
                          information in the API response and headers serves no purpose)";
            errors.invalid(&path, serde_json::json!(actions), detail);
        }
        errors
    }
}

fn param_ref(path: &FieldPath, params: &ParamRef, errors: &mut ErrorList) {
    let is_named = params.name.as_deref().is_some_and(|name| !name.is_empty());
    match (is_named, &params.selector) {
        (true, Some(_)) => {
            let detail = "name and selector are mutually exclusive";
            errors.forbidden(&path.child("name"), detail);
            errors.forbidden(&path.child("selector"), detail);
        }
        (false, None) => errors.required(path, "one of name or selector must be specified"),
        (false, Some(selector)) => {
            workload_rules::label_selector(&path.child("selector"), selector, errors);
        }
        (true, None) => {}
    }
    one_of(
        &path.child("parameterNotFoundAction"),
        params.parameter_not_found_action.as_deref(),
        &["Allow", "Deny"],
        errors,
    );
}

impl TableRow for ValidatingAdmissionPolicyBinding {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("POLICYNAME"),
        always("PARAMREF"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let param = self.spec.param_ref.as_ref().map_or_else(
            || UNSET.into(),
            |param| {
                let name = param.name.clone().unwrap_or_default();
                match param.namespace.as_deref() {
                    Some(namespace) if !namespace.is_empty() => format!("{namespace}/{name}"),
                    _ if !name.is_empty() => format!("*/{name}"),
                    _ => workload::selector(&param.selector.clone().unwrap_or_default()),
                }
            },
        );
        vec![
            self.name().into(),
            self.spec.policy_name.clone(),
            param,
            created(self, now),
        ]
    }
}

impl Strategy for ValidatingAdmissionPolicyBinding {
    const SERVICE: &'static str =
        "podplane.admissionregistration.v1.ValidatingAdmissionPolicyBindingService";
    const UNCONDITIONAL_UPDATE: bool = false;

    generation_of!(spec);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn parameters_are_named_or_selected() {
        let errors = |params: Value| {
            let spec =
                json!({"policyName": "p", "validationActions": ["Deny"], "paramRef": params});
            let document = json!({"metadata": {"name": "b"}, "spec": spec});
            let binding = ValidatingAdmissionPolicyBinding::from_json(document).unwrap();
            binding.validate()
        };
        let named = json!({"name": "a", "parameterNotFoundAction": "Allow"});
        assert!(errors(named).is_empty());
        let selected = json!({"selector": {}, "parameterNotFoundAction": "Deny"});
        assert!(errors(selected).is_empty());
        for (wrong, why) in [
            (
                json!({"parameterNotFoundAction": "Deny"}),
                "spec.paramRef: Required value: one of name or selector must be specified",
            ),
            (
                json!({"name": "a", "selector": {}, "parameterNotFoundAction": "Deny"}),
                "spec.paramRef.name: Forbidden: name and selector are mutually exclusive",
            ),
            (
                json!({"name": "a"}),
                "spec.paramRef.parameterNotFoundAction: Required value",
            ),
            (
                json!({"name": "a", "parameterNotFoundAction": "Warn"}),
                "spec.paramRef.parameterNotFoundAction: Unsupported value",
            ),
        ] {
            let found = errors(wrong).to_string();
            assert!(found.contains(why), "{found}");
        }
    }
}
