//! The calls of access.tsv, judged by the rules alone.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;

use podplane_access::{
    Attributes, Authorizer, Decision, Identity, Policy, Requirement, RequirementOperator,
    ResourceTarget, Verdict, authorize, bootstrap, rbac::PolicyObject, relations::RelationIndex,
    review_rules,
};
use podplane_api::{
    authorization::ResourceRule,
    core::{PersistentVolume, Pod},
    rbac::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use serde_json::Value;

const TABLE: &str = include_str!("access.tsv");
const CLUSTER: &str = include_str!("access.yaml");

/// The default roles and bindings, and the objects of access.yaml.
fn cluster() -> (Policy, RelationIndex) {
    let mut policy = Policy::new();
    let mut relations = RelationIndex::new();
    for role in &bootstrap::cluster_roles() {
        policy.apply(role);
    }
    for binding in &bootstrap::cluster_role_bindings() {
        policy.apply(binding);
    }
    for document in serde_saphyr::from_multiple::<Value>(CLUSTER).unwrap() {
        fn of<T: serde::de::DeserializeOwned>(document: &Value) -> T {
            serde_json::from_value(document.clone()).unwrap()
        }
        match document["kind"].as_str().unwrap() {
            "Node" => relations.apply_node(
                document["metadata"]["name"].as_str().unwrap(),
                document["metadata"]["uid"].as_str().unwrap(),
            ),
            "Pod" => relations.apply_pod(&of::<Pod>(&document)),
            "PersistentVolume" => relations.apply_volume(&of::<PersistentVolume>(&document)),
            "VolumeAttachment" => relations.apply_attachment(
                document["metadata"]["name"].as_str().unwrap(),
                document["spec"]["nodeName"].as_str().unwrap(),
            ),
            "ResourceSlice" => relations.apply_slice(
                document["metadata"]["name"].as_str().unwrap(),
                document["spec"]["nodeName"].as_str(),
            ),
            "Role" => policy.apply(&of::<Role>(&document)),
            "ClusterRole" => policy.apply(&of::<ClusterRole>(&document)),
            "RoleBinding" => policy.apply(&of::<RoleBinding>(&document)),
            "ClusterRoleBinding" => policy.apply(&of::<ClusterRoleBinding>(&document)),
            kind => panic!("{kind}"),
        }
    }
    (policy, relations)
}

/// A line of the table.
#[derive(Debug)]
struct Call<'a> {
    line: &'a str,
    identity: &'a Identity,
    verb: &'a str,
    resource: &'a str,
    namespace: &'a str,
    name: &'a str,
    selector: Vec<Requirement>,
    is_allowed: bool,
    by: &'a str,
}

fn identities() -> BTreeMap<&'static str, Identity> {
    let lines = TABLE.lines().filter_map(|line| line.strip_prefix('@'));
    let identities = lines.map(|line| {
        let [name, user, groups] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        (name, Identity::new(user, groups.split(',')))
    });
    identities.collect()
}

fn calls<'a>(identities: &'a BTreeMap<&str, Identity>) -> Vec<Call<'a>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with(['#', '@']));
    lines.map(|line| call(line, identities)).collect()
}

fn call<'a>(line: &'static str, identities: &'a BTreeMap<&str, Identity>) -> Call<'a> {
    let cells = line
        .split('\t')
        .map(|cell| if cell == "-" { "" } else { cell });
    let [
        identity,
        verb,
        resource,
        namespace,
        name,
        selector,
        answer,
        by,
    ] = cells.collect::<Vec<_>>().try_into().expect(line);
    let term = |text: &str| match text.split_once("!=") {
        Some((field, value)) => Requirement {
            operator: RequirementOperator::NotEquals,
            ..Requirement::equals(field, value)
        },
        None => {
            let (field, value) = text.split_once('=').expect(line);
            Requirement::equals(field, value)
        }
    };
    Call {
        line,
        identity: identities.get(identity).expect(line),
        verb,
        resource,
        namespace,
        name,
        selector: selector
            .split(',')
            .filter(|text| !text.is_empty())
            .map(term)
            .collect(),
        is_allowed: match answer {
            "allow" => true,
            "deny" => false,
            _ => panic!("{line}"),
        },
        by,
    }
}

impl Call<'_> {
    fn attributes(&self) -> Attributes<'_> {
        if self.resource.starts_with('/') {
            return Attributes::path(self.identity, self.verb, self.resource);
        }
        let (kind, subresource) = match self.resource.rsplit_once('/') {
            Some((kind, subresource)) => (kind, subresource),
            None => (self.resource, ""),
        };
        let (resource, group) = kind.split_once('.').unwrap_or((kind, ""));
        let target = ResourceTarget {
            group,
            version: "v1",
            resource,
            subresource,
            namespace: self.namespace,
            name: self.name,
            field_selector: &self.selector,
            label_selector: &[],
        };
        Attributes::resource(self.identity, self.verb, target.of_request(self.verb))
    }
}

/// The authorizer or binding that allowed the request, as the table names it.
fn by(verdict: &Verdict) -> String {
    match (verdict.by, verdict.decision.reason()) {
        (Some(Authorizer::Masters), "") => "masters".to_owned(),
        (Some(Authorizer::Node), "") => "node".to_owned(),
        (Some(Authorizer::Rbac), reason) => {
            let source = reason.strip_prefix("RBAC: allowed by ").unwrap();
            let (kind, rest) = source.split_once(" \"").unwrap();
            let (name, _) = rest.split_once("\" of ").unwrap();
            let name = name.split_once('/').map_or(name, |(name, _)| name);
            format!("{kind}/{name}")
        }
        (None, _) => String::new(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_call_of_the_table_has_its_answer() {
    let (policy, relations) = cluster();
    let identities = identities();
    let calls = calls(&identities);
    assert!(calls.len() >= 300, "{} calls", calls.len());
    let mut wrong = Vec::new();
    for call in &calls {
        let verdict = authorize(&call.attributes(), &relations, &policy);
        if verdict.is_allowed() != call.is_allowed || by(&verdict) != call.by {
            wrong.push(format!("{}: {verdict:?}", call.line));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let mut lines: Vec<&str> = calls.iter().map(|call| call.line).collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), calls.len(), "a call is in the table twice");
}

#[test]
fn reasons_have_the_words_of_the_reference() {
    let (policy, relations) = cluster();
    let reason = |identity: &Identity, verb: &str, target: ResourceTarget<'_>| {
        let target = target.of_request(verb);
        let attributes = Attributes::resource(identity, verb, target);
        let verdict = authorize(&attributes, &relations, &policy);
        verdict.decision.reason().to_owned()
    };
    let pod = ResourceTarget {
        version: "v1",
        resource: "pods",
        namespace: "prod",
        name: "web-2",
        ..ResourceTarget::default()
    };
    assert_eq!(
        reason(&Identity::new("ada", ["dev"]), "get", pod),
        "RBAC: allowed by RoleBinding \"editors/prod\" of ClusterRole \"edit\" to Group \"dev\""
    );
    let status = ResourceTarget {
        subresource: "status",
        ..pod
    };
    assert_eq!(
        reason(&Identity::service_account("prod", "ci"), "update", status),
        "RBAC: allowed by ClusterRoleBinding \"status-writers\" of ClusterRole \"status-writer\" to \
         ServiceAccount \"ci/prod\""
    );
    assert_eq!(
        reason(&Identity::new("hank", ["x"]), "get", pod),
        "RBAC: role.rbac.authorization.k8s.io \"missing\" not found"
    );
    assert_eq!(
        reason(&Identity::node("n1"), "get", pod),
        "no relationship found between node 'n1' and this object"
    );
    let node = ResourceTarget {
        resource: "nodes",
        namespace: "",
        name: "n2",
        ..pod
    };
    assert_eq!(
        reason(&Identity::node("n1"), "get", node),
        "node 'n1' cannot read 'n2', only its own Node object"
    );
    assert_eq!(
        reason(
            &Identity::new("system:node:", ["system:nodes"]),
            "get",
            node
        ),
        "unknown node for user \"system:node:\""
    );
}

#[test]
fn a_review_has_the_rules_of_the_namespace_and_of_the_cluster() {
    let (policy, _) = cluster();
    let hank = Identity::new("hank", ["system:authenticated"]);
    let review = review_rules(&hank, "prod", &policy);
    let has_name = |rule: &ResourceRule| rule.resource_names == Some(vec!["web-1".to_owned()]);
    assert!(review.resource_rules.iter().any(has_name), "{review:?}");
    assert_eq!(
        review.evaluation_error.as_deref(),
        Some("role.rbac.authorization.k8s.io \"missing\" not found")
    );
    assert!(!review.incomplete);
    let paths = |path: &str| {
        let rules = review.non_resource_rules.iter();
        let mut urls = rules.flat_map(|rule| rule.non_resource_urls.iter().flatten());
        urls.any(|url| url == path)
    };
    assert!(paths("/openapi/*") && !paths("/metrics"), "{review:?}");
    let elsewhere = review_rules(&hank, "test", &policy);
    assert_eq!(elsewhere.evaluation_error, None);
    assert!(elsewhere.resource_rules.len() < review.resource_rules.len());
}

#[test]
fn the_review_of_a_node_is_incomplete() {
    let (policy, _) = cluster();
    let review = review_rules(&Identity::node("n1"), "prod", &policy);
    assert!(review.incomplete);
    assert_eq!(
        review.evaluation_error.as_deref(),
        Some("node authorizer does not support user rule resolution")
    );
}

#[test]
fn a_policy_follows_the_events_of_its_objects() {
    let (mut policy, relations) = cluster();
    let bob = Identity::new("bob", ["system:authenticated"]);
    let pods = ResourceTarget {
        version: "v1",
        resource: "pods",
        namespace: "prod",
        ..ResourceTarget::default()
    };
    let request = Attributes::resource(&bob, "list", pods);
    let may = |policy: &Policy| authorize(&request, &relations, policy).is_allowed();
    let binding = |subject: &str| -> RoleBinding {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "viewers", "namespace": "prod"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "User", "name": subject}],
        }))
        .unwrap()
    };
    assert!(may(&policy));
    policy.apply(&binding("bert"));
    assert!(!may(&policy), "the subject was replaced");
    policy.apply(&binding("bob"));
    assert!(may(&policy));
    let roles = bootstrap::cluster_roles();
    let is_view = |role: &&ClusterRole| role.metadata.name.as_deref() == Some("view");
    let view = roles.iter().find(is_view).unwrap();
    policy.delete(view);
    assert!(!may(&policy), "the role is gone");
    let emptied = ClusterRole {
        rules: None,
        ..view.clone()
    };
    policy.apply(&emptied);
    assert!(!may(&policy), "the role has no rules");
    policy.apply(view);
    assert!(may(&policy), "the binding works when its role is back");
    policy.delete(PolicyObject::RoleBinding(&binding("bob")));
    assert!(!may(&policy), "the binding is gone");
    policy.delete(PolicyObject::RoleBinding(&binding("bob")));
    let verdict = authorize(&request, &relations, &Policy::new());
    assert_eq!(
        verdict.decision,
        Decision::NoOpinion {
            reason: String::new()
        }
    );
}
