//! Requests for certificates (PKCS #10), and their answers.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use jiff::Timestamp;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose,
    SanType, SerialNumber, SubjectPublicKeyInfo,
};
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer, pem::PemObject as _};
use x509_parser::{
    certification_request::X509CertificationRequest,
    extensions::{GeneralName, ParsedExtension},
    prelude::{FromDer as _, X509Certificate},
    x509::AttributeTypeAndValue,
};

use crate::{
    PkiError,
    authority::{Authority, BACKDATING, date},
    issued,
};

/// A request that is signed by the key for which it asks.
#[derive(Clone, Debug)]
pub struct CertificateRequest {
    key: SubjectPublicKeyInfo,
    /// The subject, in DER.
    subject: Vec<u8>,
    names: Vec<SanType>,
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
    /// Of its extensions, only the subjectAltNames count, and of these the kinds of
    /// [`RequestedName`].
    ///
    /// # Errors
    ///
    /// [`PkiError::Invalid`] with the reason. A subject with two common names is refused: programs
    /// differ in the one that they take.
    pub fn from_pem(pem: &[u8]) -> Result<Self, PkiError> {
        let der = CertificateSigningRequestDer::from_pem_slice(pem);
        let der = der.map_err(|_| invalid("it is not a PEM block \"CERTIFICATE REQUEST\""))?;
        let (rest, request) = X509CertificationRequest::from_der(&der)
            .map_err(|_| invalid("it is not a certification request"))?;
        if !rest.is_empty() {
            return Err(invalid("data follows it"));
        }
        let verified = request.verify_signature();
        verified.map_err(|_| invalid("its signature is not that of its key"))?;
        let info = &request.certification_request_info;
        let key = SubjectPublicKeyInfo::from_der(info.subject_pki.raw);
        let key = key.map_err(|error| invalid(&error.to_string()))?;
        let mut names = Vec::new();
        for extension in request.requested_extensions().into_iter().flatten() {
            match extension {
                ParsedExtension::SubjectAlternativeName(alternative) => {
                    for name in &alternative.general_names {
                        names.extend(alternative_name(name)?);
                    }
                }
                ParsedExtension::ParseError { .. } => {
                    return Err(invalid("one of its extensions cannot be read"));
                }
                _ => {}
            }
        }
        let mut common_names = texts(info.subject.iter_common_name())?;
        let common_name = common_names.pop().unwrap_or_default();
        if !common_names.is_empty() {
            return Err(invalid("its subject has more than one common name"));
        }
        Ok(Self {
            key,
            subject: info.subject.as_raw().to_vec(),
            names,
            common_name,
            organizations: texts(info.subject.iter_organization())?,
        })
    }

    /// Its names besides the subject.
    pub fn names(&self) -> Vec<RequestedName> {
        let name = |name: &SanType| match name {
            SanType::DnsName(dns) => Some(RequestedName::Dns(dns.as_str().to_owned())),
            SanType::IpAddress(ip) => Some(RequestedName::Ip(*ip)),
            SanType::Rfc822Name(mail) => Some(RequestedName::Email(mail.as_str().to_owned())),
            SanType::URI(uri) => Some(RequestedName::Uri(uri.as_str().to_owned())),
            _ => None,
        };
        self.names.iter().filter_map(name).collect()
    }
}

/// The name for a certificate; `None` for the kinds that Kubernetes leaves out, too.
fn alternative_name(name: &GeneralName<'_>) -> Result<Option<SanType>, PkiError> {
    let ascii = |text: &str| {
        let text = text.try_into();
        text.map_err(|_| invalid("a subjectAltName has a character that is not ASCII"))
    };
    Ok(Some(match name {
        GeneralName::DNSName(dns) => SanType::DnsName(ascii(dns)?),
        GeneralName::RFC822Name(mail) => SanType::Rfc822Name(ascii(mail)?),
        GeneralName::URI(uri) => SanType::URI(ascii(uri)?),
        GeneralName::IPAddress(octets) => SanType::IpAddress(address(octets)?),
        GeneralName::Invalid(..) => return Err(invalid("a subjectAltName cannot be read")),
        _ => return Ok(None),
    }))
}

fn address(octets: &[u8]) -> Result<IpAddr, PkiError> {
    let four = <[u8; 4]>::try_from(octets).map(|four| Ipv4Addr::from(four).into());
    four.or_else(|_| <[u8; 16]>::try_from(octets).map(|sixteen| Ipv6Addr::from(sixteen).into()))
        .map_err(|_| invalid("a subjectAltName is an address of neither 4 nor 16 octets"))
}

fn texts<'a>(
    attributes: impl Iterator<Item = &'a AttributeTypeAndValue<'a>>,
) -> Result<Vec<String>, PkiError> {
    let texts: Result<Vec<_>, _> = attributes.map(AttributeTypeAndValue::as_str).collect();
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
    /// [`PkiError::Generate`] and [`PkiError::Encode`].
    pub fn sign(
        &self,
        request: &CertificateRequest,
        usages: &[RequestedUsage],
        lifetime: Duration,
        serial: &[u8],
        now: Timestamp,
    ) -> Result<String, PkiError> {
        let mut params = CertificateParams::default();
        // The subject takes its place at the end: rcgen writes one organization only.
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, request.common_name.as_str());
        params.subject_alt_names.clone_from(&request.names);
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(SerialNumber::from_slice(serial));
        params.not_before = date(now) - BACKDATING;
        params.not_after = (date(now) + lifetime).min(date(self.not_after()?));
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
        let certificate = params
            .signed_by(&request.key, self.issuer())
            .map_err(|error| PkiError::Generate("a certificate", error))?;
        issued::with_subject(certificate.der(), &request.subject, self.issuer().key())
    }
}

/// The end of the first certificate of a PEM bundle; `None` if it cannot be read.
pub fn certificate_end(pem: &[u8]) -> Option<Timestamp> {
    let der = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}
