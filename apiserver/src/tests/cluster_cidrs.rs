//! ClusterCIDR, the one kind that Kubernetes itself has removed, through gRPC and REST.

use http::Method;
use podplane_api::networking::ClusterCIDR;
use podplane_client::ListParams;

use super::*;

const ALL: &str = "/apis/networking.x-k8s.io/v1/clustercidrs";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const FINALIZER: &str = "networking.x-k8s.io/cluster-cidr-finalizer";

fn cluster_cidr(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "networking.x-k8s.io/v1", "kind": "ClusterCIDR", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn cluster_cidrs_are_served_as_published() {
    let server = TestServer::start().await;
    let rest = &server.rest;
    let terms = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]);
    let spec = json!({"ipv4": "10.0.0.0/8", "ipv6": "fd00::/104", "perNodeHostBits": 8, "nodeSelector": {"nodeSelectorTerms": terms}});
    let mut manifest = cluster_cidr("a", &spec);
    manifest["metadata"]["finalizers"] = json!([FINALIZER]);
    let made = rest.send_json(Method::POST, ALL, &manifest).await.unwrap();
    assert_eq!(made.code, 201, "{}", made.body);
    assert_eq!(made.body["spec"], spec);
    assert_eq!(made.body["metadata"]["generation"], 1);

    // The same object through gRPC.
    let all = server.client.all::<ClusterCIDR>();
    let listed = all.list(&ListParams::default()).await.unwrap();
    assert_eq!(listed.items.len(), 1);
    assert_eq!(listed.items[0].to_json().unwrap(), made.body);

    // A list as documents, and as a table.
    let list = rest.get(ALL).await.unwrap();
    assert_eq!(list.body["kind"], "ClusterCIDRList");
    assert_eq!(list.body["items"][0]["spec"], spec);
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = rest.exchange(Method::GET, ALL, &table, "").await.unwrap();
    let columns = table.body["columnDefinitions"].as_array().unwrap();
    let columns = columns
        .iter()
        .map(|column| column["name"].as_str().unwrap());
    let columns: Vec<_> = columns.map(str::to_uppercase).collect();
    assert_eq!(
        columns,
        [
            "NAME",
            "PERNODEHOSTBITS",
            "IPV4",
            "IPV6",
            "AGE",
            "NODESELECTOR"
        ]
    );
    let mut cells = table.body["rows"][0]["cells"].clone();
    cells[4] = Value::Null;
    assert_eq!(
        cells,
        json!([
            "a",
            "8",
            "10.0.0.0/8",
            "fd00::/104",
            null,
            "[{zone In [a]}]"
        ])
    );

    // The spec is immutable; the rest may change.
    let one = format!("{ALL}/a");
    let patch = async |document: Value| {
        let patch = Some((MERGE, &document));
        rest.send(Method::PATCH, &one, patch).await.unwrap()
    };
    let refused = patch(json!({"spec": {"perNodeHostBits": 9}})).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    assert_eq!(
        refused.body["message"],
        "ClusterCIDR.networking.x-k8s.io \"a\" is invalid: spec.perNodeHostBits: Invalid value: 9: field is immutable"
    );
    let labelled = patch(json!({"metadata": {"labels": {"x": "y"}}})).await;
    assert_eq!(labelled.code, 200, "{}", labelled.body);

    // It is removed once its controller has removed the finalizer.
    let deleting = rest.send(Method::DELETE, &one, None).await.unwrap();
    assert_eq!(deleting.code, 200, "{}", deleting.body);
    let held = rest.get(&one).await.unwrap();
    assert!(held.body["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(held.body["metadata"]["finalizers"], json!([FINALIZER]));
    let released = patch(json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(released.code, 200, "{}", released.body);
    assert_eq!(rest.get(&one).await.unwrap().code, 404);
    server.stop().await;
}

#[tokio::test]
async fn validates_and_applies_cluster_cidrs() {
    let server = TestServer::start().await;
    let rest = &server.rest;
    let bad = cluster_cidr("a", &json!({"ipv4": "10.0.0.0/24", "perNodeHostBits": 9}));
    let refused = rest.send_json(Method::POST, ALL, &bad).await.unwrap();
    assert_eq!(refused.code, 422, "{}", refused.body);
    assert_eq!(
        refused.body["message"],
        "ClusterCIDR.networking.x-k8s.io \"a\" is invalid: spec.perNodeHostBits: Invalid value: 9: must be less than or equal to 8"
    );
    let through_grpc = server.client.all::<ClusterCIDR>();
    let error = through_grpc.create(&object(bad)).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("must be less than or equal to 8")
    );

    let good = cluster_cidr("a", &json!({"ipv4": "10.0.0.0/24", "perNodeHostBits": 4}));
    let path = format!("{ALL}/a?fieldManager=me");
    for code in [201, 200] {
        let applied = rest.send(Method::PATCH, &path, Some((APPLY, &good)));
        let applied = applied.await.unwrap();
        assert_eq!(applied.code, code, "{}", applied.body);
        assert_eq!(
            applied.body["metadata"]["managedFields"][0]["fieldsV1"],
            json!({"f:spec": {"f:ipv4": {}, "f:perNodeHostBits": {}}})
        );
    }

    // What `kubectl explain` and `kubectl api-resources` read.
    let openapi = rest.get("/openapi/v3/apis/networking.x-k8s.io/v1").await;
    let schemas = openapi.unwrap().body["components"]["schemas"].clone();
    for name in [
        "io.x-k8s.networking.v1.ClusterCIDR",
        "io.x-k8s.networking.v1.ClusterCIDRList",
        "io.x-k8s.networking.v1.ClusterCIDRSpec",
        "io.k8s.api.core.v1.NodeSelector",
    ] {
        assert!(schemas[name].is_object(), "{name}");
    }
    let resources = rest.get("/apis/networking.x-k8s.io/v1").await.unwrap();
    assert_eq!(resources.body["resources"][0]["name"], "clustercidrs");
    assert_eq!(resources.body["resources"][0]["namespaced"], false);
    server.stop().await;
}
