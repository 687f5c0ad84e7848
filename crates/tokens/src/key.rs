//! A key that signs tokens.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use jsonwebtoken::{DecodingKey, EncodingKey};
use pem::Pem;
use ring::{
    digest,
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use serde::Serialize;

/// The label of a private key in PKCS #8 (RFC 7468 §10).
const PEM_LABEL: &str = "PRIVATE KEY";
/// The DER of a SubjectPublicKeyInfo for P-256 up to the point itself (RFC 5480 §2), which has 65
/// bytes.
const SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// A private key for ES256 (P-256). It is never printed.
#[derive(Clone)]
pub struct SigningKey {
    id: String,
    pkcs8: Vec<u8>,
    /// 0x04, and the two coordinates of the point.
    point: Vec<u8>,
}

/// A key that cannot sign tokens, or that cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// The operating system gives no random bytes.
    #[error("failed to generate a key")]
    Generate,
    /// It is not PEM, or not a private key.
    #[error("must be one PEM block \"PRIVATE KEY\" (PKCS #8)")]
    Pem,
    /// It is a key of another kind.
    #[error("must be a private key for P-256")]
    Curve,
}

/// Without the key.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.id)
    }
}

impl SigningKey {
    /// Makes a new key.
    ///
    /// # Errors
    ///
    /// [`InvalidKey::Generate`].
    pub fn generate() -> Result<Self, InvalidKey> {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
            .map_err(|_| InvalidKey::Generate)?;
        Self::from_pkcs8(pkcs8.as_ref().to_vec())
    }

    /// Reads a key from PEM.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`].
    pub fn from_pem(text: &str) -> Result<Self, InvalidKey> {
        let pem = pem::parse(text).map_err(|_| InvalidKey::Pem)?;
        match pem.tag() {
            PEM_LABEL => Self::from_pkcs8(pem.into_contents()),
            _ => Err(InvalidKey::Pem),
        }
    }

    fn from_pkcs8(pkcs8: Vec<u8>) -> Result<Self, InvalidKey> {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, &pkcs8, &SystemRandom::new())
            .map_err(|_| InvalidKey::Curve)?;
        let point = pair.public_key().as_ref().to_vec();
        let mut spki = SPKI_PREFIX.to_vec();
        spki.extend_from_slice(&point);
        let id = BASE64_URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, &spki));
        Ok(Self { id, pkcs8, point })
    }

    /// Its identity, the `kid` of the tokens that it signs: the SHA-256 of the public key in DER,
    /// in base64url, as in Kubernetes.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The key in PEM, for a file that nobody else may read.
    pub fn to_pem(&self) -> String {
        pem::encode(&Pem::new(PEM_LABEL, self.pkcs8.clone()))
    }

    /// The public key as a JSON Web Key.
    pub fn jwk(&self) -> Jwk {
        // The first byte says that the coordinates are not compressed.
        let coordinates = self.point.get(1..).unwrap_or_default();
        let (x, y) = coordinates.split_at_checked(32).unwrap_or_default();
        Jwk {
            usage: "sig",
            kty: "EC",
            kid: self.id.clone(),
            crv: "P-256",
            alg: "ES256",
            x: BASE64_URL_SAFE_NO_PAD.encode(x),
            y: BASE64_URL_SAFE_NO_PAD.encode(y),
        }
    }

    pub(crate) fn encoding(&self) -> EncodingKey {
        EncodingKey::from_ec_der(&self.pkcs8)
    }

    pub(crate) fn decoding(&self) -> DecodingKey {
        DecodingKey::from_ec_der(&self.point)
    }
}

/// A public key (RFC 7517).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Jwk {
    #[serde(rename = "use")]
    usage: &'static str,
    kty: &'static str,
    kid: String,
    crv: &'static str,
    alg: &'static str,
    x: String,
    y: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pem_keeps_the_key() {
        let key = SigningKey::generate().unwrap();
        let again = SigningKey::from_pem(&key.to_pem()).unwrap();
        assert_eq!(again.id(), key.id());
        assert_eq!(again.pkcs8, key.pkcs8);
        assert_ne!(SigningKey::generate().unwrap().id(), key.id());
        assert_eq!(key.id().len(), 43);
    }

    #[test]
    fn refuses_other_text_and_shows_no_key() {
        let key = SigningKey::generate().unwrap();
        assert_eq!(format!("{key:?}"), format!("SigningKey({})", key.id()));
        assert_eq!(SigningKey::from_pem("").unwrap_err(), InvalidKey::Pem);
        let public = key.to_pem().replace("PRIVATE", "PUBLIC");
        assert_eq!(SigningKey::from_pem(&public).unwrap_err(), InvalidKey::Pem);
        let cut = pem::encode(&Pem::new(PEM_LABEL, key.pkcs8[..40].to_vec()));
        assert_eq!(SigningKey::from_pem(&cut).unwrap_err(), InvalidKey::Curve);
    }
}
