//! TLS with the clients of this workspace: whose certificate counts, and what a renewal keeps.

use std::path::{Path, PathBuf};

use futures::future::join_all;
use podplane_client::{CredentialFlags, ListParams};
use podplane_pki::{Authority, CertificateTerms, Subject, Usage};
use podplane_proto::authentication::{
    CreateSelfSubjectReviewRequest, authentication_service_client::AuthenticationServiceClient,
};

use super::*;
use crate::{AuthenticationFlags, TlsFlags, authentication::secure};

const WATCHES: usize = 1000;
const HOUR: Duration = Duration::from_secs(3600);

/// A server with TLS, and the directory of its authority.
struct SecureServer {
    server: TestServer,
    authority: Authority,
    dir: tempfile::TempDir,
}

fn terms(user: &str, usage: Usage) -> CertificateTerms {
    let names = match usage {
        Usage::Client => vec![],
        Usage::Server | Usage::Both => vec!["podplane-apiserver".parse().unwrap()],
    };
    CertificateTerms {
        subject: Subject::new(user, "dev"),
        usage,
        names,
        lifetime: HOUR,
    }
}

/// Issues a certificate and its key into one file.
fn issue(authority: &Authority, dir: &Path, file: &str, terms: &CertificateTerms) -> PathBuf {
    let credentials = authority
        .issue(terms, podplane_host::clock::timestamp())
        .unwrap();
    let path = dir.join(file);
    let fresh = dir.join("fresh");
    std::fs::write(&fresh, credentials.key + &credentials.certificate).unwrap();
    std::fs::rename(fresh, &path).unwrap();
    path
}

impl SecureServer {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create("ca", podplane_host::clock::timestamp()).unwrap();
        let ca = dir.path().join("ca.crt");
        std::fs::write(&ca, authority.certificate()).unwrap();
        let file = terms("kube-apiserver", Usage::Server);
        let file = issue(&authority, dir.path(), "server.pem", &file);
        let tokens = dir.path().join("tokens.csv");
        std::fs::write(&tokens, "s3cret,eve,7,\n").unwrap();
        let authentication = AuthenticationFlags {
            mode: Default::default(),
            token_auth_file: Some(tokens),
        };
        let tls = TlsFlags {
            tls_cert_file: Some(file.clone()),
            tls_private_key_file: Some(file),
            client_ca_file: Some(ca),
        };
        let listen: Listen = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(&listen).await.unwrap();
        let authenticator = authentication
            .authenticator(&listen, Default::default())
            .unwrap();
        let listener = listener.authenticating(Arc::new(authenticator));
        let files = tls.files(true).unwrap().unwrap();
        let listener = secure(listener, &files).unwrap();
        Self {
            server: TestServer::on(listener, uncounted(), MemStore::new()).await,
            authority,
            dir,
        }
    }

    fn flags(&self) -> CredentialFlags {
        CredentialFlags {
            certificate_authority: Some(self.dir.path().join("ca.crt")),
            tls_server_name: Some("podplane-apiserver".try_into().unwrap()),
            ..CredentialFlags::default()
        }
    }

    /// The credentials of a new certificate in `file`.
    fn certificate(&self, file: &str, user: &str, usage: Usage) -> CredentialFlags {
        let path = issue(&self.authority, self.dir.path(), file, &terms(user, usage));
        CredentialFlags {
            client_certificate: Some(path.clone()),
            client_key: Some(path),
            ..self.flags()
        }
    }

    fn client(&self, flags: &CredentialFlags) -> Client {
        let endpoint = format!("https://{}", self.server.address);
        let endpoint = endpoint.parse::<Endpoint>().unwrap();
        Client::connect(&endpoint.with_credentials(flags).unwrap()).unwrap()
    }
}

async fn user(client: &Client) -> Result<String, tonic::Status> {
    let mut reviews = AuthenticationServiceClient::new(client.channel().unwrap());
    let review = reviews.create_self_subject_review(CreateSelfSubjectReviewRequest {});
    let user = within(review).await?.into_inner().user_info.unwrap();
    Ok(format!("{} {}", user.username, user.groups.join(" ")))
}

#[tokio::test]
async fn a_certificate_goes_before_a_token_which_makes_up_for_an_invalid_one() {
    let secure = SecureServer::start().await;
    let token_file = secure.dir.path().join("token");
    std::fs::write(&token_file, "s3cret\n").unwrap();
    let with_token = |flags: CredentialFlags| CredentialFlags {
        token_file: Some(token_file.clone()),
        ..flags
    };
    let ada = secure.certificate("ada.pem", "ada", Usage::Client);
    let wrong = secure.certificate("wrong.pem", "wrong", Usage::Server);
    for (flags, want) in [
        (secure.flags(), "system:anonymous system:unauthenticated"),
        (ada.clone(), "ada dev system:authenticated"),
        (with_token(ada.clone()), "ada dev system:authenticated"),
        (with_token(secure.flags()), "eve system:authenticated"),
        (with_token(wrong.clone()), "eve system:authenticated"),
    ] {
        assert_eq!(user(&secure.client(&flags)).await.unwrap(), want);
    }
    let refused = user(&secure.client(&wrong)).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            tonic::Code::Unauthenticated,
            "Unauthorized: x509: certificate specifies an incompatible key usage"
        )
    );
    secure.server.stop().await;
}

#[tokio::test]
async fn a_client_trusts_only_the_right_name_of_the_right_authority() {
    let secure = SecureServer::start().await;
    let other = Authority::create("ca", podplane_host::clock::timestamp()).unwrap();
    let other_ca = secure.dir.path().join("other.crt");
    std::fs::write(&other_ca, other.certificate()).unwrap();
    for (flags, why) in [
        (
            CredentialFlags {
                tls_server_name: Some("other".try_into().unwrap()),
                ..secure.flags()
            },
            "certificate not valid for name \"other\"",
        ),
        (
            CredentialFlags {
                tls_server_name: None,
                ..secure.flags()
            },
            "certificate not valid for name \"127.0.0.1\"",
        ),
        (
            CredentialFlags {
                certificate_authority: Some(other_ca),
                ..secure.flags()
            },
            "invalid peer certificate",
        ),
    ] {
        let pods = secure.client(&flags).namespaced::<Pod>("default");
        let error = within(pods.get("a")).await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    secure.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_certificates_are_used_and_no_watch_is_lost() {
    let secure = SecureServer::start().await;
    let flags = secure.certificate("client.pem", "before", Usage::Client);
    let client = secure.client(&flags);
    let pods = client.namespaced::<Pod>("default");
    let first = pods.create(&pod("first")).await.unwrap();
    let revision = first.resource_version().to_owned();
    let params = ListParams::default();
    let watches = (0..WATCHES).map(|_| pods.watch(&params, &revision));
    let watches = within(join_all(watches)).await;
    let mut watches: Vec<_> = watches
        .into_iter()
        .map(|watch| Box::pin(watch.unwrap()))
        .collect();
    assert_eq!(
        user(&client).await.unwrap(),
        "before dev system:authenticated"
    );

    // The server's and the client's.
    let server = terms("kube-apiserver", Usage::Server);
    issue(&secure.authority, secure.dir.path(), "server.pem", &server);
    secure.certificate("client.pem", "after", Usage::Client);
    let renewed = async {
        while user(&client).await.unwrap() != "after dev system:authenticated" {
            time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(renewed).await;

    pods.create(&pod("second")).await.unwrap();
    for watch in &mut watches {
        let added = async {
            loop {
                match watch.next().await.unwrap().unwrap() {
                    ObjectEvent::Bookmark(_) => {}
                    event => break event_text(&event),
                }
            }
        };
        assert_eq!(within(added).await, "added second");
    }
    drop(watches);
    drop((pods, client));
    secure.server.stop().await;
}
