//! The certificates in a directory, as their files say.

use std::{ffi::OsStr, path::Path, time::Duration};

use jiff::Timestamp;
use podplane_host::fs;
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::{
    CertificateTerms, PkiDir, PkiError, Subject, Usage,
    authority::BACKDATING,
    dir::{io, server_names},
    verify::owner,
};

/// The content of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The terms on which it could be issued again.
    pub terms: CertificateTerms,
    /// Its beginning, which is some minutes before it was issued.
    pub not_before: Timestamp,
    /// Its end.
    pub not_after: Timestamp,
}

/// A file `NAME.pem` of a [`PkiDir`].
#[derive(Debug)]
pub struct CertificateFile {
    /// Its name, without `.pem`.
    pub name: String,
    /// The certificate, or the reason why it is not one of ours.
    pub info: Result<CertificateInfo, PkiError>,
}

impl CertificateInfo {
    /// The time at which to renew it: when two thirds of its life have passed.
    pub fn renew_at(&self) -> Timestamp {
        let third = self.terms.lifetime / 3;
        self.not_after.checked_sub(third).unwrap_or(Timestamp::MIN)
    }

    /// Reads the first certificate of a text in PEM. `what` names it in errors.
    ///
    /// # Errors
    ///
    /// [`PkiError::Invalid`] if it has none, or one that is not like those of an
    /// [`Authority`](crate::Authority).
    pub fn from_pem(what: &str, text: &str) -> Result<Self, PkiError> {
        let invalid = |why: String| PkiError::Invalid {
            what: what.to_owned(),
            why,
        };
        let der = CertificateDer::from_pem_slice(text.as_bytes())
            .map_err(|_| invalid("it has no certificate in PEM".to_owned()))?;
        let peer = owner(&der).map_err(|error| invalid(error.to_string()))?;
        let (_, certificate) =
            X509Certificate::from_der(&der).map_err(|error| invalid(error.to_string()))?;
        let usages = certificate.extended_key_usage().ok().flatten();
        let usage = match usages.map(|usages| (usages.value.client_auth, usages.value.server_auth))
        {
            Some((true, false)) => Usage::Client,
            Some((false, true)) => Usage::Server,
            Some((true, true)) => Usage::Both,
            _ => {
                let why = "it must be for clients or for servers";
                return Err(invalid(why.to_owned()));
            }
        };
        let group = match peer.groups.as_slice() {
            [] => "",
            [group] => group.as_str(),
            _ => return Err(invalid("it has more than one organization".to_owned())),
        };
        let names = server_names(&der);
        let names = names.ok_or_else(|| invalid("its names cannot be read".to_owned()))?;
        let begin = certificate.validity().not_before.timestamp();
        let not_before =
            Timestamp::from_second(begin).map_err(|error| invalid(error.to_string()))?;
        let seconds = peer.not_after.as_second().saturating_sub(begin);
        let lifetime = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        Ok(Self {
            terms: CertificateTerms {
                subject: Subject::new(peer.user, group),
                usage,
                names,
                lifetime: lifetime.saturating_sub(BACKDATING),
            },
            not_before,
            not_after: peer.not_after,
        })
    }
}

impl PkiDir {
    /// The certificates in the directory, in the order of names.
    ///
    /// # Errors
    ///
    /// [`PkiError::Io`] if the directory or a file cannot be read.
    pub fn certificates(&self) -> Result<Vec<CertificateFile>, PkiError> {
        let dir = self.path();
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).map_err(io("read", dir))? {
            let path = entry.map_err(io("read", dir))?.path();
            if let Some(name) = name_of(&path) {
                let text = fs::read_to_string(&path).map_err(io("read", &path))?;
                let what = path.display().to_string();
                let info = CertificateInfo::from_pem(&what, &text);
                found.push(CertificateFile { name, info });
            }
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }
}

fn name_of(path: &Path) -> Option<String> {
    let is_ours = path.extension() == Some(OsStr::new("pem"));
    let name = path.file_stem()?.to_str()?;
    is_ours.then(|| name.to_owned())
}
