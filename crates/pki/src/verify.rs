//! The owner of the certificate that a peer has shown.

use std::time::Duration;

use jiff::Timestamp;
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime, pem::PemObject as _};
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::prelude::{FromDer as _, X509Certificate, X509Name};

use crate::{PkiError, subject::Usage};

/// The authorities that are trusted.
#[derive(Clone, Debug)]
pub struct Trust(Vec<TrustAnchor<'static>>);

/// The owner of a verified certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedPeer {
    /// The common name: the user.
    pub user: String,
    /// The organizations: its groups.
    pub groups: Vec<String>,
    /// The end of the certificate. A connection may outlive it, so that each request compares.
    pub not_after: Timestamp,
}

/// The reason why a certificate proves nothing, in Kubernetes' words where it has some.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectedPeer {
    /// It is expired, or not valid yet.
    #[error("x509: certificate has expired or is not yet valid: {0}")]
    Time(String),
    /// No trusted authority signed it.
    #[error("x509: certificate signed by unknown authority")]
    UnknownAuthority,
    /// It is for the other side of a connection.
    #[error("x509: certificate specifies an incompatible key usage")]
    Usage,
    /// It has no common name or more than one.
    #[error("the certificate must have exactly one common name, which is the user")]
    CommonName,
    /// It cannot be read, or is wrong in another way.
    #[error("x509: {0}")]
    Malformed(String),
}

impl Trust {
    /// Trusts the authorities of a bundle in PEM.
    ///
    /// # Errors
    ///
    /// [`PkiError::Invalid`] if there is none, or one that cannot be read.
    pub fn from_pem(bundle: &str) -> Result<Self, PkiError> {
        let invalid = |why: String| PkiError::Invalid {
            what: "CA certificates".to_owned(),
            why,
        };
        let mut anchors = Vec::new();
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
            let anchor = webpki::anchor_from_trusted_cert(&certificate);
            anchors.push(
                anchor
                    .map_err(|error| invalid(error.to_string()))?
                    .to_owned(),
            );
        }
        match anchors.is_empty() {
            true => Err(invalid("there is no certificate in the file".to_owned())),
            false => Ok(Self(anchors)),
        }
    }

    /// The authorities.
    pub(crate) fn anchors(&self) -> &[TrustAnchor<'static>] {
        &self.0
    }

    /// The owner of the chain's first certificate, which must be for `usage`.
    ///
    /// # Errors
    ///
    /// [`RejectedPeer`].
    pub fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        usage: Usage,
        now: Timestamp,
    ) -> Result<VerifiedPeer, RejectedPeer> {
        let none = || RejectedPeer::Malformed("there is no certificate".to_owned());
        let (own, intermediates) = chain.split_first().ok_or_else(none)?;
        let certificate = EndEntityCert::try_from(own).map_err(|error| rejected(&error))?;
        let since_epoch = u64::try_from(now.as_second()).unwrap_or(0);
        let usages = match usage {
            Usage::Client => vec![KeyUsage::client_auth()],
            Usage::Server => vec![KeyUsage::server_auth()],
            Usage::Both => vec![KeyUsage::server_auth(), KeyUsage::client_auth()],
        };
        for usage in usages {
            certificate
                .verify_for_usage(
                    webpki::ALL_VERIFICATION_ALGS,
                    &self.0,
                    intermediates,
                    UnixTime::since_unix_epoch(Duration::from_secs(since_epoch)),
                    usage,
                    None,
                    None,
                )
                .map_err(|error| rejected(&error))?;
        }
        owner(own)
    }
}

fn rejected(error: &webpki::Error) -> RejectedPeer {
    use webpki::Error;
    match error {
        Error::CertExpired { time, not_after } => RejectedPeer::Time(format!(
            "current time {} is after {}",
            moment(*time),
            moment(*not_after)
        )),
        Error::CertNotValidYet { time, not_before } => RejectedPeer::Time(format!(
            "current time {} is before {}",
            moment(*time),
            moment(*not_before)
        )),
        Error::UnknownIssuer => RejectedPeer::UnknownAuthority,
        Error::RequiredEkuNotFoundContext(_) => RejectedPeer::Usage,
        // Whoever copied the authority's name has not its key.
        Error::InvalidSignatureForPublicKey
        | Error::UnsupportedSignatureAlgorithmContext(_)
        | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
            RejectedPeer::UnknownAuthority
        }
        other => RejectedPeer::Malformed(other.to_string()),
    }
}

/// A time as people read it; in seconds since 1970 if it has more than four digits of years.
fn moment(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).ok();
    let time_in_range = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time_in_range.map_or_else(|| time.as_secs().to_string(), |time| time.to_string())
}

/// Reads the names and the end of a certificate, without verification.
pub(crate) fn owner(certificate: &CertificateDer<'_>) -> Result<VerifiedPeer, RejectedPeer> {
    let malformed = |error: &dyn std::fmt::Display| RejectedPeer::Malformed(error.to_string());
    let (_, certificate) =
        X509Certificate::from_der(certificate).map_err(|error| malformed(&error))?;
    let users = texts(certificate.subject(), |name| {
        name.iter_common_name()
            .map(x509_parser::x509::AttributeTypeAndValue::as_str)
            .collect()
    })?;
    let groups = texts(certificate.subject(), |name| {
        name.iter_organization()
            .map(x509_parser::x509::AttributeTypeAndValue::as_str)
            .collect()
    })?;
    let [user] = users.as_slice() else {
        return Err(RejectedPeer::CommonName);
    };
    if user.is_empty() {
        return Err(RejectedPeer::CommonName);
    }
    let not_after = certificate.validity().not_after.timestamp();
    Ok(VerifiedPeer {
        user: user.clone(),
        groups,
        not_after: Timestamp::from_second(not_after).map_err(|error| malformed(&error))?,
    })
}

type Texts<'a> = Result<Vec<&'a str>, x509_parser::error::X509Error>;

/// The texts of one kind in a name. A control character is refused: names reach logs and terminals.
fn texts<'a>(
    name: &'a X509Name<'a>,
    read: impl FnOnce(&'a X509Name<'a>) -> Texts<'a>,
) -> Result<Vec<String>, RejectedPeer> {
    let texts = read(name).map_err(|error| RejectedPeer::Malformed(error.to_string()))?;
    match texts.iter().any(|text| text.contains(char::is_control)) {
        true => Err(RejectedPeer::Malformed(
            "a name has a control character".to_owned(),
        )),
        false => Ok(texts.into_iter().map(str::to_owned).collect()),
    }
}
