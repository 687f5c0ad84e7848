//! The default roles and bindings, and their upkeep.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use podplane_access::{
    bootstrap::{
        AUTOUPDATE, BOOTSTRAPPING_LABEL, Reconciliation, cluster_role_bindings, cluster_roles,
        reconcile_binding, reconcile_role,
    },
    rbac::cover,
};
use podplane_api::{
    kinds::{self, KindVisitor},
    rbac::{ClusterRole, ClusterRoleBinding, PolicyRule, Subject},
    strategy::Strategy,
};

fn roles() -> BTreeMap<String, ClusterRole> {
    let roles = cluster_roles().into_iter();
    roles
        .map(|role| (role.metadata.name.clone().unwrap(), role))
        .collect()
}

fn rules(role: &ClusterRole) -> Vec<PolicyRule> {
    role.rules.clone().unwrap()
}

#[test]
fn every_object_is_maintained_and_its_name_is_its_own() {
    let (key, value) = BOOTSTRAPPING_LABEL;
    let bindings = cluster_role_bindings();
    let roles = cluster_roles();
    let metadata = roles.iter().map(|role| ("role", &role.metadata));
    let metadata = metadata.chain(
        bindings
            .iter()
            .map(|binding| ("binding", &binding.metadata)),
    );
    let mut names = BTreeSet::new();
    for (kind, metadata) in metadata {
        assert_eq!(metadata.labels.as_ref().unwrap()[key], value);
        assert_eq!(metadata.annotations.as_ref().unwrap()[AUTOUPDATE], "true");
        let name = metadata.name.clone().unwrap();
        assert!(
            names.insert((kind, name.clone())),
            "{kind} {name} is there twice"
        );
    }
}

#[test]
fn every_binding_has_a_role_and_nobody_is_bound_to_system_node() {
    let roles = roles();
    for binding in cluster_role_bindings() {
        assert!(
            roles.contains_key(&binding.role_ref.name),
            "{:?}",
            binding.role_ref
        );
        let is_of_nodes = binding.role_ref.name == "system:node";
        assert_eq!(binding.subjects.is_none(), is_of_nodes);
    }
}

#[test]
fn rules_are_well_formed() {
    for (name, role) in roles() {
        for rule in rules(&role) {
            let paths = rule.non_resource_urls.is_some();
            assert_ne!(paths, rule.resources.is_some(), "{name}: {rule:?}");
            assert_eq!(
                rule.api_groups.is_some(),
                rule.resources.is_some(),
                "{name}"
            );
            assert!(!rule.verbs.is_empty(), "{name}");
            for words in [&rule.api_groups, &rule.resources, &rule.resource_names] {
                let words = words.iter().flatten();
                assert!(
                    words.clone().count() == words.collect::<BTreeSet<_>>().len(),
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn view_is_a_part_of_edit_and_edit_of_admin() {
    let roles = roles();
    let covers = |owner: &str, part: &str| {
        let owned = rules(&roles[owner]);
        cover::covers(&owned.iter().collect::<Vec<_>>(), &rules(&roles[part]))
    };
    assert!(!rules(&roles["view"]).is_empty());
    assert!(covers("admin", "edit") && covers("edit", "view"));
    assert!(!covers("view", "edit") && !covers("edit", "admin"));
    for name in roles.keys() {
        assert!(covers("cluster-admin", name), "{name}");
    }
}

/// The stored kinds, as GROUP/PLURAL. True: they are garbage-collected.
struct StoredKinds(BTreeMap<String, bool>);

impl KindVisitor for StoredKinds {
    fn visit<K: Strategy>(&mut self) {
        let name = format!("{}/{}", K::GROUP, K::PLURAL);
        self.0.insert(name, K::IS_COLLECTED);
    }
}

fn stored_kinds() -> BTreeMap<String, bool> {
    let mut kinds = StoredKinds(BTreeMap::new());
    kinds::visit(&mut kinds);
    kinds.0
}

/// The rules of a role as pairs of GROUP/RESOURCE and the verb.
fn rights(role: &ClusterRole) -> BTreeSet<(String, String)> {
    let mut rights = BTreeSet::new();
    for rule in rules(role) {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                let name = format!("{group}/{resource}");
                rights.extend(rule.verbs.iter().map(|verb| (name.clone(), verb.clone())));
            }
        }
    }
    rights
}

#[test]
fn the_controller_manager_may_collect_each_kind_and_no_subresource() {
    let rights = rights(&roles()["system:podplane:controller-manager"]);
    for (kind, is_collected) in stored_kinds() {
        for verb in ["get", "update", "delete"] {
            let right = (kind.clone(), verb.to_owned());
            assert_eq!(rights.contains(&right), is_collected, "{verb} {kind}");
        }
    }
    for (resource, verb) in rights {
        assert!(!resource.contains('*') && verb != "*", "{verb} {resource}");
        let is_part = resource.split('/').count() == 3;
        assert!(!is_part || verb == "update", "{verb} {resource}");
    }
}

#[test]
fn the_roles_of_processes_name_what_is_served() {
    let kinds = stored_kinds();
    let others = [
        "trace.podplane.io/spans",
        "ipam.podplane.io/blocks",
        "certificates.k8s.io/signers",
        "events.k8s.io/events",
    ];
    for (name, role) in roles() {
        for (resource, _) in rights(&role) {
            let kind: Vec<_> = resource.splitn(3, '/').take(2).collect();
            let kind = kind.join("/");
            let is_served = kinds.contains_key(&kind) || others.contains(&&*kind);
            let is_ours = name.starts_with("system:podplane:");
            assert!(is_served || !is_ours, "{name}: {resource}");
        }
    }
}

/// The user-facing roles reach no right that would make their users administrators of the cluster.
#[test]
fn admin_does_not_reach_beyond_its_namespace() {
    let roles = roles();
    for rule in rules(&roles["admin"]) {
        let resources = rule.resources.clone().unwrap();
        let has = |resource: &str| resources.iter().any(|own| own == resource);
        let writes = rule
            .verbs
            .iter()
            .any(|verb| !["get", "list", "watch"].contains(&&**verb));
        assert!(!has("nodes") && !has("*"), "{rule:?}");
        assert!(!writes || !has("pods/status") && !has("pods/binding") && !has("namespaces"));
        for verb in ["*", "escalate", "bind"] {
            assert!(!rule.verbs.iter().any(|own| own == verb), "{rule:?}");
        }
    }
}

#[test]
fn an_absent_object_is_created_and_a_current_one_is_kept() {
    for role in cluster_roles() {
        assert_eq!(
            reconcile_role(&role, None),
            Reconciliation::Create(role.clone())
        );
        assert_eq!(reconcile_role(&role, Some(&role)), Reconciliation::Keep);
    }
    for binding in cluster_role_bindings() {
        let created = Reconciliation::Create(binding.clone());
        assert_eq!(reconcile_binding(&binding, None), created);
        assert_eq!(
            reconcile_binding(&binding, Some(&binding)),
            Reconciliation::Keep
        );
    }
}

#[test]
fn missing_rules_are_added_and_others_stay() {
    let expected = &roles()["system:basic-user"];
    let extra = PolicyRule {
        non_resource_urls: Some(vec!["/extra".to_owned()]),
        verbs: vec!["get".to_owned()],
        ..PolicyRule::default()
    };
    let mut stored = expected.clone();
    let first = rules(expected)[0].clone();
    stored.rules = Some(vec![extra.clone(), first.clone()]);
    stored.metadata.resource_version = Some("7".to_owned());
    let Reconciliation::Update(updated) = reconcile_role(expected, Some(&stored)) else {
        panic!("not updated");
    };
    let missing = &rules(expected)[1];
    assert_eq!(rules(&updated), [extra, first, missing.clone()]);
    assert_eq!(updated.metadata.resource_version.as_deref(), Some("7"));
    assert_eq!(
        reconcile_role(expected, Some(&updated)),
        Reconciliation::Keep
    );
}

#[test]
fn labels_and_annotations_are_completed_and_not_overwritten() {
    let expected = &roles()["view"];
    let mut stored = expected.clone();
    let (key, _) = BOOTSTRAPPING_LABEL;
    stored.metadata.labels = Some([(key.to_owned(), "mine".to_owned())].into());
    stored.metadata.annotations = None;
    let Reconciliation::Update(updated) = reconcile_role(expected, Some(&stored)) else {
        panic!("not updated");
    };
    let labels = updated.metadata.labels.unwrap();
    assert_eq!(labels[key], "mine");
    assert_eq!(
        labels["rbac.authorization.k8s.io/aggregate-to-edit"],
        "true"
    );
    assert_eq!(updated.metadata.annotations.unwrap()[AUTOUPDATE], "true");
}

#[test]
fn an_object_opts_out() {
    let mut role = roles()["view"].clone();
    let mut binding = cluster_role_bindings().remove(0);
    let expected = (role.clone(), binding.clone());
    for metadata in [&mut role.metadata, &mut binding.metadata] {
        metadata.annotations = Some([(AUTOUPDATE.to_owned(), "false".to_owned())].into());
        metadata.labels = None;
    }
    role.rules = None;
    binding.subjects = None;
    assert_eq!(
        reconcile_role(&expected.0, Some(&role)),
        Reconciliation::Keep
    );
    assert_eq!(
        reconcile_binding(&expected.1, Some(&binding)),
        Reconciliation::Keep
    );
}

#[test]
fn the_rules_of_an_aggregating_role_are_left_to_its_parts() {
    let expected = &roles()["edit"];
    let stored = ClusterRole {
        rules: None,
        ..expected.clone()
    };
    assert_eq!(
        reconcile_role(expected, Some(&stored)),
        Reconciliation::Keep
    );
    let without = ClusterRole {
        aggregation_rule: None,
        ..expected.clone()
    };
    let updated = Reconciliation::Update(expected.clone());
    assert_eq!(reconcile_role(expected, Some(&without)), updated);
}

#[test]
fn a_binding_gets_its_subjects_back() {
    let bindings = cluster_role_bindings();
    let is_scheduler = |binding: &&ClusterRoleBinding| {
        binding.metadata.name.as_deref() == Some("system:kube-scheduler")
    };
    let expected = bindings.iter().find(is_scheduler).unwrap();
    let other = Subject {
        kind: "User".to_owned(),
        name: "mine".to_owned(),
        ..Subject::default()
    };
    let mut stored = expected.clone();
    stored.subjects = Some(vec![other.clone()]);
    let Reconciliation::Update(updated) = reconcile_binding(expected, Some(&stored)) else {
        panic!("not updated");
    };
    let own = expected.subjects.clone().unwrap().remove(0);
    assert_eq!(updated.subjects, Some(vec![other, own]));
    stored.role_ref.name = "view".to_owned();
    let recreated = Reconciliation::Recreate(expected.clone());
    assert_eq!(reconcile_binding(expected, Some(&stored)), recreated);
}
