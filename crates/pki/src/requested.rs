//! The certificate of a client that makes its key itself and asks a signer for the certificate.

use std::{fmt, path::PathBuf};

use jiff::{SignedDuration, Timestamp};
use podplane_host::fs;
use rcgen::{KeyPair, PublicKeyData as _};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::{
    CertificateInfo, PkiError, Subject, Usage,
    authority::{new_key, params_of},
    dir::{KEY_MODE, io, make_private_dir, read_key, replace},
    verify::Trust,
};

/// The file of one client's certificate and key, `NAME.pem`. While a request is open, its key is in
/// `NAME.key` beside it: a client that is started again asks for the same certificate, and does not
/// leave one request behind for each start.
#[derive(Clone, Debug)]
pub struct RequestedCertificate {
    dir: PathBuf,
    name: String,
    subject: Subject,
}

/// A request for a certificate, signed by the key that it is for.
#[derive(Clone)]
pub struct KeyRequest {
    /// The request (PKCS #10), in PEM.
    pub request: String,
    /// A name of the key: 40 lower-case hexadecimal digits of the digest of its public part.
    pub key_id: String,
    key: String,
    public: Vec<u8>,
}

/// What the file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestedState {
    /// A certificate of the client, which is to be renewed at `renew_at`: after two thirds of its
    /// life.
    Valid {
        /// The time of the renewal, which may be past.
        renew_at: Timestamp,
        /// The end of the certificate.
        not_after: Timestamp,
    },
    /// There is no file.
    Missing,
    /// A certificate that proves nothing, and the reason: it is expired, of another authority or
    /// another client's.
    Unusable(String),
}

/// The key is never printed.
impl fmt::Debug for KeyRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyRequest").field(&self.key_id).finish()
    }
}

impl RequestedCertificate {
    /// That of `subject` in `dir`, which need not exist. `name` is a name of ours, without slashes.
    pub fn new(dir: impl Into<PathBuf>, name: impl Into<String>, subject: Subject) -> Self {
        Self {
            dir: dir.into(),
            name: name.into(),
            subject,
        }
    }

    /// The file with the key and the certificate.
    pub fn path(&self) -> PathBuf {
        self.dir.join(format!("{}.pem", self.name))
    }

    fn pending(&self) -> PathBuf {
        self.dir.join(format!("{}.key", self.name))
    }

    /// Reads the file.
    ///
    /// # Errors
    ///
    /// [`PkiError`] if it cannot be read, or others than the owner may read it.
    pub fn state(&self, trust: &Trust, now: Timestamp) -> Result<RequestedState, PkiError> {
        let Some(text) = read_key(&self.path())? else {
            return Ok(RequestedState::Missing);
        };
        let valid = self.verify(&text, trust, now);
        let of_key = KeyPair::from_pem(&text)
            .map_err(|_| self.invalid("it has no private key"))
            .and_then(|key| self.verify_key(&text, &key.subject_public_key_info()));
        Ok(match valid.and_then(|valid| of_key.map(|()| valid)) {
            Ok(valid) => valid,
            Err(error) => RequestedState::Unusable(error.to_string()),
        })
    }

    /// The request for a certificate: for the key of the request that is open, or a new one.
    ///
    /// # Errors
    ///
    /// [`PkiError`] if the key cannot be made, read or written.
    pub fn request(&self) -> Result<KeyRequest, PkiError> {
        let path = self.pending();
        let known = read_key(&path)?.and_then(|text| KeyPair::from_pem(&text).ok());
        let key = match known {
            Some(key) => key,
            None => {
                make_private_dir(&self.dir)?;
                let key = new_key()?;
                replace(&path, &key.serialize_pem(), KEY_MODE)?;
                key
            }
        };
        let params = params_of(&self.subject);
        let request = params
            .serialize_request(&key)
            .and_then(|request| request.pem())
            .map_err(|error| PkiError::Generate("a certificate request", error))?;
        let digits = params.key_identifier(&key).into_iter();
        Ok(KeyRequest {
            request,
            key_id: digits.map(|byte| format!("{byte:02x}")).collect(),
            public: key.subject_public_key_info(),
            key: key.serialize_pem(),
        })
    }

    /// Writes the certificate that answers `request`, with its key, in one step: whoever has the
    /// file open or reads it again finds the earlier pair or this one. The request is closed.
    ///
    /// # Errors
    ///
    /// [`PkiError::Invalid`] if the answer is not a certificate for this client and key, or not of
    /// a trusted authority; others if it cannot be written.
    pub fn accept(
        &self,
        request: &KeyRequest,
        certificate: &str,
        trust: &Trust,
        now: Timestamp,
    ) -> Result<RequestedState, PkiError> {
        let valid = self.verify(certificate, trust, now)?;
        self.verify_key(certificate, &request.public)?;
        let pair = format!("{}{certificate}", request.key);
        replace(&self.path(), &pair, KEY_MODE)?;
        self.close()?;
        Ok(valid)
    }

    /// Forgets the request that is open; the next one is for a new key.
    ///
    /// # Errors
    ///
    /// [`PkiError::Io`] if the key cannot be removed.
    pub fn close(&self) -> Result<(), PkiError> {
        let path = self.pending();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(io("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    fn invalid(&self, why: &str) -> PkiError {
        PkiError::Invalid {
            what: format!("certificate of {}", self.subject.user),
            why: why.to_owned(),
        }
    }

    /// Checks owner, authority and time of the first certificate, with the others as those that
    /// lead to its authority.
    fn verify(
        &self,
        text: &str,
        trust: &Trust,
        now: Timestamp,
    ) -> Result<RequestedState, PkiError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        let chain = chain.map_err(|error| self.invalid(&error.to_string()))?;
        let peer = trust.verify(&chain, Usage::Client, now);
        let peer = peer.map_err(|error| self.invalid(&error.to_string()))?;
        if peer.user != self.subject.user || !peer.groups.contains(&self.subject.group) {
            let found = format!("it is that of {} in {:?}", peer.user, peer.groups);
            return Err(self.invalid(&found));
        }
        let info = CertificateInfo::from_pem(&self.name, text)?;
        let life = info.not_after.duration_since(info.not_before);
        let third = SignedDuration::from_secs(life.as_secs() / 3);
        Ok(RequestedState::Valid {
            renew_at: info.not_after.checked_sub(third).unwrap_or(now),
            not_after: info.not_after,
        })
    }

    fn verify_key(&self, text: &str, public: &[u8]) -> Result<(), PkiError> {
        let der = CertificateDer::from_pem_slice(text.as_bytes());
        let der = der.map_err(|error| self.invalid(&error.to_string()))?;
        let (_, certificate) =
            X509Certificate::from_der(&der).map_err(|error| self.invalid(&error.to_string()))?;
        match certificate.public_key().raw == public {
            true => Ok(()),
            false => Err(self.invalid("it is for another key")),
        }
    }
}
