//! ClusterRoles: permissions in the whole cluster, or in the namespaces that bind them.

use jiff::Timestamp;

use crate::{
    names,
    object::{Object, Scope, json_conversions},
    rbac::ClusterRole,
    selector::FieldSelectable,
    strategy::Strategy,
    table::{Column, TableRow, always, created_at},
    validation::{ErrorList, FieldPath, Validate, metadata, rbac, workload},
};

impl Object for ClusterRole {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "clusterrole";

    json_conversions!();
}

impl FieldSelectable for ClusterRole {}

impl Validate for ClusterRole {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::path_segment);
        rbac::rules(self.rules.as_deref(), Self::SCOPE, &mut errors);
        let Some(aggregation) = &self.aggregation_rule else {
            return errors;
        };
        let path = FieldPath::new("aggregationRule").child("clusterRoleSelectors");
        let selectors = aggregation.cluster_role_selectors.as_deref();
        let selectors = selectors.unwrap_or_default();
        if selectors.is_empty() {
            let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.required(&path, detail);
        }
        for (index, selector) in selectors.iter().enumerate() {
            workload::label_selector(&path.index(index), selector, &mut errors);
        }
        errors
    }
}

impl TableRow for ClusterRole {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("CREATED AT")];

    fn cells(&self, _: Timestamp) -> Vec<String> {
        vec![self.name().into(), created_at(self)]
    }
}

impl Strategy for ClusterRole {
    const SERVICE: &'static str = "podplane.rbac.v1.ClusterRoleService";
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn errors(role: serde_json::Value) -> String {
        ClusterRole::from_json(role).unwrap().validate().to_string()
    }

    #[test]
    fn aggregation_needs_valid_selectors() {
        let with = |selectors| json!({"metadata": {"name": "system:a"}, "aggregationRule": {"clusterRoleSelectors": selectors}});
        assert_eq!(errors(with(json!([{"matchLabels": {"a": "b"}}]))), "[]");
        assert_eq!(
            errors(with(json!([]))),
            "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil"
        );
        let expression = json!({"matchExpressions": [{"key": "a", "operator": "Near"}]});
        assert_eq!(
            errors(with(json!([expression]))),
            r#"aggregationRule.clusterRoleSelectors[0].matchExpressions[0].operator: Invalid value: "Near": not a valid selector operator"#
        );
    }

    #[test]
    fn names_are_path_segments() {
        let named = |name: &str| json!({"metadata": {"name": name}});
        for name in ["system:node", "View", "a b"] {
            assert_eq!(errors(named(name)), "[]");
        }
        assert_eq!(
            errors(named("a/b")),
            r#"metadata.name: Invalid value: "a/b": may not contain '/'"#
        );
    }
}
