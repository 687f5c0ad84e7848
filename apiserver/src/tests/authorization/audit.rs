//! The audit log of a gated server.

use std::{collections::BTreeMap, path::Path};

use podplane_client::endpoint;
use podplane_proto::{
    codec,
    ipam::{BlockUpdate, HoldChange, UpdateBlocksRequest, block_update, hold_change::Action},
    wire::{GetRequest, ListRequest, WriteRequest},
};
use podplane_request_audit::{LogOptions, Policy};
use prost::Message as _;

use super::{table::call_grpc, *};
use crate::audit::AuditSetup;

const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: None, nonResourceURLs: [/readyz]}
- {level: Metadata, verbs: [list]}
- {level: RequestResponse}
";

fn setup(dir: &Path) -> AuditSetup {
    AuditSetup {
        policy: Policy::parse(POLICY).unwrap(),
        log: LogOptions {
            path: dir.join("audit.log"),
            max_bytes: None,
            max_backups: None,
            max_age: None,
        },
    }
}

/// The events of a log, as the stages and the last event of each request.
fn events(dir: &Path) -> Vec<(Vec<String>, Value)> {
    let text = std::fs::read_to_string(dir.join("audit.log")).unwrap();
    let mut order = Vec::new();
    let mut found: BTreeMap<String, (Vec<String>, Value)> = BTreeMap::new();
    for line in text.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let id = event["auditID"].as_str().unwrap().to_owned();
        if !found.contains_key(&id) {
            order.push(id.clone());
        }
        let (stages, last) = found.entry(id).or_default();
        stages.push(event["stage"].as_str().unwrap().to_owned());
        *last = event;
    }
    order.iter().map(|id| found.remove(id).unwrap()).collect()
}

/// Runs `act` against a server, stops it, and returns what it wrote.
async fn audited(act: impl AsyncFnOnce(&GatedServer)) -> Vec<(Vec<String>, Value)> {
    let dir = tempfile::tempdir().unwrap();
    let server = GatedServer::with_rules(
        MemStore::new(),
        ServerRules {
            audit: Some(setup(dir.path())),
            ..uncounted()
        },
    )
    .await;
    act(&server).await;
    server.stop().await;
    events(dir.path())
}

const COMPLETE: [&str; 2] = ["RequestReceived", "ResponseComplete"];

#[tokio::test]
async fn rest_requests_are_written_with_the_decision_and_their_bodies() {
    let pods = "/api/v1/namespaces/default/pods";
    let pod =
        json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let written = audited(async |server| {
        server.make(pods, &pod).await;
        let id = ("audit-id", "mine");
        let refused = server
            .ask_with("bob", &[id], Method::GET, pods, &Value::Null)
            .await;
        assert_eq!(
            (refused.code, &refused.headers["audit-id"]),
            (403, &"mine".parse().unwrap())
        );
        let as_nobody = [("impersonate-user", "nobody")];
        let path = format!("{pods}/a");
        let answer = server
            .ask_with("root", &as_nobody, Method::GET, &path, &Value::Null)
            .await;
        assert_eq!(answer.code, 403);
        let answer = server
            .ask_with("bob", &as_nobody, Method::GET, &path, &Value::Null)
            .await;
        assert_eq!(answer.code, 403);
        assert_eq!(server.get("stranger", &path).await.code, 401);
        server.get("anonymous", "/readyz").await;
    })
    .await;
    let [created, refused, impersonated, forbidden, stranger] = &*written else {
        panic!("{written:#?}");
    };
    for (stages, event) in [created, refused, impersonated, forbidden] {
        assert_eq!(*stages, COMPLETE, "{event:#}");
    }
    let (_, event) = created;
    assert_eq!(
        (&event["level"], &event["verb"]),
        (&json!("RequestResponse"), &json!("create"))
    );
    assert_eq!(
        event["objectRef"],
        json!({"resource": "pods", "namespace": "default", "name": "a", "apiVersion": "v1"})
    );
    assert_eq!(event["user"]["username"], "root");
    assert_eq!(event["sourceIPs"], json!(["127.0.0.1"]));
    assert_eq!(
        event["responseStatus"],
        json!({"metadata": {}, "code": 201})
    );
    assert_eq!(event["requestObject"]["spec"], pod["spec"]);
    assert!(
        event["responseObject"]["metadata"]["uid"].is_string(),
        "{event:#}"
    );
    assert_eq!(
        event["annotations"]["authorization.k8s.io/decision"],
        "allow"
    );

    let (_, event) = refused;
    assert_eq!(
        (&event["auditID"], &event["level"]),
        (&json!("mine"), &json!("Metadata"))
    );
    assert_eq!(
        event["annotations"],
        json!({"authorization.k8s.io/decision": "forbid", "authorization.k8s.io/reason": ""})
    );
    assert_eq!(event["responseStatus"]["code"], 403);
    assert_eq!(event["responseStatus"]["reason"], "Forbidden");
    let message = event["responseStatus"]["message"].as_str().unwrap();
    assert!(
        message.contains("User \"bob\" cannot list resource"),
        "{message}"
    );

    let (_, event) = impersonated;
    assert_eq!(event["user"]["username"], "root");
    assert_eq!(event["impersonatedUser"]["username"], "nobody");
    assert_eq!(
        event["annotations"]["authorization.k8s.io/decision"],
        "forbid"
    );

    // Refused before the request itself was judged.
    let (_, event) = forbidden;
    assert_eq!(event["responseStatus"]["code"], 403);
    assert!(
        event["impersonatedUser"].is_null() && event["annotations"].is_null(),
        "{event:#}"
    );

    let (stages, event) = stranger;
    assert_eq!(*stages, ["ResponseStarted"]);
    assert_eq!(
        (&event["user"], &event["responseStatus"]["code"]),
        (&json!({}), &json!(401))
    );
    assert!(!event.to_string().contains("token-stranger"), "{event:#}");
}

/// As in Kubernetes: the sender is known, whatever is wrong with the impersonation.
#[tokio::test]
async fn an_incomplete_impersonation_is_written_with_its_sender() {
    let pods = "/api/v1/namespaces/default/pods";
    let incomplete = [
        ("impersonate-group", "system:masters"),
        ("impersonate-uid", "7"),
    ];
    let written = audited(async |server| {
        for header in incomplete {
            let answer = server
                .ask_with("bob", &[header], Method::DELETE, pods, &Value::Null)
                .await;
            assert_eq!(answer.code, 500);
        }
        let channel = endpoint::channel(&server.server.address.parse().unwrap()).unwrap();
        let mut call = tonic::Request::new(());
        let token = "Bearer token-bob".parse().unwrap();
        call.metadata_mut().insert("authorization", token);
        let group = "system:masters".parse().unwrap();
        call.metadata_mut().insert("impersonate-group", group);
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.unwrap();
        let path = "/podplane.core.v1.PodService/ListPods".parse().unwrap();
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let refused = client.unary(call, path, codec).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Internal);
    })
    .await;
    let [group, uid, called] = &*written else {
        panic!("{written:#?}");
    };
    for (stages, event) in [group, uid, called] {
        assert_eq!(*stages, COMPLETE, "{event:#}");
        assert_eq!(event["user"]["username"], "bob");
        assert!(event["impersonatedUser"].is_null(), "{event:#}");
        assert!(event["annotations"].is_null(), "{event:#}");
        assert_eq!(event["responseStatus"]["code"], 500);
        assert_eq!(event["responseStatus"]["reason"], "InternalError");
        let message = event["responseStatus"]["message"].as_str().unwrap();
        assert!(
            message.contains("without impersonating a user"),
            "{message}"
        );
    }
    let (_, event) = group;
    assert_eq!(event["verb"], "deletecollection");
    assert_eq!(event["objectRef"]["namespace"], "default");
    let (_, event) = called;
    assert_eq!(event["verb"], "post");
    let method = "/podplane.core.v1.PodService/ListPods";
    assert_eq!(event["requestURI"], method);
}

#[tokio::test]
async fn grpc_calls_are_written_as_the_same_requests_over_rest() {
    let written = audited(async |server| {
        let channel = endpoint::channel(&server.server.address.parse().unwrap()).unwrap();
        let call = async |identity, method: &str, message| {
            let path = format!("/podplane.{method}");
            call_grpc(&channel, identity, &path, message).await
        };
        let object = Some(codec::encode(&pod("a")).unwrap());
        let create = WriteRequest { object }.encode_to_vec();
        call("root", "core.v1.PodService/CreatePod", create)
            .await
            .unwrap();
        let get = GetRequest {
            namespace: "prod".to_owned(),
            name: "b".to_owned(),
        };
        let get = get.encode_to_vec();
        call("bob", "core.v1.PodService/GetPod", get)
            .await
            .unwrap_err();
        let list = ListRequest {
            namespace: "default".to_owned(),
            ..ListRequest::default()
        };
        let list = list.encode_to_vec();
        call("root", "core.v1.PodService/ListPods", list)
            .await
            .unwrap();
        let hold = HoldChange {
            action: Action::End.into(),
            instance: "i".to_owned(),
            ..HoldChange::default()
        };
        let update = UpdateBlocksRequest {
            updates: vec![BlockUpdate {
                cidr: "10.0.0.0/24".to_owned(),
                node_name: "n1".to_owned(),
                change: Some(block_update::Change::Hold(hold)),
                ..BlockUpdate::default()
            }],
        };
        let update = update.encode_to_vec();
        call("root", "ipam.v1.BlockService/UpdateBlocks", update)
            .await
            .unwrap();
        call("root", "core.v1.PodService/GetPod", vec![0xff])
            .await
            .unwrap_err();
    })
    .await;
    let [created, refused, listed, held, unreadable] = &*written else {
        panic!("{written:#?}");
    };
    for (stages, event) in &written {
        assert_eq!(*stages, COMPLETE, "{event:#}");
    }
    let (_, event) = created;
    assert_eq!(event["verb"], "create");
    assert_eq!(
        event["requestURI"],
        "/podplane.core.v1.PodService/CreatePod"
    );
    assert_eq!(
        event["objectRef"],
        json!({"resource": "pods", "namespace": "default", "name": "a", "apiVersion": "v1"})
    );
    assert_eq!(
        event["responseStatus"],
        json!({"metadata": {}, "code": 201})
    );
    for object in ["requestObject", "responseObject"] {
        assert_eq!(
            (&event[object]["apiVersion"], &event[object]["kind"]),
            (&json!("v1"), &json!("Pod"))
        );
        assert_eq!(event[object]["metadata"]["name"], "a");
    }
    let (_, event) = refused;
    assert_eq!(
        event["objectRef"],
        json!({"resource": "pods", "namespace": "prod", "name": "b", "apiVersion": "v1"})
    );
    assert_eq!(
        event["annotations"]["authorization.k8s.io/decision"],
        "forbid"
    );
    assert_eq!(event["responseStatus"]["code"], 403);
    assert_eq!(event["responseStatus"]["reason"], "Forbidden");

    let (_, event) = listed;
    assert_eq!(
        (&event["verb"], &event["level"]),
        (&json!("list"), &json!("Metadata"))
    );

    let (_, event) = held;
    assert_eq!(
        (&event["level"], &event["objectRef"]["subresource"]),
        (&json!("RequestResponse"), &json!("hold"))
    );

    let (_, event) = unreadable;
    assert_eq!(event["verb"], "post");
    assert!(event["objectRef"].is_null(), "{event:#}");
    assert_ne!(event["responseStatus"]["code"], 200);
}

#[tokio::test]
async fn a_watch_is_written_when_it_begins_and_when_it_ends() {
    let written = audited(async |server| {
        let path = "/api/v1/namespaces/default/pods?watch=1&timeoutSeconds=1";
        assert_eq!(server.get("root", path).await.code, 200);
    })
    .await;
    let [(stages, event)] = &*written else {
        panic!("{written:#?}");
    };
    assert_eq!(
        *stages,
        ["RequestReceived", "ResponseStarted", "ResponseComplete"]
    );
    assert_eq!(
        (&event["verb"], &event["responseStatus"]["code"]),
        (&json!("watch"), &json!(200))
    );
    assert!(event["responseObject"].is_null());
}

#[tokio::test]
async fn documents_of_every_media_type_are_written_as_json() {
    let written = audited(async |server| {
        let path = "/api/v1/namespaces";
        let yaml = [
            ("content-type", "application/yaml"),
            ("accept", "application/yaml"),
        ];
        let bearer = format!("Bearer {}", token("root"));
        let headers = [&yaml[..], &[("authorization", &bearer)]].concat();
        let body = "apiVersion: v1\nkind: Namespace\nmetadata: {name: blue}\n".to_owned();
        let answer = server
            .server
            .rest
            .exchange(Method::POST, path, &headers, body);
        assert_eq!(within(answer).await.unwrap().code, 201);
        let patch = json!({"metadata": {"labels": {"a": "b"}}});
        server
            .ask("root", Method::PATCH, "/api/v1/namespaces/blue", &patch)
            .await;
    })
    .await;
    let [(_, created), (_, patched)] = &*written else {
        panic!("{written:#?}");
    };
    assert_eq!(created["requestObject"]["metadata"]["name"], "blue");
    assert_eq!(created["responseObject"]["kind"], "Namespace");
    assert_eq!(
        patched["requestObject"],
        json!({"metadata": {"labels": {"a": "b"}}})
    );
    assert_eq!(patched["responseObject"]["metadata"]["labels"]["a"], "b");
}

/// Whatever is wrong with a Secret: neither the answer, which clients log, nor the event quotes it.
#[tokio::test]
async fn values_of_secrets_are_in_no_event_and_in_no_refusal() {
    const MARKER: &str = "pass-word!";
    let secrets = "/api/v1/namespaces/default/secrets";
    let whole = json!({"metadata": {"name": "a"}, "stringData": {"a": MARKER}});
    let written = audited(async |server| {
        server.make(secrets, &whole).await;
        let send = async |method: Method, path: &str, media: &str, body: String| {
            let bearer = format!("Bearer {}", token("root"));
            let headers = [("content-type", media), ("authorization", &bearer)];
            let rest = &server.server.rest;
            let answer = within(rest.exchange(method, path, &headers, body)).await.unwrap();
            let said = answer.body.to_string();
            assert!((400..500).contains(&answer.code), "{media}: {said}");
            assert!(!said.contains("pass"), "{media}: {said}");
        };
        for malformed in [
            json!({"metadata": {"name": "b"}, "data": {"a": MARKER}}),
            json!({"metadata": {"name": "b"}, "data": MARKER}),
            json!({"metadata": {"name": "b"}, "stringData": {"a": {"b": MARKER}}}),
            json!({"metadata": {"name": "b"}, "type": [MARKER]}),
            json!({"metadata": {"name": "b", "labels": MARKER}, "data": {}}),
            json!({"metadata": {"name": "b"}, "type": "kubernetes.io/dockercfg", "stringData": {".dockercfg": MARKER}}),
        ] {
            send(Method::POST, secrets, "application/json", malformed.to_string()).await;
        }
        let yaml = format!("metadata: {{name: b}}\nstringData:\n  a: {MARKER}\n b: [\n");
        send(Method::POST, secrets, "application/yaml", yaml.clone()).await;
        let path = format!("{secrets}/a");
        let strict = format!("{path}?fieldValidation=Strict");
        let apply = format!("{path}?fieldManager=me");
        for (path, media, patch) in [
            (&path, "strategic-merge-patch+json", json!({"data": MARKER})),
            (&path, "strategic-merge-patch+json", json!({"data": {"a": MARKER}})),
            (&path, "strategic-merge-patch+json", json!({"metadata": {"finalizers": MARKER}})),
            (&strict, "strategic-merge-patch+json", json!({"stringData": {"a": MARKER}, "dta": 1})),
            (&path, "merge-patch+json", json!({"data": {"a": MARKER}})),
            (&strict, "merge-patch+json", json!({"stringData": {"a": MARKER}, "dta": 1})),
            (&path, "json-patch+json", json!([{"op": "test", "path": "/data/a", "value": MARKER}])),
            (&path, "json-patch+json", json!([{"op": "replace", "path": "/data/a", "value": MARKER}])),
            (&path, "json-patch+json", json!([{"op": MARKER, "path": "/data/a"}])),
            (&apply, "apply-patch+yaml", json!({"apiVersion": "v1", "kind": "Secret", "data": MARKER})),
            (&apply, "apply-patch+yaml", json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": MARKER}})),
        ] {
            let media = format!("application/{media}");
            send(Method::PATCH, path, &media, patch.to_string()).await;
        }
        let unreadable = yaml;
        send(Method::PATCH, &apply, "application/apply-patch+yaml", unreadable).await;
        let other = json!({"metadata": {"name": "a"}, "immutable": true});
        let merged = server.ask("root", Method::PATCH, &path, &other).await;
        assert_eq!(merged.code, 200);
        let changed = json!({"metadata": {"name": "a"}, "immutable": true, "stringData": {"a": MARKER.repeat(2)}});
        send(Method::PUT, &path, "application/json", changed.to_string()).await;
        assert_eq!(server.get("root", &path).await.code, 200);
        assert_eq!(server.get("root", secrets).await.code, 200);

        let channel = endpoint::channel(&server.server.address.parse().unwrap()).unwrap();
        let mut secret = json!({"metadata": {"name": "c", "namespace": "default"}, "stringData": {"a": MARKER}});
        for code in [None, Some(tonic::Code::InvalidArgument)] {
            let object = codec::encode(&object::<podplane_api::core::Secret>(secret.clone()));
            let create = WriteRequest { object: Some(object.unwrap()) }.encode_to_vec();
            let path = "/podplane.core.v1.SecretService/CreateSecret";
            let answer = call_grpc(&channel, "root", path, create).await;
            assert_eq!(answer.err().map(|status| status.code()), code);
            secret["metadata"]["name"] = "d".into();
            secret["type"] = "kubernetes.io/dockercfg".into();
            secret["stringData"] = json!({".dockercfg": MARKER});
        }
    })
    .await;
    assert!(written.len() > 20, "{written:#?}");
    for (_, event) in &written {
        let text = event.to_string();
        assert!(!text.contains("pass") && !text.contains("cGFzcy"), "{text}");
    }
}
