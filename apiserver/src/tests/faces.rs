//! gRPC and REST serve the same registry: the same objects, the same events, the same refusals.

use http::Method;
use podplane_client::ListParams;
use podplane_http_client::HttpAnswer;
use podplane_store::MAX_VALUE_BYTES;

use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A refusal, as gRPC and REST both report it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReportedRefusal {
    pub(super) reason: String,
    pub(super) message: String,
    /// The field and message of each cause.
    causes: Vec<(String, String)>,
}

impl From<ApiError> for ReportedRefusal {
    fn from(error: ApiError) -> Self {
        let causes = error.fields.into_iter();
        Self {
            reason: error.reason.as_str().to_owned(),
            message: error.message,
            causes: causes
                .map(|cause| (cause.field, cause.description))
                .collect(),
        }
    }
}

impl From<HttpAnswer> for ReportedRefusal {
    fn from(answer: HttpAnswer) -> Self {
        let HttpAnswer { code, body, .. } = answer;
        assert_eq!(
            (&body["kind"], &body["status"]),
            (&json!("Status"), &json!("Failure"))
        );
        assert_eq!(body["code"], code, "{body}");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let causes = body["details"]["causes"].as_array().into_iter().flatten();
        Self {
            reason: text(&body["reason"]),
            message: text(&body["message"]),
            causes: causes
                .map(|cause| (text(&cause["field"]), text(&cause["message"])))
                .collect(),
        }
    }
}

/// Makes a request through gRPC and REST and compares the refusals; also returns the HTTP status.
pub(super) async fn both<T: std::fmt::Debug, E: std::fmt::Debug>(
    grpc: impl Future<Output = Result<T, ApiError>>,
    rest: impl Future<Output = Result<HttpAnswer, E>>,
) -> (u16, ReportedRefusal) {
    let grpc = ReportedRefusal::from(within(grpc).await.unwrap_err());
    let answer = within(rest).await.unwrap();
    let code = answer.code;
    let rest = ReportedRefusal::from(answer);
    assert_eq!(grpc, rest);
    (code, rest)
}

fn document<K: Object>(object: &K) -> Value {
    object.to_json().unwrap()
}

#[tokio::test]
async fn grpc_and_rest_refuse_alike() {
    let server = TestServer::start().await;
    let (pods, rest) = (server.pods(), &server.rest);
    let created = pods.create(&pod("a")).await.unwrap();
    let one = format!("{PODS}/a");
    let none = format!("{PODS}/none");
    let post = |path: &'static str, body: Value| async move {
        rest.send_json(Method::POST, path, &body).await
    };
    let put =
        |path: String, body: Value| async move { rest.send_json(Method::PUT, &path, &body).await };
    let remove = |path: String, body: Value| async move {
        rest.send_json(Method::DELETE, &path, &body).await
    };

    let (code, refusal) = both(pods.get("none"), rest.get(&none)).await;
    assert_eq!((code, &*refusal.message), (404, "pods \"none\" not found"));

    let (code, refusal) = both(
        pods.update(&pod("none")),
        put(none.clone(), document(&pod("none"))),
    )
    .await;
    assert_eq!((code, &*refusal.reason), (404, "NotFound"));

    let (code, _) = both(
        pods.delete("none", &DeleteParams::default()),
        remove(none, json!({})),
    )
    .await;
    assert_eq!(code, 404);

    let elsewhere = pod_with(json!({"metadata": {"name": "a", "namespace": "none"}}));
    let (code, refusal) = both(
        server.client.namespaced::<Pod>("none").create(&elsewhere),
        post("/api/v1/namespaces/none/pods", document(&elsewhere)),
    )
    .await;
    assert_eq!(
        (code, &*refusal.message),
        (404, "namespaces \"none\" not found")
    );

    let (code, refusal) = both(pods.create(&pod("a")), post(PODS, document(&pod("a")))).await;
    assert_eq!(
        (code, &*refusal.reason, &*refusal.message),
        (409, "AlreadyExists", "pods \"a\" already exists")
    );

    let mut stale = created.clone();
    stale.metadata.resource_version = Some("2".into());
    let (code, refusal) = both(pods.update(&stale), put(one.clone(), document(&stale))).await;
    assert_eq!(
        (code, &*refusal.reason, &*refusal.message),
        (
            409,
            "Conflict",
            "Operation cannot be fulfilled on pods \"a\": the object has been modified; please apply your changes to the latest version and try again"
        )
    );

    let mut other = created.clone();
    other.metadata.uid = Some("other".into());
    let (code, refusal) = both(pods.update(&other), put(one.clone(), document(&other))).await;
    let why = format!(
        "Precondition failed: UID in precondition: other, UID in object meta: {}",
        created.uid()
    );
    assert_eq!(
        (code, refusal.message),
        (
            409,
            format!("Operation cannot be fulfilled on pods \"a\": {why}")
        )
    );

    for (params, preconditions, why) in [
        (
            DeleteParams {
                uid: Some("other".into()),
                ..DeleteParams::default()
            },
            json!({"uid": "other"}),
            format!(
                "the UID in the precondition (other) does not match the UID in record ({}). The object might have been deleted and then recreated",
                created.uid()
            ),
        ),
        (
            DeleteParams {
                resource_version: Some("2".into()),
                ..DeleteParams::default()
            },
            json!({"resourceVersion": "2"}),
            format!(
                "the ResourceVersion in the precondition (2) does not match the ResourceVersion in record ({}). The object might have been modified",
                created.resource_version()
            ),
        ),
    ] {
        let (code, refusal) = both(
            pods.delete("a", &params),
            remove(one.clone(), json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions})),
        )
        .await;
        assert_eq!(
            (code, refusal.message),
            (
                409,
                format!("Operation cannot be fulfilled on pods \"a\": {why}")
            )
        );
    }

    let wrong = pod_with(
        json!({"metadata": {"name": "A_"}, "spec": {"containers": [{"name": "C", "image": ""}]}}),
    );
    let (code, refusal) = both(pods.create(&wrong), post(PODS, document(&wrong))).await;
    assert_eq!((code, &*refusal.reason), (422, "Invalid"));
    let fields: Vec<_> = refusal
        .causes
        .iter()
        .map(|(field, _)| field.as_str())
        .collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "spec.containers[0].name",
            "spec.containers[0].image"
        ]
    );

    let mut moved = created.clone();
    moved.spec.as_mut().unwrap().hostname = Some("h".into());
    let (code, refusal) = both(pods.update(&moved), put(one.clone(), document(&moved))).await;
    assert_eq!(code, 422);
    assert_eq!(refusal.causes[0].0, "spec");

    let (code, refusal) = both(pods.create(&created), post(PODS, document(&created))).await;
    assert_eq!(
        (code, &*refusal.reason, &*refusal.message),
        (
            400,
            "BadRequest",
            "resourceVersion should not be set on objects to be created"
        )
    );

    for (params, query) in [
        (
            ListParams {
                label_selector: "a=(".into(),
                ..ListParams::default()
            },
            "labelSelector=a%3D(",
        ),
        (
            ListParams {
                field_selector: "spec.foo=a".into(),
                ..ListParams::default()
            },
            "fieldSelector=spec.foo%3Da",
        ),
        (
            ListParams {
                continue_token: "rubbish!".into(),
                ..ListParams::default()
            },
            "continue=rubbish!",
        ),
    ] {
        let path = format!("{PODS}?{query}");
        let (code, refusal) = both(pods.list(&params), rest.get(&path)).await;
        assert_eq!((code, &*refusal.reason), (400, "BadRequest"), "{query}");
    }

    let (code, refusal) = both(
        server
            .namespaces()
            .delete("default", &DeleteParams::default()),
        remove("/api/v1/namespaces/default".into(), json!({})),
    )
    .await;
    assert_eq!(
        (code, &*refusal.reason, &*refusal.message),
        (
            403,
            "Forbidden",
            "namespaces \"default\" is forbidden: this namespace may not be deleted"
        )
    );

    // REST also records the fields' managers, so the sizes differ.
    let env = json!([{"name": "LARGE", "value": "x".repeat(MAX_VALUE_BYTES)}]);
    let containers = json!([{"name": "c", "image": "i", "env": env}]);
    let large =
        pod_with(json!({"metadata": {"name": "large"}, "spec": {"containers": containers}}));
    let grpc = ReportedRefusal::from(pods.create(&large).await.unwrap_err());
    let answer = post(PODS, document(&large)).await.unwrap();
    assert_eq!(answer.code, 413);
    for refusal in [grpc, ReportedRefusal::from(answer)] {
        assert_eq!(refusal.reason, "RequestEntityTooLarge");
        let size = "Request entity too large: number of bytes in a value is 15";
        assert!(refusal.message.starts_with(size), "{refusal:?}");
    }
    server.stop().await;
}

/// The `details` of a refusal: the resource and the name if it is about an object, and nothing if
/// it is not.
#[tokio::test]
async fn refusals_have_kubernetes_details() {
    let server = TestServer::start().await;
    let rest = &server.rest;
    let lease = json!({"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    for (answer, details) in [
        (
            rest.get(&format!("{PODS}/none")).await,
            json!({"name": "none", "kind": "pods"}),
        ),
        (
            rest.get(&format!("{leases}/none")).await,
            json!({"name": "none", "group": "coordination.k8s.io", "kind": "leases"}),
        ),
        (
            rest.send_json(Method::POST, leases, &lease).await,
            json!({
                "name": "l", "group": "coordination.k8s.io", "kind": "Lease",
                "causes": [{"reason": "FieldValueInvalid", "message": "Invalid value: 0: must be greater than 0", "field": "spec.leaseDurationSeconds"}],
            }),
        ),
        (
            rest.get(&format!("{PODS}?labelSelector=a%3D(")).await,
            Value::Null,
        ),
    ] {
        let answer = answer.unwrap();
        assert_eq!(answer.body["details"], details, "{}", answer.body);
    }
    server.stop().await;
}

/// Refusals that only HTTP has.
#[tokio::test]
async fn a_method_that_is_not_served_is_405_and_a_path_404() {
    let server = TestServer::start().await;
    for (method, path, code, reason) in [
        (Method::PUT, PODS.to_owned(), 405, "MethodNotAllowed"),
        (Method::POST, format!("{PODS}/a"), 405, "MethodNotAllowed"),
        (Method::GET, "/api/v1/nothings".to_owned(), 404, "NotFound"),
    ] {
        let answer = server
            .rest
            .send_json(method, &path, &json!({}))
            .await
            .unwrap();
        assert_eq!(
            (answer.code, &answer.body["reason"]),
            (code, &json!(reason)),
            "{path}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn grpc_and_rest_show_the_same_object() {
    let server = TestServer::start().await;
    let (pods, rest) = (server.pods(), &server.rest);
    let list = pods.list(&ListParams::default()).await.unwrap();
    let from = list.resource_version;
    let path = format!("{PODS}?watch=1&resourceVersion={from}");
    let (_, mut through_rest) = rest.watch(&path).await.unwrap();
    let mut through_grpc = Box::pin(pods.watch(&ListParams::default(), &from).await.unwrap());

    let manifest = document(&pod_with(
        json!({"metadata": {"name": "r", "labels": {"a": "b"}, "finalizers": ["x/y"]},
            "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]}}),
    ));
    let posted = rest.send_json(Method::POST, PODS, &manifest).await.unwrap();
    assert_eq!(posted.code, 201, "{}", posted.body);
    let mut read = pods.get("r").await.unwrap();
    assert_eq!(document(&read), posted.body);

    read.metadata.labels = Some([("a".to_owned(), "c".to_owned())].into());
    let updated = pods.update(&read).await.unwrap();
    let got = rest.get(&format!("{PODS}/r")).await.unwrap();
    assert_eq!(got.body, document(&updated));

    let deleting = rest
        .send(Method::DELETE, &format!("{PODS}/r"), None)
        .await
        .unwrap();
    let mut held = pods.get("r").await.unwrap();
    assert_eq!(deleting.body, document(&held));
    held.metadata.finalizers = None;
    pods.update(&held).await.unwrap();

    for kind in ["ADDED", "MODIFIED", "MODIFIED", "DELETED"] {
        let rest = within(through_rest.next()).await.unwrap().unwrap();
        let (grpc, object) = match next(&mut through_grpc).await {
            ObjectEvent::Added(object) => ("ADDED", object),
            ObjectEvent::Modified(object) => ("MODIFIED", object),
            ObjectEvent::Deleted(object) => ("DELETED", object),
            ObjectEvent::Bookmark(_) => panic!("next() leaves them out"),
        };
        assert_eq!((&rest["type"], grpc), (&json!(kind), kind));
        assert_eq!(rest["object"], document(&object));
    }
    server.stop().await;
}
