//! Admission webhooks, with servers of their own.

mod audit;
mod faults;
mod kubectl;
mod peer;
mod policies;

use http::Method;
use podplane_client::Reason;
use podplane_http_client::HttpAnswer;

use self::peer::{Webhook, patch};
use super::{
    custom_kinds::{widget, widgets},
    *,
};

const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const PODS: &str = "/api/v1/namespaces/default/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A webhook of a configuration for all writes of these resources, with further fields.
fn hook(webhook: &Webhook, name: &str, resources: &[&str], fields: Value) -> Value {
    let mut hook = json!({
        "name": name,
        "clientConfig": webhook.client(),
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": resources}],
    });
    hook.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    hook
}

fn config_map(name: &str, data: Value) -> Value {
    json!({"metadata": {"name": name}, "data": data})
}

fn pod_document(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// The warnings of an answer.
fn warnings(answer: &HttpAnswer) -> Vec<&str> {
    let warnings = answer.headers.get_all("warning").into_iter();
    warnings.map(|warning| warning.to_str().unwrap()).collect()
}

impl TestServer {
    async fn configure(&self, path: &str, name: &str, webhooks: Value) {
        let configuration = json!({"metadata": {"name": name}, "webhooks": webhooks});
        let answer = self.ask(Method::POST, path, &configuration).await;
        assert_eq!(answer.code, 201, "{:?}", answer.body);
    }

    async fn make(&self, path: &str, document: &Value) -> Value {
        let answer = self.ask(Method::POST, path, document).await;
        assert_eq!(answer.code, 201, "{:?}", answer.body);
        answer.body
    }

    /// The code and message of a refused creation.
    async fn refused(&self, path: &str, document: &Value) -> (u16, String) {
        let answer = self.ask(Method::POST, path, document).await;
        let message = answer.body["message"].as_str().unwrap_or_default();
        (answer.code, message.to_owned())
    }
}

#[tokio::test]
async fn a_mutating_webhook_is_sent_the_request_and_changes_the_object() {
    let server = TestServer::start().await;
    let webhook = Webhook::start(|_| {
        let mut response = patch(&json!([
            {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
            {"op": "add", "path": "/spec/containers/-", "value": {"name": "side", "image": "s"}},
        ]));
        response["warnings"] = json!(["look \"here\""]);
        response
    })
    .await;
    let hooks = json!([hook(&webhook, "a.example.com", &["pods"], json!({}))]);
    server.configure(MUTATING, "m", hooks).await;
    let path = format!("{PODS}?fieldManager=me&fieldValidation=Strict");
    let created = server.ask(Method::POST, &path, &pod_document("a")).await;
    assert_eq!(created.code, 201, "{:?}", created.body);
    assert_eq!(warnings(&created), [r#"299 - "look \"here\"""#]);
    let pod = created.body;
    assert_eq!(pod["metadata"]["labels"]["a"], "b");
    let side = &pod["spec"]["containers"][1];
    // Defaults are set after the patch, too.
    assert_eq!(side["terminationMessagePath"], "/dev/termination-log");
    let asked = webhook.asked();
    let [(path, review)] = &*asked else {
        panic!("{asked:?}");
    };
    assert_eq!(path, "/hook?timeout=10s");
    assert_eq!(review["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(review["kind"], "AdmissionReview");
    let request = &review["request"];
    let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    for (field, expected) in [
        ("kind", &kind),
        ("requestKind", &kind),
        ("resource", &resource),
        ("requestResource", &resource),
        ("name", &json!("a")),
        ("namespace", &json!("default")),
        ("operation", &json!("CREATE")),
        ("oldObject", &json!(null)),
        ("dryRun", &json!(false)),
        (
            "options",
            &json!({"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions", "fieldManager": "me", "fieldValidation": "Strict"}),
        ),
    ] {
        assert_eq!(request[field], *expected, "{field}");
    }
    assert_eq!(request["uid"].as_str().unwrap().len(), 36);
    assert_eq!(request["userInfo"]["username"], "system:anonymous");
    assert!(request.get("subResource").is_none());
    let object = &request["object"];
    assert_eq!(object["kind"], "Pod");
    // Defaults, the account and the priority are there; the server's own fields are not.
    assert_eq!(object["spec"]["restartPolicy"], "Always");
    assert_eq!(object["spec"]["serviceAccountName"], "default");
    assert_eq!(object["spec"]["priority"], 0);
    assert!(object["metadata"].get("uid").is_none());
    assert_eq!(object["metadata"]["managedFields"][0]["manager"], "me");
    server.stop().await;
}

#[tokio::test]
async fn a_patched_object_is_validated() {
    let server = TestServer::start().await;
    let webhook = Webhook::start(|_| {
        patch(&json!([{"op": "replace", "path": "/spec/containers/0/name", "value": "No Name"}]))
    })
    .await;
    let hooks = json!([hook(&webhook, "a.example.com", &["pods"], json!({}))]);
    server.configure(MUTATING, "m", hooks).await;
    let (code, message) = server.refused(PODS, &pod_document("a")).await;
    assert_eq!(code, 422);
    assert!(
        message.contains("spec.containers[0].name: Invalid value: \"No Name\""),
        "{message}"
    );
    let pod = pod("b");
    let refused = server.pods().create(&pod).await.unwrap_err();
    assert_eq!(refused.reason, Reason::Invalid);
    server.stop().await;
}

#[tokio::test]
async fn a_refusal_keeps_the_code_reason_and_message_of_the_webhook() {
    let server = TestServer::start().await;
    let webhook = Webhook::start(|review| match review["request"]["name"].as_str() {
        Some("teapot") => json!({"allowed": false, "status": {"code": 418, "reason": "Teapot", "message": "short and stout"}}),
        Some("missing") => json!({"allowed": false, "status": {"code": 404, "reason": "NotFound", "message": "x"}}),
        _ => json!({"allowed": false}),
    })
    .await;
    let hooks = json!([hook(&webhook, "a.example.com", &["configmaps"], json!({}))]);
    server.configure(VALIDATING, "v", hooks).await;
    let teapot = config_map("teapot", json!({}));
    let refused = server.ask(Method::POST, CONFIG_MAPS, &teapot).await;
    assert_eq!(refused.code, 418);
    assert_eq!(refused.body["reason"], "Teapot");
    let denied = "admission webhook \"a.example.com\" denied the request";
    assert_eq!(
        refused.body["message"],
        format!("{denied}: short and stout")
    );
    // An apply does not take this for a missing object.
    let path = format!("{CONFIG_MAPS}/missing?fieldManager=me");
    let apply = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "missing"}});
    let media = "application/apply-patch+yaml";
    let sent = server
        .rest
        .send(Method::PATCH, &path, Some((media, &apply)));
    let refused = within(sent).await.unwrap();
    assert_eq!(
        (refused.code, refused.body["reason"].as_str()),
        (404, Some("NotFound"))
    );
    assert_eq!(webhook.reviewed().len(), 2);
    let (code, message) = server
        .refused(CONFIG_MAPS, &config_map("a", json!({})))
        .await;
    assert_eq!(
        (code, message),
        (400, format!("{denied} without explanation"))
    );
    server.stop().await;
}

#[tokio::test]
async fn webhooks_see_updates_deletions_and_subresources() {
    let server = TestServer::start().await;
    let webhook = Webhook::start(|_| json!({})).await;
    let hooks = json!([hook(&webhook, "a.example.com", &["*/*"], json!({}))]);
    server.configure(VALIDATING, "v", hooks).await;
    let seen = |request: &Value| {
        let text = |field: &str| request[field].as_str().unwrap_or_default().to_owned();
        [
            text("operation"),
            request["resource"]["resource"].as_str().unwrap().to_owned(),
            text("subResource"),
            request["kind"]["kind"].as_str().unwrap().to_owned(),
        ]
        .join(" ")
    };
    let pod = server.make(PODS, &pod_document("a")).await;
    let label = json!({"metadata": {"labels": {"x": "y"}}});
    let one = format!("{PODS}/a");
    assert_eq!(server.ask(Method::PATCH, &one, &label).await.code, 200);
    let status = json!({"status": {"phase": "Running"}});
    let path = format!("{one}/status");
    assert_eq!(server.ask(Method::PATCH, &path, &status).await.code, 200);
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n"}});
    let path = format!("{one}/binding");
    assert_eq!(server.ask(Method::POST, &path, &binding).await.code, 201);
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    let path = format!("{one}/eviction");
    assert_eq!(server.ask(Method::POST, &path, &eviction).await.code, 201);
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
    assert_eq!(server.ask(Method::DELETE, &one, &options).await.code, 200);
    let reviewed = webhook.reviewed();
    assert_eq!(
        reviewed.iter().map(seen).collect::<Vec<_>>(),
        [
            "CREATE pods  Pod",
            "UPDATE pods  Pod",
            "UPDATE pods status Pod",
            "CREATE pods binding Binding",
            "CREATE pods eviction Eviction",
            "DELETE pods  Pod",
        ]
    );
    // A validating webhook sees the object as it will be stored.
    assert_eq!(
        reviewed[0]["object"]["metadata"]["uid"],
        pod["metadata"]["uid"]
    );
    assert_eq!(reviewed[1]["object"]["metadata"]["labels"]["x"], "y");
    assert!(reviewed[1]["oldObject"]["metadata"].get("labels").is_none());
    assert_eq!(reviewed[3]["object"]["target"]["name"], "n");
    assert_eq!(reviewed[5]["object"], json!(null));
    assert_eq!(reviewed[5]["oldObject"]["metadata"]["name"], "a");
    assert_eq!(reviewed[5]["options"]["gracePeriodSeconds"], 0);
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = json!({"metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    }});
    server.make(deployments, &deployment).await;
    let scale = json!({"spec": {"replicas": 5}});
    let path = format!("{deployments}/d/scale");
    assert_eq!(server.ask(Method::PATCH, &path, &scale).await.code, 200);
    let reviewed = webhook.reviewed();
    assert_eq!(seen(&reviewed[1]), "UPDATE deployments scale Scale");
    assert_eq!(reviewed[1]["object"]["spec"]["replicas"], 5);
    assert_eq!(reviewed[1]["oldObject"]["spec"]["replicas"], 1);
    server.stop().await;
}

#[tokio::test]
async fn a_scale_can_be_changed_and_a_deletion_cannot() {
    let server = TestServer::start().await;
    let webhook = Webhook::start(|review| match review["request"]["operation"].as_str() {
        Some("DELETE") => patch(&json!([{"op": "add", "path": "/x", "value": 1}])),
        _ => patch(&json!([{"op": "replace", "path": "/spec/replicas", "value": 2}])),
    })
    .await;
    let resources = [
        "replicationcontrollers/scale",
        "configmaps",
        "widgets/scale",
    ];
    let mut only = hook(&webhook, "a.example.com", &resources, json!({}));
    only["rules"][0]["operations"] = json!(["UPDATE", "DELETE"]);
    server.configure(MUTATING, "m", json!([only])).await;
    let controllers = "/api/v1/namespaces/default/replicationcontrollers";
    let controller = json!({"metadata": {"name": "r"}, "spec": {
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    }});
    server.make(controllers, &controller).await;
    let path = format!("{controllers}/r/scale");
    let scaled = server
        .ask(Method::PATCH, &path, &json!({"spec": {"replicas": 9}}))
        .await;
    assert_eq!(
        (scaled.code, &scaled.body["spec"]["replicas"]),
        (200, &json!(2))
    );
    server.make(CONFIG_MAPS, &config_map("a", json!({}))).await;
    let path = format!("{CONFIG_MAPS}/a");
    let refused = server.ask(Method::DELETE, &path, &json!({})).await;
    assert_eq!(refused.code, 500);
    let message = refused.body["message"].as_str().unwrap();
    assert!(
        message
            .contains("attempted to modify the object, which is not supported for this operation"),
        "{message}"
    );
    server.stop().await;
}

/// A webhook that appends its letter to a field, and the field.
async fn appending(letter: &'static str) -> Webhook {
    Webhook::start(move |review| {
        let seen = review["request"]["object"]["data"]["seen"].as_str();
        let seen = format!("{}{letter}", seen.unwrap_or_default());
        patch(&json!([{"op": "add", "path": "/data/seen", "value": seen}]))
    })
    .await
}

#[tokio::test]
async fn webhooks_are_asked_in_order_and_again_about_later_changes() {
    let server = TestServer::start().await;
    let [a, b, c] = [
        appending("a").await,
        appending("b").await,
        appending("c").await,
    ];
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    let maps = &["configmaps"];
    let hooks = json!([
        hook(&b, "b.example.com", maps, again.clone()),
        hook(&c, "c.example.com", maps, json!({})),
    ]);
    server.configure(MUTATING, "second", hooks).await;
    let hooks = json!([hook(&a, "a.example.com", maps, again)]);
    server.configure(MUTATING, "first", hooks).await;
    let made = server
        .make(CONFIG_MAPS, &config_map("m", json!({"seen": ""})))
        .await;
    assert_eq!(made["data"]["seen"], "abcab");
    assert_eq!(
        (a.reviewed().len(), b.reviewed().len(), c.reviewed().len()),
        (2, 2, 1)
    );
    server.stop().await;
}

#[tokio::test]
async fn selectors_and_conditions_choose_the_writes() {
    let server = TestServer::start().await;
    let webhook = Webhook::start(|_| json!({})).await;
    let prod = json!({"metadata": {"name": "prod", "labels": {"env": "prod"}}});
    server.make("/api/v1/namespaces", &prod).await;
    let maps = &["configmaps", "namespaces", "nodes"];
    let hooks = json!([
        hook(
            &webhook,
            "ns.example.com",
            maps,
            json!({"namespaceSelector": {"matchLabels": {"env": "prod"}}})
        ),
        hook(
            &webhook,
            "ob.example.com",
            maps,
            json!({"objectSelector": {"matchExpressions": [{"key": "look", "operator": "Exists"}]}})
        ),
        hook(
            &webhook,
            "cel.example.com",
            maps,
            json!({"matchConditions": [
                {"name": "named", "expression": "object != null && object.metadata.name == 'by-name'"},
                {"name": "created", "expression": "request.operation == 'CREATE'"},
            ]})
        ),
    ]);
    server.configure(VALIDATING, "v", hooks).await;
    let asked = async |path: &str, document: Value| {
        server.make(path, &document).await;
        webhook.reviewed().len()
    };
    let in_prod = "/api/v1/namespaces/prod/configmaps";
    assert_eq!(asked(CONFIG_MAPS, config_map("a", json!({}))).await, 0);
    assert_eq!(asked(in_prod, config_map("a", json!({}))).await, 1);
    let labelled = json!({"metadata": {"name": "b", "labels": {"look": ""}}});
    assert_eq!(asked(CONFIG_MAPS, labelled.clone()).await, 1);
    assert_eq!(
        asked(CONFIG_MAPS, config_map("by-name", json!({}))).await,
        1
    );
    assert_eq!(asked(in_prod, config_map("by-name", json!({}))).await, 2);
    // A Namespace is selected by its own labels, and an object of no namespace by every selector.
    let other = json!({"metadata": {"name": "other", "labels": {"env": "prod"}}});
    assert_eq!(asked("/api/v1/namespaces", other).await, 1);
    assert_eq!(
        asked("/api/v1/namespaces", json!({"metadata": {"name": "test"}})).await,
        0
    );
    assert_eq!(
        asked("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await,
        1
    );
    // What had the label counts, too.
    let path = format!("{CONFIG_MAPS}/b");
    let unlabelled = json!({"metadata": {"labels": null}});
    assert_eq!(
        server.ask(Method::PATCH, &path, &unlabelled).await.code,
        200
    );
    assert_eq!(webhook.reviewed().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn the_kinds_of_admission_are_exempt_and_conditions_must_compile() {
    let server = TestServer::start().await;
    let webhook = Webhook::start(|_| json!({"allowed": false})).await;
    let hooks = json!([hook(&webhook, "all.example.com", &["*"], json!({}))]);
    server.configure(VALIDATING, "all", hooks).await;
    assert_eq!(
        server
            .refused(CONFIG_MAPS, &config_map("a", json!({})))
            .await
            .0,
        400
    );
    let conditions = json!({"matchConditions": [{"name": "c", "expression": "object.x +"}]});
    let hooks = json!([hook(&webhook, "b.example.com", &["*"], conditions)]);
    let wrong = json!({"metadata": {"name": "w"}, "webhooks": hooks});
    let (code, message) = server.refused(MUTATING, &wrong).await;
    assert_eq!(code, 422);
    let why = "webhooks[0].matchConditions[0].expression: Invalid value: \"object.x +\": compilation failed: ERROR: <input>:1:";
    assert!(message.contains(why), "{message}");
    let path = format!("{VALIDATING}/all");
    assert_eq!(
        server.ask(Method::DELETE, &path, &json!({})).await.code,
        200
    );
    server.make(CONFIG_MAPS, &config_map("a", json!({}))).await;
    server.stop().await;
}

#[tokio::test]
async fn a_dry_run_is_told_and_stores_nothing() {
    let server = TestServer::start().await;
    let webhook = Webhook::start(|_| json!({})).await;
    let hooks = json!([hook(&webhook, "a.example.com", &["*"], json!({}))]);
    server.configure(MUTATING, "m", hooks.clone()).await;
    let path = format!("{CONFIG_MAPS}?dryRun=All");
    server.make(&path, &config_map("a", json!({}))).await;
    let [request] = &*webhook.reviewed() else {
        panic!("one review");
    };
    assert_eq!(request["dryRun"], true);
    assert_eq!(request["options"]["dryRun"], json!(["All"]));
    let found = server.rest.get(&format!("{CONFIG_MAPS}/a")).await.unwrap();
    assert_eq!(found.code, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_kinds_are_reviewed_in_the_version_of_the_rule() {
    let server = TestServer::start().await;
    let mut definition = widgets();
    let mut newer = definition["spec"]["versions"][0].clone();
    newer["name"] = "v2".into();
    newer["storage"] = false.into();
    definition["spec"]["versions"]
        .as_array_mut()
        .unwrap()
        .push(newer);
    server.define(&definition).await;
    let webhook = Webhook::start(|review| {
        let version = &review["request"]["object"]["apiVersion"];
        patch(&json!([{"op": "add", "path": "/spec/color", "value": version.as_str().unwrap().replace("example.com/", "")}]))
    })
    .await;
    let mut equivalent = hook(&webhook, "a.example.com", &["widgets"], json!({}));
    equivalent["rules"][0]["apiVersions"] = json!(["v2"]);
    let mut exact = equivalent.clone();
    exact["name"] = "b.example.com".into();
    exact["matchPolicy"] = "Exact".into();
    server
        .configure(MUTATING, "m", json!([equivalent, exact]))
        .await;
    let path = "/apis/example.com/v1/namespaces/default/widgets";
    let made = server.make(path, &widget("a")).await;
    assert_eq!(made["apiVersion"], "example.com/v1");
    assert_eq!(made["spec"], json!({"size": 3, "color": "v2"}));
    let [request] = &*webhook.reviewed() else {
        panic!("one review");
    };
    assert_eq!(
        request["kind"],
        json!({"group": "example.com", "version": "v2", "kind": "Widget"})
    );
    assert_eq!(request["requestKind"]["version"], "v1");
    assert_eq!(request["requestResource"]["version"], "v1");
    // Changes by a webhook are validated by the schema.
    let big =
        Webhook::start(|_| patch(&json!([{"op": "replace", "path": "/spec/size", "value": 500}])))
            .await;
    let hooks = json!([hook(&big, "c.example.com", &["widgets"], json!({}))]);
    server.configure(MUTATING, "n", hooks).await;
    let (code, message) = server.refused(path, &widget("b")).await;
    assert_eq!(code, 422, "{message}");
    assert!(message.contains("too large"), "{message}");
    server.stop().await;
}

#[tokio::test]
async fn a_webhook_is_reached_by_the_endpoints_of_its_service() {
    let server = TestServer::start().await;
    let webhook = Webhook::start(|_| json!({"warnings": ["reached"]})).await;
    let service = json!({"service": {"namespace": "default", "name": "hook", "path": "/here", "port": 8443}, "caBundle": webhook.bundle()});
    let mut hook = hook(&webhook, "a.example.com", &["configmaps"], json!({}));
    hook["clientConfig"] = service;
    server.configure(VALIDATING, "v", json!([hook])).await;
    let map = config_map("a", json!({}));
    let prefix = "Internal error occurred: failed calling webhook \"a.example.com\": failed to call webhook: ";
    let refused = server.refused(CONFIG_MAPS, &map).await;
    assert_eq!(
        refused,
        (500, format!("{prefix}service \"default/hook\" not found"))
    );
    let service = json!({"metadata": {"name": "hook"}, "spec": {"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"name": "https", "port": 8443, "targetPort": 1}]}});
    server
        .make("/api/v1/namespaces/default/services", &service)
        .await;
    let refused = server.refused(CONFIG_MAPS, &map).await;
    assert_eq!(
        refused,
        (
            500,
            format!("{prefix}no endpoints available for service \"default/hook\"")
        )
    );
    let endpoints = json!({"metadata": {"name": "hook"}, "subsets": [{"addresses": [{"ip": "127.0.0.9"}], "ports": [{"name": "https", "port": 1}]}]});
    server
        .make("/api/v1/namespaces/default/endpoints", &endpoints)
        .await;
    let (code, message) = server.refused(CONFIG_MAPS, &map).await;
    assert_eq!(code, 500);
    assert!(
        message.contains("Post \"https://hook.default.svc:1/here?timeout=10s\""),
        "{message}"
    );
    // Slices come before Endpoints, and endpoints that are not ready are not asked.
    let slice = json!({
        "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}},
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["127.0.0.8"], "conditions": {"ready": false}},
            {"addresses": ["127.0.0.1"]},
        ],
        "ports": [{"name": "https", "port": webhook.port}],
    });
    server
        .make(
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            &slice,
        )
        .await;
    let created = server.ask(Method::POST, CONFIG_MAPS, &map).await;
    assert_eq!(
        (created.code, warnings(&created)),
        (201, vec!["299 - \"reached\""])
    );
    assert_eq!(webhook.asked()[0].0, "/here?timeout=10s");
    server.stop().await;
}

#[tokio::test]
async fn a_webhook_may_name_an_object_and_nothing_else_of_its_identity() {
    let server = TestServer::start().await;
    let webhook = Webhook::start(|review| {
        let name = review["request"]["name"].as_str().unwrap();
        let operation = match name {
            "space" => json!({"op": "add", "path": "/metadata/namespace", "value": "kube-system"}),
            "slash" => json!({"op": "replace", "path": "/metadata/name", "value": "../x"}),
            "uid" => json!({"op": "add", "path": "/metadata/uid", "value": "mine"}),
            _ => json!({"op": "replace", "path": "/metadata/name", "value": "renamed"}),
        };
        patch(&json!([operation]))
    })
    .await;
    let hooks = json!([hook(&webhook, "a.example.com", &["configmaps"], json!({}))]);
    server.configure(MUTATING, "m", hooks).await;
    let made = server.make(CONFIG_MAPS, &config_map("a", json!({}))).await;
    assert_eq!(made["metadata"]["name"], "renamed");
    let made = server
        .make(CONFIG_MAPS, &config_map("uid", json!({})))
        .await;
    assert_ne!(made["metadata"]["uid"], "mine");
    let refused = server
        .refused(CONFIG_MAPS, &config_map("space", json!({})))
        .await;
    let why =
        "the namespace of the provided object does not match the namespace sent on the request";
    assert_eq!(refused, (400, why.to_owned()));
    assert!(matches!(
        server
            .refused(CONFIG_MAPS, &config_map("slash", json!({})))
            .await
            .0,
        404 | 422
    ));
    // An existing object has its identity already.
    let path = format!("{CONFIG_MAPS}/renamed");
    let data = json!({"data": {"a": "b"}});
    assert_eq!(server.ask(Method::PATCH, &path, &data).await.code, 200);
    let path = format!("{CONFIG_MAPS}/uid");
    let refused = server.ask(Method::PATCH, &path, &data).await;
    assert_eq!(refused.code, 422);
    let message = refused.body["message"].as_str().unwrap();
    assert!(
        message.contains("metadata.uid: Invalid value: \"mine\": field is immutable"),
        "{message}"
    );
    server.stop().await;
}
