use std::collections::BTreeMap;

use podplane_api::{coordination::Lease, meta::ObjectMeta};
use podplane_client::Reason;

use super::*;

#[tokio::test]
async fn a_new_object_has_its_metadata() {
    let server = TestServer::start().await;
    let created = server.pods().create(&pod("a")).await.unwrap();
    let meta = &created.metadata;
    assert_eq!(meta.uid.as_deref().unwrap().len(), 36);
    assert_eq!(
        meta.creation_timestamp
            .as_ref()
            .unwrap()
            .0
            .subsec_nanosecond(),
        0
    );
    assert_eq!(meta.generation, Some(1));
    assert!(
        meta.resource_version
            .as_deref()
            .unwrap()
            .parse::<u64>()
            .unwrap()
            > 1
    );
    assert_eq!(server.pods().get("a").await.unwrap(), created);
    server.stop().await;
}

#[tokio::test]
async fn stores_all_given_fields() {
    let server = TestServer::start().await;
    let given = pod_with(json!({
        "metadata": {"name": "a", "annotations": {"x/y": "z"}, "labels": {"l": ""}, "finalizers": ["a/b"],
            "managedFields": [{"manager": "m", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:a": {}}}]},
        "spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}},
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
            "containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 80}],
                "livenessProbe": {"httpGet": {"port": "http"}}, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
    }));
    server.pods().create(&given).await.unwrap();
    let read = serde_json::to_value(server.pods().get("a").await.unwrap()).unwrap();
    assert_contains(&read, &serde_json::to_value(given).unwrap(), "");
    server.stop().await;
}

/// Asserts that everything in `part` is in `whole`.
fn assert_contains(whole: &Value, part: &Value, path: &str) {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            for (key, value) in part {
                assert_contains(
                    whole.get(key).unwrap_or(&Value::Null),
                    value,
                    &format!("{path}.{key}"),
                );
            }
        }
        (Value::Array(whole), Value::Array(part)) => {
            assert!(whole.len() >= part.len(), "{path}");
            whole
                .iter()
                .zip(part)
                .enumerate()
                .for_each(|(i, (whole, part))| {
                    assert_contains(whole, part, &format!("{path}[{i}]"))
                });
        }
        _ => assert_eq!(whole, part, "{path}"),
    }
}

#[tokio::test]
async fn refusals_match_kubernetes() {
    let server = TestServer::start().await;
    let pods = server.pods();
    pods.create(&pod("a")).await.unwrap();
    let elsewhere = pod_with(json!({"metadata": {"name": "a", "namespace": "x"}}));
    let refused = [
        (
            pods.create(&pod("a")).await,
            Reason::AlreadyExists,
            r#"pods "a" already exists"#,
        ),
        (
            pods.get("b").await,
            Reason::NotFound,
            r#"pods "b" not found"#,
        ),
        (
            pods.update(&pod("b")).await,
            Reason::NotFound,
            r#"pods "b" not found"#,
        ),
        (
            pods.delete("b", &at_once()).await,
            Reason::NotFound,
            r#"pods "b" not found"#,
        ),
        (
            pods.get("../a").await,
            Reason::NotFound,
            r#"pods "../a" not found"#,
        ),
        (
            server.client.namespaced("x").create(&elsewhere).await,
            Reason::NotFound,
            r#"namespaces "x" not found"#,
        ),
    ];
    for (answer, reason, message) in refused {
        let error = answer.unwrap_err();
        assert_eq!((error.reason, &*error.message), (reason, message));
    }
    let lease: ApiError = server
        .client
        .namespaced::<Lease>("default")
        .get("l")
        .await
        .unwrap_err();
    assert_eq!(lease.message, r#"leases.coordination.k8s.io "l" not found"#);
    server.stop().await;
}

#[tokio::test]
async fn an_invalid_object_is_refused_with_its_fields() {
    let server = TestServer::start().await;
    let invalid = pod_with(
        json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": ""}]}}),
    );
    let error = server.pods().create(&invalid).await.unwrap_err();
    assert_eq!(error.reason, Reason::Invalid);
    assert_eq!(
        error.message,
        r#"Pod "a" is invalid: spec.containers[0].image: Required value"#
    );
    assert_eq!(error.fields.len(), 1);
    assert_eq!(error.fields[0].field, "spec.containers[0].image");
    assert_eq!(error.fields[0].description, "Required value");
    server.stop().await;
}

#[tokio::test]
async fn an_update_requires_the_revision_that_it_is_based_on() {
    let server = TestServer::start().await;
    let pods = server.pods();
    let first = pods.create(&pod("a")).await.unwrap();
    let mut labelled = first.clone();
    labelled.metadata.labels = Some([("l".to_owned(), "1".to_owned())].into());
    let second = pods.update(&labelled).await.unwrap();
    assert_ne!(second.resource_version(), first.resource_version());
    assert_eq!(second.metadata.generation, Some(1), "labels are no spec");

    let error = pods.update(&labelled).await.unwrap_err();
    assert_eq!(error.reason, Reason::Conflict);
    assert_eq!(
        error.message,
        "Operation cannot be fulfilled on pods \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );
    // Without a revision the update applies to any state, and one that changes nothing writes
    // nothing.
    labelled.metadata.resource_version = None;
    assert_eq!(pods.update(&labelled).await.unwrap(), second);

    let mut other = labelled.clone();
    other.metadata.uid = Some("other".into());
    let error = pods.update(&other).await.unwrap_err();
    assert!(
        error
            .message
            .contains("Precondition failed: UID in precondition: other, UID in object meta: "),
        "{error}"
    );

    let mut image = second.clone();
    image.spec.as_mut().unwrap().containers[0].image = Some("other".into());
    assert_eq!(
        pods.update(&image).await.unwrap().metadata.generation,
        Some(2)
    );
    server.stop().await;
}

#[tokio::test]
async fn an_update_keeps_the_status_and_a_status_update_keeps_the_rest() {
    let server = TestServer::start().await;
    let pods = server.pods();
    let created = pods.create(&pod("a")).await.unwrap();
    let mut both = created.clone();
    both.metadata.labels = Some([("l".to_owned(), "1".to_owned())].into());
    both.status.as_mut().unwrap().phase = Some("Running".into());

    let status = pods.update_status(&both).await.unwrap();
    assert_eq!(
        status.status.as_ref().unwrap().phase.as_deref(),
        Some("Running")
    );
    assert_eq!(
        status.status.as_ref().unwrap().qos_class.as_deref(),
        Some("BestEffort")
    );
    assert_eq!(status.metadata.labels, None);
    assert_eq!(status.metadata.generation, Some(1));

    both.metadata.resource_version = None;
    both.status.as_mut().unwrap().phase = Some("Failed".into());
    let updated = pods.update(&both).await.unwrap();
    assert_eq!(updated.status.unwrap().phase.as_deref(), Some("Running"));
    assert!(updated.metadata.labels.is_some());
    server.stop().await;
}

#[tokio::test]
async fn a_status_update_of_a_node_writes_labels_and_annotations_too() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let mut all = nodes.create(&node("n")).await.unwrap();
    let one = BTreeMap::from([("k".to_owned(), "1".to_owned())]);
    all.metadata.labels = Some(one.clone());
    all.metadata.annotations = Some(one.clone());
    all.metadata.finalizers = Some(vec!["example.com/kept".to_owned()]);
    all.spec.as_mut().unwrap().unschedulable = Some(true);
    let phase = Some("Running".to_owned());
    all.status.get_or_insert_default().phase.clone_from(&phase);

    let updated = nodes.update_status(&all).await.unwrap();
    assert_eq!(updated.status.unwrap().phase, phase);
    assert_eq!(updated.metadata.labels, Some(one.clone()));
    assert_eq!(updated.metadata.annotations, Some(one));
    assert_eq!(updated.metadata.finalizers, None);
    assert_eq!(updated.spec.unwrap().unschedulable, None);
    server.stop().await;
}

#[tokio::test]
async fn names_are_generated() {
    let server = TestServer::start().await;
    let generate = pod_with(json!({"metadata": {"generateName": "web-"}}));
    let created = server.pods().create(&generate).await.unwrap();
    let suffix = created.name().strip_prefix("web-").unwrap();
    assert_eq!(suffix.len(), 5);
    assert!(
        suffix
            .chars()
            .all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c)),
        "{suffix}"
    );
    let nameless = pod_with(json!({"metadata": {}}));
    let error = server.pods().create(&nameless).await.unwrap_err();
    assert_eq!(
        error.message,
        "Pod \"\" is invalid: metadata.name: Required value: name or generateName is required"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_lease_update_requires_a_revision() {
    let server = TestServer::start().await;
    let leases = server.client.namespaced::<Lease>("kube-node-lease");
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some("n".into()),
            namespace: Some("kube-node-lease".into()),
            ..ObjectMeta::default()
        },
        spec: None,
    };
    leases.create(&lease).await.unwrap();
    let error = leases.update(&lease).await.unwrap_err();
    assert_eq!(
        error.message,
        "Lease.coordination.k8s.io \"n\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"
    );
    server.stop().await;
}
