//! Ports over real sockets: each sort of client, at each sort of address.

use std::path::PathBuf;

use axum::http::Method;
use clap::Parser as _;
use podplane_host::clock;
use podplane_http_client::{ClientTls, HttpAnswer, HttpClient};
use podplane_pki::{Authority, CertificateTerms, Subject, Usage};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use super::*;
use crate::{Process, Services, Tasks};

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    serving: ServingFlags,
}

fn flags(line: &str) -> ServingFlags {
    let words = ["line"].into_iter().chain(line.split_whitespace());
    Line::try_parse_from(words).unwrap().serving
}

fn loopback() -> Listen {
    "127.0.0.1:0".parse().unwrap()
}

/// Certificates of one authority: a server's, and clients' by their names.
struct Certificates {
    dir: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Self {
        let now = clock::timestamp();
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create("test", now).unwrap();
        std::fs::write(dir.path().join("ca.crt"), authority.certificate()).unwrap();
        let hour = std::time::Duration::from_secs(3600);
        for (name, user, group, usage, begins) in [
            ("server", "server", "", Usage::Server, now),
            ("admin", "admin", "system:masters", Usage::Client, now),
            (
                "monitoring",
                "prometheus",
                "system:monitoring",
                Usage::Client,
                now,
            ),
            ("node", "system:node:n1", "system:nodes", Usage::Client, now),
            (
                "expired",
                "admin",
                "system:masters",
                Usage::Client,
                now - 2 * hour,
            ),
        ] {
            let names = match usage {
                Usage::Client => vec![],
                Usage::Server | Usage::Both => vec!["127.0.0.1".parse().unwrap()],
            };
            let terms = CertificateTerms {
                subject: Subject::new(user, group),
                usage,
                names,
                lifetime: hour,
            };
            let issued = authority.issue(&terms, begins).unwrap();
            let pair = format!("{}{}", issued.key, issued.certificate);
            std::fs::write(dir.path().join(format!("{name}.pem")), pair).unwrap();
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn flags(&self) -> ServingFlags {
        let (pair, authority) = (self.path("server.pem"), self.path("ca.crt"));
        flags(&format!(
            "--tls-cert-file {pair} --tls-private-key-file {pair} --client-ca-file {authority}",
            pair = pair.display(),
            authority = authority.display()
        ))
    }

    fn client(&self, address: &str, name: Option<&str>) -> HttpClient {
        let tls = match name {
            Some(name) => ClientTls::of_dir(self.dir.path(), name),
            None => ClientTls {
                authority: self.path("ca.crt"),
                ..ClientTls::default()
            },
        };
        HttpClient::with_tls(address, &tls).unwrap()
    }
}

/// Serves at this address; returns the address as published.
async fn serve(flags: &ServingFlags, listen: &Listen, tasks: &mut Tasks) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("address");
    let (rights, hosts) = (PortRights::default(), AllowedHosts::default());
    let listener = flags.listener(rights, listen, hosts, Some(&file));
    let listener = listener.await.unwrap();
    let mut process = Process::new(tonic_health::pb::FILE_DESCRIPTOR_SET);
    process.serve(listener, Services::default());
    process.start(tasks).await;
    std::fs::read_to_string(&file).unwrap().trim().to_owned()
}

fn tasks() -> Tasks {
    Tasks::new(CancellationToken::new())
}

/// The code and, for a refusal, the message.
async fn ask(client: &HttpClient, method: Method, path: &str) -> String {
    let json = [("content-type", "application/json")];
    let answer = client.exchange(method, path, &json, "\"info\"").await;
    shown(&answer.unwrap())
}

fn shown(answer: &HttpAnswer) -> String {
    match answer.body["message"].as_str() {
        Some(message) => format!("{}: {message}", answer.code),
        None => answer.code.to_string(),
    }
}

/// The code and message of gRPC's status.
async fn call(client: &HttpClient, method: &str) -> String {
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    // An empty message, with its header.
    let message = vec![0_u8; 5];
    let answer = client.exchange(Method::POST, method, &grpc, message).await;
    let answer = answer.unwrap();
    let header = |name: &str| {
        let value = answer.headers.get(name)?;
        Some(value.to_str().unwrap().to_owned())
    };
    match header("grpc-status") {
        Some(code) => {
            let message = header("grpc-message").unwrap_or_default();
            format!(
                "{code}: {}",
                message.replace("%20", " ").replace("%22", "\"")
            )
        }
        None => "answered".to_owned(),
    }
}

const CHECK: &str = "/grpc.health.v1.Health/Check";
const REFLECT: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// A client may ask for health, and for nothing else.
async fn gets_health_alone(client: &HttpClient, user: &str) {
    for path in [
        "/livez",
        "/livez?verbose",
        "/livez/ping",
        "/readyz",
        "/healthz",
    ] {
        assert_eq!(ask(client, Method::GET, path).await, "200", "{user} {path}");
    }
    for (method, path) in [
        (Method::GET, "/metrics"),
        (Method::GET, "/debug/log-level"),
        (Method::PUT, "/debug/log-level"),
        (Method::POST, "/livez"),
        (Method::GET, "/nothing"),
    ] {
        let verb = method.as_str().to_lowercase();
        let want = format!("403: forbidden: User \"{user}\" cannot {verb} path \"{path}\"");
        assert_eq!(ask(client, method, path).await, want);
    }
    assert_eq!(call(client, CHECK).await, "answered", "{user}");
    let want = format!("7: forbidden: User \"{user}\" cannot post path \"{REFLECT}\"");
    assert_eq!(call(client, REFLECT).await, want);
}

#[tokio::test]
async fn without_certificates_everyone_gets_health_alone() {
    let mut tasks = tasks();
    let address = serve(&flags(""), &loopback(), &mut tasks).await;
    let client = HttpClient::new(&address);
    gets_health_alone(&client, "system:anonymous").await;
    let headers = [("authorization", "Bearer abc")];
    let answer = client.exchange(Method::GET, "/livez", &headers, "").await;
    let answer = shown(&answer.unwrap());
    assert!(
        answer.starts_with("401: Unauthorized: the header Authorization"),
        "{answer}"
    );
}

#[tokio::test]
async fn each_certificate_has_the_rights_of_its_groups() {
    let (mut tasks, certificates) = (tasks(), Certificates::new());
    let address = serve(&certificates.flags(), &loopback(), &mut tasks).await;
    assert!(address.starts_with("https://127.0.0.1:"), "{address}");
    gets_health_alone(&certificates.client(&address, None), "system:anonymous").await;
    gets_health_alone(
        &certificates.client(&address, Some("node")),
        "system:node:n1",
    )
    .await;

    let monitoring = certificates.client(&address, Some("monitoring"));
    assert_eq!(ask(&monitoring, Method::GET, "/metrics").await, "200");
    assert_eq!(
        ask(&monitoring, Method::PUT, "/debug/log-level").await,
        "403: forbidden: User \"prometheus\" cannot put path \"/debug/log-level\""
    );
    assert!(call(&monitoring, REFLECT).await.starts_with("7: "));

    let admin = certificates.client(&address, Some("admin"));
    for path in ["/metrics", "/debug/log-level", "/readyz/ping"] {
        assert_eq!(ask(&admin, Method::GET, path).await, "200", "{path}");
    }
    assert_eq!(ask(&admin, Method::GET, "/nothing").await, "404");
    assert_eq!(call(&admin, REFLECT).await, "answered");
    let as_other = [("impersonate-user", "ada")];
    let answer = admin.exchange(Method::GET, "/metrics", &as_other, "").await;
    assert_eq!(
        shown(&answer.unwrap()),
        "403: forbidden: impersonation is possible at the API server only"
    );

    let expired = certificates.client(&address, Some("expired"));
    let answer = ask(&expired, Method::GET, "/livez").await;
    assert!(
        answer.starts_with("401: Unauthorized: x509: certificate has expired"),
        "{answer}"
    );
    assert!(call(&expired, CHECK).await.starts_with("16: "));
}

#[tokio::test]
async fn of_the_services_that_reflection_lists_everyone_may_call_health_alone() {
    let dir = tempfile::tempdir().unwrap();
    let socket = Listen::Unix(dir.path().join("s"));
    let mut tasks = tasks();
    let local = serve(&flags(""), &socket, &mut tasks).await;
    let address = serve(&flags(""), &loopback(), &mut tasks).await;
    // The local user may use reflection.
    let channel = Endpoint::from_shared(local).unwrap().connect().await;
    let request = ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..ServerReflectionRequest::default()
    };
    let answers = ServerReflectionClient::new(channel.unwrap())
        .server_reflection_info(futures::stream::iter([request]))
        .await;
    let answer = answers.unwrap().into_inner().message().await.unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.unwrap().message_response else {
        unreachable!("the answer to another question");
    };
    let names: Vec<String> = list.service.into_iter().map(|found| found.name).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let anonymous = HttpClient::new(address);
    for name in names {
        let answer = call(&anonymous, &format!("/{name}/Any")).await;
        let is_refused = answer.starts_with("7: ");
        assert_eq!(
            is_refused,
            name != "grpc.health.v1.Health",
            "{name}: {answer}"
        );
    }
}

#[tokio::test]
async fn processes_of_the_own_user_may_do_everything_at_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let socket = Listen::Unix(dir.path().join("s"));
    let mut tasks = tasks();
    let address = serve(&flags(""), &socket, &mut tasks).await;
    let local = HttpClient::new(address);
    assert_eq!(ask(&local, Method::GET, "/metrics").await, "200");
    assert_eq!(call(&local, REFLECT).await, "answered");
}

#[tokio::test]
async fn without_authentication_everyone_may_do_everything() {
    let mut tasks = tasks();
    let off = flags("--authentication=none");
    let address = serve(&off, &loopback(), &mut tasks).await;
    let client = HttpClient::new(address);
    assert_eq!(ask(&client, Method::GET, "/metrics").await, "200");
    assert_eq!(call(&client, REFLECT).await, "answered");
    let certificates = Certificates::new();
    let mut secure = certificates.flags();
    secure.authentication = AuthenticationMode::None;
    secure.tls.client_ca_file = None;
    let address = serve(&secure, &loopback(), &mut tasks).await;
    let client = certificates.client(&address, None);
    assert_eq!(ask(&client, Method::GET, "/metrics").await, "200");
}

#[tokio::test]
async fn rejects_flags_that_contradict_each_other_or_the_address() {
    let certificates = Certificates::new();
    let secure = certificates.flags();
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", dir.path().join("s").display());
    let with_tls = |tls| ServingFlags {
        tls,
        ..secure.clone()
    };
    let (off, missing) = (AuthenticationMode::None, dir.path().join("missing.pem"));
    for (flags, listen, want) in [
        (
            flags("--authentication=none"),
            "0.0.0.0:0",
            "--authentication=none needs a loopback address or a unix socket, and the address to listen on is 0.0.0.0:0: choose",
        ),
        (
            ServingFlags {
                authentication: off,
                ..secure.clone()
            },
            "127.0.0.1:0",
            "--client-ca-file needs --authentication=credentials",
        ),
        (
            with_tls(TlsFlags {
                tls_private_key_file: None,
                ..secure.tls.clone()
            }),
            "127.0.0.1:0",
            "--tls-cert-file and --tls-private-key-file need each other",
        ),
        (
            secure.clone(),
            &socket,
            "--tls-cert-file needs a TCP address",
        ),
        (
            with_tls(TlsFlags {
                tls_cert_file: Some(missing),
                ..secure.tls.clone()
            }),
            "127.0.0.1:0",
            "missing.pem",
        ),
    ] {
        let file = dir.path().join("address");
        let listen = listen.parse().unwrap();
        let (rights, hosts) = (PortRights::default(), AllowedHosts::default());
        let refused = flags.listener(rights, &listen, hosts, Some(&file));
        let refused = podplane_error_chain::one_line(&refused.await.unwrap_err());
        assert!(refused.contains(want), "{refused}");
        assert!(!file.exists(), "nothing is published");
    }
    for line in [
        "--tls-cert-file a",
        "--tls-private-key-file a",
        "--client-ca-file a",
        "--authentication=maybe",
    ] {
        let words = ["line"].into_iter().chain(line.split(' '));
        Line::try_parse_from(words).unwrap_err();
    }
    assert_eq!(flags(""), ServingFlags::default());
}
