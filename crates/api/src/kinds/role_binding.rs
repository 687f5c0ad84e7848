//! RoleBindings: who has the permissions of a role in a namespace.

use jiff::Timestamp;

use crate::{
    names,
    object::{Object, Scope, json_conversions},
    rbac::{RoleBinding, RoleRef, Subject},
    selector::FieldSelectable,
    strategy::Strategy,
    table::{Column, TableRow, always, created, wide},
    validation::{ErrorList, Validate, metadata, rbac},
};

impl Object for RoleBinding {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "rolebinding";

    json_conversions!();
}

impl FieldSelectable for RoleBinding {}

impl Validate for RoleBinding {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::path_segment);
        let kinds = ["Role", "ClusterRole"];
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

/// The columns of bindings.
pub(super) const COLUMNS: &[Column] = &[
    always("NAME"),
    always("ROLE"),
    always("AGE"),
    wide("USERS"),
    wide("GROUPS"),
    wide("SERVICEACCOUNTS"),
];

/// The cells of a binding.
pub(super) fn cells(
    name: &str,
    role: &RoleRef,
    age: String,
    subjects: Option<&[Subject]>,
) -> Vec<String> {
    let named = |kind: &str| {
        let subjects = subjects.into_iter().flatten();
        let of_kind = subjects.filter(|subject| subject.kind == kind);
        let names: Vec<_> = of_kind
            .map(|subject| match kind {
                "ServiceAccount" => {
                    let namespace = subject.namespace.as_deref().unwrap_or_default();
                    format!("{namespace}/{}", subject.name)
                }
                _ => subject.name.clone(),
            })
            .collect();
        names.join(", ")
    };
    vec![
        name.to_owned(),
        format!("{}/{}", role.kind, role.name),
        age,
        named("User"),
        named("Group"),
        named("ServiceAccount"),
    ]
}

impl TableRow for RoleBinding {
    const COLUMNS: &'static [Column] = COLUMNS;

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let age = created(self, now);
        cells(self.name(), &self.role_ref, age, self.subjects.as_deref())
    }
}

impl Strategy for RoleBinding {
    const SERVICE: &'static str = "podplane.rbac.v1.RoleBindingService";

    fn set_defaults(&mut self) {
        rbac::set_binding_defaults(&mut self.role_ref, self.subjects.as_mut());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn binding(role: Value, subjects: Value) -> RoleBinding {
        let metadata = json!({"name": "a:b", "namespace": "ns"});
        let document = json!({"metadata": metadata, "roleRef": role, "subjects": subjects});
        let mut binding = RoleBinding::from_json(document).unwrap();
        binding.set_defaults();
        binding
    }

    fn of_role(subjects: Value) -> RoleBinding {
        binding(json!({"kind": "Role", "name": "r"}), subjects)
    }

    #[test]
    fn sets_the_groups_of_roles_and_subjects() {
        let subjects = json!([
            {"kind": "User", "name": "u"},
            {"kind": "Group", "name": "g", "apiGroup": ""},
            {"kind": "ServiceAccount", "name": "s", "apiGroup": ""}
        ]);
        let binding = of_role(subjects);
        let group = "rbac.authorization.k8s.io";
        assert_eq!(binding.role_ref.api_group.as_deref(), Some(group));
        let groups = binding.subjects.iter().flatten();
        let groups: Vec<_> = groups.map(|subject| subject.api_group.as_deref()).collect();
        assert_eq!(groups, [Some(group), Some(group), None]);
        assert!(binding.validate().is_empty());
    }

    #[test]
    fn refuses_other_roles_and_subjects() {
        let cases = [
            (
                binding(
                    json!({"kind": "Node", "name": "", "apiGroup": "x"}),
                    json!([]),
                ),
                r#"[roleRef.apiGroup: Unsupported value: "x": supported values: "rbac.authorization.k8s.io", roleRef.kind: Unsupported value: "Node": supported values: "Role", "ClusterRole", roleRef.name: Required value]"#,
            ),
            (
                binding(json!({"kind": "ClusterRole", "name": "a%"}), json!([])),
                r#"roleRef.name: Invalid value: "a%": may not contain '%'"#,
            ),
            (
                of_role(json!([{"kind": "User", "name": "", "apiGroup": "x"}])),
                r#"[subjects[0].name: Required value, subjects[0].apiGroup: Unsupported value: "x": supported values: "rbac.authorization.k8s.io"]"#,
            ),
            (
                of_role(json!([{"kind": "ServiceAccount", "name": "a", "apiGroup": "x"}])),
                r#"subjects[0].apiGroup: Unsupported value: "x": supported values: """#,
            ),
            (
                of_role(json!([{"kind": "Robot", "name": "a"}])),
                r#"subjects[0].kind: Unsupported value: "Robot": supported values: "ServiceAccount", "User", "Group""#,
            ),
        ];
        for (binding, expected) in cases {
            assert_eq!(binding.validate().to_string(), expected);
        }
        let upper = of_role(json!([{"kind": "ServiceAccount", "name": "A"}]));
        let refused = upper.validate().to_string();
        assert!(refused.starts_with(r#"subjects[0].name: Invalid value: "A": a lowercase"#));
    }

    #[test]
    fn the_role_is_immutable() {
        let old = of_role(json!([]));
        let mut new = of_role(json!([{"kind": "User", "name": "u"}]));
        assert!(new.validate_update(&old).is_empty());
        new.role_ref.name = "other".into();
        assert_eq!(
            new.validate_update(&old).to_string(),
            r#"roleRef: Invalid value: {"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"other"}: cannot change roleRef"#
        );
    }

    #[test]
    fn shows_role_and_subjects() {
        let subjects = json!([
            {"kind": "User", "name": "u"},
            {"kind": "User", "name": "v"},
            {"kind": "ServiceAccount", "name": "s", "namespace": "n"}
        ]);
        assert_eq!(
            of_role(subjects).cells(Timestamp::UNIX_EPOCH),
            ["a:b", "Role/r", "<unknown>", "u, v", "", "n/s"]
        );
    }
}
