//! Deletion through REST: grace periods, preconditions, propagation, finalizers, collections, dry
//! runs; and other effects of writes on metadata.

use http::Method;
use podplane_client::ListParams;
use podplane_http_client::HttpAnswer;

use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";

impl TestServer {
    async fn removed(&self, path: &str, options: Value) -> HttpAnswer {
        let answer = self.rest.send_json(Method::DELETE, path, &options).await;
        answer.unwrap()
    }

    async fn posted(&self, path: &str, document: Value) -> Value {
        let answer = self.rest.send_json(Method::POST, path, &document).await;
        let answer = answer.unwrap();
        assert_eq!(answer.code, 201, "{}", answer.body);
        answer.body
    }

    async fn remaining(&self) -> Vec<String> {
        let list = self.pods().list(&ListParams::default()).await.unwrap();
        list.items.iter().map(|pod| pod.name().to_owned()).collect()
    }
}

fn manifest(name: &str, metadata: &Value, node: &str) -> Value {
    let mut pod =
        json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    pod["metadata"]["name"] = name.into();
    if !node.is_empty() {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

#[tokio::test]
async fn the_request_overrides_the_grace_period_of_the_pod() {
    let server = TestServer::start().await;
    for (name, node, query, body, want) in [
        ("own", "n", "", json!({}), Some(30)),
        ("query", "n", "?gracePeriodSeconds=7", json!({}), Some(7)),
        ("body", "n", "", json!({"gracePeriodSeconds": 8}), Some(8)),
        (
            "both",
            "n",
            "?gracePeriodSeconds=7",
            json!({"gracePeriodSeconds": 8}),
            Some(8),
        ),
        (
            "negative",
            "n",
            "",
            json!({"gracePeriodSeconds": -5}),
            Some(1),
        ),
        ("at-once", "n", "", json!({"gracePeriodSeconds": 0}), None),
        ("unbound", "", "", json!({"gracePeriodSeconds": 8}), None),
    ] {
        server.posted(PODS, manifest(name, &json!({}), node)).await;
        let answer = server.removed(&format!("{PODS}/{name}{query}"), body).await;
        assert_eq!(answer.code, 200, "{name}");
        match want {
            Some(seconds) => {
                let metadata = &answer.body["metadata"];
                assert_eq!(metadata["deletionGracePeriodSeconds"], seconds, "{name}");
                assert_eq!(metadata["generation"], 2, "{name}");
                assert!(metadata["deletionTimestamp"].is_string(), "{name}");
            }
            None => {
                let gone = server.rest.get(&format!("{PODS}/{name}")).await.unwrap();
                assert_eq!(gone.code, 404, "{name}");
            }
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_dry_run_deletes_nothing() {
    let server = TestServer::start().await;
    for (name, node) in [("bound", "n"), ("unbound", "")] {
        server.posted(PODS, manifest(name, &json!({}), node)).await;
        for (query, body) in [("?dryRun=All", json!({})), ("", json!({"dryRun": ["All"]}))] {
            let answer = server.removed(&format!("{PODS}/{name}{query}"), body).await;
            assert_eq!(answer.code, 200, "{}", answer.body);
        }
        assert!(!server.pods().get(name).await.unwrap().is_deleting());
    }
    let all = server
        .removed(&format!("{PODS}?dryRun=All"), json!({}))
        .await;
    assert_eq!(all.code, 200);
    assert_eq!(server.remaining().await, ["bound", "unbound"]);
    server.stop().await;
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let server = TestServer::start().await;
    for (name, app, node) in [
        ("a", "web", ""),
        ("b", "db", "n"),
        ("c", "web", ""),
        ("d", "x", ""),
    ] {
        let labels = json!({"labels": {"app": app}});
        server.posted(PODS, manifest(name, &labels, node)).await;
    }
    let web = format!("{PODS}?labelSelector=app%3Dweb");
    let deleted = server.removed(&web, json!({})).await;
    assert_eq!(deleted.code, 200);
    assert_eq!(deleted.body["kind"], "PodList");
    assert_eq!(server.remaining().await, ["b", "d"]);

    // A pod with a grace period begins to end.
    let bound = format!("{PODS}?fieldSelector=spec.nodeName%3Dn");
    server.removed(&bound, json!({})).await;
    assert!(server.pods().get("b").await.unwrap().is_deleting());
    server.removed(PODS, json!({"gracePeriodSeconds": 0})).await;
    assert!(server.remaining().await.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn refuses_invalid_delete_options() {
    let server = TestServer::start().await;
    server.posted(PODS, manifest("a", &json!({}), "")).await;
    let invalid = |why: &str| format!("DeleteOptions.meta.k8s.io \"\" is invalid: {why}");
    for (query, body, want) in [
        (
            "",
            json!({"propagationPolicy": "x"}),
            invalid(
                "propagationPolicy: Unsupported value: \"x\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"",
            ),
        ),
        (
            "?propagationPolicy=x",
            json!({}),
            invalid(
                "propagationPolicy: Unsupported value: \"x\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"",
            ),
        ),
        (
            "",
            json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
            invalid(
                "propagationPolicy: Invalid value: \"Orphan\": orphanDependents and deletionPropagation cannot be both set",
            ),
        ),
    ] {
        let answer = server.removed(&format!("{PODS}/a{query}"), body).await;
        assert_eq!(
            (answer.code, answer.body["message"].as_str()),
            (422, Some(want.as_str())),
            "{query}"
        );
        assert_eq!(answer.body["details"]["kind"], "DeleteOptions");
    }
    assert_eq!(server.remaining().await, ["a"]);
    server.stop().await;
}

#[tokio::test]
async fn an_object_is_removed_after_its_last_finalizer() {
    let server = TestServer::start().await;
    let held = manifest("a", &json!({"finalizers": ["a/b"]}), "");
    server.posted(PODS, held).await;
    let path = format!("{PODS}/a");
    let deleting = server.removed(&path, json!({})).await;
    assert_eq!(deleting.body["metadata"]["deletionGracePeriodSeconds"], 0);
    let first = deleting.body["metadata"]["resourceVersion"].clone();
    // A repeated deletion changes nothing.
    let again = server.removed(&path, json!({})).await;
    assert_eq!(again.body["metadata"]["resourceVersion"], first);

    let patch = json!({"metadata": {"finalizers": null}});
    let media = "application/merge-patch+json";
    let patched = server
        .rest
        .send(Method::PATCH, &path, Some((media, &patch)));
    assert_eq!(patched.await.unwrap().code, 200);
    assert_eq!(server.rest.get(&path).await.unwrap().code, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_delete_fails_if_its_preconditions_do_not_match() {
    let server = TestServer::start().await;
    let made = server.posted(PODS, manifest("a", &json!({}), "")).await;
    let (uid, version) = (
        &made["metadata"]["uid"],
        &made["metadata"]["resourceVersion"],
    );
    for wrong in [
        json!({"uid": "x"}),
        json!({"resourceVersion": "1"}),
        json!({"uid": uid, "resourceVersion": "1"}),
    ] {
        let body = json!({"preconditions": wrong});
        let answer = server.removed(&format!("{PODS}/a"), body).await;
        assert_eq!(
            (answer.code, &answer.body["reason"]),
            (409, &json!("Conflict"))
        );
    }
    let right = json!({"preconditions": {"uid": uid, "resourceVersion": version}});
    let answer = server.removed(&format!("{PODS}/a"), right).await;
    // The deletion of a pod returns the whole pod.
    assert_eq!(
        (&answer.body["kind"], &answer.body["metadata"]["uid"]),
        (&json!("Pod"), uid)
    );
    server.stop().await;
}

#[tokio::test]
async fn an_immediate_delete_is_answered_with_a_status() {
    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let server = TestServer::start().await;
    let made = server
        .posted(LEASES, json!({"metadata": {"name": "a"}}))
        .await;
    let answer = server.removed(&format!("{LEASES}/a"), json!({})).await;
    assert_eq!(
        answer.body,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {"name": "a", "group": "coordination.k8s.io", "kind": "leases", "uid": made["metadata"]["uid"]}})
    );
    server.stop().await;
}

#[tokio::test]
async fn generated_names_are_unique_and_truncated() {
    let server = TestServer::start().await;
    let long = "x".repeat(70);
    for prefix in ["web-", &long] {
        let mut pod = manifest("", &json!({"generateName": prefix}), "");
        pod["metadata"].as_object_mut().unwrap().remove("name");
        let one = server.posted(PODS, pod.clone()).await;
        let other = server.posted(PODS, pod).await;
        assert_ne!(one["metadata"]["name"], other["metadata"]["name"]);
        let name = one["metadata"]["name"].as_str().unwrap();
        let kept = &prefix[..prefix.len().min(58)];
        assert!(
            name.starts_with(kept) && name.len() == kept.len() + 5,
            "{name}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn generation_increases_only_with_the_spec() {
    let server = TestServer::start().await;
    let mut pod = server.posted(PODS, manifest("a", &json!({}), "")).await;
    let path = format!("{PODS}/a");
    for (pointer, value, want) in [
        ("/metadata/labels", json!({"a": "b"}), 1),
        ("/status", json!({"phase": "Running"}), 1),
        ("/spec/containers/0/image", json!("i2"), 2),
    ] {
        if pointer == "/metadata/labels" {
            pod["metadata"]["labels"] = json!({});
        }
        *pod.pointer_mut(pointer).unwrap() = value;
        let path = match pointer {
            "/status" => format!("{path}/status"),
            _ => path.clone(),
        };
        let updated = server
            .rest
            .send_json(Method::PUT, &path, &pod)
            .await
            .unwrap();
        assert_eq!(updated.code, 200, "{}", updated.body);
        assert_eq!(updated.body["metadata"]["generation"], want, "{pointer}");
        pod = updated.body;
    }
    server.stop().await;
}
