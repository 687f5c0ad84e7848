//! ClusterRoleBindings: who has the permissions of a role in the whole cluster.

use jiff::Timestamp;

use super::role_binding::{COLUMNS, cells};
use crate::{
    names,
    object::{Object, Scope, json_conversions},
    rbac::ClusterRoleBinding,
    selector::FieldSelectable,
    strategy::Strategy,
    table::{Column, TableRow, created},
    validation::{ErrorList, Validate, metadata, rbac},
};

impl Object for ClusterRoleBinding {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "clusterrolebinding";

    json_conversions!();
}

impl FieldSelectable for ClusterRoleBinding {}

impl Validate for ClusterRoleBinding {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::path_segment);
        let kinds = ["ClusterRole"];
        let subjects = self.subjects.as_deref();
        rbac::binding(&self.role_ref, &kinds, subjects, Self::SCOPE, &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        rbac::immutable_role(&self.role_ref, &old.role_ref, &mut errors);
        errors
    }
}

impl TableRow for ClusterRoleBinding {
    const COLUMNS: &'static [Column] = COLUMNS;

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let age = created(self, now);
        cells(self.name(), &self.role_ref, age, self.subjects.as_deref())
    }
}

impl Strategy for ClusterRoleBinding {
    const SERVICE: &'static str = "podplane.rbac.v1.ClusterRoleBindingService";

    fn set_defaults(&mut self) {
        rbac::set_binding_defaults(&mut self.role_ref, self.subjects.as_mut());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn binds_cluster_roles_to_accounts_of_a_namespace() {
        let subject = json!({"kind": "ServiceAccount", "name": "s"});
        let role = json!({"kind": "Role", "name": "r"});
        let document = json!({"metadata": {"name": "a"}, "roleRef": role, "subjects": [subject]});
        let mut binding = ClusterRoleBinding::from_json(document).unwrap();
        binding.set_defaults();
        assert_eq!(
            binding.validate().to_string(),
            r#"[roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole", subjects[0].namespace: Required value]"#
        );
        binding.role_ref.kind = "ClusterRole".into();
        for subject in binding.subjects.iter_mut().flatten() {
            subject.namespace = Some("default".into());
        }
        assert!(binding.validate().is_empty());
    }
}
