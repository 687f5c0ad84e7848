//! The cryptography of `jsonwebtoken` by `ring`, the library that TLS and certificates use too.
//!
//! `jsonwebtoken` takes its cryptography from a provider of the whole process. No other crate of
//! the tree uses it; `deny.toml` keeps that so.

use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, EncodingKey,
    crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils},
    errors::{Error, ErrorKind},
    signature::{Error as SignatureError, Signer, Verifier},
};
use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, UnparsedPublicKey,
    },
};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    // Only for JSON Web Keys, which are made and read without it.
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes `ring` the provider. Called before each use; all calls but the first change nothing.
pub(crate) fn install() {
    // An error says that there is one already: this one, as nothing else installs any.
    _ = PROVIDER.install_default();
}

struct RingSigner(EcdsaKeyPair);

impl Signer<Vec<u8>> for RingSigner {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, SignatureError> {
        let signature = self.0.sign(&SystemRandom::new(), message);
        let signature = signature.map_err(|_| SignatureError::new())?;
        Ok(signature.as_ref().to_vec())
    }
}

impl JwtSigner for RingSigner {
    fn algorithm(&self) -> Algorithm {
        Algorithm::ES256
    }
}

struct RingVerifier(Vec<u8>);

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), SignatureError> {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &self.0)
            .verify(message, signature)
            .map_err(|_| SignatureError::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        Algorithm::ES256
    }
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    check(*algorithm, key.family())?;
    let pair = EcdsaKeyPair::from_pkcs8(
        &ECDSA_P256_SHA256_FIXED_SIGNING,
        key.as_bytes(),
        &SystemRandom::new(),
    );
    let pair = pair.map_err(|_| ErrorKind::InvalidEcdsaKey)?;
    Ok(Box::new(RingSigner(pair)))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    check(*algorithm, key.family())?;
    Ok(Box::new(RingVerifier(key.try_get_as_bytes()?.to_vec())))
}

fn check(algorithm: Algorithm, family: AlgorithmFamily) -> Result<(), Error> {
    match (algorithm, family) {
        (Algorithm::ES256, AlgorithmFamily::Ec) => Ok(()),
        _ => Err(ErrorKind::InvalidAlgorithm.into()),
    }
}
