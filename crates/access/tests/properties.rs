//! Random rules and policies against an evaluator that was written apart.

#![expect(clippy::unwrap_used, reason = "a test")]

mod naive;

use std::collections::BTreeMap;

use naive::{NaivePolicy, NaiveRequest, rule_allows};
use podplane_access::{
    Attributes, Identity, Policy, Requirement, ResourceTarget, authorize,
    rbac::{CompiledRules, PolicyObject, cover},
    relations::RelationIndex,
    restriction,
};
use podplane_api::rbac::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use proptest::{
    collection::vec,
    prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest},
    sample::select,
};

const VERBS: [&str; 4] = ["get", "list", "create", "*"];
const GROUPS: [&str; 3] = ["", "apps", "*"];
const RESOURCES: [&str; 8] = [
    "pods",
    "nodes",
    "pods/log",
    "nodes/status",
    "*/log",
    "pods/*",
    "*/*",
    "*",
];
const NAMES: [&str; 3] = ["a", "b", ""];
const PATHS: [&str; 7] = ["/a", "/a/b", "/a*", "/a/*", "/a**", "/*", "*"];

fn words(pool: &'static [&'static str], most: usize) -> impl Strategy<Value = Vec<String>> {
    vec(select(pool).prop_map(str::to_owned), 0..=most)
}

fn rule() -> impl Strategy<Value = PolicyRule> {
    let resources = (words(&GROUPS, 2), words(&RESOURCES, 3), words(&NAMES, 2));
    let paths = prop_oneof![3 => Just(Vec::new()), 1 => words(&PATHS, 2)];
    (words(&VERBS, 2), resources, paths).prop_map(|(verbs, (groups, resources, names), paths)| {
        PolicyRule {
            api_groups: Some(groups),
            non_resource_urls: Some(paths),
            resource_names: Some(names),
            resources: Some(resources),
            verbs,
        }
    })
}

/// Every request that the words above can tell apart, and some that no rule names.
fn requests() -> Vec<NaiveRequest<'static>> {
    let mut requests = Vec::new();
    for verb in ["get", "list", "create", "else"] {
        for path in [
            "/a", "/a/b", "/a/", "/a/else", "/aelse", "/else", "/", "", "else",
        ] {
            requests.push(NaiveRequest {
                verb,
                path: Some(path),
                ..NaiveRequest::default()
            });
        }
        for group in ["", "apps", "else"] {
            for resource in ["pods", "nodes", "else"] {
                for subresource in ["", "log", "status", "*", "else"] {
                    for name in ["", "a", "b", "else"] {
                        requests.push(NaiveRequest {
                            verb,
                            group,
                            resource,
                            subresource,
                            name,
                            ..NaiveRequest::default()
                        });
                    }
                }
            }
        }
    }
    requests
}

fn attributes<'a>(identity: &'a Identity, request: &NaiveRequest<'a>) -> Attributes<'a> {
    if let Some(path) = request.path {
        return Attributes::path(identity, request.verb, path);
    }
    let target = ResourceTarget {
        group: request.group,
        version: "v1",
        resource: request.resource,
        subresource: request.subresource,
        namespace: request.namespace,
        name: request.name,
        ..ResourceTarget::default()
    };
    Attributes::resource(identity, request.verb, target)
}

fn all_allow(rules: &[PolicyRule], request: &NaiveRequest<'_>) -> bool {
    rules.iter().any(|rule| rule_allows(rule, request))
}

proptest! {
    /// Rules cover others if and only if they allow every single request that the others do.
    #[test]
    fn rules_cover_what_they_allow(owned in vec(rule(), 0..4), wanted in vec(rule(), 0..3)) {
        let references: Vec<&PolicyRule> = owned.iter().collect();
        let missing = cover::missing(&references, &wanted);
        let refused = requests()
            .into_iter()
            .find(|request| all_allow(&wanted, request) && !all_allow(&owned, request));
        prop_assert_eq!(missing.is_empty(), refused.is_none(), "{:?} {:?}", missing, refused);
        prop_assert_eq!(cover::covers(&references, &wanted), missing.is_empty());
        let completed: Vec<&PolicyRule> = owned.iter().chain(&missing).collect();
        prop_assert!(cover::covers(&completed, &wanted));
        for rule in &missing {
            prop_assert!(!cover::covers(&references, std::slice::from_ref(rule)));
        }
    }

    #[test]
    fn compiled_rules_allow_what_the_words_say(rules in vec(rule(), 0..4)) {
        let compiled = CompiledRules::of(&rules);
        let identity = Identity::default();
        for request in requests() {
            let allowed = compiled.allow(&attributes(&identity, &request));
            prop_assert_eq!(allowed, all_allow(&rules, &request), "{:?}", request);
        }
    }

    /// A policy that was kept by events decides as the objects that are left.
    #[test]
    fn a_policy_decides_as_its_objects(changes in vec(change(), 0..30)) {
        let mut policy = Policy::new();
        let mut objects = BTreeMap::new();
        for change in &changes {
            let object = &change.object;
            if change.is_deletion {
                policy.delete(object.as_policy_object());
                objects.remove(&object.key());
            } else {
                policy.apply(object.as_policy_object());
                objects.insert(object.key(), object.clone());
            }
        }
        let naive = naive_policy(objects.values());
        let rebuilt = Policy::from_objects(objects.values().map(AnyObject::as_policy_object));
        for identity in identities() {
            for namespace in ["", "x", "y"] {
                let resolved = policy.rules_for(&identity, namespace);
                let rules: Vec<PolicyRule> = resolved.rules.into_iter().cloned().collect();
                let expected = naive.rules(&identity.user, &identity.groups, namespace);
                prop_assert_eq!(&rules, &expected);
                for request in requests().into_iter().step_by(7) {
                    let request = NaiveRequest {
                        user: &identity.user,
                        groups: &identity.groups,
                        namespace,
                        ..request
                    };
                    let asked = attributes(&identity, &request);
                    let decision = policy.authorize(&asked);
                    prop_assert_eq!(decision.is_allowed(), naive.allows(&request), "{:?}", request);
                    prop_assert_eq!(decision, rebuilt.authorize(&asked));
                }
            }
        }
    }

    /// No text makes anything panic, and nobody gets anything by an odd one.
    #[test]
    fn any_text_is_answered(
        user in any::<String>(), texts in vec(any::<String>(), 6), is_node in any::<bool>(),
    ) {
        let user = if is_node { format!("system:node:{user}") } else { user };
        let identity = Identity::new(user, ["system:nodes"]);
        let selector = [Requirement::equals(texts[4].clone(), texts[5].clone())];
        let target = ResourceTarget {
            group: &texts[0],
            resource: &texts[1],
            subresource: &texts[2],
            name: &texts[3],
            field_selector: &selector,
            ..ResourceTarget::default()
        };
        let attributes = Attributes::resource(&identity, &texts[4], target.of_request(&texts[4]));
        let verdict = authorize(&attributes, &RelationIndex::new(), &Policy::new());
        prop_assert!(!verdict.is_allowed());
        attributes.status_message(verdict.decision.reason());
        restriction::is_restricted_label(&texts[0]);
    }
}

/// A change of a policy.
#[derive(Clone, Debug)]
struct Change {
    is_deletion: bool,
    object: AnyObject,
}

#[derive(Clone, Debug)]
enum AnyObject {
    Role(Role),
    ClusterRole(ClusterRole),
    RoleBinding(RoleBinding),
    ClusterRoleBinding(ClusterRoleBinding),
}

impl AnyObject {
    fn as_policy_object(&self) -> PolicyObject<'_> {
        match self {
            Self::Role(object) => object.into(),
            Self::ClusterRole(object) => object.into(),
            Self::RoleBinding(object) => object.into(),
            Self::ClusterRoleBinding(object) => object.into(),
        }
    }

    fn key(&self) -> (u8, String, String) {
        let (kind, metadata) = match self {
            Self::Role(object) => (0, &object.metadata),
            Self::ClusterRole(object) => (1, &object.metadata),
            Self::RoleBinding(object) => (2, &object.metadata),
            Self::ClusterRoleBinding(object) => (3, &object.metadata),
        };
        let namespace = metadata.namespace.clone().unwrap_or_default();
        (kind, namespace, metadata.name.clone().unwrap())
    }
}

fn naive_policy<'a>(objects: impl IntoIterator<Item = &'a AnyObject>) -> NaivePolicy {
    let mut policy = NaivePolicy::default();
    for object in objects {
        match object.clone() {
            AnyObject::Role(role) => policy.roles.push(role),
            AnyObject::ClusterRole(role) => policy.cluster_roles.push(role),
            AnyObject::RoleBinding(binding) => policy.role_bindings.push(binding),
            AnyObject::ClusterRoleBinding(binding) => policy.cluster_role_bindings.push(binding),
        }
    }
    policy
}

fn identities() -> [Identity; 4] {
    [
        Identity::new("ada", ["dev"]),
        Identity::new("bob", ["dev", "ops"]),
        Identity::service_account("x", "ci"),
        Identity::new("none", [""; 0]),
    ]
}

fn subject() -> impl Strategy<Value = Subject> {
    const KINDS: [(&str, &str, Option<&str>); 11] = [
        ("User", "ada", None),
        ("User", "bob", None),
        ("User", "system:serviceaccount:x:ci", None),
        ("Group", "dev", None),
        ("Group", "ops", None),
        ("Group", "system:serviceaccounts:x", None),
        ("ServiceAccount", "ci", None),
        ("ServiceAccount", "ci", Some("")),
        ("ServiceAccount", "ci", Some("x")),
        ("ServiceAccount", "ci", Some("y")),
        ("Robot", "ada", None),
    ];
    select(&KINDS[..]).prop_map(|(kind, name, namespace)| Subject {
        api_group: None,
        kind: kind.to_owned(),
        name: name.to_owned(),
        namespace: namespace.map(str::to_owned),
    })
}

fn change() -> impl Strategy<Value = Change> {
    let metadata = (select(&["p", "q"][..]), select(&["x", "y"][..]));
    let reference = (
        select(&["Role", "ClusterRole", "Other"][..]),
        select(&["p", "q", "missing"][..]),
    );
    let content = (vec(rule(), 0..3), reference, vec(subject(), 0..3));
    (
        0..4u8,
        metadata,
        content,
        select(&[false, false, false, true][..]),
    )
        .prop_map(
            |(kind, (name, namespace), (rules, (role_kind, role), subjects), is_deletion)| {
                let mut metadata = podplane_api::meta::ObjectMeta {
                    name: Some(name.to_owned()),
                    ..Default::default()
                };
                let role_ref = RoleRef {
                    api_group: Some("rbac.authorization.k8s.io".to_owned()),
                    kind: role_kind.to_owned(),
                    name: role.to_owned(),
                };
                let (rules, subjects) = (Some(rules), Some(subjects));
                if kind % 2 == 0 {
                    metadata.namespace = Some(namespace.to_owned());
                }
                let object = match kind {
                    0 => AnyObject::Role(Role { metadata, rules }),
                    1 => AnyObject::ClusterRole(ClusterRole {
                        aggregation_rule: None,
                        metadata,
                        rules,
                    }),
                    2 => AnyObject::RoleBinding(RoleBinding {
                        metadata,
                        role_ref,
                        subjects,
                    }),
                    _ => AnyObject::ClusterRoleBinding(ClusterRoleBinding {
                        metadata,
                        role_ref,
                        subjects,
                    }),
                };
                Change {
                    is_deletion,
                    object,
                }
            },
        )
}

#[test]
fn a_rule_for_an_empty_subresource_allows_nothing() {
    let rule = PolicyRule {
        api_groups: Some(vec!["*".to_owned()]),
        resources: Some(vec!["*/".to_owned(), "/".to_owned()]),
        verbs: vec!["*".to_owned()],
        ..PolicyRule::default()
    };
    let compiled = CompiledRules::of(&[rule]);
    let identity = Identity::default();
    let mut requests = requests().into_iter();
    assert!(!requests.any(|request| compiled.allow(&attributes(&identity, &request))));
}
