//! The parts that only HTTP has: discovery, OpenAPI, forms of answers, and invalid requests.

use http::{Method, header};
use podplane_proto::kubernetes;

use super::*;

const CLUSTER_CIDRS: &str = "/apis/networking.x-k8s.io/v1/clustercidrs";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// The method, path, type and body of a refused request, and the code, reason and message of the
/// answer.
type RefusalCase = (
    Method,
    &'static str,
    &'static str,
    Vec<u8>,
    u16,
    &'static str,
    &'static str,
);

#[tokio::test]
async fn invalid_requests_are_answered_with_a_status() {
    let server = TestServer::start().await;
    const NO_PATH: &str = "the server could not find the requested resource";
    const NO_METHOD: &str = "the server does not allow this method on the requested resource";
    let json = "application/json";
    let table: Vec<RefusalCase> = vec![
        (
            Method::GET,
            "/nothing",
            "",
            vec![],
            404,
            "NotFound",
            NO_PATH,
        ),
        (
            Method::GET,
            "/apis/none.example",
            "",
            vec![],
            404,
            "NotFound",
            NO_PATH,
        ),
        (Method::GET, "/api/v2", "", vec![], 404, "NotFound", NO_PATH),
        (
            Method::GET,
            "/api/v1/things",
            "",
            vec![],
            404,
            "NotFound",
            NO_PATH,
        ),
        (
            Method::GET,
            "/api/v1/namespaces//pods",
            "",
            vec![],
            404,
            "NotFound",
            NO_PATH,
        ),
        (
            Method::GET,
            "/openapi/v3/api/v7",
            "",
            vec![],
            404,
            "NotFound",
            NO_PATH,
        ),
        (
            Method::PUT,
            PODS,
            json,
            b"{}".into(),
            405,
            "MethodNotAllowed",
            NO_METHOD,
        ),
        (
            Method::DELETE,
            "/api/v1/namespaces",
            "",
            vec![],
            405,
            "MethodNotAllowed",
            NO_METHOD,
        ),
        (
            Method::POST,
            PODS,
            "application/cbor",
            b"x".into(),
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        ),
        (
            Method::POST,
            PODS,
            json,
            vec![b' '; (3 << 20) + 1],
            413,
            "RequestEntityTooLarge",
            "Request entity too large: limit is 3145728",
        ),
        (
            Method::POST,
            PODS,
            kubernetes::MEDIA_TYPE,
            b"{}".into(),
            400,
            "BadRequest",
            "the body of the request cannot be read: provided data does not appear to be a protobuf message, expected prefix [107, 56, 115, 0]",
        ),
    ];
    for (method, path, media, body, code, reason, message) in table {
        let headers = [("content-type", media)];
        let answer = server.rest.exchange(method, path, &headers, body);
        let answer = within(answer).await.unwrap();
        assert_eq!(answer.code, code, "{path}: {}", answer.body);
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code});
        if [404, 405].contains(&code) {
            status["details"] = json!({});
        }
        assert_eq!(answer.body, status, "{path}");
    }
    server.stop().await;
}

/// The requests of kubectl 1.33, 1.29 and older versions.
#[tokio::test]
async fn discovery_has_the_requested_form() {
    let server = TestServer::start().await;
    let form = |version| {
        format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList")
    };
    let (new, old) = (form("v2"), form("v2beta1"));
    let both = format!("{new},{old},application/json");
    let beta = format!("{old},application/json");
    for (accept, content_type, kind) in [
        (both.as_str(), new.as_str(), "APIGroupDiscoveryList"),
        (&beta, &old, "APIGroupDiscoveryList"),
        ("application/json", "application/json", "APIGroupList"),
        ("*/*", "application/json", "APIGroupList"),
    ] {
        let get = async |headers: &[(&str, &str)]| {
            let answer = server.rest.exchange(Method::GET, "/apis", headers, "");
            within(answer).await.unwrap()
        };
        let answer = get(&[("accept", accept)]).await;
        assert_eq!(answer.headers[header::CONTENT_TYPE], content_type);
        assert_eq!(answer.body["kind"], kind, "{accept}");
        let tag = answer.headers[header::ETAG].to_str().unwrap();
        let again = get(&[("accept", accept), ("if-none-match", tag)]).await;
        assert_eq!((again.code, again.body), (304, json!("")), "{accept}");
    }
    let core = within(server.rest.get("/api/v1")).await.unwrap().body;
    let resources = core["resources"].as_array().unwrap();
    let find = |name: &str| resources.iter().find(|resource| resource["name"] == name);
    // The hashes are equal in every Kubernetes.
    for (name, hash) in [("pods", "xPOwRZ+Yhw8="), ("nodes", "XwShjMxG9Fs=")] {
        assert_eq!(find(name).unwrap()["storageVersionHash"], hash, "{name}");
    }
    let eviction = find("pods/eviction").unwrap();
    assert_eq!(
        (&eviction["group"], &eviction["version"], &eviction["kind"]),
        (&json!("policy"), &json!("v1"), &json!("Eviction"))
    );
    server.stop().await;
}

#[tokio::test]
async fn openapi_has_the_published_schemas_and_a_hash() {
    let server = TestServer::start().await;
    let get = async |path: &str| within(server.rest.get(path)).await.unwrap();
    let index = get("/openapi/v3").await.body;
    for (path, entry) in index["paths"].as_object().unwrap() {
        let url = entry["serverRelativeURL"].as_str().unwrap();
        let document = get(url).await;
        assert_eq!(
            document.headers[header::CACHE_CONTROL],
            "public, immutable",
            "{path}"
        );
        let schemas = document.body["components"]["schemas"].as_object().unwrap();
        let text = document.body.to_string();
        for reference in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{path}: {name}");
        }
        // kubectl finds out here that the server knows fieldValidation.
        let paths = document.body["paths"].as_object().unwrap();
        let patches = paths.values().filter(|path| path["patch"].is_object());
        for patch in patches {
            let parameters = patch["patch"]["parameters"].as_array().unwrap();
            let has = |name: &str| parameters.iter().any(|known| known["name"] == name);
            assert!(has("fieldValidation") && has("dryRun"), "{path}");
        }
        let old = format!("/openapi/v3/{path}?hash=OLD");
        let moved = get(&old).await;
        assert_eq!(moved.code, 301);
        assert_eq!(moved.headers[header::LOCATION], url);
    }
    server.stop().await;
}

#[tokio::test]
async fn reports_the_health_of_each_check() {
    let server = TestServer::start().await;
    for (path, text) in [
        ("/livez", "ok"),
        ("/livez/ping", "ok"),
        ("/readyz/shutdown", "ok"),
        ("/livez?verbose", "[+]ping ok\nlivez check passed\n"),
        (
            "/readyz?verbose=true",
            "[+]ping ok\n[+]shutdown ok\nreadyz check passed\n",
        ),
    ] {
        let answer = within(server.rest.get(path)).await.unwrap();
        assert_eq!((answer.code, answer.body), (200, json!(text)), "{path}");
    }
    server.stop().await;
}

/// `kubectl auth can-i --list` sends protobuf since 1.32.
#[tokio::test]
async fn accepts_rules_reviews_in_protobuf() {
    let server = TestServer::start().await;
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "default"}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let media = kubernetes::MEDIA_TYPE;
    for accept in ["application/json", media] {
        let headers = [("content-type", media), ("accept", accept)];
        let body = kubernetes::encode(&review).unwrap();
        let answer = server.rest.exchange(Method::POST, path, &headers, body);
        let answer = within(answer).await.unwrap();
        assert_eq!(answer.code, 201, "{}", answer.body);
        assert_eq!(answer.headers[header::CONTENT_TYPE], accept);
        if accept != media {
            let rules = &answer.body["status"]["resourceRules"];
            assert!(rules[0]["verbs"].is_array(), "{rules}");
        }
    }
    server.stop().await;
}

/// The exchange of a program with client-go: protobuf in both directions.
#[tokio::test]
async fn accepts_and_returns_objects_in_protobuf() {
    let server = TestServer::start().await;
    let media = kubernetes::MEDIA_TYPE;
    let headers = [("content-type", media), ("accept", media)];
    let body = kubernetes::encode(&pod("a")).unwrap();
    let created = server.rest.exchange(Method::POST, PODS, &headers, body);
    let created = within(created).await.unwrap();
    assert_eq!(created.code, 201, "{}", created.body);
    assert_eq!(created.headers[header::CONTENT_TYPE], media);
    let path = format!("{PODS}/a");
    let got = within(server.rest.get(&path)).await.unwrap().body;
    assert_eq!(got["spec"]["containers"][0]["image"], "i");
    // A kind of a group without messages is answered in JSON, or refused.
    let accept = format!("{media},application/json");
    for (path, accept, code, content_type) in [
        (PODS, accept.as_str(), 200, media),
        (PODS, "application/json", 200, "application/json"),
        (PODS, "application/cbor", 406, "application/json"),
        (CLUSTER_CIDRS, accept.as_str(), 200, "application/json"),
        (CLUSTER_CIDRS, media, 406, "application/json"),
    ] {
        let headers = [("accept", accept)];
        let answer = server.rest.exchange(Method::GET, path, &headers, "");
        let answer = within(answer).await.unwrap();
        assert_eq!(answer.code, code, "{accept}");
        assert_eq!(
            answer.headers[header::CONTENT_TYPE],
            content_type,
            "{accept}"
        );
    }
    server.stop().await;
}
