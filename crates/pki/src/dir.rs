//! The files of an authority and its certificates.

use std::{
    io::Write as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use podplane_host::{fs, random};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::{
    PkiError,
    authority::{Authority, CertificateTerms, Credentials},
    subject::ServerName,
    verify::Trust,
};

/// The authority's certificate, for everyone.
pub(crate) const CA_CERTIFICATE: &str = "ca.crt";
/// The authority's key, for the issuer alone.
pub(crate) const CA_KEY: &str = "ca.key";
pub(crate) const KEY_MODE: u32 = 0o600;
pub(crate) const PUBLIC_MODE: u32 = 0o644;

/// A directory with an authority, `ca.crt` and `ca.key`, and a file `NAME.pem` for each
/// certificate: the key and the certificate in one file, so that no reader gets one of each
/// generation.
#[derive(Debug)]
pub struct PkiDir {
    path: PathBuf,
    authority: Authority,
    trust: Trust,
}

/// The result of [`PkiDir::ensure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// It is still good.
    Kept,
    /// There was none, or it said something else, or it expires soon.
    Issued,
}

impl PkiDir {
    /// Opens the directory, and makes it and the authority if there is none.
    ///
    /// # Errors
    ///
    /// [`PkiError`]; also if one of the authority's two files is missing, or if others than the
    /// owner may read the key.
    pub fn open(path: &Path, authority: &str, now: Timestamp) -> Result<Self, PkiError> {
        make_private_dir(path)?;
        let (certificate, key) = (path.join(CA_CERTIFICATE), path.join(CA_KEY));
        let authority = match (read(&certificate)?, read_key(&key)?) {
            (Some(certificate), Some(key)) => Authority::from_pem(&certificate, &key)?,
            (None, key_there) => {
                // A key without a certificate is what a crash between the two leaves.
                let made = match key_there {
                    Some(key) => Authority::of_key(authority, &key, now)?,
                    None => Authority::create(authority, now)?,
                };
                replace(&key, made.key(), KEY_MODE)?;
                replace(&certificate, made.certificate(), PUBLIC_MODE)?;
                made
            }
            (Some(_), None) => {
                return Err(PkiError::Invalid {
                    what: key.display().to_string(),
                    why: format!(
                        "it is missing, and only it can sign for {}; restore it, or remove {} to make a new authority",
                        certificate.display(),
                        path.display()
                    ),
                });
            }
        };
        Ok(Self {
            path: path.to_owned(),
            trust: Trust::from_pem(authority.certificate())?,
            authority,
        })
    }

    /// The authority.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Opens a directory that has an authority.
    ///
    /// # Errors
    ///
    /// [`PkiError::Invalid`] if it has none, and those of [`PkiDir::open`].
    pub fn existing(path: &Path, now: Timestamp) -> Result<Self, PkiError> {
        let certificate = path.join(CA_CERTIFICATE);
        match fs::exists(&certificate) {
            true => Self::open(path, "", now),
            false => Err(PkiError::Invalid {
                what: path.display().to_string(),
                why: format!("it has no certificate authority ({CA_CERTIFICATE})"),
            }),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the authority's certificate.
    pub fn ca_certificate(&self) -> PathBuf {
        self.path.join(CA_CERTIFICATE)
    }

    /// The path of the certificate of that name.
    pub fn certificate(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.pem"))
    }

    /// Makes sure that `NAME.pem` is a certificate on these terms with more than a third of its
    /// life left. `name` is a name of ours, such as that of a process.
    ///
    /// # Errors
    ///
    /// [`PkiError`].
    pub fn ensure(
        &self,
        name: &str,
        terms: &CertificateTerms,
        now: Timestamp,
    ) -> Result<Renewal, PkiError> {
        let path = self.file_of(name)?;
        let known = read_key(&path)?;
        if known.is_some_and(|known| self.is_good(&known, terms, now)) {
            return Ok(Renewal::Kept);
        }
        self.issue(name, terms, now)?;
        Ok(Renewal::Issued)
    }

    /// Issues a certificate on these terms into `NAME.pem`, and replaces the one that is there.
    ///
    /// # Errors
    ///
    /// [`PkiError`].
    pub fn issue(
        &self,
        name: &str,
        terms: &CertificateTerms,
        now: Timestamp,
    ) -> Result<(), PkiError> {
        let path = self.file_of(name)?;
        let Credentials { certificate, key } = self.authority.issue(terms, now)?;
        replace(&path, &format!("{key}{certificate}"), KEY_MODE)
    }

    fn file_of(&self, name: &str) -> Result<PathBuf, PkiError> {
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            return Err(PkiError::Invalid {
                what: format!("certificate name {name:?}"),
                why: "it becomes a file name, so it must not have a slash or begin with a dot"
                    .to_owned(),
            });
        }
        Ok(self.certificate(name))
    }

    /// Returns true if the file has a certificate of this authority on these terms that lives long
    /// enough.
    fn is_good(&self, file: &str, terms: &CertificateTerms, now: Timestamp) -> bool {
        let Ok(certificate) = CertificateDer::from_pem_slice(file.as_bytes()) else {
            return false;
        };
        let chain = [certificate];
        let Ok(peer) = self.trust.verify(&chain, terms.usage, now) else {
            return false;
        };
        let groups: Vec<_> = peer.groups.iter().map(String::as_str).collect();
        let group = terms.subject.group.as_str();
        let is_same = peer.user == terms.subject.user
            && groups.iter().all(|known| *known == group)
            && groups.is_empty() == group.is_empty();
        let mut names = terms.names.clone();
        names.sort();
        let left = peer.not_after.duration_since(now).unsigned_abs();
        is_same && chain.first().and_then(server_names) == Some(names) && left > terms.lifetime / 3
    }
}

/// The names of a server in its certificate, sorted. `None` if they cannot be read.
pub(crate) fn server_names(certificate: &CertificateDer<'_>) -> Option<Vec<ServerName>> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let names = certificate.subject_alternative_name().ok()?;
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let mut names: Vec<ServerName> = names
        .map(|name| match name {
            GeneralName::DNSName(name) => Some(ServerName::Dns((*name).to_owned())),
            GeneralName::IPAddress(bytes) => match *bytes {
                [a, b, c, d] => Some(ServerName::Ip([*a, *b, *c, *d].into())),
                bytes => Some(ServerName::Ip(<[u8; 16]>::try_from(bytes).ok()?.into())),
            },
            _ => None,
        })
        .collect::<Option<_>>()?;
    names.sort();
    Some(names)
}

pub(crate) fn io<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(std::io::Error) -> PkiError + use<'a> {
    move |source| PkiError::Io {
        action,
        path: path.display().to_string(),
        source,
    }
}

/// Makes a directory for its owner alone, if there is none.
pub(crate) fn make_private_dir(path: &Path) -> Result<(), PkiError> {
    fs::create_private_dir_all(path).map_err(io("make", path))
}

/// The text of a file, `None` if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io("read", path)(error)),
    }
}

/// The same of a file with a key, which nobody but the owner may read.
pub(crate) fn read_key(path: &Path) -> Result<Option<String>, PkiError> {
    let Some(text) = read(path)? else {
        return Ok(None);
    };
    let mode = fs::metadata(path).map_err(io("read", path))?.mode() & 0o777;
    match mode & !KEY_MODE {
        0 => Ok(Some(text)),
        _ => Err(PkiError::Invalid {
            what: path.display().to_string(),
            why: format!(
                "its mode is {mode:04o}, so that others may read the key; chmod 600 it, or remove it to have it issued anew"
            ),
        }),
    }
}

/// Writes a file with a key, which nobody but the owner may read, in one step: a reader finds the old
/// content or the new one. A file that has the content already is left as it is.
///
/// # Errors
///
/// [`PkiError::Io`].
pub fn write_key_file(path: &Path, content: &str) -> Result<(), PkiError> {
    let is_same = read_key(path).is_ok_and(|present| present.as_deref() == Some(content));
    match is_same {
        true => Ok(()),
        false => replace(path, content, KEY_MODE),
    }
}

/// Writes a file in one step: a reader finds the old content or the new one.
pub(crate) fn replace(path: &Path, content: &str, mode: u32) -> Result<(), PkiError> {
    let fresh = path.with_extension(format!("{}.tmp", random::uuid().simple()));
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    let write = || {
        let mut file = fs::open_with(&options, &fresh)?;
        file.write_all(content.as_bytes())?;
        fs::sync_all(&file)?;
        fs::rename(&fresh, path)
    };
    write().map_err(|error| {
        // What is left of it has no use; that it cannot be removed is not the error to report.
        _ = fs::remove_file(&fresh);
        io("write", path)(error)
    })
}
