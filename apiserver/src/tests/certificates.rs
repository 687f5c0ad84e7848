//! Requests for certificates: who asks, and who decides.

use http::Method;
use podplane_api::certificates::CertificateSigningRequest;

use super::*;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// The PEM frame of a request, around nothing.
const REQUEST: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KQUFBQQotLS0tLUVORCBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0K";

fn request(name: &str) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "request": REQUEST,
            "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["client auth"],
            "username": "system:admin",
            "groups": ["system:masters"],
            "uid": "1",
            "extra": {"a": ["b"]},
        },
    })
}

fn decided(mut request: Value, types: &[&str]) -> Value {
    let condition = |type_: &&str| json!({"type": type_, "status": "True", "reason": "Mine"});
    request["status"]["conditions"] = types.iter().map(condition).collect();
    request
}

impl TestServer {
    async fn put(&self, path: &str, document: &Value) -> (u16, Value) {
        let answer = within(self.rest.send_json(Method::PUT, path, document)).await;
        let answer = answer.unwrap();
        (answer.code, answer.body)
    }
}

#[tokio::test]
async fn the_requester_is_the_sender() {
    let server = TestServer::authenticated("127.0.0.1:0").await;
    for (headers, username, uid, groups) in [
        (
            &[("authorization", "Bearer s3cret")][..],
            "ada",
            json!("1001"),
            json!(["dev", "ops", "system:authenticated"]),
        ),
        (
            &[],
            "system:anonymous",
            Value::Null,
            json!(["system:unauthenticated"]),
        ),
    ] {
        let mut headers = headers.to_vec();
        headers.push(("content-type", "application/json"));
        let body = request(username).to_string();
        let answer = server.rest.exchange(Method::POST, REQUESTS, &headers, body);
        let spec = within(answer).await.unwrap().body["spec"].clone();
        assert_eq!(spec["username"], username);
        assert_eq!(spec["uid"], uid);
        assert_eq!(spec["groups"], groups);
        assert!(spec.get("extra").is_none(), "{spec}");
        // Nor can an update say otherwise.
        let path = format!("{REQUESTS}/{username}");
        let (code, updated) = server.put(&path, &request(username)).await;
        assert_eq!(
            (code, &updated["spec"]["username"]),
            (200, &json!(username))
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn only_the_subresource_approves() {
    let server = TestServer::start().await;
    let made = server
        .rest
        .send_json(Method::POST, REQUESTS, &request("a"))
        .await;
    let mut made = made.unwrap().body;
    let path = format!("{REQUESTS}/a");
    let (_, kept) = server
        .put(&path, &decided(made.clone(), &["Approved"]))
        .await;
    assert!(kept["status"].get("conditions").is_none(), "{kept}");
    let (code, refused) = server
        .put(
            &format!("{path}/status"),
            &decided(made.clone(), &["Approved"]),
        )
        .await;
    assert_eq!(code, 422);
    let why = "status.conditions: Forbidden: updates may not add a condition of type \"Approved\"";
    assert!(
        refused["message"].as_str().unwrap().contains(why),
        "{refused}"
    );

    let approval = format!("{path}/approval");
    made["spec"]["signerName"] = "example.com/other".into();
    made["metadata"]["labels"] = json!({"a": "b"});
    let (code, approved) = server.put(&approval, &decided(made, &["Approved"])).await;
    assert_eq!(code, 200, "{approved}");
    let condition = &approved["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("Approved"), &json!("Mine"))
    );
    assert!(condition["lastUpdateTime"].is_string() && condition["lastTransitionTime"].is_string());
    assert_eq!(
        approved["spec"]["signerName"],
        "kubernetes.io/kube-apiserver-client"
    );
    assert!(approved["metadata"].get("labels").is_none());
    for (types, why) in [
        (
            &["Approved", "Denied"][..],
            "Approved and Denied conditions are mutually exclusive",
        ),
        (
            &["Denied"],
            "updates may not remove a condition of type \\\"Approved\\\"",
        ),
        (
            &[],
            "updates may not remove a condition of type \\\"Approved\\\"",
        ),
    ] {
        let (code, refused) = server
            .put(&approval, &decided(approved.clone(), types))
            .await;
        assert_eq!(code, 422, "{types:?}");
        assert!(refused.to_string().contains(why), "{types:?}: {refused}");
    }
    let found = server.rest.get(&approval).await.unwrap();
    assert_eq!(found.body["status"]["conditions"][0]["type"], "Approved");
    let missing = format!("{REQUESTS}/none/approval");
    assert_eq!(
        server
            .put(&missing, &decided(request("none"), &["Denied"]))
            .await
            .0,
        404
    );
    server.stop().await;
}

#[tokio::test]
async fn grpc_approves_too() {
    let server = TestServer::start().await;
    let requests = server.client.all::<CertificateSigningRequest>();
    let made = requests.create(&object(request("a"))).await.unwrap();
    let denied = decided(serde_json::to_value(&made).unwrap(), &["Denied"]);
    let denied = requests.update_approval(&object(denied)).await.unwrap();
    assert_eq!(
        denied.status.unwrap().conditions.unwrap()[0].type_,
        "Denied"
    );
    let stale = decided(serde_json::to_value(&made).unwrap(), &["Approved"]);
    let refused = requests.update_approval(&object(stale)).await.unwrap_err();
    assert!(refused.is_conflict(), "{refused}");
    server.stop().await;
}

/// The permissions of the approver have no path, and without rules everyone has them.
#[tokio::test]
async fn everyone_may_have_nodes_approved_without_authorization() {
    let server = TestServer::start().await;
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    for (subresource, allowed) in [
        ("nodeclient", true),
        ("selfnodeclient", true),
        ("other", false),
    ] {
        let asked = json!({
            "group": "certificates.k8s.io",
            "resource": "certificatesigningrequests",
            "subresource": subresource,
            "verb": "create",
        });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": "ada", "resourceAttributes": asked},
        });
        let answer = server.rest.send_json(Method::POST, path, &review);
        let answer = within(answer).await.unwrap().body;
        assert_eq!(answer["status"]["allowed"], allowed, "{subresource}");
    }
    server.stop().await;
}
