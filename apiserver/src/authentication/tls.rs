use std::path::PathBuf;

use podplane_service_runtime::{
    server::Listener,
    tls::{ServerTls, TlsFiles},
};

use super::AuthenticationFlags;
use crate::ApiserverRunError;

/// The flags of TLS.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TlsFlags {
    /// Serve with TLS alone, by the certificate in this file (PEM, with those that lead to its
    /// authority); needs --tls-private-key-file [default: a certificate that the server issues
    /// itself in --data-dir, with an authority, an administrator's certificate and a kubeconfig;
    /// no TLS with --authentication=none]
    ///
    /// The files of certificates are read again when they change: connections that begin later
    /// have the new certificate.
    #[arg(
        long,
        env = "PODPLANE_TLS_CERT_FILE",
        value_name = "FILE",
        requires = "tls_private_key_file"
    )]
    pub tls_cert_file: Option<PathBuf>,

    /// Use the private key in this file (PEM), which may be the file of --tls-cert-file
    #[arg(
        long,
        env = "PODPLANE_TLS_PRIVATE_KEY_FILE",
        value_name = "FILE",
        requires = "tls_cert_file"
    )]
    pub tls_private_key_file: Option<PathBuf>,

    /// Accept client certificates of the authorities in this file (PEM): the common name is the
    /// user, and each organization a group; needs --tls-cert-file and --authentication=credentials
    #[arg(
        long,
        env = "PODPLANE_CLIENT_CA_FILE",
        value_name = "FILE",
        requires = "tls_cert_file"
    )]
    pub client_ca_file: Option<PathBuf>,
}

impl TlsFlags {
    /// The files, if the flags name any.
    ///
    /// # Errors
    ///
    /// Flags that contradict each other.
    pub(crate) fn files(
        &self,
        authentication: &AuthenticationFlags,
    ) -> Result<Option<TlsFiles>, ApiserverRunError> {
        let Self {
            tls_cert_file,
            tls_private_key_file,
            client_ca_file,
        } = self.clone();
        let (certificate, key) = match (tls_cert_file, tls_private_key_file) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) if client_ca_file.is_none() => return Ok(None),
            _ => return Err(ApiserverRunError::IncompleteTls),
        };
        if client_ca_file.is_some() && !authentication.is_on() {
            return Err(ApiserverRunError::UnusedClientCa);
        }
        Ok(Some(TlsFiles {
            certificate,
            key,
            client_ca: client_ca_file,
        }))
    }
}

/// The listener with TLS by these files.
///
/// # Errors
///
/// A unix socket, and files that cannot be used.
pub(crate) fn secure(listener: Listener, files: &TlsFiles) -> Result<Listener, ApiserverRunError> {
    let tls = ServerTls::read(files)?;
    listener
        .with_tls(tls)
        .map_err(|listener| ApiserverRunError::TlsOnSocket(listener.address().clone()))
}
