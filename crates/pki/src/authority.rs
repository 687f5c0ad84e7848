//! The authority, which signs certificates.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use podplane_host::random;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use time::OffsetDateTime;

use crate::{
    PkiError,
    subject::{ServerName, Subject, Usage},
    verify,
};

/// The life of an authority: ten years, as kubeadm's.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Certificates are valid from this long before they are issued, for machines whose clocks differ.
pub(crate) const BACKDATING: Duration = Duration::from_secs(300);

/// A certificate authority.
pub struct Authority {
    certificate: String,
    key: String,
    issuer: Issuer<'static, KeyPair>,
}

/// The content of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateTerms {
    /// The owner.
    pub subject: Subject,
    /// The side of a connection that it is for.
    pub usage: Usage,
    /// The names of a server; empty for those that are clients alone.
    pub names: Vec<ServerName>,
    /// The time from now in which it is valid.
    pub lifetime: Duration,
}

/// A certificate with its private key. The key is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The certificate, in PEM.
    pub certificate: String,
    /// The private key, in PEM (PKCS #8).
    pub key: String,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority(..)")
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

impl Authority {
    /// Makes an authority of that common name.
    ///
    /// # Errors
    ///
    /// [`PkiError::Generate`].
    pub fn create(name: &str, now: Timestamp) -> Result<Self, PkiError> {
        Self::self_signed(name, new_key()?, now)
    }

    /// Makes the certificate of an authority anew. Those that the key has signed stay valid.
    ///
    /// # Errors
    ///
    /// [`PkiError::Invalid`] if the key is not one in PEM.
    pub fn of_key(name: &str, key: &str, now: Timestamp) -> Result<Self, PkiError> {
        let key = KeyPair::from_pem(key).map_err(|error| invalid("key of the CA", &error))?;
        Self::self_signed(name, key, now)
    }

    fn self_signed(name: &str, key: KeyPair, now: Timestamp) -> Result<Self, PkiError> {
        let mut params = params(&Subject::new(name, ""), now, AUTHORITY_LIFETIME);
        // It signs certificates of servers and clients, and no further authority.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let certificate = params
            .self_signed(&key)
            .map_err(|error| PkiError::Generate("the authority's certificate", error))?
            .pem();
        Ok(Self {
            certificate,
            key: key.serialize_pem(),
            issuer: Issuer::new(params, key),
        })
    }

    /// Reads an authority from its certificate and key.
    ///
    /// # Errors
    ///
    /// [`PkiError::Invalid`] if one of them is not PEM of its kind.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, PkiError> {
        let pair = KeyPair::from_pem(key).map_err(|error| invalid("key of the CA", &error))?;
        let issuer = Issuer::from_ca_cert_pem(certificate, pair)
            .map_err(|error| invalid("certificate of the CA", &error))?;
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            issuer,
        })
    }

    /// Its certificate, in PEM: what others trust.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Its private key, in PEM.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }

    /// The end of its certificate.
    pub(crate) fn not_after(&self) -> Result<Timestamp, PkiError> {
        let malformed = |why: String| PkiError::Invalid {
            what: "certificate of the CA".to_owned(),
            why,
        };
        let der = CertificateDer::from_pem_slice(self.certificate.as_bytes());
        let der = der.map_err(|error| malformed(error.to_string()))?;
        let owner = verify::owner(&der).map_err(|error| malformed(error.to_string()))?;
        Ok(owner.not_after)
    }

    /// Issues a certificate for a new key.
    ///
    /// # Errors
    ///
    /// [`PkiError`] for a name that no certificate can have.
    pub fn issue(&self, terms: &CertificateTerms, now: Timestamp) -> Result<Credentials, PkiError> {
        let mut params = params(&terms.subject, now, terms.lifetime);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let (client, server) = (
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        );
        params.extended_key_usages = match terms.usage {
            Usage::Client => vec![client],
            Usage::Server => vec![server],
            Usage::Both => vec![server, client],
        };
        for name in &terms.names {
            params.subject_alt_names.push(match name {
                ServerName::Ip(ip) => SanType::IpAddress(*ip),
                ServerName::Dns(dns) => {
                    let name = dns.as_str().try_into();
                    SanType::DnsName(name.map_err(|error| PkiError::Generate("a name", error))?)
                }
            });
        }
        let key = new_key()?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(|error| PkiError::Generate("a certificate", error))?;
        Ok(Credentials {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// Makes a private key for ES256, in PEM (PKCS #8).
pub(crate) fn new_signing_key() -> Result<String, PkiError> {
    Ok(new_key()?.serialize_pem())
}

fn invalid(what: &str, error: &rcgen::Error) -> PkiError {
    PkiError::Invalid {
        what: what.to_owned(),
        why: format!("{error}; restore the file, or remove both to make a new authority"),
    }
}

pub(crate) fn new_key() -> Result<KeyPair, PkiError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
        .map_err(|error| PkiError::Generate("a key", error))
}

/// The content of a certificate, or of a request for one, as far as the subject goes.
pub(crate) fn params_of(subject: &Subject) -> CertificateParams {
    let mut name = DistinguishedName::new();
    if !subject.group.is_empty() {
        name.push(DnType::OrganizationName, subject.group.as_str());
    }
    name.push(DnType::CommonName, subject.user.as_str());
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params
}

fn params(subject: &Subject, now: Timestamp, lifetime: Duration) -> CertificateParams {
    let mut params = params_of(subject);
    params.not_before = date(now) - BACKDATING;
    params.not_after = date(now) + lifetime;
    params.serial_number = Some(SerialNumber::from_slice(random::uuid().as_bytes()));
    params
}

pub(crate) fn date(at: Timestamp) -> OffsetDateTime {
    // Both types hold the years -9999 to 9999.
    OffsetDateTime::from_unix_timestamp(at.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
