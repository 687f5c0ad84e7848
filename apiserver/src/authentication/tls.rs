use std::path::PathBuf;

use podplane_service_runtime::{
    server::Listener,
    tls::{ServerTls, TlsFiles},
};

use super::{AuthenticationFlags, AuthenticationMode};
use crate::ApiserverRunError;

/// The flags of TLS.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TlsFlags {
    /// Serve with TLS alone, by the certificate in this file (PEM, with those that lead to its
    /// authority); needs --tls-private-key-file [default: no TLS]
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
    /// The listener with TLS, if the flags ask for it.
    ///
    /// # Errors
    ///
    /// Flags that contradict each other or the address, and files that cannot be used.
    pub(crate) fn secure(
        &self,
        listener: Listener,
        authentication: &AuthenticationFlags,
    ) -> Result<Listener, ApiserverRunError> {
        let Self {
            tls_cert_file,
            tls_private_key_file,
            client_ca_file,
        } = self.clone();
        let (certificate, key) = match (tls_cert_file, tls_private_key_file) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) if client_ca_file.is_none() => return Ok(listener),
            _ => return Err(ApiserverRunError::IncompleteTls),
        };
        let mode = authentication.authentication.unwrap_or_default();
        if client_ca_file.is_some() && mode != AuthenticationMode::Credentials {
            return Err(ApiserverRunError::UnusedClientCa);
        }
        let tls = ServerTls::read(&TlsFiles {
            certificate,
            key,
            client_ca: client_ca_file,
        })?;
        listener
            .with_tls(tls)
            .map_err(|listener| ApiserverRunError::TlsOnSocket(listener.address().clone()))
    }
}
