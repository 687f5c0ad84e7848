//! The client certificate of a node that joins a cluster elsewhere: requested with a bootstrap
//! token, renewed with itself.
//!
//! The node makes the key, which never leaves its directory, and a CertificateSigningRequest that
//! the cluster's controller-manager approves and answers (source: Kubernetes' TLS bootstrapping and
//! the kubelet's certificate rotation).

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use backon::{ExponentialBuilder, Retryable as _};
use podplane_api::{
    ByteString, ObjectKey,
    certificates::{CertificateSigningRequest, CertificateSigningRequestSpec},
    jiff::Timestamp,
    kinds::certificate_signing_request::{APPROVED, DENIED, FAILED, certificate, condition},
    meta::ObjectMeta,
    node::NodeName,
};
use podplane_client::{
    Api, ApiError, Cache, CacheChange, Client, CredentialFlags, Endpoint, ListParams, answered,
    reflector,
};
use podplane_host::{clock, random};
use podplane_pki::{KeyRequest, RequestedCertificate, RequestedState, Subject, tls};

use crate::data_dir::DataDir;

/// The signer of nodes' client certificates.
const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const USAGES: [&str; 2] = ["digital signature", "client auth"];

/// The shortest time between two renewals, for a signer whose certificates are due at once.
const SHORTEST_LIFE: Duration = Duration::from_secs(60);
/// The longest wait without a look at the wall clock, which may be set while the node runs.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// The certificate of a node, in `pki/node-NAME.pem` in its data directory.
#[derive(Clone, Debug)]
pub(crate) struct NodeCertificate {
    node: NodeName,
    own: RequestedCertificate,
    server: Endpoint,
    /// The authorities of the server, which sign the nodes' certificates too.
    authority: PathBuf,
    /// The credentials of the first request: the flags', with the bootstrap token.
    bootstrap: CredentialFlags,
}

/// The reason why a node has no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("failed to request a certificate for the node")]
    Api(#[from] ApiError),
    #[error(
        "certificate signing request {name} was {verdict}{why}: the node asks again once it is deleted (`kubectl delete csr {name}`)"
    )]
    Refused {
        name: String,
        verdict: &'static str,
        why: String,
    },
    #[error("certificate signing request {0} was deleted before it was answered")]
    Deleted(String),
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

impl RequestError {
    /// True if another attempt may succeed although nobody changes a file or flag.
    fn is_temporary(&self) -> bool {
        match self {
            Self::Api(error) => error.is_unavailable(),
            Self::Deleted(_) => true,
            Self::Refused { .. } | Self::Other(_) => false,
        }
    }
}

/// Attempts without end, up to a minute apart.
fn waits() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_secs(1))
        .with_max_delay(Duration::from_secs(60))
        .with_jitter()
        .with_jitter_seed(random::value())
        .without_max_times()
}

impl NodeCertificate {
    /// That of the node in this directory. `credentials` are those of the flags, without a client
    /// certificate.
    pub(crate) fn new(
        node: &NodeName,
        dir: &DataDir,
        server: &Endpoint,
        credentials: &CredentialFlags,
        token: PathBuf,
    ) -> anyhow::Result<Self> {
        let authority = credentials.certificate_authority.clone();
        let authority = authority.context(
            "--bootstrap-token-file needs --certificate-authority, the file with the cluster's authority (ca.crt)",
        )?;
        anyhow::ensure!(
            server.has_tls(),
            "--bootstrap-token-file needs an https:// address, and --server is {server}: a token is sent to nobody who does not prove who it is"
        );
        let is_other = credentials.client_certificate.is_some() || credentials.token_file.is_some();
        anyhow::ensure!(
            !is_other,
            "--bootstrap-token-file cannot be used with --client-certificate or --token-file: either the node requests a certificate, or it is given one"
        );
        let name = node.as_str();
        Ok(Self {
            node: node.clone(),
            own: RequestedCertificate::new(
                dir.path().join("pki"),
                format!("node-{name}"),
                Subject::node(name),
            ),
            server: server.clone(),
            authority,
            bootstrap: CredentialFlags {
                token_file: Some(token),
                ..credentials.clone()
            },
        })
    }

    /// The file with the key and the certificate.
    pub(crate) fn path(&self) -> PathBuf {
        self.own.path()
    }

    /// The credentials of the node's processes.
    pub(crate) fn credentials(&self) -> CredentialFlags {
        CredentialFlags {
            client_certificate: Some(self.path()),
            client_key: Some(self.path()),
            token_file: None,
            ..self.bootstrap.clone()
        }
    }

    /// Makes sure that there is a certificate, and returns the time at which it is to be renewed.
    /// Waits for the API server, and for whoever approves and signs.
    ///
    /// # Cancel safety
    ///
    /// The next call goes on with the same request.
    pub(crate) async fn obtain(&self) -> anyhow::Result<Timestamp> {
        let node = self.node.as_str();
        match self.state()? {
            RequestedState::Valid { renew_at, .. } => return Ok(renew_at),
            RequestedState::Missing => {}
            RequestedState::Unusable(why) => {
                tracing::warn!(
                    node,
                    why,
                    "bootstrapping again: the node's certificate is of no use"
                );
            }
        }
        let attempt = || self.request(&self.bootstrap);
        let obtained = attempt
            .retry(waits())
            .when(RequestError::is_temporary)
            .notify(|error, wait| self.failed(error, wait));
        Ok(obtained.await?)
    }

    /// Renews the certificate each time two thirds of its life have passed, and for as long as it
    /// is polled. While it is valid, it is what proves who asks for the next one; after that, only
    /// the bootstrap token can.
    pub(crate) async fn keep(&self, mut renew_at: Timestamp) {
        loop {
            sleep_until(renew_at).await;
            let attempt = || self.renew();
            let renewed = attempt
                .retry(waits())
                .notify(|error, wait| self.failed(error, wait));
            if let Ok(next) = renewed.await {
                renew_at = next;
            }
            clock::sleep(SHORTEST_LIFE).await;
        }
    }

    async fn renew(&self) -> Result<Timestamp, RequestError> {
        let credentials = match self.state()? {
            RequestedState::Valid { .. } => self.credentials(),
            RequestedState::Missing | RequestedState::Unusable(_) => self.bootstrap.clone(),
        };
        self.request(&credentials).await
    }

    fn failed(&self, error: &RequestError, wait: Duration) {
        tracing::warn!(
            node = self.node.as_str(),
            error = podplane_error_chain::one_line(error),
            retry_in = ?wait,
            "failed to request the node's certificate; trying again"
        );
    }

    fn state(&self) -> anyhow::Result<RequestedState> {
        let trust = tls::read_trust(&self.authority)?;
        Ok(self.own.state(&trust, clock::timestamp())?)
    }

    /// Requests a certificate with these credentials, and waits until it is issued.
    async fn request(&self, credentials: &CredentialFlags) -> Result<Timestamp, RequestError> {
        let node = self.node.as_str();
        let server = self.server.clone().with_credentials(credentials);
        let client = Client::connect(&server.map_err(anyhow::Error::new)?);
        let api = client
            .map_err(anyhow::Error::new)?
            .all::<CertificateSigningRequest>();
        let request = self.own.request().map_err(anyhow::Error::new)?;
        let name = format!("node-csr-{}", request.key_id);
        match answered(api.create(&request_object(&name, &request))).await {
            Ok(_) => tracing::info!(node, request = name, "requested a client certificate"),
            // An earlier start made it, with the same key.
            Err(error) if error.is_already_exists() => {
                tracing::info!(
                    node,
                    request = name,
                    "the client certificate is requested already"
                );
            }
            Err(error) => return Err(error.into()),
        }
        let issued = issued(api, &name).await?;
        let trust = tls::read_trust(&self.authority).map_err(anyhow::Error::new)?;
        let accepted = self
            .own
            .accept(&request, &issued, &trust, clock::timestamp());
        match accepted {
            Ok(RequestedState::Valid {
                renew_at,
                not_after,
            }) => {
                tracing::info!(node, request = name, %not_after, %renew_at, "got a client certificate");
                Ok(renew_at)
            }
            Ok(RequestedState::Missing | RequestedState::Unusable(_)) => {
                Err(RequestError::Deleted(name))
            }
            Err(error) => {
                // The request is answered; another attempt needs a new one.
                self.own.close().map_err(anyhow::Error::new)?;
                let file = self.authority.display();
                let why = format!(
                    "the certificate of certificate signing request {name} cannot be used; the authority that signs it (--cluster-signing-cert-file of the controller-manager) must be in {file}"
                );
                Err(anyhow::Error::new(error).context(why).into())
            }
        }
    }
}

fn request_object(name: &str, request: &KeyRequest) -> CertificateSigningRequest {
    CertificateSigningRequest {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.request.clone().into_bytes()),
            signer_name: SIGNER.to_owned(),
            usages: Some(USAGES.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    }
}

/// Waits until the request has a certificate.
async fn issued(api: Api<CertificateSigningRequest>, name: &str) -> Result<String, RequestError> {
    let params = ListParams {
        field_selector: format!("metadata.name={name}"),
        ..ListParams::default()
    };
    let (requests, driver) = reflector(api, params);
    // Dropping either half loses nothing: the next attempt finds the request as it is.
    tokio::select! {
        () = driver => Err(RequestError::Deleted(name.to_owned())),
        issued = follow(requests, name) => issued,
    }
}

async fn follow(
    requests: Cache<CertificateSigningRequest>,
    name: &str,
) -> Result<String, RequestError> {
    requests.synced().await;
    let deleted = || RequestError::Deleted(name.to_owned());
    let known = requests.get(&ObjectKey::new("", name));
    known.ok_or_else(deleted)?;
    let mut changes = requests.subscribe();
    let mut waits_for = "";
    loop {
        let CacheChange::Applied { new, .. } = changes.next().await else {
            return Err(deleted());
        };
        match progress(name, &new)? {
            RequestProgress::Issued(certificate) => return Ok(certificate),
            RequestProgress::WaitsFor(what) if what != waits_for => {
                tracing::info!(
                    request = name,
                    waits_for = what,
                    "waiting for the client certificate"
                );
                waits_for = what;
            }
            RequestProgress::WaitsFor(_) => {}
        }
    }
}

/// How far a request has come.
#[derive(Debug, PartialEq, Eq)]
enum RequestProgress {
    /// It has a certificate, in PEM.
    Issued(String),
    /// It has none yet, and this is missing.
    WaitsFor(&'static str),
}

fn progress(
    name: &str,
    request: &CertificateSigningRequest,
) -> Result<RequestProgress, RequestError> {
    for (type_, verdict) in [(DENIED, "denied"), (FAILED, "failed by its signer")] {
        if let Some(condition) = condition(request, type_) {
            let texts = [&condition.reason, &condition.message]
                .into_iter()
                .flatten();
            let why: String = texts
                .filter(|text| !text.is_empty())
                .map(|text| format!(", {text:?}"))
                .collect();
            return Err(RequestError::Refused {
                name: name.to_owned(),
                verdict,
                why,
            });
        }
    }
    let issued = certificate(request);
    if !issued.is_empty() {
        let text = String::from_utf8(issued.to_vec());
        let text = text.context("the issued certificate is not text")?;
        return Ok(RequestProgress::Issued(text));
    }
    Ok(RequestProgress::WaitsFor(
        match condition(request, APPROVED) {
            Some(_) => "the signer: a controller-manager with --cluster-signing-cert-file",
            None => "approval, by the controller-manager or with `kubectl certificate approve`",
        },
    ))
}

async fn sleep_until(at: Timestamp) {
    loop {
        let left = at.duration_since(clock::timestamp());
        if !left.is_positive() {
            return;
        }
        clock::sleep(left.unsigned_abs().min(LONGEST_SLEEP)).await;
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::certificates::{
        CertificateSigningRequestCondition, CertificateSigningRequestStatus,
    };

    use super::*;

    fn answered_with(types: &[&str], certificate: &str) -> CertificateSigningRequest {
        let condition = |type_: &&str| CertificateSigningRequestCondition {
            type_: (*type_).to_owned(),
            status: "True".to_owned(),
            message: Some("not\nours".to_owned()),
            ..CertificateSigningRequestCondition::default()
        };
        CertificateSigningRequest {
            status: Some(CertificateSigningRequestStatus {
                conditions: Some(types.iter().map(condition).collect()),
                certificate: Some(ByteString(certificate.as_bytes().to_vec())),
            }),
            ..CertificateSigningRequest::default()
        }
    }

    #[test]
    fn says_what_a_request_waits_for() {
        let wait = |types: &[&str]| match progress("a", &answered_with(types, "")) {
            Ok(RequestProgress::WaitsFor(what)) => what,
            other => panic!("{other:?}"),
        };
        assert!(wait(&[]).starts_with("approval"));
        assert!(wait(&[APPROVED]).starts_with("the signer"));
        let issued = progress("a", &answered_with(&[APPROVED], "text")).unwrap();
        assert_eq!(issued, RequestProgress::Issued("text".to_owned()));
        for (types, verdict) in [
            (&[DENIED][..], "denied"),
            (&[APPROVED, FAILED], "failed by its signer"),
        ] {
            let error = progress("a", &answered_with(types, "")).unwrap_err();
            assert!(!error.is_temporary());
            // The words of others do not break the line.
            let want = format!("certificate signing request a was {verdict}, \"not\\nours\": ");
            assert!(error.to_string().starts_with(&want), "{error}");
        }
    }

    #[test]
    fn refuses_flags_that_contradict_each_other() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = DataDir::layout(temporary.path());
        let certificate = |server: &str, credentials: &CredentialFlags| {
            let (node, server) = ("n1".parse().unwrap(), server.parse().unwrap());
            NodeCertificate::new(&node, &dir, &server, credentials, "token".into())
        };
        let trusting = CredentialFlags {
            certificate_authority: Some("ca.crt".into()),
            ..CredentialFlags::default()
        };
        let own = certificate("https://a:1", &trusting).unwrap();
        assert_eq!(own.path(), temporary.path().join("pki/node-n1.pem"));
        let given = CredentialFlags {
            token_file: Some("t".into()),
            ..trusting.clone()
        };
        for (server, credentials, why) in [
            (
                "https://a:1",
                CredentialFlags::default(),
                "--certificate-authority",
            ),
            ("a:1", trusting, "--server is http://a:1"),
            ("https://a:1", given, "--token-file"),
        ] {
            let error = certificate(server, &credentials).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
