//! The tokens of ServiceAccounts: JSON Web Tokens (RFC 7519) in the compact form, signed by ES256,
//! and the keys that sign them.
//!
//! [`KeyRing`] signs and verifies; it is a function of its keys and the time that it is given.
//! [`KeyDir`] is the only module that touches files. A verified token says what was true when it
//! was issued: that its ServiceAccount, pod and node still exist is for the caller to check.
//!
//! Neither tokens nor private keys appear in `Debug` output or errors.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod claims;
mod dir;
mod key;
mod provider;
mod ring;
mod token;

pub use claims::{BoundReference, Claims, KubernetesClaims};
pub use dir::{KeyDir, KeyDirError, read_key_files};
pub use key::{InvalidKey, Jwk, SigningKey};
pub use ring::{KeyPolicy, KeyRing, KeyRingPlan};
pub use token::{MAX_TOKEN_BYTES, SignError, TokenExpectation, TokenRefusal, looks_like_token};
