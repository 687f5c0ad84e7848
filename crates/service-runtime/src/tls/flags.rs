//! The flags of TLS, which every process that listens has.

use std::{ffi::OsString, path::PathBuf};

use super::TlsFiles;

/// The files of certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct TlsFlags {
    /// Serve with TLS alone, by the certificate in this file (PEM, with those that lead to its
    /// authority); needs --tls-private-key-file [default: no TLS; the API server issues itself a
    /// certificate in --data-dir]
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

/// Flags of TLS that contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFlagsError {
    /// A certificate without its key, or authorities of clients without TLS.
    #[error(
        "--tls-cert-file and --tls-private-key-file need each other, and --client-ca-file both"
    )]
    Incomplete,
    /// Client certificates would have no effect.
    #[error("--client-ca-file needs --authentication=credentials")]
    UnusedClientCa,
}

impl TlsFlags {
    /// The files, if the flags name any. `is_authenticated` says whether clients are told apart.
    ///
    /// # Errors
    ///
    /// [`TlsFlagsError`].
    pub fn files(&self, is_authenticated: bool) -> Result<Option<TlsFiles>, TlsFlagsError> {
        let Self {
            tls_cert_file,
            tls_private_key_file,
            client_ca_file,
        } = self.clone();
        if client_ca_file.is_some() && !is_authenticated {
            return Err(TlsFlagsError::UnusedClientCa);
        }
        match (tls_cert_file, tls_private_key_file) {
            (Some(certificate), Some(key)) => Ok(Some(TlsFiles {
                certificate,
                key,
                client_ca: client_ca_file,
            })),
            (None, None) if client_ca_file.is_none() => Ok(None),
            _ => Err(TlsFlagsError::Incomplete),
        }
    }

    /// The command line with these flags.
    pub fn arguments(&self) -> impl Iterator<Item = OsString> {
        let flags = [
            ("--tls-cert-file=", &self.tls_cert_file),
            ("--tls-private-key-file=", &self.tls_private_key_file),
            ("--client-ca-file=", &self.client_ca_file),
        ];
        flags.into_iter().filter_map(|(flag, value)| {
            let mut argument = OsString::from(flag);
            argument.push(value.as_ref()?);
            Some(argument)
        })
    }
}
