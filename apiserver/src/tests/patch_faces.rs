//! A patch has the same outcome and the same refusals through gRPC and REST.

use http::Method;
use podplane_client::{PatchParams, PatchType};

use super::{faces::both, *};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn params(patch_type: PatchType, patch: &Value) -> PatchParams {
    PatchParams {
        patch_type,
        patch: patch.to_string(),
        field_manager: String::new(),
        force: false,
    }
}

fn applied(manager: &str, patch: &Value) -> PatchParams {
    PatchParams {
        field_manager: manager.to_owned(),
        ..params(PatchType::Apply, patch)
    }
}

fn media_type(patch_type: PatchType) -> &'static str {
    match patch_type {
        PatchType::Json => "application/json-patch+json",
        PatchType::Merge => "application/merge-patch+json",
        PatchType::Strategic => "application/strategic-merge-patch+json",
        PatchType::Apply => "application/apply-patch+yaml",
        PatchType::Unspecified => unreachable!("no test sends it over REST"),
    }
}

/// The document without the fields that differ between two objects.
fn comparable(mut document: Value) -> Value {
    let metadata = document["metadata"].as_object_mut().unwrap();
    for field in [
        "name",
        "uid",
        "creationTimestamp",
        "resourceVersion",
        "managedFields",
    ] {
        metadata.remove(field);
    }
    document
}

#[tokio::test]
async fn grpc_and_rest_patches_have_the_same_result() {
    let server = TestServer::start().await;
    let with = |name: &str| {
        pod_with(
            // Without a volume that has a random name.
            json!({"metadata": {"name": name, "labels": {"a": "1", "b": "2"}, "finalizers": ["x.io/a"]}, "spec": {"automountServiceAccountToken": false}}),
        )
    };
    for name in ["grpc", "rest"] {
        server.pods().create(&with(name)).await.unwrap();
    }
    let image = json!({"spec": {"containers": [{"name": "c", "image": "new"}]}});
    let cases = [
        (
            PatchType::Json,
            json!([{"op": "remove", "path": "/metadata/labels/a"}]),
        ),
        (
            PatchType::Merge,
            json!({"metadata": {"labels": {"b": null, "c": "3"}, "finalizers": ["x.io/b"]}}),
        ),
        (PatchType::Strategic, image),
        (
            PatchType::Strategic,
            json!({"metadata": {"finalizers": ["x.io/c"]}}),
        ),
    ];
    for (patch_type, patch) in cases {
        let params = params(patch_type, &patch);
        let ours = within(server.pods().patch("grpc", &params)).await;
        let ours = ours.unwrap().to_json().unwrap();
        let path = format!("{PODS}/rest");
        let body = (media_type(patch_type), &patch);
        let theirs = server.rest.send(Method::PATCH, &path, Some(body)).await;
        assert_eq!(
            comparable(ours),
            comparable(theirs.unwrap().body),
            "{patch}"
        );
    }
    let pod = server.pods().get("grpc").await.unwrap();
    assert_eq!(
        pod.metadata.labels,
        Some([("c".to_owned(), "3".to_owned())].into())
    );
    assert_eq!(
        pod.metadata.finalizers.as_deref(),
        Some(&["x.io/c".to_owned(), "x.io/b".to_owned()][..]),
        "a list that merges, and one that was replaced before"
    );
    assert_eq!(pod.metadata.managed_fields, None, "nobody was named");
    server.stop().await;
}

#[tokio::test]
async fn apply_creates_owns_and_removes_fields_of_its_manager() {
    let server = TestServer::start().await;
    let config = |labels: Value| json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let (pods, one) = (server.pods(), format!("{PODS}/a"));
    let both_labels = config(json!({"mine": "1", "more": "1"}));
    let made = pods
        .patch("a", &applied("first", &both_labels))
        .await
        .unwrap();
    assert_eq!(made.metadata.namespace.as_deref(), Some("default"));
    let managers = made.metadata.managed_fields.unwrap_or_default();
    assert_eq!(managers.len(), 1);
    assert_eq!(managers[0].manager.as_deref(), Some("first"));
    assert_eq!(managers[0].operation.as_deref(), Some("Apply"));

    let other = json!({"metadata": {"labels": {"mine": "2"}}});
    let rest = server.rest.send(
        Method::PATCH,
        "/api/v1/namespaces/default/pods/a?fieldManager=second",
        Some((media_type(PatchType::Apply), &other)),
    );
    let (code, refusal) = both(pods.patch("a", &applied("second", &other)), rest).await;
    assert_eq!((code, &*refusal.reason), (409, "Conflict"));
    assert!(
        refusal
            .message
            .contains("conflict with \"first\": .metadata.labels.mine"),
        "{refusal:?}"
    );

    let forced = PatchParams {
        force: true,
        ..applied("second", &other)
    };
    let taken = pods.patch("a", &forced).await.unwrap();
    assert_eq!(taken.metadata.labels.unwrap()["mine"], "2");

    let less = pods
        .patch("a", &applied("first", &config(json!({}))))
        .await
        .unwrap();
    let labels = less.metadata.labels.unwrap();
    assert_eq!(labels, [("mine".to_owned(), "2".to_owned())].into());
    let again = pods
        .patch("a", &applied("first", &config(json!({}))))
        .await
        .unwrap();
    assert_eq!(
        again.metadata.resource_version, less.metadata.resource_version,
        "nothing changed"
    );

    let yaml = PatchParams {
        patch: "metadata: {labels: {third: yaml}}".to_owned(),
        ..applied("third", &Value::Null)
    };
    let from_yaml = pods.patch("a", &yaml).await.unwrap();
    assert_eq!(from_yaml.metadata.labels.unwrap()["third"], "yaml");
    assert_eq!(
        server.rest.get(&one).await.unwrap().body["metadata"]["labels"]["third"],
        "yaml"
    );
    server.stop().await;
}

#[tokio::test]
async fn patches_of_the_status_leave_the_rest_alone() {
    let server = TestServer::start().await;
    server.pods().create(&pod("a")).await.unwrap();
    let patch = json!({"metadata": {"labels": {"a": "1"}}, "status": {"phase": "Running"}, "spec": {"nodeName": "n"}});
    let patched = server
        .pods()
        .patch_status("a", &params(PatchType::Merge, &patch))
        .await
        .unwrap();
    assert_eq!(patched.status.unwrap().phase.as_deref(), Some("Running"));
    assert_eq!(patched.spec.unwrap().node_name, None);
    server.stop().await;
}

#[tokio::test]
async fn grpc_and_rest_refuse_bad_patches_alike() {
    let server = TestServer::start().await;
    let (pods, rest) = (server.pods(), &server.rest);
    pods.create(&pod("a")).await.unwrap();
    let cases = [
        (params(PatchType::Json, &json!({"op": "add"})), "", 400),
        (params(PatchType::Merge, &json!([])), "", 400),
        (
            params(PatchType::Merge, &json!({"metadata": {"name": "b"}})),
            "",
            400,
        ),
        (
            params(PatchType::Merge, &json!({"spec": {"nodName": "n"}})),
            "",
            422,
        ),
        (
            params(PatchType::Strategic, &json!({"spec": {"nodeName": "n"}})),
            "",
            422,
        ),
        (
            params(
                PatchType::Json,
                &json!([{"op": "test", "path": "/kind", "value": "x"}]),
            ),
            "",
            422,
        ),
        (
            applied("me", &json!({"kind": "Node"})),
            "&fieldManager=me",
            400,
        ),
        (
            applied("me", &json!({"metadata": {"managedFields": [{}]}})),
            "&fieldManager=me",
            400,
        ),
        (
            applied("me", &json!({"spec": {"nodName": "n"}})),
            "&fieldManager=me",
            400,
        ),
    ];
    for (params, query, code) in cases {
        let path = format!("{PODS}/a?fieldValidation=Strict{query}");
        let patch: Value = serde_json::from_str(&params.patch).unwrap();
        let body = (media_type(params.patch_type), &patch);
        let theirs = rest.send(Method::PATCH, &path, Some(body));
        let (found, refusal) = both(pods.patch("a", &params), theirs).await;
        assert_eq!(found, code, "{refusal:?}");
    }
    let own = [
        (
            params(PatchType::Unspecified, &json!({})),
            "type is required",
        ),
        (
            params(PatchType::Apply, &json!({})),
            "fieldManager: Required value",
        ),
        (
            PatchParams {
                force: true,
                ..params(PatchType::Merge, &json!({}))
            },
            "force: Forbidden: may not be specified for non-apply patch",
        ),
        (
            PatchParams {
                patch: "{\"spec\": {\"priority\": 1, \"priority\": 2}}".to_owned(),
                ..params(PatchType::Merge, &json!({}))
            },
            "duplicate field \"spec.priority\"",
        ),
        (
            PatchParams {
                patch: format!("[{}0]", "0,".repeat(podplane_proto::MAX_VALUES)),
                ..params(PatchType::Json, &json!({}))
            },
            "Request entity too large",
        ),
    ];
    for (params, why) in own {
        let refused = pods.patch("a", &params).await.unwrap_err();
        assert!(refused.message.contains(why), "{refused:?}");
    }
    let missing = pods.patch("b", &params(PatchType::Merge, &json!({}))).await;
    assert!(missing.unwrap_err().is_not_found());
    server.stop().await;
}
