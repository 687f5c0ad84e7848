//! The identity of requests, over REST and gRPC, TCP and unix sockets.

use std::{
    io::{Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use http::{Method, header};
use podplane_etcd::EtcdFlags;
use podplane_proto::authentication::{
    CreateSelfSubjectReviewRequest, UserInfo,
    authentication_service_client::AuthenticationServiceClient,
};
use tonic::Code;

use super::*;
use crate::{
    ApiserverConfig, ApiserverRunError, AuthenticationFlags, AuthenticationMode,
    AuthenticationModeFlag, AuthorizationMode, StoreKind,
};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const TOKENS: &str = "s3cret,ada,1001,\"dev,ops\"\nother,bob,,\n";
/// A user that neither is the one of the tests nor root.
const OTHER_UID: u32 = 4711;

type Headers<'a> = [(&'a str, &'a str)];

impl TestServer {
    /// A server that authenticates by the tokens above.
    pub(super) async fn authenticated(listen: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens.csv");
        std::fs::write(&file, TOKENS).unwrap();
        let flags = AuthenticationFlags {
            mode: Default::default(),
            token_auth_file: Some(file),
        };
        let listen: Listen = listen.parse().unwrap();
        let authenticator = flags
            .authenticator(&listen, AuthorizationMode::AlwaysAllow)
            .unwrap();
        let listener = Listener::bind(&listen).await.unwrap();
        let listener = listener.authenticating(Arc::new(authenticator));
        Self::on(listener, uncounted(), MemStore::new()).await
    }

    /// Asks over REST who the sender is: the answer's code, and the user or the whole Status.
    async fn whoami(&self, headers: &Headers<'_>) -> (u16, Value) {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let mut headers = headers.to_vec();
        headers.push(("content-type", "application/json"));
        let answer = self
            .rest
            .exchange(Method::POST, REVIEWS, &headers, review.to_string());
        let answer = within(answer).await.unwrap();
        let body = match answer.code {
            201 => answer.body["status"]["userInfo"].clone(),
            _ => answer.body,
        };
        (answer.code, body)
    }

    /// The same over gRPC.
    async fn grpc_whoami(&self, metadata: &Headers<'_>) -> Result<UserInfo, tonic::Status> {
        let channel = podplane_client::endpoint::channel(&self.address.parse().unwrap());
        let mut client = AuthenticationServiceClient::new(channel.unwrap());
        let mut request = tonic::Request::new(CreateSelfSubjectReviewRequest {});
        for (name, value) in metadata {
            let name: tonic::metadata::AsciiMetadataKey = name.parse().unwrap();
            request.metadata_mut().append(name, value.parse().unwrap());
        }
        let answer = within(client.create_self_subject_review(request)).await?;
        Ok(answer.into_inner().user_info.unwrap())
    }
}

fn user(name: &str, uid: &str, groups: &[&str]) -> UserInfo {
    UserInfo {
        username: name.to_owned(),
        uid: uid.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        extra: Default::default(),
    }
}

#[tokio::test]
async fn a_token_tells_who_asks() {
    let server = TestServer::authenticated("127.0.0.1:0").await;
    let anonymous = user("system:anonymous", "", &["system:unauthenticated"]);
    let ada = user("ada", "1001", &["dev", "ops", "system:authenticated"]);
    let bob = user("bob", "", &["system:authenticated"]);
    for (headers, want) in [
        (&[][..], anonymous),
        (&[("authorization", "Bearer s3cret")], ada),
        (&[("authorization", "bearer other")], bob),
    ] {
        let (code, told) = server.whoami(headers).await;
        assert_eq!((code, &told["username"]), (201, &json!(want.username)));
        assert_eq!(told["groups"], json!(want.groups));
        assert_eq!(told["uid"].as_str().unwrap_or_default(), want.uid);
        assert_eq!(server.grpc_whoami(headers).await.unwrap(), want);
    }
    server.stop().await;
}

#[tokio::test]
async fn invalid_credentials_are_never_anonymous() {
    let server = TestServer::authenticated("127.0.0.1:0").await;
    let one = |value| vec![("authorization", value)];
    for headers in [
        one("Bearer wrong"),
        one("Bearer s3cret2"),
        one("Bearer"),
        one("Bearer  s3cret"),
        one("Bearer s3cret s3cret"),
        one("Bearer s3cret, Bearer s3cret"),
        one("Basic czNjcmV0"),
        one("s3cret"),
        [one("Bearer s3cret"), one("Bearer s3cret")].concat(),
        [one("Bearer wrong"), one("Bearer s3cret")].concat(),
        [one("Bearer s3cret"), one("Basic x")].concat(),
    ] {
        let (code, status) = server.whoami(&headers).await;
        assert_eq!(
            (code, &status["reason"]),
            (401, &json!("Unauthorized")),
            "{headers:?}"
        );
        assert_eq!(status["kind"], "Status");
        assert!(!status.to_string().contains("s3cret"), "{status}");
        let refused = server.grpc_whoami(&headers).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated, "{headers:?}");
        assert_eq!(
            ApiError::from(&refused).reason,
            podplane_client::Reason::Unauthorized
        );
    }
    // Nothing else answers such a request either.
    for path in [
        "/livez",
        "/version",
        "/metrics",
        "/api/v1/nodes",
        "/nothing",
    ] {
        let headers = one("Bearer wrong");
        let answer = server.rest.exchange(Method::GET, path, &headers, "");
        let answer = within(answer).await.unwrap();
        assert_eq!(answer.code, 401, "{path}");
        assert_eq!(answer.headers[header::WWW_AUTHENTICATE], "Bearer");
    }
    server.stop().await;
}

#[tokio::test]
async fn without_authentication_credentials_are_not_looked_at() {
    let server = TestServer::start().await;
    for headers in [&[][..], &[("authorization", "Bearer wrong")]] {
        let (code, told) = server.whoami(headers).await;
        assert_eq!((code, &told["username"]), (201, &json!("system:anonymous")));
        let told = server.grpc_whoami(headers).await.unwrap();
        assert_eq!(told.groups, ["system:unauthenticated"]);
    }
    server.stop().await;
}

#[tokio::test]
async fn nobody_is_impersonated_yet() {
    let server = TestServer::authenticated("127.0.0.1:0").await;
    let token = ("authorization", "Bearer s3cret");
    for (headers, message) in [
        (
            vec![
                token,
                ("impersonate-user", "eve"),
                ("impersonate-group", "system:masters"),
            ],
            "users \"eve\" is forbidden: User \"ada\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope",
        ),
        (
            vec![
                token,
                ("impersonate-user", "system:serviceaccount:default:ci"),
            ],
            "serviceaccounts \"ci\" is forbidden: User \"ada\" cannot impersonate resource \"serviceaccounts\" in API group \"\" in the namespace \"default\"",
        ),
    ] {
        let (code, status) = server.whoami(&headers).await;
        assert_eq!((code, &status["reason"]), (403, &json!("Forbidden")));
        assert_eq!(status["message"], message);
        let refused = server.grpc_whoami(&headers).await.unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::PermissionDenied, message)
        );
    }
    let incomplete = [token, ("impersonate-group", "dev")];
    let (code, status) = server.whoami(&incomplete).await;
    let message =
        "Internal error occurred: requested [groups \"dev\"] without impersonating a user";
    assert_eq!((code, &status["message"]), (500, &json!(message)));
    let refused = server.grpc_whoami(&incomplete).await.unwrap_err();
    assert_eq!(refused.code(), Code::Internal);
    server.stop().await;
}

#[tokio::test]
async fn a_unix_socket_gives_the_local_identity() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = TestServer::authenticated(&format!("unix:{}", path.display())).await;
    let local = user(
        "system:podplane:local",
        "",
        &["system:masters", "system:authenticated"],
    );
    let (code, told) = server.whoami(&[]).await;
    assert_eq!((code, &told["username"]), (201, &json!(local.username)));
    assert_eq!(told["groups"], json!(local.groups));
    assert_eq!(server.grpc_whoami(&[]).await.unwrap(), local);
    // A credential goes before the connection.
    let (_, told) = server.whoami(&[("authorization", "Bearer s3cret")]).await;
    assert_eq!(told["username"], "ada");
    assert_eq!(server.whoami(&[("authorization", "Bearer x")]).await.0, 401);
    server.stop().await;
}

/// Asks over a unix socket who the sender is, as the user `uid`. The thread alone changes its user:
/// the kernel notes that of the thread that connects.
fn asks_as(uid: u32, socket: &Path, headers: &str) -> std::io::Result<String> {
    let ask = || {
        let uid = rustix::process::Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        let mut stream = std::os::unix::net::UnixStream::connect(socket)?;
        write!(
            stream,
            "GET /api/v1/nodes HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    std::thread::scope(|scope| scope.spawn(ask).join().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_is_refused_at_a_unix_socket() {
    if !podplane_test_requirements::root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = TestServer::authenticated(&format!("unix:{}", path.display())).await;
    // The file's mode is the first fence.
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(dir.path(), 0o755);
    let refused = asks_as(OTHER_UID, &path, "").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    open(&path, 0o666);
    for headers in ["", "Authorization: Bearer s3cret\r\n"] {
        let answer = asks_as(OTHER_UID, &path, headers).unwrap();
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert!(answer.contains("connections from uid 4711"), "{answer}");
    }
    let answer = asks_as(0, &path, "").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    server.stop().await;
}

fn config(listen: &str, authentication: AuthenticationFlags) -> ApiserverConfig {
    ApiserverConfig {
        listen: listen.parse().unwrap(),
        allowed_hosts: Default::default(),
        authentication,
        account_tokens: Default::default(),
        tls: Default::default(),
        own_certificates: Default::default(),
        authorization: Default::default(),
        audit: Default::default(),
        limits: Default::default(),
        address_file: None,
        data_dir: None,
        store: StoreKind::Memory,
        service_cluster_ip_range: Default::default(),
        service_node_port_range: Default::default(),
        advertise_address: None,
        cluster_cidr: Vec::new(),
        compat: podplane_ipam::Compat::None,
        pod_ips: Default::default(),
        cluster: crate::HoldFlags {
            release_after: Duration::ZERO,
        },
        bounds: HistoryBounds::default(),
        runtime_config: Vec::new(),
        etcd: EtcdFlags::default(),
    }
}

#[tokio::test]
async fn a_new_data_directory_is_made_before_its_socket() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("new/data");
    let mode = AuthenticationModeFlag {
        authentication: AuthenticationMode::None,
    };
    let flags = AuthenticationFlags {
        mode,
        token_auth_file: None,
    };
    let config = ApiserverConfig {
        data_dir: Some(data.clone()),
        store: StoreKind::Sled,
        ..config("127.0.0.1:0", flags)
    };
    let stop = CancellationToken::new();
    stop.cancel();
    within(crate::run(config, stop)).await.unwrap();
    assert_eq!(std::fs::metadata(&data).unwrap().mode() & 0o777, 0o700);
}

#[tokio::test]
async fn contradictory_flags_are_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens.csv");
    std::fs::write(&file, "s3cret\n").unwrap();
    let flags = |authentication, token_auth_file: Option<&Path>| AuthenticationFlags {
        mode: AuthenticationModeFlag { authentication },
        token_auth_file: token_auth_file.map(Into::into),
    };
    let (none, credentials) = (AuthenticationMode::None, AuthenticationMode::Credentials);
    let started = async |listen, flags| {
        let stop = CancellationToken::new();
        stop.cancel();
        within(crate::run(config(listen, flags), stop)).await
    };
    let near = "127.0.0.1:0";
    let far = "0.0.0.0:0";
    let refused = started(far, flags(none, None)).await.unwrap_err();
    assert!(
        matches!(refused, ApiserverRunError::NotLoopback(_)),
        "{refused}"
    );
    let refused = started(near, flags(none, Some(&file))).await.unwrap_err();
    assert!(
        matches!(refused, ApiserverRunError::UnusedTokens),
        "{refused}"
    );
    let refused = started(near, flags(credentials, None)).await.unwrap_err();
    assert!(
        matches!(refused, ApiserverRunError::NoCertificates),
        "{refused}"
    );
    let refused = started(near, flags(credentials, Some(&file))).await;
    let ApiserverRunError::Tokens(error) = refused.unwrap_err() else {
        panic!("want an error of the token file");
    };
    let want = format!(
        "invalid token file {}: line 1: has 1 columns",
        file.display()
    );
    assert!(error.to_string().starts_with(&want), "{error}");
    for listen in [near, "[::1]:0"] {
        started(listen, flags(none, None)).await.unwrap();
    }
}
