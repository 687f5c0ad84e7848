//! Validation and defaults that roles share, and those that bindings share (source:
//! `pkg/apis/rbac/validation` and `pkg/apis/rbac/v1/defaults.go`).

use serde_json::json;

use super::{ErrorList, FieldPath};
use crate::{
    Scope, names,
    rbac::{PolicyRule, RoleRef, Subject},
};

/// The API group of roles, users and groups.
const GROUP: &str = "rbac.authorization.k8s.io";
const SERVICE_ACCOUNT: &str = "ServiceAccount";
/// The kinds of subjects, in the order in which errors list them.
const SUBJECT_KINDS: [&str; 3] = [SERVICE_ACCOUNT, "User", "Group"];

/// Checks the rules of a role of that scope.
pub(crate) fn rules(rules: Option<&[PolicyRule]>, scope: Scope, errors: &mut ErrorList) {
    let path = FieldPath::new("rules");
    for (index, rule) in rules.into_iter().flatten().enumerate() {
        validate_rule(&path.index(index), rule, scope, errors);
    }
}

fn validate_rule(path: &FieldPath, rule: &PolicyRule, scope: Scope, errors: &mut ErrorList) {
    let PolicyRule {
        api_groups,
        non_resource_urls: urls,
        resource_names,
        resources,
        verbs,
    } = rule;
    let is_empty = |list: &Option<Vec<String>>| list.as_deref().is_none_or(<[_]>::is_empty);
    if verbs.is_empty() {
        let detail = "verbs must contain at least one value";
        errors.required(&path.child("verbs"), detail);
    }
    if !is_empty(urls) {
        let path = path.child("nonResourceURLs");
        if scope == Scope::Namespaced {
            let detail = "namespaced rules cannot apply to non-resource URLs";
            errors.invalid(&path, json!(urls), detail);
        }
        if ![api_groups, resources, resource_names]
            .into_iter()
            .all(is_empty)
        {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            errors.invalid(&path, json!(urls), detail);
        }
        return;
    }
    if is_empty(api_groups) {
        let detail = "resource rules must supply at least one api group";
        errors.required(&path.child("apiGroups"), detail);
    }
    if is_empty(resources) {
        let detail = "resource rules must supply at least one resource";
        errors.required(&path.child("resources"), detail);
    }
}

/// Sets the API groups that a binding may leave out.
pub(crate) fn set_binding_defaults(role: &mut RoleRef, subjects: Option<&mut Vec<Subject>>) {
    if role.api_group.as_deref().is_none_or(str::is_empty) {
        role.api_group = Some(GROUP.to_owned());
    }
    for subject in subjects.into_iter().flatten() {
        if subject.api_group.as_deref().is_none_or(str::is_empty) {
            subject.api_group =
                matches!(subject.kind.as_str(), "User" | "Group").then(|| GROUP.to_owned());
        }
    }
}

/// Checks the role of a binding, which is of one of `kinds`, and its subjects.
pub(crate) fn binding(
    role: &RoleRef,
    kinds: &[&str],
    subjects: Option<&[Subject]>,
    scope: Scope,
    errors: &mut ErrorList,
) {
    let path = FieldPath::new("roleRef");
    let RoleRef {
        api_group,
        kind,
        name,
    } = role;
    let api_group = api_group.as_deref().unwrap_or_default();
    if api_group != GROUP {
        errors.not_supported(&path.child("apiGroup"), api_group, &[GROUP]);
    }
    if !kinds.contains(&kind.as_str()) {
        errors.not_supported(&path.child("kind"), kind, kinds);
    }
    match name.as_str() {
        "" => errors.required(&path.child("name"), ""),
        name => errors.invalid_each(&path.child("name"), name, names::path_segment(name)),
    }
    let path = FieldPath::new("subjects");
    for (index, subject) in subjects.into_iter().flatten().enumerate() {
        validate_subject(&path.index(index), subject, scope, errors);
    }
}

fn validate_subject(path: &FieldPath, subject: &Subject, scope: Scope, errors: &mut ErrorList) {
    let Subject {
        api_group,
        kind,
        name,
        namespace,
    } = subject;
    let group = api_group.as_deref().unwrap_or_default();
    if name.is_empty() {
        errors.required(&path.child("name"), "");
    }
    match kind.as_str() {
        SERVICE_ACCOUNT => {
            if !name.is_empty() {
                let path = path.child("name");
                errors.invalid_each(&path, name, names::dns1123_subdomain(name));
            }
            if !group.is_empty() {
                errors.not_supported(&path.child("apiGroup"), group, &[""]);
            }
            if scope == Scope::Cluster && namespace.as_deref().is_none_or(str::is_empty) {
                errors.required(&path.child("namespace"), "");
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errors.not_supported(&path.child("apiGroup"), group, &[GROUP]);
            }
        }
        other => errors.not_supported(&path.child("kind"), other, &SUBJECT_KINDS),
    }
}

/// Checks that the role of a binding is unchanged.
pub(crate) fn immutable_role(new: &RoleRef, old: &RoleRef, errors: &mut ErrorList) {
    if new != old {
        errors.invalid(
            &FieldPath::new("roleRef"),
            json!(new),
            "cannot change roleRef",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors_of_rule(rule: serde_json::Value, scope: Scope) -> String {
        let rule: PolicyRule = serde_json::from_value(rule).unwrap();
        let mut errors = ErrorList::new();
        rules(Some(&[rule]), scope, &mut errors);
        errors.to_string()
    }

    #[test]
    fn rules_have_verbs_and_either_resources_or_urls() {
        let pods = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
        let urls = json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]});
        assert_eq!(errors_of_rule(pods, Scope::Namespaced), "[]");
        assert_eq!(errors_of_rule(urls.clone(), Scope::Cluster), "[]");
        assert_eq!(
            errors_of_rule(urls, Scope::Namespaced),
            r#"rules[0].nonResourceURLs: Invalid value: ["/metrics"]: namespaced rules cannot apply to non-resource URLs"#
        );
        let both = json!({"nonResourceURLs": ["/"], "resourceNames": ["a"], "verbs": []});
        assert_eq!(
            errors_of_rule(both, Scope::Cluster),
            r#"[rules[0].verbs: Required value: verbs must contain at least one value, rules[0].nonResourceURLs: Invalid value: ["/"]: rules cannot apply to both regular resources and non-resource URLs]"#
        );
        assert_eq!(
            errors_of_rule(json!({"verbs": ["*"]}), Scope::Namespaced),
            "[rules[0].apiGroups: Required value: resource rules must supply at least one api group, rules[0].resources: Required value: resource rules must supply at least one resource]"
        );
    }
}
