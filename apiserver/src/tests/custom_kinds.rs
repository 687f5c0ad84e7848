//! Custom kinds: definitions, their lives, and their objects over the REST API.

use http::Method;
use podplane_http_client::HttpAnswer;
use podplane_store::SledStore;

use super::*;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// A definition of widgets with a status and a scale.
pub(super) fn widgets() -> Value {
    let schema = json!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1},
                    "color": {"type": "string", "default": "red"},
                    "replicas": {"type": "integer"},
                    "parts": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
                        },
                    },
                },
                "x-kubernetes-validations": [
                    {"rule": "self.size < 100", "message": "too large"},
                ],
            },
            "status": {
                "type": "object",
                "properties": {"ready": {"type": "boolean"}, "replicas": {"type": "integer"}},
            },
        },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                },
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                ],
            }],
        },
    })
}

pub(super) fn widget(name: &str) -> Value {
    json!({
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {"size": 3},
    })
}

impl TestServer {
    async fn post(&self, path: &str, document: &Value) -> HttpAnswer {
        self.ask(Method::POST, path, document).await
    }

    async fn replace(&self, path: &str, document: &Value) -> HttpAnswer {
        self.ask(Method::PUT, path, document).await
    }

    async fn patched(&self, path: &str, media: &str, patch: &Value) -> HttpAnswer {
        let answer = self.rest.send(Method::PATCH, path, Some((media, patch)));
        within(answer).await.unwrap()
    }

    async fn deleted(&self, path: &str) -> HttpAnswer {
        let answer = self.rest.send(Method::DELETE, path, None);
        within(answer).await.unwrap()
    }

    async fn read(&self, path: &str) -> HttpAnswer {
        within(self.rest.get(path)).await.unwrap()
    }

    /// Reads until there is nothing at the path.
    async fn until_gone(&self, path: &str) {
        within(async {
            while self.read(path).await.code != 404 {
                time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Creates a definition, and waits until it is established.
    pub(super) async fn define(&self, definition: &Value) {
        let created = self.post(DEFINITIONS, definition).await;
        assert_eq!(created.code, 201, "{:?}", created.body);
        let name = definition["metadata"]["name"].as_str().unwrap();
        self.until_condition(name, "Established", "True").await;
    }

    /// Waits until a condition of a definition has a status; returns the definition.
    async fn until_condition(&self, name: &str, condition: &str, status: &str) -> Value {
        let path = format!("{DEFINITIONS}?fieldSelector=metadata.name={name}&watch=1");
        let (_, events) = self.rest.watch(&path).await.unwrap();
        let mut events = std::pin::pin!(events);
        loop {
            let event = within(events.next()).await.unwrap().unwrap();
            let conditions = event["object"]["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            if conditions.any(|one| one["type"] == condition && one["status"] == status) {
                return event["object"].clone();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_custom_kind_are_created_changed_and_deleted() {
    let server = TestServer::start().await;
    assert_eq!(server.read(WIDGETS).await.code, 404);
    server.define(&widgets()).await;
    let created = server.post(WIDGETS, &widget("a")).await;
    assert_eq!(created.code, 201, "{:?}", created.body);
    let object = created.body;
    assert_eq!(object["spec"], json!({"size": 3, "color": "red"}));
    assert_eq!(object["metadata"]["generation"], 1);
    let path = format!("{WIDGETS}/a");
    assert_eq!(server.read(&path).await.body, object);

    let mut changed = object.clone();
    changed["spec"]["size"] = 4.into();
    changed["status"] = json!({"ready": true});
    let updated = server.replace(&path, &changed).await;
    assert_eq!(updated.code, 200, "{:?}", updated.body);
    assert_eq!(updated.body["metadata"]["generation"], 2);
    assert_eq!(
        updated.body["status"],
        Value::Null,
        "the status has its own path"
    );
    let stale = server.replace(&path, &changed).await;
    assert_eq!(stale.code, 409, "{:?}", stale.body);
    changed["metadata"]["resourceVersion"] = Value::Null;
    let unconditional = server.replace(&path, &changed).await;
    assert_eq!(unconditional.code, 422, "{:?}", unconditional.body);

    let mut current = updated.body;
    current["status"] = json!({"ready": true, "replicas": 2});
    current["spec"]["size"] = 9.into();
    let status = server.replace(&format!("{path}/status"), &current).await;
    assert_eq!(status.code, 200, "{:?}", status.body);
    assert_eq!(status.body["status"]["ready"], true);
    assert_eq!(status.body["spec"]["size"], 4);
    assert_eq!(status.body["metadata"]["generation"], 2);

    let patched = server
        .patched(&path, MERGE, &json!({"spec": {"size": 5}}))
        .await;
    assert_eq!(patched.body["spec"]["size"], 5, "{:?}", patched.body);
    let strategic = "application/strategic-merge-patch+json";
    let refused = server
        .patched(&path, strategic, &json!({"spec": {"size": 6}}))
        .await;
    assert_eq!(refused.code, 415, "{:?}", refused.body);

    let listed = server.read("/apis/example.com/v1/widgets").await.body;
    assert_eq!(listed["kind"], "WidgetList");
    assert_eq!(listed["items"][0]["metadata"]["name"], "a");
    let deleted = server.deleted(&path).await;
    assert_eq!(deleted.code, 200, "{:?}", deleted.body);
    assert_eq!(server.read(&path).await.code, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_judges_objects() {
    let server = TestServer::start().await;
    server.define(&widgets()).await;
    for (spec, why) in [
        (
            json!({"size": 0}),
            "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
        ),
        (
            json!({"size": "x"}),
            "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
        ),
        (json!({"size": 100}), "spec: Invalid value: too large"),
        (json!({}), "spec.size: Required value"),
    ] {
        let mut wrong = widget("a");
        wrong["spec"] = spec;
        let refused = server.post(WIDGETS, &wrong).await;
        assert_eq!(refused.code, 422, "{:?}", refused.body);
        let message = refused.body["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
        assert!(
            message.starts_with("Widget.example.com \"a\" is invalid: "),
            "{message}"
        );
    }
    let mut unknown = widget("a");
    unknown["spec"]["sise"] = 3.into();
    let strict = format!("{WIDGETS}?fieldValidation=Strict");
    let refused = server.post(&strict, &unknown).await;
    assert_eq!(refused.code, 400, "{:?}", refused.body);
    let message = refused.body["message"].as_str().unwrap();
    assert!(message.contains("unknown field \"spec.sise\""), "{message}");
    let warned = server
        .post(&format!("{WIDGETS}?dryRun=All"), &unknown)
        .await;
    assert_eq!(warned.code, 201, "{:?}", warned.body);
    let warning = warned.headers["warning"].to_str().unwrap();
    assert!(warning.contains("unknown field"), "{warning}");
    assert_eq!(warned.body["spec"]["sise"], Value::Null);
    assert_eq!(
        server.read(&format!("{WIDGETS}/a")).await.code,
        404,
        "a dry run"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn applies_merge_lists_by_their_keys() {
    let server = TestServer::start().await;
    server.define(&widgets()).await;
    let path = format!("{WIDGETS}/a");
    let mut config = widget("a");
    config["spec"]["parts"] = json!([{"name": "x", "count": 1}]);
    let one = server
        .patched(&format!("{path}?fieldManager=one"), APPLY, &config)
        .await;
    assert_eq!(one.code, 201, "{:?}", one.body);
    config["spec"] = json!({"size": 3, "parts": [{"name": "y", "count": 2}]});
    let other = server
        .patched(&format!("{path}?fieldManager=other"), APPLY, &config)
        .await;
    assert_eq!(other.code, 200, "{:?}", other.body);
    assert_eq!(
        other.body["spec"]["parts"],
        json!([{"name": "x", "count": 1}, {"name": "y", "count": 2}])
    );
    config["spec"]["size"] = 4.into();
    let conflict = server
        .patched(&format!("{path}?fieldManager=other"), APPLY, &config)
        .await;
    assert_eq!(conflict.code, 409, "{:?}", conflict.body);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_kind_is_discovered_and_explained_and_has_a_table() {
    let server = TestServer::start().await;
    server.define(&widgets()).await;
    let resources = server.read("/apis/example.com/v1").await.body;
    let names: Vec<_> = resources["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["widgets", "widgets/scale", "widgets/status"]);
    assert_eq!(resources["resources"][0]["shortNames"], json!(["wd"]));
    let groups = server.read("/apis").await.body;
    assert!(
        groups["groups"]
            .as_array()
            .unwrap()
            .iter()
            .any(|group| group["name"] == "example.com")
    );
    let index = server.read("/openapi/v3").await.body;
    assert!(index["paths"]["apis/example.com/v1"].is_object());
    let openapi = server.read("/openapi/v3/apis/example.com/v1").await.body;
    let schemas = openapi["components"]["schemas"].as_object().unwrap();
    let schema = schemas.get("com.example.v1.Widget").unwrap();
    assert_eq!(
        schema["properties"]["spec"]["properties"]["color"]["default"],
        "red"
    );

    server.post(WIDGETS, &widget("a")).await;
    let mut blue = widget("b");
    blue["spec"]["color"] = "blue".into();
    server.post(WIDGETS, &blue).await;
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = server
        .rest
        .exchange(Method::GET, WIDGETS, &accept, "")
        .await
        .unwrap()
        .body;
    let columns: Vec<_> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(columns, ["Name", "Size"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", 3]));
    let selected = server
        .read(&format!("{WIDGETS}?fieldSelector=spec.color=blue"))
        .await
        .body;
    assert_eq!(selected["items"].as_array().unwrap().len(), 1);
    assert_eq!(selected["items"][0]["metadata"]["name"], "b");
    let refused = server
        .read(&format!("{WIDGETS}?fieldSelector=spec.size=3"))
        .await;
    assert_eq!(refused.code, 400, "{:?}", refused.body);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scale_changes_the_replicas_of_a_custom_object() {
    let server = TestServer::start().await;
    server.define(&widgets()).await;
    let mut object = widget("a");
    object["spec"]["replicas"] = 1.into();
    server.post(WIDGETS, &object).await;
    let path = format!("{WIDGETS}/a/scale");
    let mut scale = server.read(&path).await.body;
    assert_eq!(
        (&scale["kind"], &scale["spec"]["replicas"]),
        (&json!("Scale"), &json!(1))
    );
    scale["spec"]["replicas"] = 5.into();
    let scaled = server.replace(&path, &scale).await;
    assert_eq!(scaled.code, 200, "{:?}", scaled.body);
    assert_eq!(scaled.body["spec"]["replicas"], 5);
    let object = server.read(&format!("{WIDGETS}/a")).await.body;
    assert_eq!(
        (
            &object["spec"]["replicas"],
            &object["metadata"]["generation"]
        ),
        (&json!(5), &json!(2))
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_objects_of_a_deleted_definition_go_first() {
    let server = TestServer::start().await;
    server.define(&widgets()).await;
    let mut kept = widget("kept");
    kept["metadata"]["finalizers"] = json!(["example.com/keep"]);
    server.post(WIDGETS, &kept).await;
    server.post(WIDGETS, &widget("gone")).await;
    let (_, events) = server
        .rest
        .watch(&format!("{WIDGETS}?watch=1"))
        .await
        .unwrap();
    let mut events = std::pin::pin!(events);
    for _ in 0..2 {
        let event = within(events.next()).await.unwrap().unwrap();
        assert_eq!(event["type"], "ADDED");
    }
    let definition = format!("{DEFINITIONS}/widgets.example.com");
    let deleting = server.deleted(&definition).await;
    assert_eq!(deleting.code, 200, "{:?}", deleting.body);
    assert_eq!(
        deleting.body["metadata"]["finalizers"],
        json!(["customresourcecleanup.apiextensions.k8s.io"])
    );
    server
        .until_condition("widgets.example.com", "Terminating", "True")
        .await;
    // The watch of before ends, since the kind is served in another form.
    while within(events.next()).await.is_some() {}
    let path = format!("{WIDGETS}/kept");
    let read = server.read(&path).await;
    assert_eq!(read.code, 200, "a finalizer keeps it: {:?}", read.body);
    let refused = server.post(WIDGETS, &widget("new")).await;
    assert_eq!(refused.code, 405, "{:?}", refused.body);
    let released = json!({"metadata": {"finalizers": null}});
    server.patched(&path, MERGE, &released).await;
    let (_, events) = server
        .rest
        .watch(&format!("{DEFINITIONS}?watch=1"))
        .await
        .unwrap();
    let mut events = std::pin::pin!(events);
    if server.read(&definition).await.code == 200 {
        while within(events.next()).await.unwrap().unwrap()["type"] != "DELETED" {}
    }
    assert_eq!(server.read(&definition).await.code, 404);
    server.until_gone(WIDGETS).await;
    // A definition of the same name begins without objects.
    server.define(&widgets()).await;
    let listed = server.read(WIDGETS).await.body;
    assert_eq!(listed["items"], json!([]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_a_group_are_accepted_once() {
    let server = TestServer::start().await;
    server.define(&widgets()).await;
    let mut other = widgets();
    other["metadata"]["name"] = "gadgets.example.com".into();
    other["spec"]["names"] = json!({"plural": "gadgets", "kind": "Widget", "listKind": "GadgetList", "singular": "gadget"});
    let created = server.post(DEFINITIONS, &other).await;
    assert_eq!(created.code, 201, "{:?}", created.body);
    let refused = server
        .until_condition("gadgets.example.com", "NamesAccepted", "False")
        .await;
    let conditions = refused["status"]["conditions"].as_array().unwrap();
    let accepted = conditions
        .iter()
        .find(|one| one["type"] == "NamesAccepted")
        .unwrap();
    assert_eq!(
        (&accepted["reason"], &accepted["message"]),
        (
            &json!("KindConflict"),
            &json!("\"Widget\" is already in use")
        )
    );
    assert_eq!(server.read("/apis/example.com/v1/gadgets").await.code, 404);
    // The name is free once its definition is gone.
    server
        .deleted(&format!("{DEFINITIONS}/widgets.example.com"))
        .await;
    server
        .until_condition("gadgets.example.com", "Established", "True")
        .await;
    assert_eq!(server.read("/apis/example.com/v1/gadgets").await.code, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_served_in_all_versions() {
    let server = TestServer::start().await;
    let mut definition = widgets();
    let mut second = definition["spec"]["versions"][0].clone();
    second["name"] = "v2".into();
    second["storage"] = false.into();
    second["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["shape"] =
        json!({"type": "string", "default": "round"});
    definition["spec"]["versions"]
        .as_array_mut()
        .unwrap()
        .push(second);
    server.define(&definition).await;
    server.post(WIDGETS, &widget("a")).await;
    let newer = "/apis/example.com/v2/namespaces/default/widgets";
    let seen = server.read(&format!("{newer}/a")).await.body;
    assert_eq!(
        (&seen["apiVersion"], &seen["spec"]["shape"]),
        (&json!("example.com/v2"), &json!("round"))
    );
    let mut changed = seen.clone();
    changed["spec"]["size"] = 7.into();
    let updated = server.replace(&format!("{newer}/a"), &changed).await;
    assert_eq!(updated.code, 200, "{:?}", updated.body);
    assert_eq!(updated.body["apiVersion"], "example.com/v2");
    let older = server.read(&format!("{WIDGETS}/a")).await.body;
    assert_eq!(
        (&older["apiVersion"], &older["spec"]),
        (
            &json!("example.com/v1"),
            &json!({"size": 7, "color": "red"})
        )
    );
    let listed = server.read(newer).await.body;
    assert_eq!(listed["items"][0]["apiVersion"], "example.com/v2");
    let group = server.read("/apis/example.com").await.body;
    assert_eq!(group["preferredVersion"]["version"], "v2");

    // Stored in the newer version from now on.
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let mut current = server.read(&path).await.body;
    current["spec"]["versions"][0]["storage"] = false.into();
    current["spec"]["versions"][1]["storage"] = true.into();
    let updated = server.replace(&path, &current).await;
    assert_eq!(updated.code, 200, "{:?}", updated.body);
    assert_eq!(
        updated.body["status"]["storedVersions"],
        json!(["v1", "v2"])
    );
    let still = server.read(&format!("{newer}/a")).await.body;
    assert_eq!(still["spec"]["size"], 7);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_kinds_are_served_after_a_restart_and_end_with_their_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let server = TestServer::with(SledStore::open(&store).unwrap()).await;
    server.define(&widgets()).await;
    let created = server.post(WIDGETS, &widget("a")).await.body;
    server.stop().await;
    let server = TestServer::with(SledStore::open(&store).unwrap()).await;
    let path = format!("{WIDGETS}/a");
    let found = server.read(&path).await;
    assert_eq!((found.code, &found.body), (200, &created));
    // A watch from before the restart resumes.
    let since = created["metadata"]["resourceVersion"].as_str().unwrap();
    let (_, events) = server
        .rest
        .watch(&format!("{WIDGETS}?watch=1&resourceVersion={since}"))
        .await
        .unwrap();
    let mut events = std::pin::pin!(events);
    server
        .patched(&path, MERGE, &json!({"spec": {"size": 8}}))
        .await;
    let event = within(events.next()).await.unwrap().unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["spec"]["size"]),
        (&json!("MODIFIED"), &json!(8))
    );

    server
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "ns"}}))
        .await;
    let in_ns = "/apis/example.com/v1/namespaces/ns/widgets";
    let created = server.post(in_ns, &widget("b")).await;
    assert_eq!(created.code, 201, "{:?}", created.body);
    server.deleted("/api/v1/namespaces/ns").await;
    server.until_gone("/api/v1/namespaces/ns").await;
    assert_eq!(server.read(&format!("{in_ns}/b")).await.code, 404);
    let refused = server.post(in_ns, &widget("c")).await;
    assert_eq!(refused.code, 404, "{:?}", refused.body);
    server.stop().await;
}
