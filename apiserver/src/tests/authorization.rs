//! The gate: who may do what, over REST and gRPC.

mod audit;
mod expressions;
mod methods;
mod page;
mod reviews;
mod table;
mod writes;

use http::Method;
use podplane_http_client::HttpAnswer;

use super::*;
use crate::{AuthenticationFlags, AuthorizationMode};

const TABLE: &str = include_str!("../../../crates/access/tests/access.tsv");
const CLUSTER: &str = include_str!("../../../crates/access/tests/access.yaml");

/// The token of an identity of the table.
fn token(identity: &str) -> String {
    format!("token-{identity}")
}

/// The token file: the identities of the table, but for the anonymous one.
fn tokens() -> String {
    let identities = TABLE.lines().filter_map(|line| line.strip_prefix('@'));
    let lines = identities.filter_map(|line| {
        let [name, user, groups] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let groups = groups.replace(",system:authenticated", "");
        let groups = match &*groups {
            "system:authenticated" => String::new(),
            groups => format!("\"{groups}\""),
        };
        (name != "anonymous").then(|| format!("{},{user},,{groups}\n", token(name)))
    });
    lines.collect()
}

/// A server with authorization, and the clients of its users.
struct GatedServer {
    server: TestServer,
}

impl GatedServer {
    async fn start() -> Self {
        Self::on(MemStore::new()).await
    }

    async fn on(store: impl Store) -> Self {
        Self::with_rules(store, uncounted()).await
    }

    async fn with_rules(store: impl Store, rules: ServerRules) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens.csv");
        std::fs::write(&file, tokens()).unwrap();
        let flags = AuthenticationFlags {
            mode: Default::default(),
            token_auth_file: Some(file),
        };
        let listen: Listen = "127.0.0.1:0".parse().unwrap();
        let mode = AuthorizationMode::NodeRbac;
        let authenticator = flags.authenticator(&listen, mode).unwrap();
        let listener = Listener::bind(&listen).await.unwrap();
        let listener = listener.authenticating(Arc::new(authenticator));
        let rules = ServerRules {
            authorization: mode,
            ..rules
        };
        let server = TestServer::on(listener, rules, store).await;
        Self { server }
    }

    /// A server with the objects of access.yaml, and what they need to be valid.
    async fn with_cluster() -> Self {
        let server = Self::start().await;
        for namespace in ["prod", "test"] {
            let object = json!({"metadata": {"name": namespace}});
            server.make("/api/v1/namespaces", &object).await;
        }
        for account in ["ci", "builder"] {
            let object = json!({"metadata": {"name": account}});
            let path = "/api/v1/namespaces/prod/serviceaccounts";
            server.make(path, &object).await;
        }
        for mut object in serde_saphyr::from_multiple::<Value>(CLUSTER).unwrap() {
            // Its subject has no namespace, which validation refuses.
            if object["metadata"]["name"] == "nowhere" {
                continue;
            }
            let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
            let kind = object["kind"].as_str().unwrap().to_lowercase();
            let group = match object["apiVersion"].as_str().unwrap() {
                "v1" => "/api/v1".to_owned(),
                group => format!("/apis/{group}"),
            };
            if kind == "pod" {
                if object["spec"]["containers"] == json!([]) {
                    object["spec"]["containers"] = json!([{"name": "c", "image": "i"}]);
                }
                // A mirror pod has no account.
                if object["metadata"]["annotations"].is_object() {
                    object["spec"]["serviceAccountName"] = Value::Null;
                    object["spec"]["imagePullSecrets"] = Value::Null;
                }
            }
            let status = object.as_object_mut().unwrap().remove("status");
            let path = match namespace {
                Some(namespace) => format!("{group}/namespaces/{namespace}/{kind}s"),
                None => format!("{group}/{kind}s"),
            };
            server.make(&path, &object).await;
            if let Some(status) = status {
                let name = object["metadata"]["name"].as_str().unwrap();
                let path = format!("{path}/{name}/status");
                let patch = json!({"status": status});
                let answer = server.ask("root", Method::PATCH, &path, &patch).await;
                assert_eq!(answer.code, 200, "{path}: {:?}", answer.body);
            }
        }
        server
    }

    /// Creates an object as root.
    async fn make(&self, path: &str, object: &Value) {
        let answer = self.ask("root", Method::POST, path, object).await;
        assert_eq!(answer.code, 201, "{path}: {:?}", answer.body);
    }

    /// Sends a request as an identity of the table.
    async fn ask(&self, identity: &str, method: Method, path: &str, body: &Value) -> HttpAnswer {
        self.ask_with(identity, &[], method, path, body).await
    }

    async fn ask_with(
        &self,
        identity: &str,
        more: &[(&str, &str)],
        method: Method,
        path: &str,
        body: &Value,
    ) -> HttpAnswer {
        let bearer = format!("Bearer {}", token(identity));
        let media_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut headers = vec![("content-type", media_type)];
        if identity != "anonymous" {
            headers.push(("authorization", &bearer));
        }
        headers.extend(more);
        let body = match body {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            body => body.to_string(),
        };
        let answer = self.server.rest.exchange(method, path, &headers, body);
        within(answer).await.unwrap()
    }

    async fn get(&self, identity: &str, path: &str) -> HttpAnswer {
        self.ask(identity, Method::GET, path, &Value::Null).await
    }

    async fn stop(self) {
        self.server.stop().await;
    }
}

/// True for the refusal of a request by the gate, before its content was looked at.
fn is_refused(answer: &HttpAnswer) -> bool {
    let message = answer.body["message"].as_str().unwrap_or_default();
    answer.code == 403 && message.contains("forbidden: User \"") && message.contains(" cannot ")
}

#[tokio::test]
async fn a_refusal_is_that_of_the_reference() {
    let server = GatedServer::with_cluster().await;
    let answer = server.get("bob", "/api/v1/namespaces/test/pods").await;
    assert_eq!(
        answer.body,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "pods is forbidden: User \"bob\" cannot list resource \"pods\" in API group \"\" in the namespace \"test\"",
            "reason": "Forbidden", "details": {"kind": "pods"}, "code": 403,
        })
    );
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    let path = "/apis/apps/v1/namespaces/test/deployments/web/scale";
    let answer = server.get("bob", path).await;
    assert_eq!(
        answer.body["details"],
        json!({"group": "apps", "kind": "deployments", "name": "web"})
    );
    assert_eq!(
        answer.body["message"],
        "deployments.apps \"web\" is forbidden: User \"bob\" cannot get resource \"deployments/scale\" in API group \"apps\" in the namespace \"test\""
    );
    let answer = server.get("bob", "/metrics").await;
    assert_eq!((answer.code, &answer.body["details"]), (403, &json!({})));
    assert_eq!(
        answer.body["message"],
        "forbidden: User \"bob\" cannot get path \"/metrics\""
    );
    // The authorizers' reasons follow.
    let answer = server.get("n1", "/api/v1/nodes/n2").await;
    assert_eq!(
        answer.body["message"],
        "nodes \"n2\" is forbidden: User \"system:node:n1\" cannot get resource \"nodes\" in API group \"\" at the cluster scope: node 'n1' cannot read 'n2', only its own Node object"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_right_counts_from_the_answer_that_gave_it_until_the_one_that_took_it() {
    let server = GatedServer::with_cluster().await;
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let binding = json!({
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "nobody", "apiGroup": "rbac.authorization.k8s.io"}],
    });
    for _ in 0..20 {
        assert_eq!(server.get("nobody", "/api/v1/pods").await.code, 403);
        server.make(bindings, &binding).await;
        assert_eq!(server.get("nobody", "/api/v1/pods").await.code, 200);
        let path = format!("{bindings}/b");
        let gone = server.ask("root", Method::DELETE, &path, &Value::Null);
        assert_eq!(gone.await.code, 200);
    }
    server.stop().await;
}

#[tokio::test]
async fn impersonation_needs_the_right_to_it() {
    let server = GatedServer::with_cluster().await;
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let whoami = async |identity: &str, headers: &[(&str, &str)]| {
        let answer = server.ask_with(identity, headers, Method::POST, reviews, &review);
        let answer = answer.await;
        match answer.code {
            201 => answer.body["status"]["userInfo"].clone(),
            _ => answer.body["message"].clone(),
        }
    };
    // Root may be anyone.
    let asked = [
        ("impersonate-user", "eve"),
        ("impersonate-group", "dev"),
        ("impersonate-uid", "7"),
        ("impersonate-extra-a", "b"),
    ];
    assert_eq!(
        whoami("root", &asked).await,
        json!({"username": "eve", "uid": "7", "groups": ["dev", "system:authenticated"], "extra": {"a": ["b"]}})
    );
    // Each value is judged.
    let node = ("impersonate-user", "system:node:n1");
    let nodes = ("impersonate-group", "system:nodes");
    assert_eq!(
        whoami("group-a", &[node, nodes]).await["username"],
        "system:node:n1"
    );
    for (headers, want) in [
        (
            vec![("impersonate-user", "system:node:n9"), nodes],
            "users \"system:node:n9\" is forbidden: User \"system:podplane:node-group:a\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope",
        ),
        (
            vec![node, nodes, ("impersonate-group", "system:masters")],
            "groups \"system:masters\" is forbidden: User \"system:podplane:node-group:a\" cannot impersonate resource \"groups\" in API group \"\" at the cluster scope",
        ),
        (
            vec![node, ("impersonate-uid", "7")],
            "uids.authentication.k8s.io \"7\" is forbidden: User \"system:podplane:node-group:a\" cannot impersonate resource \"uids\" in API group \"authentication.k8s.io\" at the cluster scope",
        ),
        (
            vec![node, ("impersonate-extra-scopes", "x")],
            "userextras.authentication.k8s.io \"x\" is forbidden: User \"system:podplane:node-group:a\" cannot impersonate resource \"userextras/scopes\" in API group \"authentication.k8s.io\" at the cluster scope",
        ),
    ] {
        assert_eq!(whoami("group-a", &headers).await, want);
    }
    // The impersonated user's rights count, not the sender's.
    let as_n1 = [node, nodes];
    let answer = server.ask_with(
        "group-a",
        &as_n1,
        Method::GET,
        "/api/v1/nodes/n1",
        &Value::Null,
    );
    assert_eq!(answer.await.code, 200);
    let answer = server.ask_with(
        "group-a",
        &as_n1,
        Method::GET,
        "/api/v1/nodes",
        &Value::Null,
    );
    assert_eq!(answer.await.code, 403);
    // A ServiceAccount of a namespace, by who may edit there.
    let account = [("impersonate-user", "system:serviceaccount:prod:ci")];
    assert_eq!(
        whoami("ada", &account).await["groups"],
        json!([
            "system:serviceaccounts",
            "system:serviceaccounts:prod",
            "system:authenticated"
        ])
    );
    let other = [("impersonate-user", "system:serviceaccount:test:ci")];
    assert!(whoami("ada", &other).await.is_string());
    assert!(whoami("anonymous", &account).await.is_string());
    server.stop().await;
}

#[tokio::test]
async fn default_roles_are_completed_at_the_start_and_aggregated_while_it_runs() {
    let server = GatedServer::start().await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let answer = server.get("root", roles).await;
    let items = answer.body["items"].as_array().unwrap().len();
    assert_eq!(items, podplane_access::bootstrap::cluster_roles().len());
    let answer = server
        .get(
            "root",
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        )
        .await;
    let items = answer.body["items"].as_array().unwrap().len();
    assert_eq!(
        items,
        podplane_access::bootstrap::cluster_role_bindings().len()
    );
    let part = json!({
        "metadata": {"name": "part", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["get"]}],
    });
    let has_things = async |role: &str| {
        let role = server.get("root", &format!("{roles}/{role}")).await;
        role.body["rules"].to_string().contains("example.com")
    };
    assert!(!has_things("admin").await);
    server.make(roles, &part).await;
    let all = async |wanted: bool| {
        for role in ["view", "edit", "admin"] {
            while has_things(role).await != wanted {
                tokio::task::yield_now().await;
            }
        }
    };
    within(all(true)).await;
    let path = format!("{roles}/part");
    let gone = server
        .ask("root", Method::DELETE, &path, &Value::Null)
        .await;
    assert_eq!(gone.code, 200);
    within(all(false)).await;
    server.stop().await;
}
