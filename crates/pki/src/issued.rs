//! The subject of an issued certificate, as it was requested.
//!
//! rcgen writes a single value of each attribute, and a member of several groups has as many
//! organizations. So the subject is replaced in the certificate that rcgen made, and the
//! certificate is signed again.

use der::{Decode as _, Encode as _, Sequence, asn1::AnyRef, asn1::BitStringRef};
use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::{KeyPair, SigningKey as _};

use crate::PkiError;

/// A certificate (RFC 5280 §4.1); parts that stay as they are have no type of their own.
#[derive(Sequence)]
struct Certificate<'a> {
    terms: TbsCertificate<'a>,
    signature_algorithm: AnyRef<'a>,
    signature: BitStringRef<'a>,
}

/// The signed part of a certificate with extensions.
#[derive(Sequence)]
struct TbsCertificate<'a> {
    version: AnyRef<'a>,
    serial_number: AnyRef<'a>,
    signature: AnyRef<'a>,
    issuer: AnyRef<'a>,
    validity: AnyRef<'a>,
    subject: AnyRef<'a>,
    subject_public_key_info: AnyRef<'a>,
    extensions: AnyRef<'a>,
}

/// The certificate, in PEM, with this subject (DER), signed by `key`: that of its issuer.
pub(crate) fn with_subject(
    certificate: &[u8],
    subject: &[u8],
    key: &KeyPair,
) -> Result<String, PkiError> {
    let mut certificate = Certificate::from_der(certificate)?;
    certificate.terms.subject = AnyRef::from_der(subject)?;
    let signature = key
        .sign(&certificate.terms.to_der()?)
        .map_err(|error| PkiError::Generate("a signature", error))?;
    certificate.signature = BitStringRef::from_bytes(&signature)?;
    let pem = Pem::new("CERTIFICATE", certificate.to_der()?);
    let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
    Ok(pem::encode_config(&pem, lines))
}
