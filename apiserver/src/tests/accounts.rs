//! ServiceAccounts, roles, bindings and certificate signing requests.

use podplane_api::{
    certificates::CertificateSigningRequest,
    core::ServiceAccount,
    rbac::{ClusterRole, Role, RoleBinding},
};
use podplane_client::{Api, ListParams, Reason};
use podplane_store::SledStore;

use super::*;

fn accounts(server: &TestServer, namespace: &str) -> Api<ServiceAccount> {
    server.client.namespaced(namespace)
}

fn namespace(name: &str) -> Namespace {
    object(json!({"metadata": {"name": name}}))
}

#[tokio::test]
async fn a_namespace_begins_with_its_default_account() {
    let server = TestServer::start().await;
    for name in podplane_api::kinds::SYSTEM_NAMESPACES {
        accounts(&server, name).get("default").await.unwrap();
    }
    let made = server.namespaces().create(&namespace("a")).await.unwrap();
    let account = accounts(&server, "a").get("default").await.unwrap();
    assert_eq!(account.resource_version(), made.resource_version());
    assert_eq!(
        account.metadata.creation_timestamp,
        made.metadata.creation_timestamp
    );
    assert!(!account.uid().is_empty());

    // It ends with the namespace, and the next namespace of that name has another.
    let namespaces = server.namespaces();
    let all = ListParams::default();
    let changes = namespaces.watch(&all, made.resource_version()).await;
    let mut changes = Box::pin(changes.unwrap());
    server.namespaces().delete("a", &at_once()).await.unwrap();
    while !matches!(next(&mut changes).await, ObjectEvent::Deleted(_)) {}
    let gone = accounts(&server, "a").get("default").await;
    assert_eq!(gone.unwrap_err().reason, Reason::NotFound);
    server.namespaces().create(&namespace("a")).await.unwrap();
    let next = accounts(&server, "a").get("default").await.unwrap();
    assert_ne!(next.uid(), account.uid());
    server.stop().await;
}

#[tokio::test]
async fn namespaces_of_an_old_store_get_their_default_accounts_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::with(SledStore::open(dir.path()).unwrap()).await;
    server.namespaces().create(&namespace("a")).await.unwrap();
    for name in ["a", "default"] {
        let accounts = accounts(&server, name);
        accounts.delete("default", &at_once()).await.unwrap();
    }
    let kept = accounts(&server, "kube-public").get("default").await;
    server.stop().await;

    let server = TestServer::with(SledStore::open(dir.path()).unwrap()).await;
    for name in ["a", "default"] {
        accounts(&server, name).get("default").await.unwrap();
    }
    let now = accounts(&server, "kube-public").get("default").await;
    assert_eq!(now.unwrap(), kept.unwrap());
    server.stop().await;
}

#[tokio::test]
async fn roles_have_names_with_colons() {
    let server = TestServer::start().await;
    let roles = server.client.all::<ClusterRole>();
    let role: ClusterRole = object(json!({
        "metadata": {"name": "system:reader"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    }));
    let created = roles.create(&role).await.unwrap();
    assert_eq!(created.metadata.generation, None);
    assert_eq!(roles.get("system:reader").await.unwrap(), created);
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Areader";
    let answer = server.rest.get(path).await.unwrap();
    assert_eq!(answer.code, 200, "{answer:?}");
    for name in ["a/b", ".."] {
        let mut bad = role.clone();
        bad.metadata.name = Some(name.into());
        let refused = roles.create(&bad).await.unwrap_err();
        assert_eq!(refused.reason, Reason::Invalid, "{name}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_binding_keeps_its_role() {
    let server = TestServer::start().await;
    let bindings = server.client.namespaced::<RoleBinding>("default");
    let binding: RoleBinding = object(json!({
        "metadata": {"name": "readers", "namespace": "default"},
        "roleRef": {"kind": "Role", "name": "reader"},
        "subjects": [{"kind": "User", "name": "me"}]
    }));
    let mut stored = bindings.create(&binding).await.unwrap();
    let group = "rbac.authorization.k8s.io";
    assert_eq!(stored.role_ref.api_group.as_deref(), Some(group));
    let subjects = stored.subjects.as_deref().unwrap();
    assert_eq!(subjects[0].api_group.as_deref(), Some(group));
    stored.role_ref.name = "writer".into();
    let refused = bindings.update(&stored).await.unwrap_err();
    assert_eq!(refused.reason, Reason::Invalid);
    assert!(
        refused.message.contains("cannot change roleRef"),
        "{refused}"
    );

    let role: Role = object(json!({
        "metadata": {"name": "reader", "namespace": "default"},
        "rules": [{"verbs": ["get"]}]
    }));
    let roles = server.client.namespaced::<Role>("default");
    let refused = roles.create(&role).await.unwrap_err();
    assert!(refused.message.contains("rules[0].apiGroups"), "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn a_certificate_request_is_not_approved_by_its_writer() {
    let server = TestServer::start().await;
    let requests = server.client.all::<CertificateSigningRequest>();
    let pem = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KQUFBQQotLS0tLUVORCBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0K";
    let approved = json!({"conditions": [{"type": "Approved", "status": "True"}]});
    let request: CertificateSigningRequest = object(json!({
        "metadata": {"name": "a"},
        "spec": {"request": pem, "signerName": "example.com/a", "usages": ["client auth"], "username": "admin", "groups": ["system:masters"], "extra": {"key": ["value"]}},
        "status": approved,
    }));
    let mut stored = requests.create(&request).await.unwrap();
    assert_eq!(stored.spec.username.as_deref(), Some("system:anonymous"));
    assert_eq!((&stored.spec.extra, &stored.spec.uid), (&None, &None));
    assert_eq!(stored.status, Some(Default::default()));
    for (selector, found) in [("example.com/a", 1), ("example.com/b", 0)] {
        let params = ListParams {
            field_selector: format!("spec.signerName={selector}"),
            ..ListParams::default()
        };
        assert_eq!(requests.list(&params).await.unwrap().items.len(), found);
    }

    stored.spec.signer_name = "example.com/b".into();
    stored.status = serde_json::from_value(approved).unwrap();
    let updated = requests.update(&stored).await.unwrap();
    assert_eq!(updated.spec.signer_name, "example.com/a");
    assert_eq!(updated.status, Some(Default::default()));
    stored.metadata = updated.metadata;
    let refused = requests.update_status(&stored).await.unwrap_err();
    assert!(
        refused
            .message
            .contains("updates may not add a condition of type \"Approved\""),
        "{refused}"
    );
    server.stop().await;
}

/// The account in both fields, and the names of the pull secrets.
fn account_of(pod: &Pod) -> (Option<&str>, Option<&str>, Vec<&str>) {
    let spec = pod.spec.as_ref().unwrap();
    let secrets = spec.image_pull_secrets.iter().flatten();
    (
        spec.service_account_name.as_deref(),
        spec.service_account.as_deref(),
        secrets.map(|secret| secret.name.as_str()).collect(),
    )
}

#[tokio::test]
async fn a_pod_has_an_account_that_exists() {
    let server = TestServer::start().await;
    let pods = server.pods();
    let plain = pods.create(&pod("a")).await.unwrap();
    let default = Some("default");
    assert_eq!(account_of(&plain), (default, default, vec![]));

    // An update that leaves the fields out keeps them.
    let mut update = plain.clone();
    let spec = update.spec.as_mut().unwrap();
    (spec.service_account, spec.service_account_name) = (None, None);
    let updated = pods.update(&update).await.unwrap();
    assert_eq!(account_of(&updated), (default, default, vec![]));

    let named = |name: &str, field: &str, account: &str| {
        pod_with(json!({"metadata": {"name": name}, "spec": {field: account}}))
    };
    for missing in ["robot", "a/b", &"x".repeat(300)] {
        let asked = named("b", "serviceAccountName", missing);
        let refused = pods.create(&asked).await.unwrap_err();
        assert_eq!(refused.reason, Reason::Forbidden);
        assert_eq!(
            refused.message,
            format!(
                "pods \"b\" is forbidden: error looking up service account default/{missing}: serviceaccount \"{missing}\" not found"
            )
        );
    }
    let robot: ServiceAccount = object(json!({
        "metadata": {"name": "robot", "namespace": "default"},
        "imagePullSecrets": [{"name": "registry"}]
    }));
    let accounts = accounts(&server, "default");
    accounts.create(&robot).await.unwrap();
    for (name, field) in [("b", "serviceAccountName"), ("c", "serviceAccount")] {
        let made = pods.create(&named(name, field, "robot")).await.unwrap();
        let robot = Some("robot");
        assert_eq!(account_of(&made), (robot, robot, vec!["registry"]));
    }
    server.stop().await;
}

#[tokio::test]
async fn mirror_pods_have_no_account() {
    let server = TestServer::start().await;
    let mirror = |spec: Value| {
        let annotations = json!({"kubernetes.io/config.mirror": "x"});
        pod_with(json!({"metadata": {"name": "a", "annotations": annotations}, "spec": spec}))
    };
    let pods = server.pods();
    let own = mirror(json!({"nodeName": "n", "serviceAccountName": "default"}));
    let refused = pods.create(&own).await.unwrap_err();
    assert_eq!(
        refused.message,
        "pods \"a\" is forbidden: a mirror pod may not reference service accounts"
    );
    let made = pods.create(&mirror(json!({"nodeName": "n"}))).await;
    assert_eq!(account_of(&made.unwrap()), (None, None, vec![]));
    server.stop().await;
}
