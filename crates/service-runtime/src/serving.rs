//! The ports of the processes besides the API server: their flags, who their clients are, and what
//! these may do.
//!
//! Over TCP a client is known by its certificate alone, so a port without TLS answers only what
//! everyone may ask. Over a unix socket the kernel tells the user of the other process.

mod clients;
mod rights;

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    boundary::AllowedHosts,
    server::{Listen, Listener, ServeError},
    tls::{ServerTls, TlsError, TlsFiles},
};

use self::{clients::ClientAuthenticator, rights::PortGate};

/// The flags of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct ServingFlags {
    /// Authenticate requests by their credentials, or not at all: none accepts everyone who reaches
    /// the address, and needs a loopback address or a unix socket
    ///
    /// With credentials, clients are known by their certificates (--client-ca-file), and processes
    /// of this process' own user and of root by a unix socket. Members of system:masters may do
    /// everything, members of system:monitoring read /metrics, and everyone /livez, /readyz,
    /// /healthz and gRPC health.
    #[arg(
        long,
        env = "PODPLANE_AUTHENTICATION",
        value_enum,
        value_name = "MODE",
        default_value_t
    )]
    pub authentication: PortAuthentication,

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

    /// Serve at this unix socket, too: there processes of this process' own user and of root may do
    /// everything
    #[arg(long, env = "PODPLANE_LOCAL_SOCKET", value_name = "PATH")]
    pub local_socket: Option<PathBuf>,
}

/// The ways to tell who sends a request to a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PortAuthentication {
    /// Everyone who reaches the address may do everything.
    None,
    /// By the client's certificate, or by the kernel's word on the peer of a unix socket.
    #[default]
    Credentials,
}

/// The value of the flag, for clap's default.
impl fmt::Display for PortAuthentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Credentials => "credentials",
        })
    }
}

/// The reasons why a port cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// Without authentication only this machine may reach the port.
    #[error(
        "--authentication=none needs a loopback address or a unix socket, and the address to listen on is {0}: choose --authentication=credentials, or an address such as 127.0.0.1:0"
    )]
    NotLoopback(Listen),
    /// A certificate without its key, or authorities of clients without TLS.
    #[error(
        "--tls-cert-file and --tls-private-key-file need each other, and --client-ca-file both"
    )]
    IncompleteTls,
    /// Client certificates would have no effect.
    #[error("--client-ca-file needs --authentication=credentials")]
    UnusedClientCa,
    /// A unix socket has no TLS.
    #[error("--tls-cert-file needs a TCP address, and the address to listen on is {0}")]
    TlsOnSocket(Listen),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address cannot be bound or published.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl ServingFlags {
    /// The command line with these flags, but the local socket.
    pub fn arguments(&self) -> Vec<OsString> {
        let authentication = format!("--authentication={}", self.authentication);
        let flags = [
            ("--tls-cert-file=", &self.tls_cert_file),
            ("--tls-private-key-file=", &self.tls_private_key_file),
            ("--client-ca-file=", &self.client_ca_file),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| {
            let mut argument = OsString::from(flag);
            argument.push(value.as_ref()?);
            Some(argument)
        });
        std::iter::once(authentication.into())
            .chain(given)
            .collect()
    }

    /// Binds the address, secures it by the flags, and publishes it if there is a file for it; and
    /// the local socket, if there is one. Logs what the flags mean for who may do what.
    ///
    /// # Errors
    ///
    /// Flags that contradict each other or the address, files that cannot be used, and the errors
    /// of [`Listener::bind`] and [`Listener::publish`].
    pub async fn listeners(
        &self,
        listen: &Listen,
        hosts: AllowedHosts,
        address_file: Option<&Path>,
    ) -> Result<Vec<Listener>, ServingError> {
        // Before the address is published: whoever finds that finds both.
        let local = match &self.local_socket {
            Some(path) => Some(guarded(Listener::bind(&Listen::Unix(path.clone())).await?)),
            None => None,
        };
        let port = self.listener(listen, hosts, address_file).await?;
        Ok(std::iter::once(port).chain(local).collect())
    }

    async fn listener(
        &self,
        listen: &Listen,
        hosts: AllowedHosts,
        address_file: Option<&Path>,
    ) -> Result<Listener, ServingError> {
        let tls = self.tls(listen)?;
        let listener = Listener::bind(listen).await?.allowing(hosts);
        let listener = match tls {
            Some(tls) => listener
                .with_tls(tls)
                .map_err(|listener| ServingError::TlsOnSocket(listener.address().clone()))?,
            None => listener,
        };
        if let Some(file) = address_file {
            listener.publish(file)?;
        }
        let is_socket = matches!(listen, Listen::Unix(_));
        let address = listener.client_address();
        match self.authentication {
            PortAuthentication::None => {
                if !is_socket {
                    tracing::warn!(
                        address,
                        "authentication is off: every client that reaches the address may do everything"
                    );
                }
                Ok(listener)
            }
            PortAuthentication::Credentials => {
                if self.client_ca_file.is_none() && !is_socket {
                    tracing::info!(
                        address,
                        "serving health alone: no client can authenticate without --client-ca-file"
                    );
                }
                Ok(guarded(listener))
            }
        }
    }

    /// Checks the flags with the address, and reads the files of TLS if there are any.
    fn tls(&self, listen: &Listen) -> Result<Option<ServerTls>, ServingError> {
        let Self {
            authentication,
            tls_cert_file,
            tls_private_key_file,
            client_ca_file,
            local_socket: _,
        } = self.clone();
        if authentication == PortAuthentication::None {
            if client_ca_file.is_some() {
                return Err(ServingError::UnusedClientCa);
            }
            if matches!(listen, Listen::Tcp(address) if !address.ip().is_loopback()) {
                return Err(ServingError::NotLoopback(listen.clone()));
            }
        }
        let (certificate, key) = match (tls_cert_file, tls_private_key_file) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) if client_ca_file.is_none() => return Ok(None),
            _ => return Err(ServingError::IncompleteTls),
        };
        if matches!(listen, Listen::Unix(_)) {
            return Err(ServingError::TlsOnSocket(listen.clone()));
        }
        Ok(Some(ServerTls::read(&TlsFiles {
            certificate,
            key,
            client_ca: client_ca_file,
        })?))
    }
}

/// The same listener for clients that are known, each with its rights.
fn guarded(listener: Listener) -> Listener {
    let authenticator = Arc::new(ClientAuthenticator::new());
    listener
        .authenticating(authenticator)
        .behind(Arc::new(PortGate))
}

#[cfg(test)]
mod tests;
