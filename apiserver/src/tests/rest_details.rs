//! Details of the REST API that clients depend on: paths, refusals, forms of bodies and answers.

use http::{Method, header};
use podplane_http_client::HttpAnswer;

use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";

fn manifest(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

impl TestServer {
    async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> HttpAnswer {
        let answer = self.rest.exchange(method, path, headers, body.to_owned());
        within(answer).await.unwrap()
    }

    async fn json(&self, method: Method, path: &str, body: &Value) -> HttpAnswer {
        let headers = [("content-type", JSON)];
        self.exchange(method, path, &headers, &body.to_string())
            .await
    }

    async fn get(&self, path: &str) -> HttpAnswer {
        self.exchange(Method::GET, path, &[], "").await
    }
}

fn warnings(answer: &HttpAnswer) -> Vec<&str> {
    let mut warnings = Vec::new();
    for warning in answer.headers.get_all(header::WARNING) {
        let text = std::str::from_utf8(warning.as_bytes()).unwrap();
        let text = text.strip_prefix("299 - \"").unwrap();
        warnings.push(text.strip_suffix('"').unwrap());
    }
    warnings
}

#[tokio::test]
async fn a_slash_at_the_end_of_a_path_changes_nothing() {
    let server = TestServer::start().await;
    let created = server
        .json(Method::POST, &format!("{PODS}/"), &manifest("a"))
        .await;
    assert_eq!(created.code, 201);
    for path in [
        "/version",
        "/api",
        "/apis",
        "/api/v1",
        "/apis/apps",
        "/apis/apps/v1",
        "/api/v1/nodes",
        "/api/v1/namespaces/default",
        PODS,
        "/api/v1/namespaces/default/pods/a",
        "/api/v1/namespaces/default/pods/a/status",
    ] {
        let plain = server.get(path).await;
        let slashed = server.get(&format!("{path}/")).await;
        assert_eq!((slashed.code, slashed.body), (200, plain.body), "{path}");
    }
    assert_eq!(server.get("/api/v1/namespaces//pods").await.code, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_binding_of_the_namespace_binds_the_pod_that_it_names() {
    let server = TestServer::start().await;
    server.json(Method::POST, PODS, &manifest("a")).await;
    let path = "/api/v1/namespaces/default/bindings";
    let binding = |pod: &str, node: &str| json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"kind": "Node", "name": node}});
    let dry = format!("{path}?dryRun=All");
    assert_eq!(
        server
            .json(Method::POST, &dry, &binding("a", "n"))
            .await
            .code,
        201
    );
    for (pod, node, code, field, want) in [
        (
            "b",
            "n",
            404,
            "details",
            json!({"kind": "pods", "name": "b"}),
        ),
        ("a", "n", 201, "status", json!("Success")),
        ("a", "m", 409, "reason", json!("Conflict")),
    ] {
        let answer = server.json(Method::POST, path, &binding(pod, node)).await;
        assert_eq!(
            (answer.code, &answer.body[field]),
            (code, &want),
            "{}",
            answer.body
        );
        assert_eq!(answer.body["kind"], "Status");
    }
    let strict = format!("{path}?fieldValidation=Strict");
    let mut unknown = binding("a", "n");
    unknown["tarket"] = 1.into();
    assert_eq!(server.json(Method::POST, &strict, &unknown).await.code, 400);
    let pod = server.get(&format!("{PODS}/a")).await.body;
    assert_eq!(pod["spec"]["nodeName"], "n");
    assert_eq!(server.get(path).await.code, 405);
    let resources = server.get("/api/v1").await.body;
    let resources = resources["resources"].as_array().unwrap();
    let found = resources.iter().find(|known| known["name"] == "bindings");
    assert_eq!(
        found.unwrap(),
        &json!({"name": "bindings", "singularName": "binding", "namespaced": true, "kind": "Binding", "verbs": ["create"]})
    );
    server.stop().await;
}

/// `kubectl debug` and others read the details without checking that there are any.
#[tokio::test]
async fn refusals_have_the_details_that_clients_read() {
    let server = TestServer::start().await;
    server.json(Method::POST, PODS, &manifest("a")).await;
    let none = "/api/v1/namespaces/none/pods";
    let apply = format!("{none}/a?fieldManager=m");
    let ephemeral = format!("{PODS}/a/ephemeralcontainers");
    let exec = format!("{PODS}/a/exec");
    let missing = format!("{PODS}/b");
    let namespace = json!({"kind": "namespaces", "name": "none"});
    let lease = "/apis/coordination.k8s.io/v1/namespaces/none/leases/l";
    for (method, path, media, body, code, details) in [
        (Method::GET, "/nothing", "", json!(""), 404, json!({})),
        (
            Method::PATCH,
            ephemeral.as_str(),
            JSON,
            json!({}),
            404,
            json!({}),
        ),
        (Method::PUT, PODS, JSON, json!({}), 405, json!({})),
        (Method::POST, exec.as_str(), JSON, json!({}), 501, json!({})),
        (
            Method::GET,
            missing.as_str(),
            "",
            json!(""),
            404,
            json!({"kind": "pods", "name": "b"}),
        ),
        (
            Method::POST,
            PODS,
            JSON,
            manifest("a"),
            409,
            json!({"kind": "pods", "name": "a"}),
        ),
        (
            Method::POST,
            none,
            JSON,
            manifest("a"),
            404,
            namespace.clone(),
        ),
        (
            Method::PUT,
            lease,
            JSON,
            json!({"spec": {}}),
            404,
            namespace.clone(),
        ),
        (
            Method::PATCH,
            apply.as_str(),
            "application/apply-patch+yaml",
            manifest("a"),
            404,
            namespace,
        ),
    ] {
        let headers = [("content-type", media)];
        let answer = server
            .exchange(method, path, &headers, &body.to_string())
            .await;
        assert_eq!(answer.code, code, "{path}: {}", answer.body);
        assert_eq!(answer.body.get("details"), Some(&details), "{path}");
    }
    server.stop().await;
}

/// The kinds whose strategies in Kubernetes have `AllowCreateOnUpdate`.
#[tokio::test]
async fn an_update_creates_leases_events_and_services_only() {
    let server = TestServer::start().await;
    let event =
        json!({"metadata": {"namespace": "default"}, "involvedObject": {"namespace": "default"}});
    let newer = json!({"metadata": {"namespace": "default"}, "regarding": {"namespace": "default"}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "x.io/y", "reportingInstance": "z", "action": "a", "reason": "r", "type": "Normal"});
    let service = json!({"spec": {"ports": [{"port": 80}]}});
    let of_gone = json!({"metadata": {"resourceVersion": "7"}, "spec": {"holderIdentity": "b"}});
    for (path, body) in [
        (LEASES, json!({"spec": {"holderIdentity": "a"}})),
        ("/api/v1/namespaces/default/events", event),
        ("/apis/events.k8s.io/v1/namespaces/default/events", newer),
        ("/api/v1/namespaces/default/services", service),
    ] {
        let name = if path.contains("events.k8s.io") {
            "y"
        } else {
            "x"
        };
        let path = format!("{path}/{name}");
        let dry = server
            .json(Method::PUT, &format!("{path}?dryRun=All"), &body)
            .await;
        assert_eq!(dry.code, 201, "{path}");
        assert_eq!(server.get(&path).await.code, 404, "{path}");
        let created = server.json(Method::PUT, &path, &body).await;
        assert_eq!(created.code, 201, "{path}: {}", created.body);
        assert_eq!(created.body["metadata"]["name"], name);
        assert!(created.body["metadata"]["uid"].is_string(), "{path}");
        let manager = &created.body["metadata"]["managedFields"][0]["operation"];
        assert_eq!(manager, "Update", "{path}");
        let again = server.json(Method::PUT, &path, &created.body).await;
        assert_eq!(again.code, 200, "{path}: {}", again.body);
    }
    // A writer that has not read an existing lease cannot replace it; a deleted one is created
    // again.
    let unread = json!({"spec": {"holderIdentity": "b"}});
    let path = format!("{LEASES}/x");
    assert_eq!(server.json(Method::PUT, &path, &unread).await.code, 422);
    server.exchange(Method::DELETE, &path, &[], "").await;
    let of_other = json!({"metadata": {"uid": "u"}, "spec": {}});
    assert_eq!(server.json(Method::PUT, &path, &of_other).await.code, 409);
    assert_eq!(server.json(Method::PUT, &path, &of_gone).await.code, 201);
    for (path, body) in [
        (format!("{PODS}/x"), manifest("x")),
        ("/api/v1/nodes/x".to_owned(), json!({})),
        ("/api/v1/namespaces/x".to_owned(), json!({})),
    ] {
        assert_eq!(server.json(Method::PUT, &path, &body).await.code, 404);
    }
    server.stop().await;
}

/// kubectl compares objects: `kubectl get -o yaml | kubectl diff -f -` sends empty annotations.
#[tokio::test]
async fn empty_lists_and_maps_are_left_out_as_in_go() {
    let server = TestServer::start().await;
    let mut empty = manifest("a");
    empty["metadata"]["annotations"] = json!({});
    empty["metadata"]["finalizers"] = json!([]);
    empty["spec"]["nodeSelector"] = json!({});
    empty["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    empty["spec"]["automountServiceAccountToken"] = false.into();
    let created = server.json(Method::POST, PODS, &empty).await;
    assert_eq!(created.code, 201, "{}", created.body);
    let path = format!("{PODS}/a");
    let patch = json!({"metadata": {"annotations": {}, "labels": {}}}).to_string();
    let apply = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"annotations": {}}});
    for (media, query, patch) in [
        ("application/merge-patch+json", "", patch.clone()),
        ("application/strategic-merge-patch+json", "", patch.clone()),
        (
            "application/apply-patch+yaml",
            "?fieldManager=m",
            apply.to_string(),
        ),
        (
            "application/json-patch+json",
            "",
            json!([{"op": "add", "path": "/metadata/annotations", "value": {}}]).to_string(),
        ),
    ] {
        let path = format!("{path}{query}");
        let headers = [("content-type", media)];
        let answer = server
            .exchange(Method::PATCH, &path, &headers, &patch)
            .await;
        assert_eq!(answer.code, 200, "{media}: {}", answer.body);
    }
    let mut put = server.get(&path).await.body;
    put["metadata"]["labels"] = json!({});
    assert_eq!(server.json(Method::PUT, &path, &put).await.code, 200);
    let pod = server.get(&path).await.body;
    for field in ["annotations", "labels", "finalizers"] {
        assert!(pod["metadata"].get(field).is_none(), "{field}: {pod}");
    }
    assert!(pod["spec"].get("nodeSelector").is_none(), "{pod}");
    assert_eq!(
        pod["spec"]["volumes"],
        json!([{"name": "v", "emptyDir": {}}])
    );
    server.stop().await;
}

#[tokio::test]
async fn the_deprecated_watch_path_selects_one_object() {
    let server = TestServer::start().await;
    for name in ["a", "b"] {
        server.json(Method::POST, PODS, &manifest(name)).await;
    }
    // As in Kubernetes, the path of one object is read, whatever `watch` says.
    let read = server.get(&format!("{PODS}/a?watch=1")).await;
    assert_eq!((read.code, &read.body["kind"]), (200, &json!("Pod")));
    let namespaced = "/api/v1/watch/namespaces/default/pods";
    for (path, names) in [
        (
            format!("{PODS}?watch=1&fieldSelector=metadata.name%3Db"),
            &["b"][..],
        ),
        (format!("{namespaced}/b"), &["b"]),
        (
            format!("{namespaced}/b?fieldSelector=metadata.name%3Db"),
            &["b"],
        ),
        (namespaced.to_owned(), &["a", "b"]),
        ("/api/v1/watch/pods".to_owned(), &["a", "b"]),
        ("/api/v1/watch/namespaces/default".to_owned(), &["default"]),
    ] {
        let (code, mut events) = within(server.rest.watch(&path)).await.unwrap();
        assert_eq!(code, 200, "{path}");
        for name in names {
            let event = within(events.next()).await.unwrap().unwrap();
            assert_eq!(event["type"], "ADDED", "{path}");
            assert_eq!(&event["object"]["metadata"]["name"], name, "{path}");
        }
    }
    for (method, path, code) in [
        (
            Method::GET,
            format!("{namespaced}/b?fieldSelector=metadata.name%3Da"),
            400,
        ),
        (Method::DELETE, format!("{namespaced}/b"), 405),
        (Method::GET, format!("{namespaced}/b/status"), 404),
        (Method::GET, "/api/v1/watch".to_owned(), 404),
        (
            Method::GET,
            "/api/v1/watch/namespaces/default/bindings".to_owned(),
            404,
        ),
    ] {
        let answer = server.exchange(method, &path, &[], "").await;
        assert_eq!(answer.code, code, "{path}: {}", answer.body);
    }
    server.stop().await;
}

#[tokio::test]
async fn duplicate_fields_are_refused_warned_of_or_ignored() {
    const BODY: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "name": "NAME", "labels": {"a": "1", "a": "2"}},
        "spec": {"containers": [{"name": "c", "image": "i", "image": "j"}]}}"#;
    const IN_YAML: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\n  name: NAME\n  labels: {a: \"1\", a: \"2\"}\nspec:\n  containers:\n  - name: c\n    image: i\n    image: j\n";
    let server = TestServer::start().await;
    let faults = [
        "duplicate field \"metadata.name\"",
        "duplicate field \"metadata.labels.a\"",
        "duplicate field \"spec.containers[0].image\"",
    ];
    for (media, body) in [(JSON, BODY), (YAML, IN_YAML)] {
        let post = async |name: &str, validation: &str| {
            let path = format!("{PODS}?fieldValidation={validation}");
            let body = body.replace("NAME", name);
            let headers = [("content-type", media)];
            server.exchange(Method::POST, &path, &headers, &body).await
        };
        let refused = post("s", "Strict").await;
        assert_eq!(refused.code, 400, "{}", refused.body);
        let message = refused.body["message"].as_str().unwrap();
        let want = format!("strict decoding error: {}", faults.join(", "));
        assert!(message.ends_with(&want), "{message}");
        let suffix = if media == JSON { "j" } else { "y" };
        let warned = post(&format!("w{suffix}"), "Warn").await;
        assert_eq!(warned.code, 201, "{}", warned.body);
        let quoted = faults.map(|fault| fault.replace('"', "\\\""));
        assert_eq!(warnings(&warned), quoted, "{media}");
        // The last one counts, as in Go.
        assert_eq!(warned.body["spec"]["containers"][0]["image"], "j");
        let ignored = post(&format!("i{suffix}"), "Ignore").await;
        assert_eq!((ignored.code, warnings(&ignored)), (201, vec![]));
    }
    for (media, query) in [
        ("application/merge-patch+json", ""),
        ("application/strategic-merge-patch+json", ""),
        ("application/apply-patch+yaml", "&fieldManager=m&force=true"),
    ] {
        let patch =
            r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "1", "a": "2"}}}"#;
        let headers = [("content-type", media)];
        let path = format!("{PODS}/wj?fieldValidation=Strict{query}");
        let refused = server.exchange(Method::PATCH, &path, &headers, patch).await;
        let message = refused.body["message"].as_str().unwrap();
        assert!(
            message.contains("duplicate field \"metadata.labels.a\"")
                || message.contains("duplicate field \\\"metadata.labels.a\\\""),
            "{media}: {message}"
        );
        let path = format!("{PODS}/wj?fieldValidation=Warn{query}");
        let warned = server.exchange(Method::PATCH, &path, &headers, patch).await;
        assert_eq!(warned.code, 200, "{media}: {}", warned.body);
        assert_eq!(
            warnings(&warned),
            ["duplicate field \\\"metadata.labels.a\\\""]
        );
    }
    server.stop().await;
}

/// As Kubernetes' garbage collector asks for the kinds that it has no types of.
#[tokio::test]
async fn metadata_is_json_for_clients_that_would_take_protobuf() {
    let server = TestServer::start().await;
    server.json(Method::POST, PODS, &manifest("a")).await;
    let object = format!("{PODS}/a");
    for (path, part) in [
        (PODS, "PartialObjectMetadataList"),
        (&object, "PartialObjectMetadata"),
    ] {
        let of = format!("as={part};g=meta.k8s.io;v=v1");
        let protobuf = format!("application/vnd.kubernetes.protobuf;{of}");
        let accept = format!("{protobuf},application/json;{of},application/json");
        let headers = [("accept", &*accept)];
        let answer = server.exchange(Method::GET, path, &headers, "").await;
        assert_eq!(answer.headers[header::CONTENT_TYPE], JSON, "{path}");
        assert_eq!(answer.body["kind"], part);
        let headers = [("accept", &*protobuf)];
        let answer = server.exchange(Method::GET, path, &headers, "").await;
        assert_eq!(answer.code, 406, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn accepts_and_returns_yaml() {
    let server = TestServer::start().await;
    let both = [("content-type", YAML), ("accept", YAML)];
    let body = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  annotations:\n    a: \"yes\"\n    b: \"1.10\"\nspec:\n  containers:\n  - {name: c, image: i}\n";
    let created = server.exchange(Method::POST, PODS, &both, body).await;
    assert_eq!(created.code, 201, "{}", created.body);
    let path = format!("{PODS}/a");
    let table = "application/yaml;as=Table;v=v1;g=meta.k8s.io";
    for (accept, path, code) in [
        (YAML, path.as_str(), 200),
        (YAML, PODS, 200),
        (YAML, "/api/v1", 200),
        (YAML, "/apis/apps", 200),
        (YAML, "/nothing", 404),
        (YAML, "/api/v1/namespaces/default/pods/b", 404),
        (table, PODS, 200),
        ("application/json;q=0.5, application/yaml", PODS, 200),
    ] {
        let headers = [("accept", accept)];
        let answer = server.exchange(Method::GET, path, &headers, "").await;
        assert_eq!(answer.code, code, "{path}: {}", answer.body);
        assert_eq!(answer.headers[header::CONTENT_TYPE], YAML, "{path}");
        let document: Value = serde_saphyr::from_str(answer.body.as_str().unwrap()).unwrap();
        let json = match accept {
            YAML => server.get(path).await.body,
            _ => continue,
        };
        assert_eq!(document, json, "{path}");
    }
    for (accept, watch, code, media) in [
        ("application/json, application/yaml", "", 200, JSON),
        ("application/yaml;q=0.5, */*", "", 200, JSON),
        ("application/cbor, application/yaml;q=0", "", 406, JSON),
        (YAML, "?watch=1", 406, YAML),
    ] {
        let path = format!("{PODS}{watch}");
        let headers = [("accept", accept)];
        let answer = server.exchange(Method::GET, &path, &headers, "").await;
        assert_eq!(answer.code, code, "{accept}");
        assert_eq!(answer.headers[header::CONTENT_TYPE], media, "{accept}");
    }
    let deleted = server
        .exchange(Method::DELETE, &path, &both, "gracePeriodSeconds: 0\n")
        .await;
    assert_eq!(deleted.code, 200);
    server.stop().await;
}

/// Kubernetes' times last until the end of 9999, and people write that for *never*.
#[tokio::test]
async fn times_at_the_end_of_9999_become_the_latest_representable_time() {
    let server = TestServer::start().await;
    let lease = |time: &str| json!({"metadata": {"name": "a"}, "spec": {"renewTime": time}});
    let path = format!("{LEASES}/a");
    let created = server
        .json(Method::POST, LEASES, &lease("9999-12-31T23:59:59.999999Z"))
        .await;
    assert_eq!(created.code, 201, "{}", created.body);
    let warned = warnings(&created);
    assert!(
        warned.len() == 1 && warned[0].starts_with("spec.renewTime: the time"),
        "{warned:?}"
    );
    let read = server.get(&path).await.body;
    assert_eq!(read["spec"]["renewTime"], "9999-12-30T22:00:00.000000Z");
    for year in ["10000-01-01T00:00:00Z", "+010000-01-01T00:00:00.000000Z"] {
        let refused = server.json(Method::POST, LEASES, &lease(year)).await;
        assert_eq!(refused.code, 400, "{year}: {}", refused.body);
    }
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}, "lastTimestamp": "9999-12-31T23:59:59Z"});
    let events = "/api/v1/namespaces/default/events";
    assert_eq!(server.json(Method::POST, events, &event).await.code, 201);
    let newer = json!({"metadata": {"name": "x.1"}, "regarding": {"namespace": "default"}, "eventTime": "9999-12-31T23:59:59.000000Z",
        "reportingController": "x.io/y", "reportingInstance": "z", "action": "a", "reason": "r", "type": "Normal"});
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    let created = server.json(Method::POST, path, &newer).await;
    assert_eq!(created.code, 201, "{}", created.body);
    assert_eq!(warnings(&created).len(), 1, "{:?}", warnings(&created));
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let shown = server.exchange(Method::GET, events, &table, "").await;
    assert_eq!(shown.code, 200, "{}", shown.body);
    server.stop().await;
}

/// Messages of events are untrusted text; documents have them unchanged.
#[tokio::test]
async fn tables_logs_and_warnings_escape_control_characters() {
    const EVIL: &str = "one\n\u{1b}[31mtwo\u{202e}three\r\n";
    let server = TestServer::start().await;
    let pod = server.json(Method::POST, PODS, &manifest("a")).await.body;
    let event = json!({"metadata": {"name": "e"}, "reason": "\u{1b}]0;r\u{7}", "message": EVIL, "lastTimestamp": "2026-01-01T00:00:00Z",
        "source": {"component": "\u{2066}kubelet"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "a", "uid": pod["metadata"]["uid"]}});
    let events = "/api/v1/namespaces/default/events";
    let created = server.json(Method::POST, events, &event).await;
    assert_eq!(created.code, 201, "{}", created.body);
    assert_eq!(created.body["message"], EVIL);
    let shown = "one \\u{1b}[31mtwo\\u{202e}three";
    let log = server.get(&format!("{PODS}/a/log")).await.body;
    let log = log.as_str().unwrap();
    let line = format!("\\u{{1b}}]0;r\\u{{7}}: {shown} [\\u{{2066}}kubelet]\n");
    assert!(log.contains(&line), "{log:?}");
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = server.exchange(Method::GET, events, &table, "").await.body;
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert!(cells.contains(&json!(shown)), "{cells:?}");
    let mut unknown = manifest("b");
    unknown["metadata"]["\u{1b}é\u{202e}"] = 1.into();
    let warned = server.json(Method::POST, PODS, &unknown).await;
    assert_eq!(
        warnings(&warned),
        ["unknown field \\\"metadata.\\\\u{1b}é\\\\u{202e}\\\""]
    );
    server.stop().await;
}

/// The kinds that `kubectl apply --prune`, `cluster-info dump` and kube-scheduler list.
#[tokio::test]
async fn the_kinds_that_clients_list_at_once_have_lists_and_watches() {
    let server = TestServer::start().await;
    server.json(Method::POST, PODS, &manifest("a")).await;
    for (base, kind) in [
        ("/api/v1/namespaces/default/configmaps", "ConfigMap"),
        ("/api/v1/secrets", "Secret"),
        ("/api/v1/persistentvolumes", "PersistentVolume"),
        ("/apis/apps/v1/namespaces/default/daemonsets", "DaemonSet"),
        ("/apis/batch/v1/jobs", "Job"),
        ("/apis/networking.k8s.io/v1/ingresses", "Ingress"),
        ("/apis/resource.k8s.io/v1/deviceclasses", "DeviceClass"),
        ("/apis/resource.k8s.io/v1/resourceclaims", "ResourceClaim"),
        ("/apis/resource.k8s.io/v1/resourceslices", "ResourceSlice"),
        ("/apis/storage.k8s.io/v1/csidrivers", "CSIDriver"),
        ("/apis/storage.k8s.io/v1/csinodes", "CSINode"),
        (
            "/apis/storage.k8s.io/v1/csistoragecapacities",
            "CSIStorageCapacity",
        ),
        ("/apis/storage.k8s.io/v1/storageclasses", "StorageClass"),
        (
            "/apis/storage.k8s.io/v1/volumeattachments",
            "VolumeAttachment",
        ),
    ] {
        let list = server
            .get(&format!("{base}?labelSelector=a%3Db&limit=500"))
            .await;
        let list = list.body;
        assert_eq!(list["kind"], format!("{kind}List"), "{list}");
        assert_eq!(list["items"], json!([]), "{base}");
        assert!(list["metadata"]["resourceVersion"].is_string(), "{list}");
        let query = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let watch = within(server.rest.watch(&format!("{base}?{query}"))).await;
        let (code, mut events) = watch.unwrap();
        assert_eq!(code, 200, "{base}");
        let event = within(events.next()).await.unwrap().unwrap();
        assert_eq!(event["type"], "BOOKMARK", "{event}");
        assert_eq!(event["object"]["kind"], kind, "{event}");
    }
    server.stop().await;
}
