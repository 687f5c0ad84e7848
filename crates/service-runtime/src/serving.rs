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
    tls::{ServerTls, TlsError, TlsFlags, TlsFlagsError},
};

use self::clients::ClientAuthenticator;
use self::rights::PortGate;
pub use self::rights::{PortRights, ServiceCaller};

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
    pub authentication: AuthenticationMode,

    /// The certificates.
    #[command(flatten)]
    pub tls: TlsFlags,

    /// Serve at this unix socket, too: there processes of this process' own user and of root may do
    /// everything
    #[arg(long, env = "PODPLANE_LOCAL_SOCKET", value_name = "PATH")]
    pub local_socket: Option<PathBuf>,
}

/// The ways to tell who sends a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AuthenticationMode {
    /// By what the client and its connection prove.
    #[default]
    Credentials,
    /// Not at all: everyone who reaches the address may do everything.
    None,
}

/// The value of the flag, for clap's default.
impl fmt::Display for AuthenticationMode {
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
    /// The flags of TLS contradict each other.
    #[error(transparent)]
    TlsFlags(#[from] TlsFlagsError),
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
        std::iter::once(authentication.into())
            .chain(self.tls.arguments())
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
        let rights = PortRights::default();
        self.listeners_for(rights, listen, hosts, address_file)
            .await
    }

    /// The same for a port at which clients have these rights, too.
    ///
    /// # Errors
    ///
    /// Those of [`listeners`](Self::listeners).
    pub async fn listeners_for(
        &self,
        rights: PortRights,
        listen: &Listen,
        hosts: AllowedHosts,
        address_file: Option<&Path>,
    ) -> Result<Vec<Listener>, ServingError> {
        // Before the address is published: whoever finds that finds both.
        let local = match &self.local_socket {
            Some(path) => {
                let listener = Listener::bind(&Listen::Unix(path.clone())).await?;
                Some(guarded(listener, rights))
            }
            None => None,
        };
        let port = self.listener(rights, listen, hosts, address_file).await?;
        Ok(std::iter::once(port).chain(local).collect())
    }

    async fn listener(
        &self,
        rights: PortRights,
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
            AuthenticationMode::None => {
                if !is_socket {
                    tracing::warn!(
                        address,
                        "authentication is off: every client that reaches the address may do everything"
                    );
                }
                Ok(listener)
            }
            AuthenticationMode::Credentials => {
                let serves_health_alone = rights.posts.is_empty() && !is_socket;
                if self.tls.client_ca_file.is_none() && serves_health_alone {
                    tracing::info!(
                        address,
                        "serving health alone: no client can authenticate without --client-ca-file"
                    );
                }
                Ok(guarded(listener, rights))
            }
        }
    }

    /// Checks the flags with the address, and reads the files of TLS if there are any.
    fn tls(&self, listen: &Listen) -> Result<Option<ServerTls>, ServingError> {
        let is_authenticated = self.authentication == AuthenticationMode::Credentials;
        let files = self.tls.files(is_authenticated)?;
        let is_far = matches!(listen, Listen::Tcp(address) if !address.ip().is_loopback());
        if !is_authenticated && is_far {
            return Err(ServingError::NotLoopback(listen.clone()));
        }
        match files {
            None => Ok(None),
            Some(_) if matches!(listen, Listen::Unix(_)) => {
                Err(ServingError::TlsOnSocket(listen.clone()))
            }
            Some(files) => Ok(Some(ServerTls::read(&files)?)),
        }
    }
}

/// The same listener for clients that are known, each with its rights.
fn guarded(listener: Listener, rights: PortRights) -> Listener {
    let authenticator = Arc::new(ClientAuthenticator::new());
    listener
        .authenticating(authenticator)
        .behind(Arc::new(PortGate { rights }))
}

#[cfg(test)]
mod tests;
