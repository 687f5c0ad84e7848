//! Pods are placed only on nodes that have addresses for them, whoever places them.

use std::fmt;

use http::Method;
use podplane_api::pod_ips::POD_IPS_ORPHANED;
use podplane_client::{Binding, Reason};
use podplane_http_client::HttpAnswer;
use podplane_store::{ListQuery, Prefix, SledStore, Txn};

use super::*;

async fn counting(store: impl Store) -> TestServer {
    TestServer::at("127.0.0.1:0", ServerRules::default(), store).await
}

/// A node with a block of 5 pod IPs.
fn small(name: &str, third: u8) -> Node {
    object(json!({
        "metadata": {"name": name},
        "spec": {"podCIDR": format!("10.0.{third}.0/29"), "podCIDRs": [format!("10.0.{third}.0/29")]},
    }))
}

fn bind_to(name: &str, node: &str) -> Binding {
    Binding {
        name: name.into(),
        uid: String::new(),
        resource_version: None,
        node_name: node.into(),
    }
}

/// Creates a pod and binds it.
async fn place(server: &TestServer, name: &str, node: &str) -> Result<(), ApiError> {
    server.pods().create(&pod(name)).await?;
    server.pods().bind(&bind_to(name, node)).await
}

fn refused<T: fmt::Debug>(result: Result<T, ApiError>) -> ApiError {
    let error = result.unwrap_err();
    assert_eq!(error.reason, Reason::InsufficientPodIps, "{error}");
    assert_eq!(error.fields[0].field, "spec.nodeName");
    error
}

#[tokio::test]
async fn a_full_node_takes_no_pod_and_the_refusal_names_the_counts() {
    let server = counting(MemStore::new()).await;
    let mut node = small("n", 0);
    node.metadata.annotations = Some([(POD_IPS_ORPHANED.to_owned(), "1".to_owned())].into());
    server.nodes().create(&node).await.unwrap();
    for name in ["a", "b", "c", "d"] {
        place(&server, name, "n").await.unwrap();
    }
    let error = refused(place(&server, "e", "n").await);
    assert_eq!(
        error.message,
        "Operation cannot be fulfilled on pods/binding \"e\": node n has no address for the pod: \
         0 of 5 IPs free: 4 pods, 1 orphaned (held by default/a, default/b, default/c and 1 more)"
    );
    // The node's own network needs no address.
    let host = pod_with(json!({"metadata": {"name": "host"}, "spec": {"hostNetwork": true}}));
    server.pods().create(&host).await.unwrap();
    server.pods().bind(&bind_to("host", "n")).await.unwrap();
    // A pod that leaves makes room for one.
    server.pods().delete("a", &at_once()).await.unwrap();
    server.pods().bind(&bind_to("e", "n")).await.unwrap();
    refused(place(&server, "f", "n").await);
    server.stop().await;
}

#[tokio::test]
async fn an_ended_pod_holds_its_address_until_its_sandbox_is_gone() {
    let server = counting(MemStore::new()).await;
    server.nodes().create(&small("n", 0)).await.unwrap();
    for name in ["a", "b", "c", "d", "e"] {
        place(&server, name, "n").await.unwrap();
    }
    let end = |sandbox: &str| {
        let condition = json!({"type": "PodReadyToStartContainers", "status": sandbox});
        let status = json!({"phase": "Failed", "conditions": [condition]});
        object(json!({"metadata": {"name": "a", "namespace": "default"}, "status": status}))
    };
    server.pods().update_status(&end("True")).await.unwrap();
    refused(place(&server, "f", "n").await);
    server.pods().update_status(&end("False")).await.unwrap();
    server.pods().bind(&bind_to("f", "n")).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn unknown_and_waiting_nodes_have_no_addresses() {
    let server = counting(MemStore::new()).await;
    let error = refused(place(&server, "a", "n").await);
    assert!(error.message.ends_with("it does not exist"), "{error}");
    server.nodes().create(&node("n")).await.unwrap();
    let error = refused(server.pods().bind(&bind_to("a", "n")).await);
    assert!(error.message.contains("podCIDR"), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn a_pod_created_on_a_node_is_counted_and_a_mirror_pod_passes() {
    let server = counting(MemStore::new()).await;
    server.nodes().create(&small("n", 0)).await.unwrap();
    let on_node = |name: &str, annotations: Value| {
        let meta = json!({"name": name, "annotations": annotations});
        pod_with(json!({"metadata": meta, "spec": {"nodeName": "n"}}))
    };
    for n in 0..5 {
        let pod = on_node(&format!("p{n}"), json!({}));
        server.pods().create(&pod).await.unwrap();
    }
    refused(server.pods().create(&on_node("p5", json!({}))).await);
    let mirror = json!({"kubernetes.io/config.mirror": "hash"});
    server
        .pods()
        .create(&on_node("static", mirror))
        .await
        .unwrap();
    server.pods().delete("p0", &at_once()).await.unwrap();
    let error = refused(server.pods().create(&on_node("p5", json!({}))).await);
    assert!(
        error.message.contains("5 pods"),
        "the mirror pod holds one: {error}"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_pod_takes_as_many_addresses_as_it_requests() {
    let server = counting(MemStore::new()).await;
    server.nodes().create(&small("n", 0)).await.unwrap();
    let wide = |name: &str, addresses: &str| {
        let amounts = json!({"podplane.io/pod-ips": addresses});
        let resources = json!({"requests": amounts, "limits": amounts});
        let container = json!({"name": "c", "image": "i", "resources": resources});
        pod_with(json!({"metadata": {"name": name}, "spec": {"containers": [container]}}))
    };
    for (name, addresses) in [("a", "3"), ("b", "3"), ("c", "2"), ("d", "65")] {
        server.pods().create(&wide(name, addresses)).await.unwrap();
    }
    server.pods().bind(&bind_to("a", "n")).await.unwrap();
    let error = refused(server.pods().bind(&bind_to("b", "n")).await);
    assert!(error.message.contains("the pod needs 3"), "{error}");
    server.pods().bind(&bind_to("c", "n")).await.unwrap();
    let error = refused(server.pods().bind(&bind_to("d", "n")).await);
    assert!(error.message.contains("at most 64"), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn binds_at_once_never_take_more_than_the_capacity() {
    let dir = tempfile::tempdir().unwrap();
    let server = counting(SledStore::open(dir.path()).unwrap()).await;
    for (name, third) in [("m", 0), ("n", 1)] {
        server.nodes().create(&small(name, third)).await.unwrap();
    }
    let mut binds = Vec::new();
    for n in 0..40 {
        let name = format!("p{n}");
        server.pods().create(&pod(&name)).await.unwrap();
        let node = if n % 2 == 0 { "m" } else { "n" };
        let (pods, binding) = (server.pods(), bind_to(&name, node));
        binds.push(async move { pods.bind(&binding).await });
    }
    let answers = within(futures::future::join_all(binds)).await;
    let (bound, others): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((bound.len(), others.len()), (10, 30));
    for other in others {
        let error = refused(other);
        assert!(error.message.contains("0 of 5 IPs free: 5 pods"), "{error}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_dry_run_is_refused_as_the_bind_would_be() {
    let server = counting(MemStore::new()).await;
    server.nodes().create(&small("n", 0)).await.unwrap();
    for name in ["a", "b", "c", "d", "e"] {
        place(&server, name, "n").await.unwrap();
    }
    server.pods().create(&pod("f")).await.unwrap();
    let body = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "f"},
        "target": {"kind": "Node", "name": "n"},
    });
    let path = "/api/v1/namespaces/default/pods/f/binding?dryRun=All";
    let answer = server.rest.send_json(Method::POST, path, &body).await;
    let HttpAnswer { code, body, .. } = answer.unwrap();
    assert_eq!((code, &body["reason"]), (409, &json!("InsufficientPodIPs")));
    assert_eq!(body["details"]["name"], "f");
    server.stop().await;
}

#[tokio::test]
async fn the_count_survives_a_restart_and_a_store_without_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let store = || SledStore::open(dir.path()).unwrap();
    let server = TestServer::with(store()).await;
    server.nodes().create(&small("n", 0)).await.unwrap();
    for name in ["a", "b", "c", "d", "e", "f"] {
        place(&server, name, "n").await.unwrap();
    }
    server.stop().await;
    let error = {
        let server = counting(store()).await;
        let error = refused(place(&server, "g", "n").await);
        server.stop().await;
        error.message
    };
    assert!(error.contains("0 of 5 IPs free: 6 pods"), "{error}");
    // As a version without the index would have left the store.
    let holders = ListQuery {
        prefix: Prefix::from("/podplane/holders/"),
        ..ListQuery::default()
    };
    let before = store();
    let found = before.list(holders).await.unwrap().items;
    assert_eq!(found.len(), 6);
    let txn = found
        .into_iter()
        .fold(Txn::new(), |txn, item| txn.delete(item.key.clone()));
    before.commit(txn).await.unwrap();
    drop(before);
    let server = counting(store()).await;
    assert_eq!(
        refused(place(&server, "h", "n").await).message,
        error.replace("\"g\"", "\"h\"")
    );
    server.stop().await;
}
