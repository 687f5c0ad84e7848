//! Escalation and NodeRestriction, on every way to write.

use podplane_client::endpoint;
use podplane_proto::{
    codec,
    wire::{DeleteRequest, PatchRequest, PatchType, WriteRequest, method_path},
};
use prost::Message as _;
use tonic::Code;

use super::{table::call_grpc, *};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// The refusal of a write by its content: its message does not say that the user cannot do the
/// verb.
fn is_restricted(answer: &HttpAnswer) -> bool {
    answer.code == 403 && !is_refused(answer)
}

fn role(name: &str, verbs: &[&str]) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": name, "namespace": "prod"},
        "rules": [{"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": verbs}],
    })
}

fn binding(name: &str, role: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "prod"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "name": "bob", "apiGroup": "rbac.authorization.k8s.io"}],
    })
}

#[tokio::test]
async fn nobody_grants_what_they_do_not_have() {
    let server = GatedServer::with_cluster().await;
    let roles = format!("{RBAC}/namespaces/prod/roles");
    let bindings = format!("{RBAC}/namespaces/prod/rolebindings");
    // dora is admin in prod, and has nothing of nodes.
    let own = json!({
        "metadata": {"name": "own"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}],
    });
    let made = server.ask("dora", Method::POST, &roles, &own).await;
    assert_eq!(made.code, 201, "{:?}", made.body);
    let refused = server
        .ask("dora", Method::POST, &roles, &role("more", &["get"]))
        .await;
    assert!(is_restricted(&refused), "{:?}", refused.body);
    assert_eq!(
        refused.body["message"],
        "roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"dora\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"nodes\"], Verbs:[\"get\"]}"
    );
    assert_eq!(refused.body["details"]["kind"], "roles");
    let one = format!("{roles}/own");
    let more = role("own", &["get"]);
    for (method, path, body, headers) in [
        (Method::PUT, &*one, more.clone(), &[][..]),
        (Method::PATCH, &one, json!({"rules": more["rules"]}), &[]),
        (
            Method::PATCH,
            &format!("{one}?fieldManager=t&force=true"),
            more.clone(),
            &[("content-type", "application/apply-patch+yaml")],
        ),
        (
            Method::PATCH,
            &format!("{roles}/new?fieldManager=t"),
            role("new", &["get"]),
            &[("content-type", "application/apply-patch+yaml")],
        ),
        (Method::POST, &bindings, binding("b", "cluster-admin"), &[]),
        (Method::POST, &bindings, binding("b", "system:node"), &[]),
        // As a dry run, too.
        (
            Method::POST,
            &format!("{bindings}?dryRun=All"),
            binding("b", "cluster-admin"),
            &[],
        ),
    ] {
        let headers = match headers {
            [] => vec![],
            given => given.to_vec(),
        };
        let answer = match headers.first() {
            Some((name, value)) => {
                let bearer = format!("Bearer {}", token("dora"));
                let sent = [(*name, *value), ("authorization", &*bearer)];
                let answer = server
                    .server
                    .rest
                    .exchange(method, path, &sent, body.to_string());
                within(answer).await.unwrap()
            }
            None => server.ask("dora", method, path, &body).await,
        };
        assert!(is_restricted(&answer), "{path}: {:?}", answer.body);
    }
    let edit = binding("b", "edit");
    let made = server.ask("dora", Method::POST, &bindings, &edit).await;
    assert_eq!(made.code, 201, "{:?}", made.body);
    let missing = binding("c", "missing");
    let missing = server.ask("dora", Method::POST, &bindings, &missing).await;
    assert_eq!(missing.code, 404, "{:?}", missing.body);
    // Rights can be taken away by who may delete.
    let path = format!("{bindings}/b");
    let gone = server.ask("dora", Method::DELETE, &path, &Value::Null);
    assert_eq!(gone.await.code, 200);
    // Root may grant everything.
    let all = binding("b", "cluster-admin");
    let made = server.ask("root", Method::POST, &bindings, &all).await;
    assert_eq!(made.code, 201, "{:?}", made.body);
    // And over gRPC.
    let channel = endpoint::channel(&server.server.address.parse().unwrap()).unwrap();
    let object: podplane_api::rbac::Role = object(role("more", &["get"]));
    let request = WriteRequest {
        object: Some(codec::encode(&object).unwrap()),
    };
    let path = method_path::<podplane_api::rbac::Role>("CreateRole");
    let refused = call_grpc(&channel, "dora", &path, request.encode_to_vec()).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(
        refused.message().contains("attempting to grant"),
        "{refused}"
    );
    drop(channel);
    server.stop().await;
}

#[tokio::test]
async fn an_update_or_apply_that_creates_needs_the_right_to_create() {
    let server = GatedServer::with_cluster().await;
    let roles = format!("{RBAC}/namespaces/prod/roles");
    let bindings = format!("{RBAC}/namespaces/prod/rolebindings");
    let rules = json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "patch", "update"]}]);
    let writer = json!({"metadata": {"name": "writer"}, "rules": rules});
    server.make(&roles, &writer).await;
    let bound = json!({
        "metadata": {"name": "writer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "writer"},
        "subjects": [{"kind": "User", "name": "nobody", "apiGroup": "rbac.authorization.k8s.io"}],
    });
    server.make(&bindings, &bound).await;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l", "namespace": "prod"}, "spec": {}});
    let path = "/apis/coordination.k8s.io/v1/namespaces/prod/leases/l";
    let want = "leases.coordination.k8s.io \"l\" is forbidden: User \"nobody\" cannot create resource \"leases\" in API group \"coordination.k8s.io\" in the namespace \"prod\"";
    let apply = async |identity: &str| {
        let bearer = format!("Bearer {}", token(identity));
        let headers = [
            ("content-type", "application/apply-patch+yaml"),
            ("authorization", &*bearer),
        ];
        let path = format!("{path}?fieldManager=t");
        let answer = server
            .server
            .rest
            .exchange(Method::PATCH, &path, &headers, lease.to_string());
        within(answer).await.unwrap()
    };
    let put = server.ask("nobody", Method::PUT, path, &lease).await;
    assert_eq!((put.code, put.body["message"].as_str()), (403, Some(want)));
    let applied = apply("nobody").await;
    assert_eq!(
        (applied.code, applied.body["message"].as_str()),
        (403, Some(want))
    );
    let channel = endpoint::channel(&server.server.address.parse().unwrap()).unwrap();
    let request = PatchRequest {
        namespace: "prod".to_owned(),
        name: "l".to_owned(),
        r#type: PatchType::Apply.into(),
        patch: lease.to_string(),
        field_manager: "t".to_owned(),
        force: false,
    };
    let method = method_path::<podplane_api::coordination::Lease>("PatchLease");
    let refused = call_grpc(&channel, "nobody", &method, request.encode_to_vec()).await;
    let refused = refused.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::PermissionDenied, want)
    );
    // One that exists may be changed; ada may create it.
    assert_eq!(apply("ada").await.code, 201);
    assert_eq!(apply("nobody").await.code, 200);
    drop(channel);
    server.stop().await;
}

#[tokio::test]
async fn a_node_writes_only_its_own_objects() {
    let server = GatedServer::with_cluster().await;
    let pods = "/api/v1/namespaces/prod/pods";
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let named = |name: &str| json!({"metadata": {"name": name}});
    let pod = |node: &str, annotations: Value| {
        json!({
            "metadata": {"name": "new", "annotations": annotations},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        })
    };
    let mirror = json!({"kubernetes.io/config.mirror": "x"});
    let labels = |labels: Value| json!({"metadata": {"labels": labels}});
    let eviction = |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "prod"}});
    let with_block = json!({"metadata": {"name": "n9"}, "spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}});
    let put = |name: &str| json!({"metadata": {"name": name}, "status": {}});
    let all: Vec<(&str, Method, String, Value)> = vec![
        ("n1", Method::POST, "/api/v1/nodes".into(), named("n9")),
        ("n9", Method::POST, "/api/v1/nodes".into(), with_block),
        ("n1", Method::PUT, "/api/v1/nodes/n2".into(), named("n2")),
        (
            "n1",
            Method::PATCH,
            "/api/v1/nodes/n2".into(),
            labels(json!({"a": "b"})),
        ),
        (
            "n1",
            Method::PUT,
            "/api/v1/nodes/n2/status".into(),
            put("n2"),
        ),
        (
            "n1",
            Method::PATCH,
            "/api/v1/nodes/n2/status".into(),
            json!({"status": {}}),
        ),
        (
            "n1",
            Method::PATCH,
            "/api/v1/nodes/n1".into(),
            labels(json!({"podplane.io/pool": "b"})),
        ),
        (
            "n1",
            Method::PATCH,
            "/api/v1/nodes/n1/status".into(),
            labels(json!({"node-restriction.kubernetes.io/x": "b"})),
        ),
        (
            "n1",
            Method::PATCH,
            "/api/v1/nodes/n1".into(),
            json!({"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}}),
        ),
        (
            "n1",
            Method::PATCH,
            "/api/v1/nodes/n1".into(),
            json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
        ),
        ("n1", Method::POST, pods.into(), pod("n1", json!({}))),
        ("n1", Method::POST, pods.into(), pod("n2", mirror)),
        ("n1", Method::DELETE, format!("{pods}/web-2"), Value::Null),
        ("n1", Method::DELETE, format!("{pods}/waiting"), Value::Null),
        (
            "n1",
            Method::POST,
            format!("{pods}/web-2/eviction"),
            eviction("web-2"),
        ),
        (
            "n1",
            Method::PATCH,
            format!("{pods}/web-2/status"),
            json!({"status": {"phase": "Running"}}),
        ),
        ("n1", Method::POST, leases.into(), named("n2")),
    ];
    for (identity, method, path, body) in all {
        let what = format!("{method} {path} {body}");
        let answer = server.ask(identity, method, &path, &body).await;
        assert!(
            is_restricted(&answer),
            "{what}: {} {:?}",
            answer.code,
            answer.body
        );
    }
    // By apply, too.
    let bearer = format!("Bearer {}", token("n1"));
    let headers = [
        ("content-type", "application/apply-patch+yaml"),
        ("authorization", &*bearer),
    ];
    let config = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"podplane.io/pool": "b"}}});
    let path = "/api/v1/nodes/n1?fieldManager=t";
    let applied = server
        .server
        .rest
        .exchange(Method::PATCH, path, &headers, config.to_string());
    assert!(is_restricted(&within(applied).await.unwrap()));
    // Over gRPC.
    let channel = endpoint::channel(&server.server.address.parse().unwrap()).unwrap();
    let of_pod = |name: &str| DeleteRequest {
        namespace: "prod".to_owned(),
        name: name.to_owned(),
        ..DeleteRequest::default()
    };
    let node = WriteRequest {
        object: Some(codec::encode(&super::node("n2")).unwrap()),
    };
    let status = PatchRequest {
        namespace: "prod".to_owned(),
        name: "web-2".to_owned(),
        r#type: PatchType::Merge.into(),
        patch: json!({"status": {"phase": "Running"}}).to_string(),
        ..PatchRequest::default()
    };
    for (path, message) in [
        (
            method_path::<Pod>("DeletePod"),
            of_pod("web-2").encode_to_vec(),
        ),
        (
            method_path::<Pod>("EvictPod"),
            of_pod("web-2").encode_to_vec(),
        ),
        (method_path::<Pod>("PatchPodStatus"), status.encode_to_vec()),
        (
            method_path::<Node>("UpdateNodeStatus"),
            node.encode_to_vec(),
        ),
        (method_path::<Node>("CreateNode"), node.encode_to_vec()),
    ] {
        let refused = call_grpc(&channel, "n1", &path, message).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{path}: {refused}");
        assert!(
            !refused.message().contains(" cannot create resource"),
            "{path}: {refused}"
        );
    }
    // Its own it may write.
    let own: Vec<(&str, Method, String, Value, u16)> = vec![
        ("n9", Method::POST, "/api/v1/nodes".into(), named("n9"), 201),
        (
            "n1",
            Method::PATCH,
            "/api/v1/nodes/n1".into(),
            labels(json!({"kubernetes.io/hostname": "n1"})),
            200,
        ),
        (
            "n1",
            Method::PATCH,
            format!("{pods}/web-1/status"),
            json!({"status": {"phase": "Running"}}),
            200,
        ),
        ("n1", Method::POST, leases.into(), named("n1"), 201),
        (
            "n1",
            Method::POST,
            format!("{pods}/web-1/eviction"),
            eviction("web-1"),
            201,
        ),
        (
            "n1",
            Method::DELETE,
            format!("{pods}/web-1?gracePeriodSeconds=0"),
            Value::Null,
            200,
        ),
    ];
    for (identity, method, path, body, code) in own {
        let answer = server.ask(identity, method, &path, &body).await;
        assert_eq!(answer.code, code, "{path}: {:?}", answer.body);
    }
    drop(channel);
    server.stop().await;
}

#[tokio::test]
async fn a_node_asks_for_no_certificate_but_its_own() {
    use base64::{Engine as _, prelude::BASE64_STANDARD};

    /// Requests by `openssl req -subj /O=system:nodes/CN=system:node:NAME`.
    const REQUESTS: [(&str, &[u8]); 2] = [
        ("n1", include_bytes!("data/n1.csr")),
        ("n2", include_bytes!("data/n2.csr")),
    ];
    let server = GatedServer::with_cluster().await;
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    for (name, pem) in REQUESTS {
        let request = json!({
            "metadata": {"name": name},
            "spec": {
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "request": BASE64_STANDARD.encode(pem),
                "usages": ["digital signature", "client auth"],
            },
        });
        let answer = server.ask("n1", Method::POST, path, &request).await;
        match name {
            "n1" => assert_eq!(answer.code, 201, "{:?}", answer.body),
            _ => {
                assert!(is_restricted(&answer), "{:?}", answer.body);
                let message = answer.body["message"].as_str().unwrap();
                let want = "can only create a node CSR with CN=system:node:n1";
                assert!(message.ends_with(want), "{message}");
            }
        }
    }
    server.stop().await;
}
