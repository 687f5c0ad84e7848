//! The parts of TLS that servers and clients have in common: the library of cryptography, the
//! clock, and certificates with keys from files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use podplane_host::{clock, fs};
use rustls::{
    ConfigBuilder, Error, InconsistentKeys, SupportedProtocolVersion,
    client::{ClientConfig, WantsClientCert},
    crypto::{CryptoProvider, ring},
    sign::{CertifiedKey, SingleCertAndKey},
    time_provider::TimeProvider,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject as _};

use crate::{PkiError, verify::Trust};

/// The protocol of gRPC in ALPN.
pub const HTTP2: &[u8] = b"h2";
/// The other protocol of a server, in ALPN.
pub const HTTP1: &[u8] = b"http/1.1";

/// The library of cryptography. All its suites have forward secrecy and authenticated encryption,
/// those of TLS 1.2 too.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The host's wall clock, for rustls.
#[derive(Clone, Copy, Debug)]
pub struct HostClock;

impl TimeProvider for HostClock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(clock::timestamp().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

/// Reads a certificate, with those that lead to its authority, and its private key, in PEM. Both
/// may be in one file.
///
/// # Errors
///
/// [`PkiError`] with the path of the file that cannot be read, has none, or has the key of another
/// certificate. It never contains a key.
pub fn read_key_pair(certificate: &Path, key: &Path) -> Result<CertifiedKey, PkiError> {
    let chain = CertificateDer::pem_slice_iter(&read(certificate)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| invalid(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(invalid(certificate, "it has no certificate in PEM"));
    }
    // The parser's error could quote the file.
    let private = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|_| invalid(key, "it has no private key in PEM without a passphrase"))?;
    CertifiedKey::from_der(chain, private, &provider()).map_err(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => invalid(
            key,
            format!(
                "its key is not that of the certificate in {}",
                certificate.display()
            ),
        ),
        Error::InvalidCertificate(_) => invalid(certificate, error.to_string()),
        _ => invalid(key, error.to_string()),
    })
}

/// Reads the certificates of trusted authorities, in PEM.
///
/// # Errors
///
/// [`PkiError`] with the path of the file.
pub fn read_trust(path: &Path) -> Result<Trust, PkiError> {
    let bundle = read(path)?;
    let bundle = str::from_utf8(&bundle).map_err(|error| invalid(path, error.to_string()))?;
    Trust::from_pem(bundle).map_err(|error| match error {
        PkiError::Invalid { why, .. } => invalid(path, why),
        other => other,
    })
}

/// Begins the configuration of a client that trusts these authorities.
pub fn client(trust: &Trust) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    client_of(trust, rustls::ALL_VERSIONS)
}

/// The same, with these versions of TLS alone.
pub fn client_of(
    trust: &Trust,
    versions: &[&'static SupportedProtocolVersion],
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let roots = rustls::RootCertStore {
        roots: trust.anchors().to_vec(),
    };
    ClientConfig::builder_with_details(provider(), Arc::new(HostClock))
        .with_protocol_versions(versions)
        .expect("ring has suites for every version")
        .with_root_certificates(roots)
}

/// The configuration of a client of HTTP/2 that trusts the authorities in a file, with its
/// certificate and key if there are any.
///
/// # Errors
///
/// Those of [`read_trust`] and [`read_key_pair`].
pub fn http2_client(
    authority: &Path,
    pair: Option<&(PathBuf, PathBuf)>,
) -> Result<Arc<ClientConfig>, PkiError> {
    let builder = client(&read_trust(authority)?);
    let mut config = match pair {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let pair = read_key_pair(certificate, key)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
        }
    };
    config.alpn_protocols = vec![HTTP2.to_vec()];
    Ok(Arc::new(config))
}

fn read(path: &Path) -> Result<Vec<u8>, PkiError> {
    fs::read(path).map_err(|source| PkiError::Io {
        action: "read",
        path: path.display().to_string(),
        source,
    })
}

fn invalid(path: &Path, why: impl Into<String>) -> PkiError {
    PkiError::Invalid {
        what: path.display().to_string(),
        why: why.into(),
    }
}
