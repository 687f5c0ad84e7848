//! The certificates that the server makes for itself if it is given none: those of a cluster on one
//! machine.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    time::Duration,
};

use podplane_api::jiff::Timestamp;
use podplane_host::{clock, fs, task};
use podplane_pki::{
    CertificateFile, CertificateOwner, CertificateTerms, PkiDir, PkiError, Renewal, ServerName,
    kubeconfig::{self, AccessFiles},
    owner,
};
use podplane_service_runtime::{boundary::AllowedHosts, server::Listen, tls::TlsFiles};

/// The interval of checks whether a certificate has to be renewed: two thirds of its life have
/// passed. Short enough for the shortest life that `podplane certs` gives.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(15);

/// The flags of the certificates that the server makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct OwnCertificateFlags {
    /// Let the certificates in DATA_DIR/pki expire after this long, such as 720h; at least 15s
    ///
    /// Each is renewed when two thirds of its life have passed. One that was issued for longer is
    /// kept until then.
    #[arg(
        hide_short_help = true,
        long,
        env = "PODPLANE_CERTIFICATE_LIFETIME",
        value_name = "DURATION",
        default_value = "8760h",
        value_parser = owner::renewed_lifetime
    )]
    pub certificate_lifetime: Duration,
}

impl Default for OwnCertificateFlags {
    fn default() -> Self {
        Self {
            certificate_lifetime: owner::LIFETIME,
        }
    }
}

/// The certificates of the server and of an administrator in `pki` in the data directory, and the
/// `kubeconfig` beside it.
#[derive(Clone, Debug)]
pub(crate) struct OwnCertificates {
    data_dir: PathBuf,
    /// The names of the server besides those that every certificate of an API server has.
    names: Vec<ServerName>,
    /// The life of a certificate of the server or the administrator.
    lifetime: Duration,
}

impl OwnCertificates {
    /// Makes the authority and the certificates that are missing.
    ///
    /// # Errors
    ///
    /// [`PkiError`] if a file cannot be used or written.
    pub(crate) fn make(
        data_dir: &Path,
        listen: &Listen,
        hosts: &AllowedHosts,
        flags: OwnCertificateFlags,
    ) -> Result<Self, PkiError> {
        let address = match listen {
            Listen::Tcp(address) if !address.ip().is_unspecified() => Some(address.ip()),
            Listen::Tcp(_) | Listen::Unix(_) => None,
        };
        // Requests may use these names, and no others.
        let hosts = hosts
            .names
            .iter()
            .filter_map(|name| name.to_string().parse().ok());
        let own = Self {
            data_dir: data_dir.to_owned(),
            names: address
                .map(ServerName::Ip)
                .into_iter()
                .chain(hosts)
                .collect(),
            lifetime: flags.certificate_lifetime,
        };
        own.renew_own()?;
        Ok(own)
    }

    /// The files for a listening socket.
    pub(crate) fn tls_files(&self) -> TlsFiles {
        let pair = self.file(&CertificateOwner::Apiserver);
        TlsFiles {
            certificate: pair.clone(),
            key: pair,
            client_ca: Some(self.pki().join("ca.crt")),
        }
    }

    fn pki(&self) -> PathBuf {
        self.data_dir.join("pki")
    }

    fn file(&self, owner: &CertificateOwner) -> PathBuf {
        self.pki().join(format!("{owner}.pem"))
    }

    /// Issues what is missing or expires soon of the server and the administrator; returns true if
    /// the administrator's was.
    fn renew_own(&self) -> Result<bool, PkiError> {
        let now = clock::timestamp();
        let dir = PkiDir::open(&self.pki(), owner::AUTHORITY, now)?;
        let own = [CertificateOwner::Apiserver, CertificateOwner::Admin];
        let [_, is_admins] = own.map(|owner| {
            let terms = owner.terms(&self.names, self.lifetime);
            ensure(&dir, &owner.to_string(), &terms, now)
        });
        is_admins
    }

    /// Issues anew what expires soon of everyone else who has a certificate in the directory.
    /// Whoever has issued it first decides what it says. Returns the time of the next renewal.
    fn renew_others(&self) -> Result<Timestamp, PkiError> {
        let now = clock::timestamp();
        let dir = PkiDir::open(&self.pki(), owner::AUTHORITY, now)?;
        let mut next = Timestamp::MAX;
        for CertificateFile { name, info } in dir.certificates()? {
            match info {
                Ok(info) => {
                    ensure(&dir, &name, &info.terms, now)?;
                    next = next.min(info.renew_at());
                }
                Err(error) => {
                    tracing::warn!(certificate = name, %error, "a certificate cannot be renewed");
                }
            }
        }
        Ok(next)
    }

    /// Renews all certificates that are due, and writes the kubeconfig for the administrator's.
    fn renew(&self, server: &str) -> Result<Timestamp, PkiError> {
        if self.renew_own()? {
            Kubeconfig::Administrators(self.clone()).write(&self.data_dir, server)?;
        }
        self.renew_others()
    }

    /// Renews certificates before they expire. The files are read when one was changed or is due. A
    /// failure is logged and tried again: there is time until the certificate expires.
    pub(crate) async fn keep(self, server: String) -> Result<(), Infallible> {
        let shortest = Duration::from_secs(1);
        let interval = (self.lifetime / 15).clamp(shortest, RENEWAL_INTERVAL);
        let mut interval = clock::interval(interval);
        let (mut read, mut next) = (None, Timestamp::MIN);
        loop {
            interval.tick().await;
            let changed = fs::metadata(self.pki()).and_then(|dir| dir.modified()).ok();
            if changed.is_some() && changed == read && clock::timestamp() < next {
                continue;
            }
            let (own, server) = (self.clone(), server.clone());
            match task::spawn_blocking(move || own.renew(&server)).await {
                Ok(Ok(due)) => (read, next) = (changed, due),
                Ok(Err(error)) => {
                    let error = podplane_error_chain::one_line(&error);
                    tracing::error!(error, "certificates cannot be renewed");
                }
                Err(error) => tracing::error!(%error, "certificates cannot be renewed"),
            }
        }
    }
}

/// Makes sure of a certificate on these terms; returns true if it was issued.
fn ensure(
    dir: &PkiDir,
    name: &str,
    terms: &CertificateTerms,
    now: Timestamp,
) -> Result<bool, PkiError> {
    let renewal = dir.ensure(name, terms, now)?;
    if renewal == Renewal::Issued {
        tracing::info!(certificate = name, "issued a certificate");
    }
    Ok(renewal == Renewal::Issued)
}

/// The file `kubeconfig` in the data directory.
#[derive(Clone, Debug)]
pub(crate) enum Kubeconfig {
    /// With the certificate of an administrator.
    Administrators(OwnCertificates),
    /// Without credentials, for a server that asks for none.
    Anyones,
    /// None: the server does not know who its clients are to be, or no client can reach it.
    Nobodys,
}

impl Kubeconfig {
    /// Writes the file for the server at this address, or removes one that is of no use.
    ///
    /// # Errors
    ///
    /// [`PkiError`] if a certificate cannot be read, or the file not be written.
    pub(crate) fn write(&self, data_dir: &Path, server: &str) -> Result<(), PkiError> {
        let path = data_dir.join("kubeconfig");
        let files = match self {
            Self::Administrators(own) => AccessFiles::of_administrator(&own.pki()),
            Self::Anyones => AccessFiles::default(),
            Self::Nobodys => return kubeconfig::remove(&path),
        };
        let url = match server.contains("://") {
            true => server.to_owned(),
            false => format!("http://{server}"),
        };
        let document = kubeconfig::document(&kubeconfig::context(data_dir), &url, &files)?;
        kubeconfig::write(&path, &document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_expires_soon_is_renewed_and_the_next_renewal_is_known() {
        let temporary = tempfile::tempdir().unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let own = OwnCertificates::make(
            temporary.path(),
            &listen,
            &AllowedHosts::default(),
            OwnCertificateFlags::default(),
        );
        let own = own.unwrap();
        assert!(!own.renew_own().unwrap(), "they are new");
        let minute = Duration::from_secs(60);
        let (owner, now) = (CertificateOwner::Node("a".to_owned()), clock::timestamp());
        let dir = PkiDir::open(&own.pki(), owner::AUTHORITY, now).unwrap();
        let before = now - Duration::from_secs(50);
        let terms = owner.terms(&[], minute);
        dir.issue(&owner.to_string(), &terms, before).unwrap();
        let old = fs::read_to_string(own.file(&owner)).unwrap();
        own.renew_others().unwrap();
        let renewed = fs::read_to_string(own.file(&owner)).unwrap();
        assert_ne!(renewed, old);
        let next = own.renew_others().unwrap().duration_since(now).as_secs();
        assert!((35..=60).contains(&next), "{next}");
        assert_eq!(fs::read_to_string(own.file(&owner)).unwrap(), renewed);
    }
}
