//! Nobody grants what they do not have.

#![expect(clippy::unwrap_used, reason = "a test")]

use podplane_access::{
    Identity, Policy, authorize, bootstrap,
    rbac::escalation::{EscalationError, Grantor},
    relations::RelationIndex,
};
use podplane_api::rbac::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn role(rules: Value) -> Role {
    object(json!({"metadata": {"name": "r", "namespace": "prod"}, "rules": rules}))
}

fn cluster_role(rules: Value) -> ClusterRole {
    object(json!({"metadata": {"name": "r"}, "rules": rules}))
}

fn role_binding(namespace: &str, kind: &str, role: &str) -> RoleBinding {
    object(json!({
        "metadata": {"name": "b", "namespace": namespace}, "roleRef": reference(kind, role),
        "subjects": [{"kind": "User", "name": "bob"}],
    }))
}

fn cluster_role_binding(role: &str) -> ClusterRoleBinding {
    object(json!({"metadata": {"name": "b"}, "roleRef": reference("ClusterRole", role)}))
}

fn reference(kind: &str, name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name})
}

fn pods(verbs: &[&str]) -> Value {
    json!([{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}])
}

fn bind(policy: &mut Policy, user: &str, namespace: Option<&str>, role: &str) {
    let metadata = json!({"name": format!("{user}-{role}"), "namespace": namespace});
    let value = json!({
        "metadata": metadata, "roleRef": reference("ClusterRole", role),
        "subjects": [{"kind": "User", "name": user}],
    });
    match namespace {
        Some(_) => policy.apply(&object::<RoleBinding>(value)),
        None => policy.apply(&object::<ClusterRoleBinding>(value)),
    }
}

/// ada may read pods everywhere; dora is admin of prod; rick may escalate roles and rita one of
/// them; bert may bind `edit` in prod; gus is cluster-admin without `system:masters`.
fn policy() -> Policy {
    let mut policy = Policy::new();
    for role in &bootstrap::cluster_roles() {
        policy.apply(role);
    }
    let named = |name: &str, rules: Value| -> ClusterRole {
        object(json!({"metadata": {"name": name}, "rules": rules}))
    };
    let on_roles = |verb: &str, resources: &[&str], names: &[&str]| {
        json!([{
            "apiGroups": ["rbac.authorization.k8s.io"], "resources": resources, "verbs": [verb],
            "resourceNames": names,
        }])
    };
    let all = ["roles", "clusterroles"];
    for role in [
        named("pod-reader", pods(&["get", "list"])),
        named("escalator", on_roles("escalate", &all, &[])),
        named("escalator-of-r", on_roles("escalate", &all, &["r"])),
        named(
            "binder",
            on_roles("bind", &["clusterroles"], &["edit", "missing"]),
        ),
    ] {
        policy.apply(&role);
    }
    bind(&mut policy, "ada", None, "pod-reader");
    bind(&mut policy, "dora", Some("prod"), "admin");
    bind(&mut policy, "rick", None, "escalator");
    bind(&mut policy, "rita", None, "escalator-of-r");
    bind(&mut policy, "bert", Some("prod"), "binder");
    bind(&mut policy, "gus", None, "cluster-admin");
    policy
}

/// The answer of `check` to the user.
macro_rules! check {
    ($user:expr, $check:ident($($argument:expr),*)) => {{
        let policy = policy();
        let relations = RelationIndex::new();
        let identity = match $user {
            "root" => Identity::new("root", ["system:masters"]),
            user => Identity::new(user, ["system:authenticated"]),
        };
        let grantor = Grantor::new(&identity, &policy, |attributes| {
            authorize(attributes, &relations, &policy).is_allowed()
        });
        grantor.$check($($argument),*)
    }};
}

fn is_forbidden(result: Result<(), EscalationError>) -> bool {
    matches!(result, Err(EscalationError::Forbidden(_)))
}

#[test]
fn a_role_needs_its_rules() {
    let reader = role(pods(&["get"]));
    assert_eq!(check!("ada", check_role("", &reader, None)), Ok(()));
    assert_eq!(check!("dora", check_role("", &reader, None)), Ok(()));
    assert_eq!(
        check!("root", check_role("", &role(json!([])), None)),
        Ok(())
    );
    let error = check!(
        "ada",
        check_role("", &role(pods(&["get", "delete", "watch"])), None)
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "user \"ada\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not \
         currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\" \"watch\"]}"
    );
    let elsewhere: Role = object(json!({
        "metadata": {"name": "r", "namespace": "test"}, "rules": pods(&["get"]),
    }));
    assert_eq!(check!("ada", check_role("", &elsewhere, None)), Ok(()));
    assert!(is_forbidden(check!(
        "dora",
        check_role("", &elsewhere, None)
    )));
}

#[test]
fn who_may_escalate_needs_no_rules() {
    let wanted = role(pods(&["*"]));
    assert_eq!(check!("rick", check_role("", &wanted, None)), Ok(()));
    assert!(is_forbidden(check!("bert", check_role("", &wanted, None))));
    // A creation has no name in the request.
    assert!(is_forbidden(check!("rita", check_role("", &wanted, None))));
    let old = role(json!([]));
    assert_eq!(check!("rita", check_role("r", &wanted, Some(&old))), Ok(()));
}

#[test]
fn a_change_of_references_alone_needs_no_rules() {
    let old = role(pods(&["*"]));
    let mut new = old.clone();
    new.metadata.finalizers = Some(vec!["x/y".to_owned()]);
    new.metadata.resource_version = Some("2".to_owned());
    assert_eq!(check!("bert", check_role("r", &new, Some(&old))), Ok(()));
    new.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    assert!(is_forbidden(check!(
        "bert",
        check_role("r", &new, Some(&old))
    )));
}

#[test]
fn rules_of_a_namespace_do_not_make_a_cluster_role() {
    let wanted = cluster_role(pods(&["get"]));
    assert_eq!(check!("ada", check_cluster_role("", &wanted, None)), Ok(()));
    assert!(is_forbidden(check!(
        "dora",
        check_cluster_role("", &wanted, None)
    )));
}

#[test]
fn an_aggregation_rule_needs_full_authority() {
    let aggregating: ClusterRole = object(json!({
        "metadata": {"name": "r"},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]},
    }));
    let error = check!("ada", check_cluster_role("", &aggregating, None));
    assert_eq!(
        error.unwrap_err().to_string(),
        "must have cluster-admin privileges to use the aggregationRule"
    );
    let plain = cluster_role(json!([]));
    assert!(is_forbidden(check!(
        "ada",
        check_cluster_role("r", &plain, Some(&aggregating))
    )));
    assert_eq!(check!("ada", check_cluster_role("r", &plain, None)), Ok(()));
    for user in ["gus", "root", "rick"] {
        assert_eq!(
            check!(user, check_cluster_role("r", &aggregating, None)),
            Ok(())
        );
    }
}

#[test]
fn a_binding_needs_the_rules_of_its_role() {
    let check = |user: &str, namespace: &str, role: &str| {
        check!(
            user,
            check_role_binding(&role_binding(namespace, "ClusterRole", role), None)
        )
    };
    assert_eq!(check("dora", "prod", "admin"), Ok(()));
    assert_eq!(check("dora", "prod", "view"), Ok(()));
    assert!(is_forbidden(check("dora", "test", "view")));
    assert!(is_forbidden(check("dora", "prod", "cluster-admin")));
    assert_eq!(check("ada", "prod", "pod-reader"), Ok(()));
    assert!(is_forbidden(check("ada", "prod", "view")));
    assert_eq!(check("gus", "prod", "cluster-admin"), Ok(()));
    let of_cluster = |user: &str, role: &str| {
        check!(
            user,
            check_cluster_role_binding(&cluster_role_binding(role), None)
        )
    };
    assert_eq!(of_cluster("ada", "pod-reader"), Ok(()));
    assert!(is_forbidden(of_cluster("dora", "pod-reader")));
    assert_eq!(of_cluster("gus", "cluster-admin"), Ok(()));
}

#[test]
fn who_may_bind_a_role_needs_no_rules() {
    let check = |user: &str, namespace: &str, kind: &str, role: &str| {
        check!(
            user,
            check_role_binding(&role_binding(namespace, kind, role), None)
        )
    };
    assert_eq!(check("bert", "prod", "ClusterRole", "edit"), Ok(()));
    assert!(is_forbidden(check("bert", "test", "ClusterRole", "edit")));
    assert!(is_forbidden(check("bert", "prod", "ClusterRole", "view")));
    assert!(matches!(
        check("bert", "prod", "Role", "edit"),
        Err(EscalationError::RoleNotFound(_))
    ));
    let binding = cluster_role_binding("edit");
    assert!(is_forbidden(check!(
        "bert",
        check_cluster_role_binding(&binding, None)
    )));
}

#[test]
fn a_missing_role_is_bound_by_who_may_bind_it_alone() {
    let binding = role_binding("prod", "ClusterRole", "missing");
    for user in ["bert", "root", "gus"] {
        assert_eq!(
            check!(user, check_role_binding(&binding, None)),
            Ok(()),
            "{user}"
        );
    }
    let error = check!("dora", check_role_binding(&binding, None)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "clusterrole.rbac.authorization.k8s.io \"missing\" not found"
    );
    let odd = role_binding("prod", "Other", "x");
    let error = check!("gus", check_role_binding(&odd, None)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "unsupported role reference kind: \"Other\""
    );
}
