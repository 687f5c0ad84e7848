//! TLS of listening sockets: certificates from files, and the clients that show one.
//!
//! A client's certificate is asked for and never required, and the handshake does not judge it:
//! only the possession of its key is proven there. Each request asks the [`TlsPeer`] whose
//! certificate it is, so that a certificate that is not valid is answered with the reason, and one
//! that expires while its connection is open does not count any longer.

mod flags;

pub use flags::{TlsFlags, TlsFlagsError};

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use podplane_host::{clock, net::RemoteEnd};
use podplane_pki::{
    PkiError, ReloadedFiles, Usage, tls,
    verify::{RejectedPeer, Trust, VerifiedPeer},
};
use rustls::{
    DigitallySignedStruct, DistinguishedName, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    server::{
        ClientHello, ResolvesServerCert, ServerConfig,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::identity::{AUTHENTICATED, Identity};

/// The time for which the verification of a certificate is remembered. The end of the certificate
/// is compared each time; what this delays is a change of the file of authorities.
const REMEMBERED: Duration = Duration::from_secs(5);

/// The files of a server's TLS. They are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, with those that lead to its authority, in PEM.
    pub certificate: PathBuf,
    /// Its private key, in PEM; it may be in the same file.
    pub key: PathBuf,
    /// The authorities of clients' certificates, in PEM. `None` asks for no certificate.
    pub client_ca: Option<PathBuf>,
}

/// The reason why a server cannot serve with TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The server's certificate or key cannot be used.
    #[error(
        "failed to use the server's certificate and key (--tls-cert-file, --tls-private-key-file)"
    )]
    KeyPair(#[source] PkiError),
    /// The authorities of clients cannot be used.
    #[error("failed to use the authorities of client certificates (--client-ca-file)")]
    ClientCa(#[source] PkiError),
}

/// The TLS of a listening socket.
#[derive(Clone, Debug)]
pub struct ServerTls {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) client_trust: Option<Arc<ReloadedFiles<Trust>>>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// [`TlsError`] has the path of the file that is not usable.
    pub fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let TlsFiles {
            certificate,
            key,
            client_ca,
        } = files.clone();
        let client_trust = client_ca.map(|file| {
            ReloadedFiles::open(vec![file.clone()], move || tls::read_trust(&file)).map(Arc::new)
        });
        let client_trust = client_trust.transpose().map_err(TlsError::ClientCa)?;
        let pair = ReloadedFiles::open(vec![certificate.clone(), key.clone()], move || {
            tls::read_key_pair(&certificate, &key).map(Arc::new)
        });
        let pair = pair.map_err(TlsError::KeyPair)?;
        let provider = tls::provider();
        let algorithms = provider.signature_verification_algorithms;
        let builder = ServerConfig::builder_with_details(provider, Arc::new(tls::HostClock))
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .expect("ring has suites for both versions");
        let builder = match client_trust {
            Some(_) => builder.with_client_cert_verifier(Arc::new(KeyOwnership { algorithms })),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(CertificateFile(pair)));
        config.alpn_protocols = vec![tls::HTTP2.to_vec(), tls::HTTP1.to_vec()];
        Ok(Self {
            config: Arc::new(config),
            client_trust,
        })
    }
}

/// The server's certificate as the files have it.
#[derive(Debug)]
struct CertificateFile(ReloadedFiles<Arc<CertifiedKey>>);

impl ResolvesServerCert for CertificateFile {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&*self.0.current()))
    }
}

/// Verifies that a client owns the key of the certificate that it shows, and nothing else of it.
#[derive(Debug)]
struct KeyOwnership {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for KeyOwnership {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// No names of authorities: clients leave out a certificate that none of them has signed, and
    /// would be anonymous instead of being told why.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The other end of a TLS connection.
pub struct TlsPeer {
    remote: RemoteEnd,
    /// The certificate of the client, and those that lead to its authority; empty without one.
    chain: Vec<CertificateDer<'static>>,
    trust: Option<Arc<ReloadedFiles<Trust>>>,
    last: Mutex<Option<Verification>>,
}

struct Verification {
    trust: Arc<Trust>,
    at: Timestamp,
    /// The user of the certificate, and its end.
    result: Result<(Arc<Identity>, Timestamp), RejectedPeer>,
}

impl fmt::Debug for TlsPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPeer")
            .field("remote", &self.remote)
            .field("certificates", &self.chain.len())
            .finish_non_exhaustive()
    }
}

impl TlsPeer {
    pub(crate) fn new(
        remote: RemoteEnd,
        chain: Vec<CertificateDer<'static>>,
        trust: Option<Arc<ReloadedFiles<Trust>>>,
    ) -> Self {
        Self {
            remote,
            chain,
            trust,
            last: Mutex::new(None),
        }
    }

    /// The address of the client.
    pub fn remote(&self) -> RemoteEnd {
        self.remote
    }

    /// The user of the client's certificate at this moment: its common name, in the groups of its
    /// organizations and in `system:authenticated`. `None` if it has shown none or was not
    /// asked for one.
    ///
    /// # Errors
    ///
    /// The reason why the certificate proves nothing.
    pub fn client(&self) -> Option<Result<Arc<Identity>, RejectedPeer>> {
        let trust = self.trust.as_ref()?.current();
        if self.chain.is_empty() {
            return None;
        }
        let now = clock::timestamp();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last.take().filter(|last| last.holds(&trust, now));
        let verification = last.insert(known.unwrap_or_else(|| Verification {
            result: trust.verify(&self.chain, Usage::Client, now).map(user),
            trust,
            at: now,
        }));
        let user = verification.result.as_ref();
        Some(user.map(|(user, _)| Arc::clone(user)).map_err(Clone::clone))
    }
}

fn user(peer: VerifiedPeer) -> (Arc<Identity>, Timestamp) {
    let mut identity = Identity::new(peer.user, peer.groups);
    if !identity.is_in(AUTHENTICATED) {
        identity.groups.push(AUTHENTICATED.to_owned());
    }
    (Arc::new(identity), peer.not_after)
}

impl Verification {
    /// Returns true if verifying again at `now` would have the same result.
    fn holds(&self, trust: &Arc<Trust>, now: Timestamp) -> bool {
        let is_recent = now >= self.at && now.duration_since(self.at).unsigned_abs() < REMEMBERED;
        let has_ended = self
            .result
            .as_ref()
            .is_ok_and(|(_, not_after)| now > *not_after);
        Arc::ptr_eq(&self.trust, trust) && is_recent && !has_ended
    }
}

#[cfg(test)]
mod tests;
