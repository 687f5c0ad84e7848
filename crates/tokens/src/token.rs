//! Signing and verifying one token.

use jsonwebtoken::{
    Algorithm, Header, Validation, decode, decode_header, encode, errors::ErrorKind,
};

use crate::{claims::Claims, key::SigningKey, provider};

/// The longest token that is looked at. One bound to a pod and a node with the longest names has
/// less than 2 KiB.
pub const MAX_TOKEN_BYTES: usize = 8 << 10;

/// The seconds by which the clock of the issuer may be ahead. Expiry has no such tolerance.
const CLOCK_SKEW_SECONDS: i64 = 60;

/// What a verifier expects of a token besides its signature.
#[derive(Clone, Copy, Debug)]
pub struct TokenExpectation<'a> {
    /// The only issuer.
    pub issuer: &'a str,
    /// The audiences of which the token must have one.
    pub audiences: &'a [String],
    /// The time, in seconds since 1970.
    pub now: i64,
}

/// The reason why a token is not accepted. The token is not in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// It is longer than [`MAX_TOKEN_BYTES`].
    #[error("it is longer than {MAX_TOKEN_BYTES} bytes")]
    TooLong,
    /// It is not a JWT, or its header says something that is not expected.
    #[error("it is not a JSON Web Token with the header of this server's tokens")]
    Header,
    /// No key of that `kid` is known, or the key is retired.
    #[error("it is signed by a key that this server does not have, or not any more")]
    UnknownKey,
    /// The signature is not that of the key.
    #[error("its signature is not valid")]
    Signature,
    /// The claims are not those of a ServiceAccount's token.
    #[error("its claims are not those of a ServiceAccount's token")]
    Claims,
    /// Another issuer.
    #[error("it has another issuer")]
    Issuer,
    /// None of the audiences.
    #[error("it is for another audience")]
    Audience,
    /// Its time is over.
    #[error("it has expired")]
    Expired,
    /// Its time has not begun.
    #[error("it is not valid yet")]
    NotYetValid,
}

/// A token could not be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to sign a token")]
pub struct SignError;

/// Returns true if the credential has the shape of a JWT: three parts, separated by dots, of which
/// the first begins as JSON does.
pub fn looks_like_token(credential: &str) -> bool {
    credential.starts_with("ey") && credential.split('.').count() == 3
}

/// Signs claims.
pub(crate) fn sign(key: &SigningKey, claims: &Claims) -> Result<String, SignError> {
    provider::install();
    encode(&header(key.id()), claims, &key.encoding()).map_err(|_| SignError)
}

/// The `kid` of a token whose header is exactly that of a token of ours.
pub(crate) fn key_id(token: &str) -> Result<String, TokenRefusal> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(TokenRefusal::TooLong);
    }
    let found = decode_header(token).map_err(|_| TokenRefusal::Header)?;
    let id = found.kid.clone().unwrap_or_default();
    // No `crit`, no key or address of one, no other algorithm or type, nothing unknown.
    match found == header(&id) {
        true => Ok(id),
        false => Err(TokenRefusal::Header),
    }
}

/// Verifies a token that names this key.
pub(crate) fn verify(
    key: &SigningKey,
    token: &str,
    expected: &TokenExpectation<'_>,
) -> Result<Claims, TokenRefusal> {
    provider::install();
    let mut validation = Validation::new(Algorithm::ES256);
    // Times and names are checked below, against values that are given, and exactly.
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation.required_spec_claims.clear();
    let token = decode::<Claims>(token, &key.decoding(), &validation);
    let claims = token
        .map_err(|error| match error.kind() {
            ErrorKind::Json(_) | ErrorKind::Utf8(_) => TokenRefusal::Claims,
            ErrorKind::InvalidAlgorithm => TokenRefusal::Header,
            _ => TokenRefusal::Signature,
        })?
        .claims;
    check(&claims, expected)?;
    Ok(claims)
}

fn header(id: &str) -> Header {
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some(id.to_owned());
    header
}

fn check(claims: &Claims, expected: &TokenExpectation<'_>) -> Result<(), TokenRefusal> {
    let TokenExpectation {
        issuer,
        audiences,
        now,
    } = *expected;
    if claims.iss != issuer {
        return Err(TokenRefusal::Issuer);
    }
    let account = &claims.kubernetes;
    let user = format!(
        "system:serviceaccount:{}:{}",
        account.namespace, account.serviceaccount.name
    );
    if claims.sub != user || account.serviceaccount.uid.is_empty() || claims.jti.is_empty() {
        return Err(TokenRefusal::Claims);
    }
    if !claims.aud.iter().any(|own| audiences.contains(own)) {
        return Err(TokenRefusal::Audience);
    }
    if claims.exp <= now {
        return Err(TokenRefusal::Expired);
    }
    let latest = now.saturating_add(CLOCK_SKEW_SECONDS);
    if claims.nbf > latest || claims.iat > latest {
        return Err(TokenRefusal::NotYetValid);
    }
    Ok(())
}
