//! A TLS socket and its clients: certificates of all sorts, plain HTTP, and slow handshakes.

use std::{io, path::Path};

use axum::{Extension, Router, http::HeaderMap, routing::get};
use podplane_http_client::HttpClient;
use podplane_pki::{Authority, CertificateTerms, Credentials, Subject};
use rustls::{ClientConfig, client::Resumption};
use rustls_pki_types::{PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    Process, Services, Tasks,
    authentication::{AuthenticationRefusal, Authenticator, RequestContext},
    peer::Peer,
    server::Listener,
};

const HOUR: Duration = Duration::from_secs(3600);

/// Knows clients by their certificate alone.
#[derive(Debug)]
struct Certificates;

impl Authenticator for Certificates {
    fn authenticate(
        &self,
        peer: Option<Peer>,
        _headers: &HeaderMap,
    ) -> Result<RequestContext, AuthenticationRefusal> {
        let Some(Peer::Tls(tls)) = &peer else {
            let why = format!("{peer:?} has no TLS");
            return Err(AuthenticationRefusal::Unauthorized(why));
        };
        let refused =
            |reason: RejectedPeer| AuthenticationRefusal::Unauthorized(reason.to_string());
        let client = tls.client().transpose().map_err(refused)?;
        Ok(RequestContext {
            identity: client.unwrap_or_else(|| Arc::new(Identity::anonymous())),
            peer,
            impersonation: Ok(None),
        })
    }
}

struct Server {
    dir: tempfile::TempDir,
    authority: Authority,
    address: String,
    _tasks: Tasks,
}

fn terms(user: &str, usage: Usage, lifetime: Duration) -> CertificateTerms {
    let names = match usage {
        Usage::Client => vec![],
        Usage::Server | Usage::Both => vec!["127.0.0.1".parse().unwrap()],
    };
    CertificateTerms {
        subject: Subject::new(user, "dev"),
        usage,
        names,
        lifetime,
    }
}

fn write(path: &Path, credentials: &Credentials) {
    std::fs::write(path.with_extension("crt"), &credentials.certificate).unwrap();
    std::fs::write(path.with_extension("key"), &credentials.key).unwrap();
}

impl Server {
    async fn start() -> Self {
        let now = clock::timestamp();
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create("test", now).unwrap();
        std::fs::write(dir.path().join("ca.crt"), authority.certificate()).unwrap();
        let credentials = authority.issue(&terms("server", Usage::Server, HOUR), now);
        write(&dir.path().join("server"), &credentials.unwrap());
        let tls = ServerTls::read(&TlsFiles {
            certificate: dir.path().join("server.crt"),
            key: dir.path().join("server.key"),
            client_ca: Some(dir.path().join("ca.crt")),
        });
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await;
        let listener = listener.unwrap().with_tls(tls.unwrap()).unwrap();
        let address = listener.address().to_string();
        assert_eq!(listener.client_address(), format!("https://{address}"));
        let mut tasks = Tasks::new(CancellationToken::new());
        let mut process = Process::new(tonic_health::pb::FILE_DESCRIPTOR_SET);
        process.serve(
            listener.authenticating(Arc::new(Certificates)),
            Services::default(),
        );
        let user = async |Extension(context): Extension<RequestContext>| {
            let Identity { user, groups, .. } = &*context.identity;
            format!("{user} {}", groups.join(" "))
        };
        process.with_http(Router::new().route("/user", get(user)));
        process.start(&mut tasks).await;
        Self {
            dir,
            authority,
            address,
            _tasks: tasks,
        }
    }

    /// The configuration of a client with that certificate.
    fn client(&self, credentials: Option<&Credentials>) -> ClientConfig {
        let trust = Trust::from_pem(self.authority.certificate()).unwrap();
        let builder = tls::client(&trust);
        match credentials {
            None => builder.with_no_client_auth(),
            Some(credentials) => {
                let chain = CertificateDer::from_pem_slice(credentials.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(credentials.key.as_bytes());
                builder
                    .with_client_auth_cert(vec![chain.unwrap()], key.unwrap())
                    .unwrap()
            }
        }
    }

    async fn connect(&self, config: &Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(&self.address).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::clone(config))
            .connect(name, stream)
            .await
    }

    /// Asks who the client is, in a connection of its own.
    async fn ask(&self, config: &Arc<ClientConfig>) -> String {
        ask(&mut self.connect(config).await.unwrap(), "close").await
    }

    async fn user(&self, credentials: Option<&Credentials>) -> String {
        self.ask(&Arc::new(self.client(credentials))).await
    }
}

/// The body of the answer, with its status if that is not 200.
async fn ask(stream: &mut TlsStream<TcpStream>, connection: &str) -> String {
    let request =
        format!("GET /user HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    // Until the whole body is there.
    loop {
        let mut part = [0; 4096];
        let count = stream.read(&mut part).await.unwrap();
        text.push_str(str::from_utf8(&part[..count]).unwrap());
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let length = head.to_ascii_lowercase();
        let length = length.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        if length == Some(body.len()) {
            let status = &head["HTTP/1.1 ".len()..][..3];
            return match status {
                "200" => body.to_owned(),
                _ => {
                    let status: serde_json::Value = serde_json::from_str(body).unwrap();
                    format!("{}: {}", status["code"], status["message"])
                }
            };
        }
        assert_ne!(count, 0, "the answer ended early: {text}");
    }
}

#[tokio::test]
async fn each_certificate_has_its_user_or_the_reason_why_not() {
    let server = Server::start().await;
    let now = clock::timestamp();
    let issue =
        |authority: &Authority, usage, at| authority.issue(&terms("ada", usage, HOUR), at).unwrap();
    let good = issue(&server.authority, Usage::Client, now);
    assert_eq!(
        server.user(Some(&good)).await,
        "ada dev system:authenticated"
    );
    assert_eq!(
        server.user(None).await,
        "system:anonymous system:unauthenticated"
    );
    let other = Authority::create("test", now).unwrap();
    let hours = |count: u32| HOUR * count;
    for (credentials, why) in [
        (
            issue(&server.authority, Usage::Client, now - hours(2)),
            "x509: certificate has expired or is not yet valid: current time ",
        ),
        (
            issue(&server.authority, Usage::Client, now + hours(2)),
            "x509: certificate has expired or is not yet valid: current time ",
        ),
        (
            issue(&other, Usage::Client, now),
            "x509: certificate signed by unknown authority",
        ),
        (
            issue(&server.authority, Usage::Server, now),
            "x509: certificate specifies an incompatible key usage",
        ),
    ] {
        let answer = server.user(Some(&credentials)).await;
        let want = format!("401: \"Unauthorized: {why}");
        assert!(answer.starts_with(&want), "{answer}");
    }
}

#[tokio::test]
async fn both_versions_and_resumed_sessions_have_the_certificate() {
    let server = Server::start().await;
    let now = clock::timestamp();
    let ada = server
        .authority
        .issue(&terms("ada", Usage::Client, HOUR), now);
    let ada = ada.unwrap();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let roots = Trust::from_pem(server.authority.certificate()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(ada.key.as_bytes()).unwrap();
        let chain = CertificateDer::from_pem_slice(ada.certificate.as_bytes()).unwrap();
        let mut config = tls::client_of(&roots, &[version])
            .with_client_auth_cert(vec![chain], key)
            .unwrap();
        config.resumption = Resumption::in_memory_sessions(8);
        let config = Arc::new(config);
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let mut stream = server.connect(&config).await.unwrap();
            // Tickets of TLS 1.3 come after the handshake.
            assert_eq!(
                ask(&mut stream, "keep-alive").await,
                "ada dev system:authenticated"
            );
            assert_eq!(stream.get_ref().1.protocol_version(), Some(version.version));
            kinds.push(stream.get_ref().1.handshake_kind().unwrap());
        }
        assert_eq!(
            kinds,
            [rustls::HandshakeKind::Full, rustls::HandshakeKind::Resumed]
        );
    }
}

#[tokio::test]
async fn a_certificate_that_expires_in_its_connection_does_not_count() {
    let server = Server::start().await;
    let short = terms("ada", Usage::Client, Duration::from_secs(2));
    let short = server.authority.issue(&short, clock::timestamp()).unwrap();
    let config = Arc::new(server.client(Some(&short)));
    let mut stream = server.connect(&config).await.unwrap();
    assert!(ask(&mut stream, "keep-alive").await.starts_with("ada "));
    let refused = async {
        loop {
            let answer = ask(&mut stream, "keep-alive").await;
            if !answer.starts_with("ada ") {
                break answer;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(10), refused).await;
    let answer = answer.unwrap();
    assert!(answer.contains(" is after "), "{answer}");
}

#[tokio::test]
async fn plain_http_is_told_that_the_port_has_tls() {
    let server = Server::start().await;
    let message = "Client sent an HTTP request to an HTTPS server.";
    let http1 = HttpClient::new(&server.address).get("/user").await.unwrap();
    assert_eq!(http1.code, 400);
    assert_eq!(http1.body, format!("{message}\n"));
    let grpc = tonic::transport::Endpoint::from_shared(format!("http://{}", server.address));
    let grpc = grpc.unwrap().connect().await.unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(grpc);
    let request = tonic_health::pb::HealthCheckRequest::default();
    let status = health.check(request).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert_eq!(status.message(), message);
}

#[tokio::test]
async fn handshakes_that_do_not_end_keep_nobody_away() {
    let server = Server::start().await;
    let mut slow = Vec::new();
    for count in 0..700 {
        let mut stream = TcpStream::connect(&server.address).await.unwrap();
        if count % 2 == 0 {
            stream.write_all(&[0x16, 3, 1]).await.unwrap();
        }
        slow.push(stream);
    }
    let user = tokio::time::timeout(Duration::from_secs(5), server.user(None)).await;
    assert!(user.unwrap().starts_with("system:anonymous"));
}

#[tokio::test]
async fn a_renewed_certificate_is_used_by_new_connections_alone() {
    let server = Server::start().await;
    let config = Arc::new(server.client(None));
    let mut old = server.connect(&config).await.unwrap();
    let shown = |stream: &TlsStream<TcpStream>| {
        let chain = stream.get_ref().1.peer_certificates().unwrap();
        chain[0].clone().into_owned()
    };
    let first = shown(&old);
    let now = clock::timestamp();
    let renewed = server
        .authority
        .issue(&terms("server", Usage::Server, HOUR), now);
    write(&server.dir.path().join("server"), &renewed.unwrap());
    let changed = async {
        // A config of its own for each: a resumed session has the certificate that it began with.
        while shown(
            &server
                .connect(&Arc::new(server.client(None)))
                .await
                .unwrap(),
        ) == first
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), changed)
        .await
        .unwrap();
    assert!(ask(&mut old, "keep-alive").await.starts_with("system:"));
}

#[test]
fn errors_name_the_file_and_never_show_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let now = clock::timestamp();
    let authority = Authority::create("test", now).unwrap();
    let issue = || authority.issue(&terms("server", Usage::Server, HOUR), now);
    let (one, two) = (issue().unwrap(), issue().unwrap());
    write(&dir.path().join("one"), &one);
    write(&dir.path().join("two"), &two);
    std::fs::write(dir.path().join("empty"), "").unwrap();
    let read = |certificate: &str, key: &str, ca: &str| {
        let path = |name: &str| dir.path().join(name);
        let tls = ServerTls::read(&TlsFiles {
            certificate: path(certificate),
            key: path(key),
            client_ca: Some(path(ca)),
        });
        podplane_error_chain::one_line(&tls.unwrap_err())
    };
    for (certificate, key, ca, want) in [
        (
            "one.crt",
            "two.key",
            "one.crt",
            "two.key: its key is not that of the certificate in",
        ),
        ("none.crt", "one.key", "one.crt", "none.crt"),
        ("one.crt", "none.key", "one.crt", "none.key"),
        (
            "one.key",
            "one.key",
            "one.crt",
            "one.key: it has no certificate in PEM",
        ),
        (
            "one.crt",
            "one.crt",
            "one.crt",
            "one.crt: it has no private key in PEM",
        ),
        (
            "one.crt",
            "one.key",
            "empty",
            "empty: there is no certificate",
        ),
    ] {
        let error = read(certificate, key, ca);
        assert!(error.contains(want), "{error}");
        assert!(!error.contains("BEGIN"), "{error}");
    }
}
