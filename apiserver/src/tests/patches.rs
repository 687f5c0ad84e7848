//! Patches by each media type, the recorded owners of the written fields, and refusals.

use http::Method;
use podplane_http_client::HttpAnswer;

use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";
const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

async fn patch(server: &TestServer, path: &str, media: &str, body: Value) -> HttpAnswer {
    let sent = server
        .rest
        .send(Method::PATCH, path, Some((media, &body)))
        .await;
    sent.unwrap()
}

fn labels(answer: &HttpAnswer) -> &Value {
    assert_eq!(answer.code, 200, "{}", answer.body);
    &answer.body["metadata"]["labels"]
}

/// `manager operation subresource` of each entry of `managedFields`, with its fields.
fn managers(object: &Value) -> Vec<(String, &Value)> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let entry =
        |entry: &'_ Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    entries
        .iter()
        .map(|each| {
            let who = format!(
                "{} {} {}",
                entry(each, "manager"),
                entry(each, "operation"),
                entry(each, "subresource")
            );
            (who.trim_end().to_owned(), &each["fieldsV1"])
        })
        .collect()
}

#[tokio::test]
async fn each_media_type_selects_its_patch_semantics() {
    let server = TestServer::start().await;
    let one = format!("{PODS}/a");
    let mut pod = pod("a");
    pod.metadata.labels = Some([("a".to_owned(), "1".to_owned())].into());
    server.pods().create(&pod).await.unwrap();

    let operations = json!([{"op": "test", "path": "/metadata/labels/a", "value": "1"},
        {"op": "add", "path": "/metadata/labels/b", "value": "2"}]);
    let answer = patch(&server, &one, JSON, operations.clone()).await;
    assert_eq!(labels(&answer), &json!({"a": "1", "b": "2"}));

    let answer = patch(
        &server,
        &one,
        MERGE,
        json!({"metadata": {"labels": {"a": null, "b": "3"}}}),
    )
    .await;
    assert_eq!(labels(&answer), &json!({"b": "3"}));

    // The container is found by its name; a merge patch would replace the list.
    let image = json!({"spec": {"containers": [{"name": "c", "image": "j"}]}});
    let answer = patch(&server, &one, STRATEGIC, image).await;
    assert_eq!(
        answer.body["spec"]["containers"][0]["image"], "j",
        "{}",
        answer.body
    );
    assert_eq!(
        answer.body["spec"]["containers"][0]["imagePullPolicy"],
        "Always"
    );

    let directive = json!({"metadata": {"labels": {"$patch": "replace", "only": "this"}}});
    let answer = patch(&server, &one, STRATEGIC, directive).await;
    assert_eq!(labels(&answer), &json!({"only": "this"}));

    // All operations or none.
    let answer = patch(&server, &one, JSON, operations).await;
    assert_eq!(
        (answer.code, &answer.body["reason"]),
        (422, &json!("Invalid"))
    );
    let found = server.rest.get(&one).await.unwrap();
    assert_eq!(labels(&found), &json!({"only": "this"}));
    server.stop().await;
}

#[tokio::test]
async fn bad_patches_are_refused_with_the_reason() {
    let server = TestServer::start().await;
    let one = format!("{PODS}/a");
    server.pods().create(&pod("a")).await.unwrap();
    let cases = [
        (
            "text/plain",
            "",
            json!({}),
            415,
            "the body of the request was in an unknown format",
        ),
        (JSON, "", json!({"op": "add"}), 400, "decode JSON patch"),
        (
            MERGE,
            "",
            json!([]),
            400,
            "a merge patch must be a JSON object",
        ),
        (MERGE, "", json!({"metadata": {"name": "b"}}), 400, "name"),
        (
            STRATEGIC,
            "",
            json!({"spec": {"nodeName": "n"}}),
            422,
            "spec: Forbidden: pod updates may not change fields other than",
        ),
        (
            MERGE,
            "?fieldValidation=Strict",
            json!({"spec": {"nodName": "n"}}),
            422,
            "strict decoding error: unknown field \"spec.nodName\"",
        ),
        (
            MERGE,
            "?fieldValidation=Some",
            json!({}),
            400,
            "fieldValidation",
        ),
        (
            MERGE,
            "?force=true",
            json!({}),
            422,
            "force: Forbidden: may not be specified for non-apply patch",
        ),
        (MERGE, "?dryRun=Some", json!({}), 400, "dryRun"),
        (
            APPLY,
            "",
            json!({"apiVersion": "v1", "kind": "Pod"}),
            422,
            "fieldManager: Required value: is required for apply patch",
        ),
        (
            APPLY,
            "?fieldManager=m",
            json!({"apiVersion": "v1", "kind": "Node"}),
            400,
            "does not match the expected kind (Pod)",
        ),
        (
            APPLY,
            "?fieldManager=m",
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b"}}),
            400,
            "does not match the name on the URL",
        ),
        (
            APPLY,
            "?fieldManager=m",
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"managedFields": [{}]}}),
            400,
            "metadata.managedFields must be nil",
        ),
    ];
    for (media, query, body, code, why) in cases {
        let answer = patch(&server, &format!("{one}{query}"), media, body.clone()).await;
        let message = answer.body["message"].as_str().unwrap_or_default();
        assert_eq!(answer.code, code, "{media} {body}: {message}");
        assert!(message.contains(why), "{media} {body}: {message}");
    }
    let nothing = patch(&server, &format!("{PODS}/none"), MERGE, json!({})).await;
    assert_eq!(nothing.code, 404);
    server.stop().await;
}

#[tokio::test]
async fn unknown_fields_cause_warnings_by_default() {
    let server = TestServer::start().await;
    let one = format!("{PODS}/a");
    server.pods().create(&pod("a")).await.unwrap();
    let body = json!({"spec": {"nodName": "n"}});
    let warned = patch(&server, &one, MERGE, body.clone()).await;
    assert_eq!(
        (warned.code, warned.headers["warning"].to_str().unwrap()),
        (200, "299 - \"unknown field \\\"spec.nodName\\\"\"")
    );
    let ignored = patch(
        &server,
        &format!("{one}?fieldValidation=Ignore"),
        MERGE,
        body,
    )
    .await;
    assert_eq!((ignored.code, ignored.headers.get("warning")), (200, None));
    server.stop().await;
}

#[tokio::test]
async fn apply_owns_its_fields_and_removes_dropped_ones() {
    let server = TestServer::start().await;
    let one = format!("{PODS}/a");
    let path = format!("{one}?fieldManager=first");
    let config = |labels: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": labels},
            "spec": {"containers": [{"name": "c", "image": "i"}]}})
    };
    let created = patch(&server, &path, APPLY, config(json!({"a": "1", "b": "1"}))).await;
    assert_eq!(created.code, 201, "{}", created.body);
    assert_eq!(managers(&created.body)[0].0, "first Apply");
    let version = |answer: &HttpAnswer| answer.body["metadata"]["resourceVersion"].clone();

    // A repeated apply changes nothing, and causes no event.
    let again = patch(&server, &path, APPLY, config(json!({"a": "1", "b": "1"}))).await;
    assert_eq!(
        (again.code, version(&again)),
        (200, version(&created)),
        "{}",
        again.body
    );

    // Fields that admission added are not in any configuration, and stay.
    let answer = patch(&server, &path, APPLY, config(json!({"a": "1"}))).await;
    assert_eq!(labels(&answer), &json!({"a": "1"}));
    assert_eq!(answer.body["spec"]["priority"], 0);

    let other = patch(
        &server,
        &format!("{one}?fieldManager=second"),
        APPLY,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "2"}}}),
    )
    .await;
    assert_eq!(
        (other.code, &other.body["reason"]),
        (409, &json!("Conflict"))
    );
    assert_eq!(
        other.body["details"]["causes"][0]["reason"],
        "FieldManagerConflict"
    );
    assert_eq!(
        other.body["details"]["causes"][0]["field"],
        ".metadata.labels.a"
    );

    let forced = patch(
        &server,
        &format!("{one}?fieldManager=second&force=true"),
        APPLY,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "2"}}}),
    )
    .await;
    assert_eq!(labels(&forced), &json!({"a": "2"}));
    let owners: Vec<_> = managers(&forced.body)
        .into_iter()
        .filter(|(_, fields)| !fields["f:metadata"]["f:labels"]["f:a"].is_null())
        .map(|(who, _)| who)
        .collect();
    assert_eq!(owners, ["second Apply"]);

    // The first manager no longer owns it, so it stays when the first leaves it out.
    let answer = patch(&server, &path, APPLY, config(json!({}))).await;
    assert_eq!(labels(&answer), &json!({"a": "2"}));
    server.stop().await;
}

#[tokio::test]
async fn writers_are_recorded_by_field_manager_or_user_agent() {
    let server = TestServer::start().await;
    let one = format!("{PODS}/a");
    let body = pod("a").to_json().unwrap();
    let created = server
        .rest
        .send_json(Method::POST, &format!("{PODS}?fieldManager=maker"), &body)
        .await
        .unwrap();
    let all = managers(&created.body);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].0, "maker Update");
    let spec = &all[0].1["f:spec"];
    // Defaults belong to the writer; fields added by admission belong to no manager.
    assert_eq!(spec["f:restartPolicy"], json!({}));
    assert_eq!(spec["f:tolerations"], Value::Null);

    let answer = patch(
        &server,
        &format!("{one}?fieldManager=marker"),
        MERGE,
        json!({"metadata": {"labels": {"x": "y"}}}),
    )
    .await;
    assert_eq!(
        managers(&answer.body)[1].1,
        &json!({"f:metadata": {"f:labels": {".": {}, "f:x": {}}}})
    );

    let status = json!({"status": {"phase": "Running"}});
    let answer = patch(
        &server,
        &format!("{one}/status?fieldManager=kubelet"),
        MERGE,
        status,
    )
    .await;
    let kubelet = managers(&answer.body)
        .into_iter()
        .find(|(who, _)| who.starts_with("kubelet"))
        .unwrap();
    assert_eq!(
        kubelet,
        (
            "kubelet Update status".to_owned(),
            &json!({"f:status": {"f:phase": {}}})
        )
    );

    // An update through gRPC is not recorded, and removes no record.
    let mut found = server.pods().get("a").await.unwrap();
    found.metadata.managed_fields = None;
    let updated = server.pods().update(&found).await.unwrap();
    assert_eq!(updated.metadata.managed_fields.unwrap().len(), 3);
    server.stop().await;
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let server = TestServer::start().await;
    let one = format!("{PODS}/a");
    let created = server.pods().create(&pod("a")).await.unwrap();
    let answer = patch(
        &server,
        &format!("{one}?dryRun=All"),
        MERGE,
        json!({"metadata": {"labels": {"x": "y"}}}),
    )
    .await;
    assert_eq!(labels(&answer), &json!({"x": "y"}));
    assert_eq!(server.pods().get("a").await.unwrap(), created);
    let config = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let answer = patch(
        &server,
        &format!("{PODS}/b?dryRun=All&fieldManager=m"),
        APPLY,
        config,
    )
    .await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    assert!(server.pods().get("b").await.is_err());
    server.stop().await;
}
