//! The certificates of a cluster's processes and nodes.
//!
//! The supervisor issues them before it starts the processes. The API server, which has the same
//! authority, renews them ([`podplane_pki::PkiDir`]).

use std::{io, path::PathBuf, time::Duration};

use anyhow::Context as _;
use podplane_client::CredentialFlags;
use podplane_host::{clock, fs};
use podplane_pki::{CertificateOwner, PkiDir, kubeconfig::AccessFiles, owner};
use podplane_service_runtime::{serving::ServingFlags, tls::TlsFlags};

use crate::data_dir::DataDir;

/// The authority of the cluster and the certificates that it has issued, in `pki` in the data
/// directory.
#[derive(Clone, Debug)]
pub struct ClusterCertificates(PathBuf);

impl ClusterCertificates {
    /// Those of the cluster in this directory, which may not exist yet.
    pub fn of(dir: &DataDir) -> Self {
        Self(dir.path().join("pki"))
    }

    /// Makes sure that these owners have certificates that live long enough; makes the authority if
    /// there is none.
    pub(crate) fn ensure(
        &self,
        owners: &[CertificateOwner],
        lifetime: Duration,
    ) -> anyhow::Result<()> {
        let now = clock::timestamp();
        let dir = PkiDir::open(&self.0, owner::AUTHORITY, now)?;
        for owner in owners {
            dir.ensure(&owner.to_string(), &owner.terms(&[], lifetime), now)?;
        }
        Ok(())
    }

    /// Removes the certificates of owners who are gone.
    pub(crate) fn remove(&self, owners: &[CertificateOwner]) -> anyhow::Result<()> {
        owners.iter().try_for_each(|owner| {
            let file = self.file(owner);
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("failed to remove {}", file.display()))
                }
                _ => Ok(()),
            }
        })
    }

    /// The file with the key and certificate of an owner.
    pub(crate) fn file(&self, owner: &CertificateOwner) -> PathBuf {
        self.0.join(format!("{owner}.pem"))
    }

    /// The certificate of the authority.
    pub(crate) fn authority(&self) -> PathBuf {
        self.0.join("ca.crt")
    }

    /// Returns true if there is an authority.
    pub fn exist(&self) -> bool {
        fs::exists(self.authority())
    }

    /// The key of the authority, which whoever signs certificates needs.
    pub(crate) fn authority_key(&self) -> PathBuf {
        self.0.join("ca.key")
    }

    /// The files of the administrator.
    pub fn administrator(&self) -> AccessFiles {
        AccessFiles::of_administrator(&self.0)
    }

    /// The flags of a client of the API server that shows the certificate of `owner`.
    pub(crate) fn credentials(&self, owner: &CertificateOwner) -> CredentialFlags {
        let pair = self.file(owner);
        CredentialFlags {
            certificate_authority: Some(self.authority()),
            client_certificate: Some(pair.clone()),
            client_key: Some(pair),
            tls_server_name: owner::APISERVER_NAME.try_into().ok(),
            token_file: None,
        }
    }

    /// The flags of the port of a process.
    pub(crate) fn serving(&self, process: &str) -> ServingFlags {
        let pair = self.file(&CertificateOwner::Serving(process.to_owned()));
        ServingFlags {
            tls: TlsFlags {
                tls_cert_file: Some(pair.clone()),
                tls_private_key_file: Some(pair),
                client_ca_file: Some(self.authority()),
            },
            ..ServingFlags::default()
        }
    }

    /// The same of the administrator, for another process than the API server, whose certificate
    /// has the names of this machine.
    pub fn for_ports(&self) -> CredentialFlags {
        CredentialFlags {
            tls_server_name: None,
            ..self.credentials(&CertificateOwner::Admin)
        }
    }
}
