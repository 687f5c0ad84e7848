//! Requests for certificates (PKCS #10), and their answers.

use std::{net::IpAddr, time::Duration};

use jiff::Timestamp;
use rcgen::{
    CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose,
    SanType, SerialNumber,
};
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer, pem::PemObject as _};
use x509_parser::{
    certification_request::X509CertificationRequest,
    prelude::{FromDer as _, X509Certificate, X509Name},
};

use crate::{
    PkiError,
    authority::{Authority, BACKDATING, date},
};

/// A request that is signed by the key for which it asks.
#[derive(Clone, Debug)]
pub struct CertificateRequest {
    params: CertificateSigningRequestParams,
    /// The common name, empty if there is none.
    pub common_name: String,
    /// The organizations.
    pub organizations: Vec<String>,
}

/// A name in a request, besides the subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestedName {
    /// A DNS name.
    Dns(String),
    /// An address.
    Ip(IpAddr),
    /// An address of electronic mail.
    Email(String),
    /// A URI.
    Uri(String),
    /// Another kind of name.
    Other,
}

/// A use of a key, by Kubernetes' names: `digital signature`, `client auth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedUsage {
    /// The signature of a handshake.
    DigitalSignature,
    /// The encryption of keys (RSA).
    KeyEncipherment,
    /// The client's side of a connection.
    ClientAuth,
    /// The server's side.
    ServerAuth,
}

impl RequestedUsage {
    /// The usage of that name; `None` for those that no signer of ours permits.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "digital signature" | "signing" => Some(Self::DigitalSignature),
            "key encipherment" => Some(Self::KeyEncipherment),
            "client auth" => Some(Self::ClientAuth),
            "server auth" => Some(Self::ServerAuth),
            _ => None,
        }
    }
}

impl CertificateRequest {
    /// Reads a request and verifies its signature.
    ///
    /// # Errors
    ///
    /// [`PkiError::Invalid`] with the reason. A subject with the same attribute twice is refused,
    /// too: `rcgen` can issue a certificate with one organization only.
    pub fn from_pem(pem: &[u8]) -> Result<Self, PkiError> {
        let der = CertificateSigningRequestDer::from_pem_slice(pem);
        let der = der.map_err(|_| invalid("it is not a PEM block \"CERTIFICATE REQUEST\""))?;
        let params = CertificateSigningRequestParams::from_der(&der);
        let params = params.map_err(|error| invalid(&error.to_string()))?;
        let (rest, request) = X509CertificationRequest::from_der(&der)
            .map_err(|_| invalid("it is not a certification request"))?;
        if !rest.is_empty() {
            return Err(invalid("data follows it"));
        }
        let subject = &request.certification_request_info.subject;
        let common_names = texts(subject, &DnType::CommonName)?;
        let organizations = texts(subject, &DnType::OrganizationName)?;
        let attributes = subject.iter_attributes().count();
        if attributes != params.params.distinguished_name.iter().count() {
            return Err(invalid(
                "its subject has an attribute more than once, and only one organization can be in a certificate",
            ));
        }
        Ok(Self {
            params,
            common_name: common_names.into_iter().next().unwrap_or_default(),
            organizations,
        })
    }

    /// Its names besides the subject.
    pub fn names(&self) -> Vec<RequestedName> {
        let names = self.params.params.subject_alt_names.iter();
        let name = |name: &SanType| match name {
            SanType::DnsName(dns) => RequestedName::Dns(dns.as_str().to_owned()),
            SanType::IpAddress(ip) => RequestedName::Ip(*ip),
            SanType::Rfc822Name(mail) => RequestedName::Email(mail.as_str().to_owned()),
            SanType::URI(uri) => RequestedName::Uri(uri.as_str().to_owned()),
            _ => RequestedName::Other,
        };
        names.map(name).collect()
    }
}

fn texts(subject: &X509Name<'_>, kind: &DnType) -> Result<Vec<String>, PkiError> {
    let texts: Result<Vec<_>, _> = match kind {
        DnType::CommonName => subject
            .iter_common_name()
            .map(|text| text.as_str())
            .collect(),
        _ => subject
            .iter_organization()
            .map(|text| text.as_str())
            .collect(),
    };
    let texts = texts.map_err(|_| invalid("its subject is not text"))?;
    match texts.iter().any(|text| text.contains(char::is_control)) {
        true => Err(invalid("its subject has a control character")),
        false => Ok(texts.into_iter().map(str::to_owned).collect()),
    }
}

fn invalid(why: &str) -> PkiError {
    PkiError::Invalid {
        what: "certificate request".to_owned(),
        why: why.to_owned(),
    }
}

impl Authority {
    /// Answers a request with a certificate, in PEM: for its key, its subject and its names, and
    /// for these usages. Extensions that it asks for otherwise are ignored. The certificate ends
    /// with that of the authority at the latest.
    ///
    /// # Errors
    ///
    /// [`PkiError::Generate`].
    pub fn sign(
        &self,
        request: &CertificateRequest,
        usages: &[RequestedUsage],
        lifetime: Duration,
        serial: &[u8],
        now: Timestamp,
    ) -> Result<String, PkiError> {
        let mut signed = request.params.clone();
        let params = &mut signed.params;
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(SerialNumber::from_slice(serial));
        params.not_before = date(now) - BACKDATING;
        params.not_after = (date(now) + lifetime).min(date(self.not_after()?));
        params.key_usages.clear();
        params.extended_key_usages.clear();
        for usage in usages {
            match usage {
                RequestedUsage::DigitalSignature => {
                    params.key_usages.push(KeyUsagePurpose::DigitalSignature);
                }
                RequestedUsage::KeyEncipherment => {
                    params.key_usages.push(KeyUsagePurpose::KeyEncipherment);
                }
                RequestedUsage::ClientAuth => {
                    params
                        .extended_key_usages
                        .push(ExtendedKeyUsagePurpose::ClientAuth);
                }
                RequestedUsage::ServerAuth => {
                    params
                        .extended_key_usages
                        .push(ExtendedKeyUsagePurpose::ServerAuth);
                }
            }
        }
        let certificate = signed
            .signed_by(self.issuer())
            .map_err(|error| PkiError::Generate("a certificate", error))?;
        Ok(certificate.pem())
    }
}

/// The end of the first certificate of a PEM bundle; `None` if it cannot be read.
pub fn certificate_end(pem: &[u8]) -> Option<Timestamp> {
    let der = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}
