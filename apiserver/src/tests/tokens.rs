//! Tokens of ServiceAccounts: their issue, and what ends them.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::Method;
use podplane_api::core::ServiceAccount;
use podplane_proto::authentication::{
    BoundObjectReference, CreateTokenRequest, CreateTokenReviewRequest,
    authentication_service_client::AuthenticationServiceClient,
};

use super::*;
use crate::{
    AccountTokenFlags,
    authentication::{AccountTokens, AuthenticationMode, RequestAuthenticator, TokenFile},
};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ISSUER: &str = "https://kubernetes.default.svc";

fn issuer() -> Arc<AccountTokens> {
    AccountTokenFlags::default().issuer(None).unwrap()
}

impl TestServer {
    /// A server that issues tokens and accepts them.
    async fn issuing(tokens: &Arc<AccountTokens>) -> Self {
        let listen: Listen = "127.0.0.1:0".parse().unwrap();
        let file = TokenFile::parse(std::path::Path::new("f"), "s3cret,ada,1001,dev").unwrap();
        let authenticator = RequestAuthenticator::new(AuthenticationMode::Credentials, file);
        let authenticator = authenticator.with_accounts(Some(Arc::clone(tokens)));
        let listener = Listener::bind(&listen).await.unwrap();
        let authenticator = Arc::new(authenticator);
        let listener = listener.authenticating(Arc::clone(&authenticator) as Arc<_>);
        let rules = ServerRules {
            authenticator: Some(authenticator),
            tokens: Some(Arc::clone(tokens)),
            ..uncounted()
        };
        Self::on(listener, rules, MemStore::new()).await
    }

    /// Asks for a token of an account.
    async fn request_token(&self, account: &str, spec: Value) -> (u16, Value) {
        let path = format!("{ACCOUNTS}/{account}/token");
        let request =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let answer = within(self.rest.send_json(Method::POST, &path, &request)).await;
        let answer = answer.unwrap();
        (answer.code, answer.body)
    }

    async fn token(&self, account: &str, spec: Value) -> String {
        let (code, answer) = self.request_token(account, spec).await;
        assert_eq!(code, 201, "{answer}");
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    /// The identity of a token, or the message of its refusal.
    async fn user_of(&self, token: &str) -> Result<Value, String> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let bearer = format!("Bearer {token}");
        let headers = [
            ("authorization", bearer.as_str()),
            ("content-type", "application/json"),
        ];
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let answer = self
            .rest
            .exchange(Method::POST, path, &headers, review.to_string());
        let answer = within(answer).await.unwrap();
        match answer.code {
            201 => Ok(answer.body["status"]["userInfo"].clone()),
            401 => Err(answer.body["message"].as_str().unwrap().to_owned()),
            code => panic!("{code}: {}", answer.body),
        }
    }

    fn accounts(&self) -> podplane_client::Api<ServiceAccount> {
        self.client.namespaced("default")
    }
}

fn account(name: &str) -> ServiceAccount {
    object(json!({"metadata": {"name": name, "namespace": "default"}}))
}

fn pod_of(name: &str, account: &str) -> Pod {
    pod_with(json!({"metadata": {"name": name}, "spec": {"serviceAccountName": account}}))
}

fn bound(kind: &str, name: &str) -> Value {
    json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}})
}

/// The claims of a token, unverified.
fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap()
}

#[tokio::test]
async fn a_token_identifies_its_account() {
    let server = TestServer::issuing(&issuer()).await;
    let made = server.accounts().create(&account("ci")).await.unwrap();
    let (code, answer) = server.request_token("ci", json!({})).await;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(answer["kind"], "TokenRequest");
    assert_eq!(answer["metadata"]["name"], "ci");
    assert_eq!(answer["spec"]["audiences"], json!([ISSUER]));
    assert_eq!(answer["spec"]["expirationSeconds"], 3600);
    let token = answer["status"]["token"].as_str().unwrap();
    let content = claims(token);
    let lifetime = content["exp"].as_i64().unwrap() - content["iat"].as_i64().unwrap();
    assert_eq!(lifetime, 3600);
    assert_eq!(content["sub"], "system:serviceaccount:default:ci");
    assert_eq!(
        content["kubernetes.io"],
        json!({"namespace": "default", "serviceaccount": {"name": "ci", "uid": made.uid()}})
    );
    let id = format!("JTI={}", content["jti"].as_str().unwrap());
    assert_eq!(
        server.user_of(token).await.unwrap(),
        json!({
            "username": "system:serviceaccount:default:ci",
            "uid": made.uid(),
            "groups": ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"],
            "extra": {"authentication.kubernetes.io/credential-id": [id]},
        })
    );
    assert_eq!(server.user_of("s3cret").await.unwrap()["username"], "ada");
    server.stop().await;
}

#[tokio::test]
async fn a_token_ends_with_its_account() {
    let server = TestServer::issuing(&issuer()).await;
    for _ in 0..20 {
        server.accounts().create(&account("ci")).await.unwrap();
        let token = server.token("ci", json!({})).await;
        server.user_of(&token).await.unwrap();
        server.accounts().delete("ci", &at_once()).await.unwrap();
        let refused = server.user_of(&token).await.unwrap_err();
        let want = "Unauthorized: the bearer token is not valid: its serviceaccount \"ci\" does not exist any more";
        assert_eq!(refused, want);
        // Another account of that name is not the same.
        server.accounts().create(&account("ci")).await.unwrap();
        server.user_of(&token).await.unwrap_err();
        server.accounts().delete("ci", &at_once()).await.unwrap();
    }
    server.stop().await;
}

#[tokio::test]
async fn a_token_ends_with_its_pod() {
    let server = TestServer::issuing(&issuer()).await;
    server.accounts().create(&account("ci")).await.unwrap();
    let node = server.nodes().create(&node("n")).await.unwrap();
    let mut pod = pod_of("p", "ci");
    pod.spec.as_mut().unwrap().node_name = Some("n".to_owned());
    let made = server.pods().create(&pod).await.unwrap();
    let token = server.token("ci", bound("Pod", "p")).await;
    let user = server.user_of(&token).await.unwrap();
    let extra = |key: &str| user["extra"][format!("authentication.kubernetes.io/{key}")].clone();
    assert_eq!(extra("pod-name"), json!(["p"]));
    assert_eq!(extra("pod-uid"), json!([made.uid()]));
    assert_eq!(extra("node-name"), json!(["n"]));
    assert_eq!(extra("node-uid"), json!([node.uid()]));
    // A pod that ends uses its token until its grace period is over.
    server
        .pods()
        .delete("p", &Default::default())
        .await
        .unwrap();
    server.user_of(&token).await.unwrap();
    server.pods().delete("p", &at_once()).await.unwrap();
    let refused = server.user_of(&token).await.unwrap_err();
    assert!(
        refused.ends_with("its pod \"p\" does not exist any more"),
        "{refused}"
    );
    server.pods().create(&pod).await.unwrap();
    server.user_of(&token).await.unwrap_err();
    server.stop().await;
}

#[tokio::test]
async fn a_token_ends_with_its_node() {
    let server = TestServer::issuing(&issuer()).await;
    server.nodes().create(&node("n")).await.unwrap();
    let token = server.token("default", bound("Node", "n")).await;
    let user = server.user_of(&token).await.unwrap();
    assert_eq!(
        user["extra"]["authentication.kubernetes.io/node-name"],
        json!(["n"])
    );
    server.nodes().delete("n", &at_once()).await.unwrap();
    server.user_of(&token).await.unwrap_err();
    server.nodes().create(&node("n")).await.unwrap();
    server.user_of(&token).await.unwrap_err();
    server.stop().await;
}

#[tokio::test]
async fn requests_for_tokens_are_checked() {
    let server = TestServer::issuing(&issuer()).await;
    server.accounts().create(&account("ci")).await.unwrap();
    let other = server.pods().create(&pod_of("p", "default")).await.unwrap();
    let own = server.pods().create(&pod_of("q", "ci")).await.unwrap();
    let with_uid = |name: &str, uid: &str| {
        let mut spec = bound("Pod", name);
        spec["boundObjectRef"]["uid"] = uid.into();
        spec
    };
    for (spec, code, message) in [
        (
            json!({"expirationSeconds": 599}),
            422,
            "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes",
        ),
        (
            json!({"expirationSeconds": (1i64 << 32) + 1}),
            422,
            "may not specify a duration larger than 2^32 seconds",
        ),
        (bound("Pod", "none"), 404, "pods \"none\" not found"),
        (
            bound("Pod", "p"),
            400,
            "cannot bind token for serviceaccount \"ci\" to pod running with different serviceaccount name.",
        ),
        (
            bound("Secret", "s"),
            400,
            "cannot bind token to object of type v1, Kind=Secret",
        ),
        (
            with_uid("q", other.uid()),
            409,
            "does not match the UID in record. The object might have been deleted and then recreated",
        ),
        (bound("Node", "n"), 404, "nodes \"n\" not found"),
        (json!({"audiences": "a"}), 400, "spec.audiences"),
        (
            json!({"audiences": ["a".repeat(9000)]}),
            422,
            "spec.audiences: Too long",
        ),
    ] {
        let (got, status) = server.request_token("ci", spec.clone()).await;
        assert_eq!(got, code, "{spec}: {status}");
        let text = status["message"].as_str().unwrap();
        assert!(text.contains(message), "{spec}: {text}");
    }
    let (code, _) = server.request_token("ci", with_uid("q", own.uid())).await;
    assert_eq!(code, 201);
    // As Go clients write it.
    let path = format!("{ACCOUNTS}/ci/token");
    let of_go = json!({"metadata": {"creationTimestamp": null}, "spec": {"audiences": null, "expirationSeconds": null, "boundObjectRef": null}, "status": {"token": "", "expirationTimestamp": null}});
    let answer = server.rest.send_json(Method::POST, &path, &of_go).await;
    assert_eq!(answer.unwrap().code, 201);
    let (code, status) = server.request_token("none", json!({})).await;
    assert_eq!((code, &status["details"]["name"]), (404, &json!("none")));
    let path = format!("{ACCOUNTS}/ci/token");
    let named = json!({"metadata": {"name": "other"}, "spec": {}});
    let answer = server.rest.send_json(Method::POST, &path, &named).await;
    let answer = answer.unwrap();
    assert_eq!(answer.code, 422);
    assert!(
        answer
            .body
            .to_string()
            .contains("must match the service account name if specified")
    );
    assert_eq!(server.rest.get(&path).await.unwrap().code, 405);
    server.stop().await;
}

#[tokio::test]
async fn a_long_life_is_shortened_with_a_warning() {
    let server = TestServer::issuing(&issuer()).await;
    let (code, answer) = server
        .request_token("default", json!({"expirationSeconds": 1_000_000}))
        .await;
    assert_eq!(code, 201);
    assert_eq!(answer["spec"]["expirationSeconds"], 86_400);
    let content = claims(answer["status"]["token"].as_str().unwrap());
    assert_eq!(
        content["exp"].as_i64().unwrap() - content["nbf"].as_i64().unwrap(),
        86_400
    );
    let path = format!("{ACCOUNTS}/default/token?dryRun=All");
    let dry = server
        .rest
        .send_json(Method::POST, &path, &json!({"spec": {}}))
        .await
        .unwrap();
    assert_eq!((dry.code, &dry.body["status"]["token"]), (201, &json!("")));
    server.stop().await;
}

#[tokio::test]
async fn tokens_of_others_and_for_others_are_refused() {
    let (here, there) = (issuer(), issuer());
    let server = TestServer::issuing(&here).await;
    let elsewhere = TestServer::issuing(&there).await;
    let of_another = elsewhere.token("default", json!({})).await;
    let for_another = server
        .token("default", json!({"audiences": ["vault"]}))
        .await;
    for (token, why) in [
        (
            &of_another,
            "it is signed by a key that this server does not have",
        ),
        (&for_another, "it is for another audience"),
    ] {
        let refused = server.user_of(token).await.unwrap_err();
        assert!(refused.contains(why), "{refused}");
        assert!(!refused.contains(token.as_str()), "{refused}");
    }
    for token in ["a.b.c", "eyJ.eyJ.x", "e30.e30.", "s3cre"] {
        let refused = server.user_of(token).await.unwrap_err();
        assert!(
            refused.contains("the bearer token is not valid"),
            "{refused}"
        );
    }
    let without = TestServer::start().await;
    let (code, status) = without.request_token("default", json!({})).await;
    assert_eq!(code, 400, "{status}");
    for server in [server, elsewhere, without] {
        server.stop().await;
    }
}

#[tokio::test]
async fn the_keys_can_be_discovered() {
    let server = TestServer::issuing(&issuer()).await;
    let token = server.token("default", json!({})).await;
    let found = server.rest.get("/.well-known/openid-configuration").await;
    let found = found.unwrap().body;
    assert_eq!(found["issuer"], ISSUER);
    assert_eq!(found["jwks_uri"], format!("{ISSUER}/openid/v1/jwks"));
    assert_eq!(
        found["id_token_signing_alg_values_supported"],
        json!(["ES256"])
    );
    let keys = server.rest.get("/openid/v1/jwks").await.unwrap().body;
    let header = token.split('.').next().unwrap();
    let header: Value =
        serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(header).unwrap()).unwrap();
    let key = &keys["keys"][0];
    assert_eq!(key["kid"], header["kid"]);
    assert_eq!((&key["kty"], &key["crv"]), (&json!("EC"), &json!("P-256")));
    assert!(key.get("d").is_none());
    server.stop().await;
}

#[tokio::test]
async fn discovery_has_the_subresource() {
    let server = TestServer::issuing(&issuer()).await;
    let found = server.rest.get("/api/v1").await.unwrap().body;
    let all = found["resources"].as_array().unwrap();
    let token = all
        .iter()
        .find(|one| one["name"] == "serviceaccounts/token");
    assert_eq!(
        token.unwrap(),
        &json!({"name": "serviceaccounts/token", "singularName": "", "namespaced": true, "group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest", "verbs": ["create"]})
    );
    server.stop().await;
}

#[tokio::test]
async fn a_review_says_whose_token_it_is() {
    let server = TestServer::issuing(&issuer()).await;
    let review = async |token: &str, audiences: Value| {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token, "audiences": audiences}});
        let answer = server.rest.send_json(Method::POST, REVIEWS, &review);
        let answer = within(answer).await.unwrap();
        assert_eq!(answer.code, 201, "{}", answer.body);
        answer.body["status"].clone()
    };
    let account = server.client.namespaced::<ServiceAccount>("default");
    let uid = account.get("default").await.unwrap().uid().to_owned();
    let token = server
        .token("default", json!({"audiences": [ISSUER, "vault"]}))
        .await;
    for (audiences, shared) in [
        (json!([]), json!([ISSUER])),
        (json!(["vault"]), json!(["vault"])),
        (json!(["other", "vault", ISSUER]), json!(["vault", ISSUER])),
    ] {
        let status = review(&token, audiences).await;
        assert_eq!(status["authenticated"], true);
        assert_eq!(status["audiences"], shared);
        let user = &status["user"];
        assert_eq!(user["username"], "system:serviceaccount:default:default");
        assert_eq!(user["uid"], json!(uid));
    }
    let status = review("s3cret", json!([])).await;
    assert_eq!(
        status,
        json!({"authenticated": true, "audiences": [ISSUER], "user": {"username": "ada", "uid": "1001", "groups": ["dev", "system:authenticated"]}})
    );
    for (token, audiences, why) in [
        (
            token.as_str(),
            json!(["other"]),
            "it is for another audience",
        ),
        (
            "s3cret",
            json!(["vault"]),
            "the token is for another audience",
        ),
        ("wrong", json!([]), "the token is not valid"),
    ] {
        let status = review(token, audiences).await;
        assert!(status.get("authenticated").is_none(), "{status}");
        assert!(status["error"].as_str().unwrap().contains(why), "{status}");
    }
    let empty =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {}});
    let answer = server.rest.send_json(Method::POST, REVIEWS, &empty).await;
    assert_eq!(answer.unwrap().code, 400);
    account.delete("default", &at_once()).await.unwrap();
    let status = review(&token, json!([])).await;
    assert!(
        status["error"]
            .as_str()
            .unwrap()
            .contains("does not exist any more")
    );
    server.stop().await;
}

/// kubectl and kubelets send and request protobuf.
#[tokio::test]
async fn go_clients_get_tokens_too() {
    let server = TestServer::issuing(&issuer()).await;
    let pod = server.pods().create(&pod_of("p", "default")).await.unwrap();
    let mut request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": {},
        "spec": {"audiences": [], "expirationSeconds": 600, "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod.uid()}},
    });
    let send = async |request: &Value| {
        let body = podplane_proto::kubernetes::encode(request).unwrap();
        let path = format!("{ACCOUNTS}/default/token");
        let mut stream = tokio::net::TcpStream::connect(&server.address)
            .await
            .unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\naccept: application/vnd.kubernetes.protobuf\r\ncontent-type: application/vnd.kubernetes.protobuf\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&body).await.unwrap();
        let mut answer = Vec::new();
        within(stream.read_to_end(&mut answer)).await.unwrap();
        answer
    };
    let answer = send(&request).await;
    let start = answer.windows(4).position(|four| four == b"k8s\0").unwrap();
    let decoded = podplane_proto::kubernetes::decode(&answer[start..]).unwrap();
    let token = decoded["status"]["token"].as_str().unwrap();
    let user = server.user_of(token).await.unwrap();
    assert_eq!(
        user["extra"]["authentication.kubernetes.io/pod-uid"],
        json!([pod.uid()])
    );
    request["spec"]["boundObjectRef"]["uid"] = "another".into();
    let refused = send(&request).await;
    assert!(refused.starts_with(b"HTTP/1.1 409 "));
    server.stop().await;
}

#[tokio::test]
async fn tokens_are_issued_and_reviewed_over_grpc() {
    let server = TestServer::issuing(&issuer()).await;
    server.accounts().create(&account("ci")).await.unwrap();
    server.pods().create(&pod_of("p", "ci")).await.unwrap();
    let channel = podplane_client::endpoint::channel(&server.address.parse().unwrap());
    let mut client = AuthenticationServiceClient::new(channel.unwrap());
    let request = CreateTokenRequest {
        name: "ci".to_owned(),
        expiration_seconds: Some(1200),
        bound_object_ref: Some(BoundObjectReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: "p".to_owned(),
            uid: String::new(),
        }),
        ..CreateTokenRequest::default()
    };
    let issued = within(client.create_token(request)).await.unwrap();
    let issued = issued.into_inner();
    assert_eq!(issued.audiences, [ISSUER]);
    let content = claims(&issued.token);
    assert_eq!(content["kubernetes.io"]["pod"]["name"], "p");
    let expires: podplane_api::jiff::Timestamp = issued.expiration_timestamp.parse().unwrap();
    assert_eq!(content["exp"], expires.as_second());

    for (token, is_valid) in [(issued.token.as_str(), true), ("wrong", false)] {
        let request = CreateTokenReviewRequest {
            token: token.to_owned(),
            audiences: Vec::new(),
        };
        let reviewed = within(client.create_token_review(request)).await.unwrap();
        let reviewed = reviewed.into_inner();
        assert_eq!(reviewed.authenticated, is_valid, "{}", reviewed.error);
        assert_eq!(reviewed.error.is_empty(), is_valid);
        let user = reviewed.user.map(|user| user.username);
        let account = "system:serviceaccount:default:ci".to_owned();
        assert_eq!(user, is_valid.then_some(account));
    }
    let short = CreateTokenRequest {
        name: "ci".to_owned(),
        expiration_seconds: Some(60),
        ..CreateTokenRequest::default()
    };
    let refused = within(client.create_token(short)).await.unwrap_err();
    assert!(
        refused.message().contains("less than 10 minutes"),
        "{refused:?}"
    );
    drop(client);
    server.stop().await;
}
