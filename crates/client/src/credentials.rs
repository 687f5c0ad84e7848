//! The credentials of a client: files, which are read again when they change.

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::HeaderValue;
use podplane_host::fs;
use podplane_pki::{PkiError, ReloadedFiles, kubeconfig::AccessFiles, tls};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;

use crate::endpoint::EndpointError;

/// The flags of every process that talks to the API server, by the names of kubectl's.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct CredentialFlags {
    /// Trust the certificate authorities in this file (PEM) for the server's certificate; needed
    /// for https://
    #[arg(
        long,
        env = "PODPLANE_CERTIFICATE_AUTHORITY",
        value_name = "FILE",
        global = true
    )]
    pub certificate_authority: Option<PathBuf>,

    /// Show the server the client certificate in this file (PEM); needs --client-key
    #[arg(
        long,
        env = "PODPLANE_CLIENT_CERTIFICATE",
        value_name = "FILE",
        requires = "client_key",
        global = true
    )]
    pub client_certificate: Option<PathBuf>,

    /// Use the private key in this file (PEM), which may be the file of --client-certificate
    #[arg(
        long,
        env = "PODPLANE_CLIENT_KEY",
        value_name = "FILE",
        requires = "client_certificate",
        global = true
    )]
    pub client_key: Option<PathBuf>,

    /// Expect this name in the server's certificate [default: the host in the server's address]
    #[arg(
        long,
        env = "PODPLANE_TLS_SERVER_NAME",
        value_name = "NAME",
        value_parser = server_name,
        global = true
    )]
    pub tls_server_name: Option<ServerName<'static>>,

    /// Send the bearer token in this file; only with TLS, to this machine, or over a unix socket
    #[arg(long, env = "PODPLANE_TOKEN_FILE", value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,
}

fn server_name(text: &str) -> Result<ServerName<'static>, String> {
    let name = ServerName::try_from(text.to_owned());
    name.map_err(|_| "want a DNS name or an IP address".to_owned())
}

/// The credentials of one endpoint. Never printed.
pub(crate) struct Credentials {
    /// `None` without a certificate authority: then nothing is reached by TLS.
    pub(crate) tls: Option<ReloadedFiles<Arc<ClientConfig>>>,
    pub(crate) server_name: Option<ServerName<'static>>,
    /// The value of the header `Authorization`.
    pub(crate) token: Option<ReloadedFiles<HeaderValue>>,
}

impl Credentials {
    /// The configuration of TLS as the files have it now.
    pub(crate) fn config(&self) -> Option<Arc<ClientConfig>> {
        let tls = self.tls.as_ref()?;
        Some(Arc::clone(&*tls.current()))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

impl CredentialFlags {
    /// The command line with these flags, for a process that talks to the same server.
    pub fn arguments(&self) -> Vec<OsString> {
        let Self {
            certificate_authority,
            client_certificate,
            client_key,
            tls_server_name,
            token_file,
        } = self;
        let server_name = tls_server_name
            .as_ref()
            .map(|name| name.to_str().into_owned());
        let path = |path: &Option<PathBuf>| path.clone().map(OsString::from);
        let flags = [
            ("--certificate-authority=", path(certificate_authority)),
            ("--client-certificate=", path(client_certificate)),
            ("--client-key=", path(client_key)),
            ("--tls-server-name=", server_name.map(OsString::from)),
            ("--token-file=", path(token_file)),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| {
            let mut argument = OsString::from(flag);
            argument.push(value?);
            Some(argument)
        });
        given.collect()
    }

    /// The files, as a kubeconfig has them.
    pub fn files(&self) -> AccessFiles {
        let server_name = self.tls_server_name.as_ref();
        AccessFiles {
            certificate_authority: self.certificate_authority.clone(),
            client_certificate: self.client_certificate.clone(),
            client_key: self.client_key.clone(),
            tls_server_name: server_name.map(|name| name.to_str().into_owned()),
            token_file: self.token_file.clone(),
        }
    }

    /// Reads the files. `None` without flags.
    pub(crate) fn read(&self) -> Result<Option<Credentials>, EndpointError> {
        let Self {
            certificate_authority,
            client_certificate,
            client_key,
            tls_server_name,
            token_file,
        } = self.clone();
        if self == &Self::default() {
            return Ok(None);
        }
        let client = match (client_certificate, client_key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return Err(EndpointError::IncompleteKeyPair),
        };
        if client.is_some() && certificate_authority.is_none() {
            return Err(EndpointError::MissingAuthority(
                "--client-certificate".to_owned(),
            ));
        }
        let tls = certificate_authority.map(|authority| {
            let pair = client
                .iter()
                .flat_map(|(certificate, key)| [certificate, key]);
            let files = std::iter::once(&authority).chain(pair).cloned().collect();
            ReloadedFiles::open(files, move || {
                tls::http2_client(&authority, client.as_ref())
            })
        });
        let token = token_file
            .map(|file| ReloadedFiles::open(vec![file.clone()], move || authorization(&file)));
        Ok(Some(Credentials {
            tls: tls.transpose().map_err(EndpointError::Credentials)?,
            server_name: tls_server_name,
            token: token.transpose().map_err(EndpointError::Credentials)?,
        }))
    }
}

/// The header for the token in the file, which may end with a newline.
fn authorization(file: &Path) -> Result<HeaderValue, PkiError> {
    let path = file.display().to_string();
    let text = fs::read_to_string(file).map_err(|source| PkiError::Io {
        action: "read",
        path: path.clone(),
        source,
    })?;
    let token = text.trim();
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let header = HeaderValue::from_str(&format!("Bearer {token}")).ok();
    let mut header = header.filter(|_| is_token).ok_or(PkiError::Invalid {
        what: path,
        why: "it must have one bearer token, without spaces and of ASCII characters".to_owned(),
    })?;
    header.set_sensitive(true);
    Ok(header)
}
