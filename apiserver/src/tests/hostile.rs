//! Hostile requests: whatever is sent, the server goes on, and no handler panics.

use std::fmt::Write as _;

use http::Method;
use podplane_proto::kubernetes;

use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const JSON_PATCH: &str = "application/json-patch+json";
const PATCHES: [&str; 4] = [
    JSON_PATCH,
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
/// Deeper than any stack.
const DEEP: usize = 100_000;
const MAX: &str = "9223372036854775807";
const MIN: &str = "-9223372036854775808";

impl TestServer {
    /// Sends a request and returns the status of the answer, which must not be 500. The server must
    /// go on.
    #[track_caller]
    fn survives(
        &self,
        method: Method,
        path: &str,
        media: &str,
        body: impl Into<bytes::Bytes>,
    ) -> impl Future<Output = u16> {
        let headers = [("content-type", media.to_owned())];
        let what = format!("{method} {} as {media:?}", &path[..path.len().min(200)]);
        let path = path.to_owned();
        let body = body.into();
        async move {
            let headers = headers
                .each_ref()
                .map(|(name, value)| (*name, value.as_str()));
            let answer = self.rest.exchange(method, &path, &headers, body);
            let answer = within(answer)
                .await
                .unwrap_or_else(|error| panic!("{what}: {error:#}"));
            assert_ne!(answer.code, 500, "{what}: {}", answer.body);
            let alive = within(self.rest.get("/livez")).await;
            assert_eq!(
                alive
                    .unwrap_or_else(|error| panic!("{what}: {error:#}"))
                    .code,
                200,
                "{what}"
            );
            answer.code
        }
    }

    /// Checks that no handler panicked, whatever it answered.
    async fn nothing_panicked(&self) {
        let metrics = within(self.rest.get("/metrics")).await.unwrap().body;
        let metrics = metrics.as_str().unwrap();
        assert!(
            metrics.contains("podplane_request_panics_total 0\n"),
            "{metrics}"
        );
    }

    /// Opens a watch without reading from it.
    async fn watches(&self, query: &str) {
        let (code, _events) = within(self.rest.watch(&format!("/api/v1/pods?watch=1&{query}")))
            .await
            .unwrap();
        assert!(code == 200 || code == 400, "{query}: {code}");
    }
}

fn document(name: &str, spec: Value) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string()
}

fn containers() -> Value {
    json!([{"name": "c", "image": "i"}])
}

#[tokio::test]
async fn survives_numbers_of_any_size() {
    let server = TestServer::start().await;
    server
        .survives(
            Method::POST,
            PODS,
            JSON,
            document("a", json!({"containers": containers()})),
        )
        .await;
    let numbers = [
        MAX,
        MIN,
        "-1",
        "0",
        "9223372036854775808",
        "18446744073709551615",
        "1e9",
        "",
    ];
    for number in numbers {
        for query in [
            format!("timeoutSeconds={number}"),
            format!(
                "timeoutSeconds={number}&allowWatchBookmarks=1&sendInitialEvents=1&resourceVersionMatch=NotOlderThan"
            ),
            format!("resourceVersion={number}&timeoutSeconds=1"),
        ] {
            server.watches(&query).await;
        }
        for query in [
            format!("{PODS}?limit={number}"),
            format!("{PODS}?timeoutSeconds={number}"),
            format!("{PODS}?resourceVersion={number}"),
            format!("{PODS}?resourceVersion={number}&resourceVersionMatch=Exact&limit={number}"),
            format!("{PODS}?resourceVersion={number}&resourceVersionMatch=NotOlderThan"),
            format!("{PODS}/a/log?sinceSeconds={number}&container=c"),
            format!("{PODS}/a/log?tailLines={number}&limitBytes={number}&container=c"),
            format!("{PODS}/a/log?sinceTime={number}-01-01T00:00:00Z&container=c"),
        ] {
            server.survives(Method::GET, &query, "", "").await;
        }
        let query = format!("{PODS}/a?gracePeriodSeconds={number}&dryRun=All");
        server.survives(Method::DELETE, &query, "", "").await;
        let body = format!(
            r#"{{"gracePeriodSeconds": {number}, "preconditions": {{"resourceVersion": "{number}"}}}}"#
        );
        server
            .survives(
                Method::DELETE,
                &format!("{PODS}?dryRun=All"),
                JSON,
                body.clone(),
            )
            .await;
        server
            .survives(
                Method::POST,
                &format!("{PODS}/a/eviction?dryRun=All"),
                JSON,
                format!(r#"{{"metadata": {{"name": "a"}}, "deleteOptions": {body}}}"#),
            )
            .await;
        let token =
            format!(r#"{{"v": "meta.k8s.io/v1", "rv": {number}, "start": "default/a\u0000"}}"#);
        let token = base64::Engine::encode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, token);
        server
            .survives(
                Method::GET,
                &format!("{PODS}?limit=1&continue={token}"),
                "",
                "",
            )
            .await;
    }
    server.nothing_panicked().await;
    server.stop().await;
}

#[tokio::test]
async fn survives_objects_with_absurd_values() {
    let server = TestServer::start().await;
    let (max, min) = (i64::MAX, i64::MIN);
    let mut pods = Vec::new();
    for number in [max, min, i64::from(i32::MAX), i64::from(i32::MIN), -1, 0] {
        pods.push(json!({"containers": containers(), "terminationGracePeriodSeconds": number, "nodeName": "n"}));
        pods.push(json!({"containers": containers(), "activeDeadlineSeconds": number, "priority": number}));
        let toleration =
            json!({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": number});
        pods.push(json!({"containers": containers(), "tolerations": [toleration]}));
        pods.push(json!({"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": number, "hostPort": number}]}]}));
    }
    for quantity in [
        "1e9999999999",
        "9223372036854775807E",
        "-9223372036854775808n",
        "0.000000000000000000000000000001",
        "1e-99999",
        "99999999999999999999999999999999",
        "Ei",
        "1e",
        "NaN",
    ] {
        let resources = json!({"requests": {"cpu": quantity, "memory": quantity, "podplane.io/pod-ips": quantity}});
        pods.push(json!({"containers": [{"name": "c", "image": "i", "resources": resources}], "overhead": {"cpu": quantity}}));
    }
    for (index, spec) in pods.into_iter().enumerate() {
        let name = format!("p{index}");
        server
            .survives(Method::POST, PODS, JSON, document(&name, spec))
            .await;
        let of_one = format!("{PODS}/{name}");
        let status = json!({"status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": i32::MAX}, {"name": "d", "image": "i", "imageID": "", "ready": true, "restartCount": i32::MAX}]}});
        server
            .survives(
                Method::PATCH,
                &format!("{of_one}/status"),
                PATCHES[1],
                status.to_string(),
            )
            .await;
        for grace in [MAX, MIN, "1", "0"] {
            server
                .survives(
                    Method::DELETE,
                    &format!("{of_one}?gracePeriodSeconds={grace}"),
                    "",
                    "",
                )
                .await;
        }
    }
    let meta = |name: &str| json!({"name": name, "generation": max, "deletionGracePeriodSeconds": min, "deletionTimestamp": "9999-12-31T23:59:59Z", "creationTimestamp": "-009999-01-02T01:59:59Z", "finalizers": ["a.example/b"]});
    let mut others = Vec::new();
    for (index, number) in [max, min, i64::from(i32::MAX), i64::from(i32::MIN), -1, 0]
        .into_iter()
        .enumerate()
    {
        let name = format!("x{index}");
        let labels = json!({"a": "b"});
        let template =
            json!({"metadata": {"labels": labels}, "spec": {"containers": containers()}});
        others.push(("/apis/coordination.k8s.io/v1/namespaces/default/leases", json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta(&name), "spec": {"leaseDurationSeconds": number, "leaseTransitions": number, "renewTime": "9999-12-31T23:59:59.999999Z"}})));
        others.push(("/apis/apps/v1/namespaces/default/deployments", json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta(&name), "spec": {"replicas": number, "minReadySeconds": number, "progressDeadlineSeconds": number, "revisionHistoryLimit": number, "selector": {"matchLabels": labels}, "template": template, "strategy": {"rollingUpdate": {"maxSurge": format!("{number}%"), "maxUnavailable": number}}}})));
        others.push(("/apis/apps/v1/namespaces/default/replicasets", json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta(&name), "spec": {"replicas": number, "minReadySeconds": number, "selector": {"matchLabels": labels}, "template": template}})));
        others.push(("/api/v1/nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": meta(&name), "spec": {"podCIDRs": [format!("10.0.0.0/{number}")]}, "status": {"allocatable": {"pods": format!("{number}E"), "podplane.io/pod-ips": format!("{number}")}}})));
        others.push(("/apis/networking.x-k8s.io/v1/clustercidrs", json!({"apiVersion": "networking.x-k8s.io/v1", "kind": "ClusterCIDR", "metadata": meta(&name), "spec": {"perNodeHostBits": number, "ipv4": "0.0.0.0/0", "ipv6": "::/0"}})));
        others.push(("/api/v1/namespaces/default/services", json!({"apiVersion": "v1", "kind": "Service", "metadata": meta(&name), "spec": {"ports": [{"port": number, "nodePort": number}], "healthCheckNodePort": number, "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": number}}}})));
        others.push(("/api/v1/namespaces/default/events", json!({"apiVersion": "v1", "kind": "Event", "metadata": meta(&name), "count": number, "lastTimestamp": "9999-12-31T23:59:59Z", "firstTimestamp": "-009999-01-02T01:59:59Z", "series": {"count": number}, "involvedObject": {"namespace": "default"}})));
        others.push(("/apis/apps/v1/namespaces/default/controllerrevisions", json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": meta(&name), "revision": number, "data": {"a": number}})));
    }
    for (path, document) in others {
        let of_one = format!("{path}/{}", document["metadata"]["name"].as_str().unwrap());
        server
            .survives(Method::POST, path, JSON, document.to_string())
            .await;
        server
            .survives(Method::PUT, &of_one, JSON, document.to_string())
            .await;
        let query = "?fieldManager=m&force=true";
        server
            .survives(
                Method::PATCH,
                &format!("{of_one}{query}"),
                PATCHES[3],
                document.to_string(),
            )
            .await;
        server
            .survives(
                Method::PATCH,
                &format!("{of_one}/scale"),
                PATCHES[1],
                json!({"spec": {"replicas": max}}).to_string(),
            )
            .await;
        let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
        let answer = within(server.rest.exchange(Method::GET, path, &table, ""))
            .await
            .unwrap();
        assert_eq!(answer.code, 200, "{path}: {}", answer.body);
        server.survives(Method::DELETE, &of_one, "", "").await;
        server
            .survives(
                Method::DELETE,
                &format!("{of_one}?gracePeriodSeconds=1"),
                "",
                "",
            )
            .await;
    }
    server.nothing_panicked().await;
    server.stop().await;
}

/// A time that can be written but not read back would make its object unreadable and undeletable.
#[tokio::test]
async fn refuses_times_that_cannot_be_read_back() {
    let server = TestServer::start().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease =
        json!({"metadata": {"name": "a"}, "spec": {"renewTime": "-009999-01-02T01:59:59.000000Z"}});
    let code = server
        .survives(Method::POST, leases, JSON, lease.to_string())
        .await;
    assert_eq!(code, 400);
    // Go's years begin with 0, and those of protobuf with 1.
    let lease =
        json!({"metadata": {"name": "b"}, "spec": {"renewTime": "0000-05-01T00:00:00.000000Z"}});
    let code = server
        .survives(Method::POST, leases, JSON, lease.to_string())
        .await;
    assert_eq!(code, 201);
    let early = json!({"spec": {"acquireTime": "0000-05-01T00:00:00.000000Z"}}).to_string();
    let lease = format!("{leases}/b");
    let code = server
        .survives(Method::PATCH, &lease, "application/merge-patch+json", early)
        .await;
    assert_eq!(code, 200);
    let kept = within(server.rest.get(&lease)).await.unwrap().body["spec"].take();
    let earliest = "0001-01-01T00:00:00.000000Z";
    assert_eq!(
        kept,
        json!({"acquireTime": earliest, "renewTime": earliest})
    );
    // A grace period that ends after the latest representable time can be shortened.
    let spec = json!({"containers": containers(), "nodeName": "n", "terminationGracePeriodSeconds": i64::MAX});
    let code = server
        .survives(Method::POST, PODS, JSON, document("a", spec))
        .await;
    assert_eq!(code, 201);
    let pod = format!("{PODS}/a");
    for grace in ["", "?gracePeriodSeconds=60", "?gracePeriodSeconds=1"] {
        let code = server
            .survives(Method::DELETE, &format!("{pod}{grace}"), "", "")
            .await;
        assert_eq!(code, 200, "{grace}");
        let answer = within(server.rest.get(&pod)).await.unwrap();
        let time = answer.body["metadata"]["deletionTimestamp"]
            .as_str()
            .unwrap();
        let year = &time[..4];
        let want = if grace.is_empty() {
            "9999"
        } else {
            &podplane_api::jiff::Timestamp::now().to_string()[..4]
        };
        assert!(year == want, "{time}");
    }
    let code = server
        .survives(
            Method::DELETE,
            &format!("{pod}?gracePeriodSeconds=0"),
            "",
            "",
        )
        .await;
    assert_eq!(code, 200);
    server.nothing_panicked().await;
    server.stop().await;
}

#[tokio::test]
async fn survives_paths_and_queries_of_any_form() {
    let server = TestServer::start().await;
    let long = "a".repeat(15_000);
    let slashes = "/a".repeat(7_000);
    let nested = "(".repeat(15_000);
    let commas = ",".repeat(15_000);
    let mut paths = Vec::new();
    for part in [
        "%00",
        "%ff%fe",
        "%2f..%2f..",
        "..",
        "*",
        "%25",
        long.as_str(),
        slashes.as_str(),
        nested.as_str(),
        commas.as_str(),
        "%F0%9F%98%80",
    ] {
        for path in [
            "/",
            "/api/",
            "/apis/",
            "/api/v1/",
            "/apis/apps/v1/",
            "/openapi/v3/",
            "/livez/",
            "/api/v1/namespaces/",
            "/api/v1/namespaces/default/pods/",
            "/debug/",
        ] {
            paths.push(format!("{path}{part}"));
        }
        paths.push(format!("/api/v1/namespaces/{part}/pods/{part}/{part}"));
        for name in [
            "labelSelector",
            "fieldSelector",
            "continue",
            "resourceVersion",
            "limit",
            "watch",
            "includeObject",
            "fieldManager",
            "dryRun",
        ] {
            paths.push(format!("{PODS}?{name}={part}"));
            paths.push(format!(
                "{PODS}?labelSelector=a+in+({part}&fieldSelector=metadata.name%3D{part}"
            ));
        }
    }
    for path in paths {
        server.survives(Method::GET, &path, "", "").await;
    }
    for method in [
        "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "HEAD", "BREW",
    ] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        for path in [
            "/",
            "/api/v1",
            PODS,
            "/livez",
            "/metrics",
            "/debug/log-level",
        ] {
            server.survives(method.clone(), path, JSON, "").await;
        }
    }
    server.nothing_panicked().await;
    server.stop().await;
}

/// Lists and objects, open and closed, in JSON and YAML.
fn deep_documents() -> Vec<String> {
    let mut block = String::new();
    for level in 0..2_000 {
        _ = writeln!(block, "{}a:", " ".repeat(level));
    }
    vec![
        "[".repeat(DEEP),
        format!("{}{}", "[".repeat(DEEP), "]".repeat(DEEP)),
        r#"{"a":"#.repeat(DEEP),
        format!("{}1{}", r#"{"metadata":"#.repeat(DEEP), "}".repeat(DEEP)),
        format!(
            r#"[{{"op":"add","path":"/spec/x","value":{}{}}}]"#,
            "[".repeat(DEEP),
            "]".repeat(DEEP)
        ),
        "- ".repeat(DEEP),
        "? ".repeat(DEEP),
        format!("{}1", "a: {".repeat(DEEP)),
        "&a [".repeat(DEEP),
        block,
    ]
}

/// A message in a message, `DEEP` times, in alternating fields.
fn deep_message(tags: [u8; 2]) -> Vec<u8> {
    let mut reversed = Vec::new();
    for level in 0..DEEP {
        let mut length = Vec::new();
        prost::encoding::encode_varint(reversed.len() as u64, &mut length);
        reversed.extend(length.iter().rev());
        reversed.push(tags[level % 2]);
    }
    reversed.reverse();
    reversed
}

fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![tag];
    prost::encoding::encode_varint(bytes.len() as u64, &mut field);
    field.extend(bytes);
    field
}

/// Groups in groups, of no known field.
fn deep_groups() -> Vec<u8> {
    [vec![0x7b; DEEP], vec![0x7c; DEEP]].concat()
}

#[tokio::test]
async fn deeply_nested_documents_are_refused() {
    let server = TestServer::start().await;
    server
        .survives(
            Method::POST,
            PODS,
            JSON,
            document("a", json!({"containers": containers()})),
        )
        .await;
    let paths = [
        PODS.to_owned(),
        format!("{PODS}/a/eviction"),
        format!("{PODS}/a/binding"),
        "/apis/apps/v1/namespaces/default/controllerrevisions".into(),
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".into(),
    ];
    let refused = |code: u16| assert!((400..500).contains(&code), "{code}");
    for body in deep_documents() {
        for media in [JSON, YAML] {
            for path in &paths {
                refused(
                    server
                        .survives(Method::POST, path, media, body.clone())
                        .await,
                );
            }
            refused(
                server
                    .survives(Method::PUT, &format!("{PODS}/a"), media, body.clone())
                    .await,
            );
            refused(
                server
                    .survives(Method::DELETE, &format!("{PODS}/a"), media, body.clone())
                    .await,
            );
        }
        for media in PATCHES {
            refused(
                server
                    .survives(
                        Method::PATCH,
                        &format!("{PODS}/a?fieldManager=m"),
                        media,
                        body.clone(),
                    )
                    .await,
            );
        }
        refused(
            server
                .survives(
                    Method::PUT,
                    "/debug/log-level",
                    JSON,
                    body[..body.len().min(4000)].to_owned(),
                )
                .await,
        );
    }
    let type_meta = [field(0x0a, b"v1"), field(0x12, b"Pod")].concat();
    for raw in [
        deep_message([0x0a, 0x0a]),
        deep_message([0x12, 0x0a]),
        deep_groups(),
    ] {
        let body = [
            b"k8s\0".to_vec(),
            field(0x0a, &type_meta),
            field(0x12, &raw),
        ]
        .concat();
        refused(
            server
                .survives(Method::POST, PODS, kubernetes::MEDIA_TYPE, body)
                .await,
        );
        let body = [b"k8s\0".to_vec(), raw].concat();
        refused(
            server
                .survives(Method::POST, PODS, kubernetes::MEDIA_TYPE, body)
                .await,
        );
    }
    server.nothing_panicked().await;
    server.stop().await;
}

/// Each of these patches makes a large object from a small request.
#[tokio::test]
async fn bounds_the_size_and_depth_of_patched_objects() {
    let server = TestServer::start().await;
    let revisions = "/apis/apps/v1/namespaces/default/controllerrevisions";
    let revision = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": "a"}, "revision": 1, "data": {"a": ["x"]}});
    assert_eq!(
        server
            .survives(Method::POST, revisions, JSON, revision.to_string())
            .await,
        201
    );
    let path = format!("{revisions}/a");
    let patch = async |operations: Vec<Value>| {
        server
            .survives(
                Method::PATCH,
                &path,
                JSON_PATCH,
                Value::from(operations).to_string(),
            )
            .await
    };
    // Each operation doubles the list.
    let double = json!({"op": "copy", "from": "/data/a", "path": "/data/a/-"});
    assert_eq!(patch(vec![double; 64]).await, 413);
    // A value wrapped around itself, and copied under itself.
    let mut nested = Value::Null;
    for _ in 0..50 {
        nested = json!({"x": nested});
    }
    let into = "/x".repeat(50);
    let wrap = [
        json!({"op": "add", "path": "/data/t", "value": nested}),
        json!({"op": "move", "from": "/data/a", "path": format!("/data/t{into}")}),
        json!({"op": "move", "from": "/data/t", "path": "/data/a"}),
    ];
    assert_eq!(patch(vec![wrap.to_vec(); 2_000].concat()).await, 413);
    let test = json!({"op": "test", "path": "/data", "value": {"a": ["x"]}});
    assert_eq!(patch(vec![test; 10_001]).await, 413);
    // An object that could not be read again is not stored.
    let deep = (0..110).fold(json!(1), |inner, _| json!({"a": inner}));
    let mut deeper = revision.clone();
    deeper["metadata"]["name"] = "b".into();
    deeper["data"] = deep;
    let code = server
        .survives(Method::POST, revisions, JSON, deeper.to_string())
        .await;
    assert_eq!(code, 400);
    let code = server.survives(Method::GET, &path, "", "").await;
    assert_eq!(code, 200);
    for place in [
        "/data/a/18446744073709551615",
        "/data/a/18446744073709551616",
        "/data/a/-1",
        "/data/a/01",
        "/data/a/-",
        "",
        "/",
        "data",
        "/data~2",
        "/metadata",
    ] {
        for op in ["add", "remove", "replace", "move", "copy", "test"] {
            patch(vec![
                json!({"op": op, "path": place, "from": place, "value": [1]}),
            ])
            .await;
        }
    }
    // Each alias multiplies by ten.
    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (from, to) in ('a'..='j').zip('b'..='k') {
        _ = writeln!(
            bomb,
            "{to}: &{to} [{}]",
            vec![format!("*{from}"); 10].join(", ")
        );
    }
    assert_eq!(
        server
            .survives(Method::POST, revisions, YAML, bomb.clone())
            .await,
        400
    );
    assert_eq!(
        server
            .survives(
                Method::PATCH,
                &format!("{path}?fieldManager=m"),
                PATCHES[3],
                bomb
            )
            .await,
        400
    );
    server.nothing_panicked().await;
    server.stop().await;
}

/// Three bytes of a body can become a kilobyte of memory.
#[tokio::test]
async fn refuses_bodies_with_too_many_values() {
    let server = TestServer::start().await;
    let containers = |one: &str| {
        format!(
            r#"{{"spec": {{"containers": [{}]}}}}"#,
            vec![one; 300_000].join(",")
        )
    };
    for one in ["{}", "[]", "0", r#"{"x":{}}"#] {
        let body = containers(one);
        for media in [JSON, YAML] {
            let code = server
                .survives(Method::POST, PODS, media, body.clone())
                .await;
            assert!(matches!(code, 400 | 413), "{one} as {media}: {code}");
        }
        for media in PATCHES {
            let path = format!("{PODS}/a?fieldManager=m");
            let code = server
                .survives(Method::PATCH, &path, media, body.clone())
                .await;
            assert!(matches!(code, 400 | 413), "{one} as {media}: {code}");
        }
    }
    let type_meta = [field(0x0a, b"v1"), field(0x12, b"Pod")].concat();
    let spec = field(0x12, &[0x12, 0].repeat(500_000));
    let body = [
        b"k8s\0".to_vec(),
        field(0x0a, &type_meta),
        field(0x12, &spec),
    ]
    .concat();
    let code = server
        .survives(Method::POST, PODS, kubernetes::MEDIA_TYPE, body)
        .await;
    assert_eq!(code, 413);
    server.nothing_panicked().await;
    server.stop().await;
}

#[tokio::test]
async fn survives_grpc_messages_of_any_form() {
    let server = TestServer::start().await;
    let methods = [
        "podplane.core.v1.PodService/CreatePod",
        "podplane.core.v1.PodService/ListPods",
        "podplane.core.v1.PodService/WatchPods",
        "podplane.core.v1.PodService/BindPod",
        "podplane.core.v1.NodeService/AssignPodCIDRs",
        "podplane.ipam.v1.BlockService/AssignBlocks",
        "podplane.ipam.v1.BlockService/UpdateBlocks",
        "podplane.trace.v1.TraceService/GetPodTrace",
        "opentelemetry.proto.collector.trace.v1.TraceService/Export",
        "grpc.health.v1.Health/Check",
        "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "podplane.core.v1.PodService/Nothing",
    ];
    // resource_spans, resource, attributes, value, array_value, values, …
    let any_value = deep_message([0x0a, 0x2a]);
    let span = field(0x0a, &field(0x0a, &field(0x0a, &field(0x12, &any_value))));
    let negative = [
        0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
    ]
    .repeat(10);
    for message in [
        deep_message([0x0a, 0x0a]),
        deep_message([0x0a, 0x12]),
        deep_groups(),
        span,
        negative,
        vec![0xff; 1000],
        vec![0; 100],
    ] {
        let length = u32::try_from(message.len()).unwrap();
        for length in [length, 0, u32::MAX, length + 1] {
            let body = [vec![0], length.to_be_bytes().to_vec(), message.clone()].concat();
            for method in methods {
                let path = format!("/{method}");
                for timeout in ["99999999H", "0n", "-1S", "99999999999999999999S"] {
                    let headers = [
                        ("content-type", "application/grpc"),
                        ("grpc-timeout", timeout),
                        ("podplane-fence", "a/b/18446744073709551616"),
                        ("grpc-encoding", "gzip"),
                    ];
                    let headers = if timeout == "0n" {
                        &headers[..]
                    } else {
                        &headers[..3]
                    };
                    let answer = server
                        .rest
                        .exchange(Method::POST, &path, headers, body.clone());
                    // An accepted watch goes on, and the server waits for a message that is too
                    // short no longer than for its body.
                    _ = time::timeout(Duration::from_millis(500), answer).await;
                }
            }
        }
        assert_eq!(within(server.rest.get("/livez")).await.unwrap().code, 200);
    }
    server.nothing_panicked().await;
    server.stop().await;
}

#[tokio::test]
async fn bodies_without_a_known_type_are_refused() {
    let server = TestServer::start().await;
    let pod = document("a", json!({"containers": containers()}));
    for media in [
        "text/plain",
        "text/plain; charset=utf-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/json",
        "application/json-patch+json",
    ] {
        for (method, path) in [
            (Method::POST, PODS),
            (Method::PUT, "/api/v1/namespaces/default/pods/a"),
            (Method::DELETE, "/api/v1/namespaces/default/pods/a"),
            (Method::DELETE, PODS),
            (Method::POST, "/api/v1/namespaces/default/pods/a/eviction"),
            (Method::POST, "/api/v1/namespaces/default/pods/a/binding"),
            (
                Method::POST,
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            ),
            (
                Method::PUT,
                "/apis/apps/v1/namespaces/default/deployments/a/scale",
            ),
        ] {
            assert_eq!(
                server
                    .survives(method.clone(), path, media, pod.clone())
                    .await,
                415,
                "{method} {path} as {media}"
            );
            if method == Method::POST {
                assert_eq!(
                    server.survives(method, path, media, "").await,
                    415,
                    "{path} as {media}"
                );
            }
        }
        if media != JSON_PATCH {
            assert_eq!(
                server
                    .survives(Method::PATCH, &format!("{PODS}/a"), media, "{}")
                    .await,
                415,
                "{media}"
            );
        }
    }
    // Kubernetes' own clients send no type; a browser can be recognised.
    let dry_run = format!("{PODS}?dryRun=All");
    let untyped = server
        .rest
        .exchange(Method::POST, &dry_run, &[], pod.clone());
    assert_eq!(within(untyped).await.unwrap().code, 201);
    let browser = [("sec-fetch-site", "same-origin")];
    let answer = server
        .rest
        .exchange(Method::POST, PODS, &browser, pod.clone());
    let answer = within(answer).await.unwrap();
    assert_eq!(answer.code, 415);
    let message = answer.body["message"].as_str().unwrap();
    assert!(
        message.starts_with("the request has no Content-Type - accepted"),
        "{message}"
    );
    for media in [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/yaml",
    ] {
        let code = server
            .survives(
                Method::POST,
                &format!("{PODS}?dryRun=All"),
                media,
                pod.clone(),
            )
            .await;
        assert_eq!(code, 201, "{media}");
    }
    let gzip = [("content-type", JSON), ("content-encoding", "gzip")];
    let answer = within(server.rest.exchange(Method::POST, PODS, &gzip, pod))
        .await
        .unwrap();
    assert_eq!(
        (answer.code, answer.body["reason"].as_str()),
        (415, Some("UnsupportedMediaType"))
    );
    assert_eq!(
        server
            .survives(Method::DELETE, &format!("{PODS}/a"), "", "")
            .await,
        404
    );
    server.stop().await;
}
