//! Listening sockets and the HTTP and gRPC server.

mod connection;
mod deadline;
mod incoming;
mod pace;
mod refused;
mod rewound;
mod serving;

use std::{
    fmt, io,
    net::SocketAddr,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use podplane_host::{fs, net};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tower::{ServiceBuilder, layer::layer_fn};

use self::{deadline::DeadlineService, incoming::IncomingConnections, serving::ConnectionServer};
use crate::{
    authentication::{AuthenticationService, Authenticator, PeerAuthenticator},
    boundary::{AllowedHosts, Boundary, BoundaryMetrics, BoundaryService},
    flow::{FlowService, RequestFlow},
    gate::{GateService, RequestGate},
    limits::{LimitMetrics, ServerLimits},
    recorder::{RecordedService, RequestRecorder},
    tls::ServerTls,
    trace::AdoptContext,
};

/// An address to listen on: `HOST:PORT` with a numeric host, port 0 for any free one, or
/// `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// An invalid address to listen on.
#[derive(Debug, thiserror::Error)]
#[error(
    "invalid address to listen on {0:?}: want HOST:PORT with a numeric host, such as 127.0.0.1:0 or [::1]:7080, or unix:/path"
)]
pub struct ListenError(String);

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let path = text
            .strip_prefix("unix://")
            .or_else(|| text.strip_prefix("unix:"));
        match path {
            Some("") => Err(ListenError(text.into())),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text
                .parse()
                .map(Self::Tcp)
                .map_err(|_| ListenError(text.into())),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The reasons why a server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound.
    #[error("failed to listen on {listen}")]
    Listen {
        /// The address asked for.
        listen: Listen,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A unix socket's path is longer than the kernel accepts.
    #[error("failed to listen on unix:{}: the path has {} bytes, and Linux allows a socket {MAX_SOCKET_PATH}: choose a shorter directory", .0.display(), .0.as_os_str().len())]
    SocketPathTooLong(PathBuf),
    /// The address file cannot be written.
    #[error("failed to write the address to {}", path.display())]
    AddressFile {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
}

/// `sun_path` has 108 bytes, one of them the terminating zero.
pub const MAX_SOCKET_PATH: usize = 107;

/// A bound socket that is not served yet.
#[derive(Debug)]
pub struct Listener {
    socket: net::Listener,
    address: Listen,
    hosts: AllowedHosts,
    authenticator: Arc<dyn Authenticator>,
    tls: Option<ServerTls>,
    recorder: Option<Arc<dyn RequestRecorder>>,
    limits: ServerLimits,
    flow: Option<Arc<dyn RequestFlow>>,
    gate: Option<Arc<dyn RequestGate>>,
}

impl Listener {
    /// Binds a socket. The unix socket of a dead process is replaced; one that accepts connections
    /// is not. A unix socket has the mode 0600.
    ///
    /// # Errors
    ///
    /// [`ServeError::Listen`] with the system's reason, `AddrInUse` among them;
    /// [`ServeError::SocketPathTooLong`].
    pub async fn bind(listen: &Listen) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Listen {
            listen: listen.clone(),
            source,
        };
        let (socket, address) = match listen {
            Listen::Tcp(address) => {
                let socket = net::listen_tcp(*address).await.map_err(failed)?;
                let address = Listen::Tcp(socket.tcp_address().map_err(failed)?);
                (socket, address)
            }
            Listen::Unix(path) if path.as_os_str().len() > MAX_SOCKET_PATH => {
                return Err(ServeError::SocketPathTooLong(path.clone()));
            }
            Listen::Unix(path) => (bind_unix(path).await.map_err(failed)?, listen.clone()),
        };
        Ok(Self {
            socket,
            address,
            hosts: AllowedHosts::default(),
            authenticator: Arc::new(PeerAuthenticator::new()),
            tls: None,
            recorder: None,
            limits: ServerLimits::default().within_open_files(),
            flow: None,
            gate: None,
        })
    }

    /// Also allows requests that are addressed to these hosts.
    #[must_use]
    pub fn allowing(self, hosts: AllowedHosts) -> Self {
        Self { hosts, ..self }
    }

    /// Authenticates requests by `authenticator`, and not by their peer alone.
    #[must_use]
    pub fn authenticating(self, authenticator: Arc<dyn Authenticator>) -> Self {
        Self {
            authenticator,
            ..self
        }
    }

    /// Serves with TLS alone.
    ///
    /// # Errors
    ///
    /// The same listener, if it is a unix socket, which has no TLS: the kernel tells its peers.
    #[expect(clippy::result_large_err, reason = "called once")]
    pub fn with_tls(self, tls: ServerTls) -> Result<Self, Self> {
        match &self.address {
            Listen::Tcp(_) => Ok(Self {
                tls: Some(tls),
                ..self
            }),
            Listen::Unix(_) => Err(self),
        }
    }

    /// The address as clients write it: `https://HOST:PORT` with TLS, else as in [`Listen`].
    pub fn client_address(&self) -> String {
        match &self.tls {
            Some(_) => format!("https://{}", self.address),
            None => self.address.to_string(),
        }
    }

    /// Records each request that is authenticated, or refused since its sender is not known.
    #[must_use]
    pub fn recording(self, recorder: Arc<dyn RequestRecorder>) -> Self {
        let recorder = Some(recorder);
        Self { recorder, ..self }
    }

    /// Serves within these limits.
    #[must_use]
    pub fn limited(self, limits: ServerLimits) -> Self {
        Self { limits, ..self }
    }

    /// The limits.
    pub fn limits(&self) -> ServerLimits {
        self.limits
    }

    /// Lets `flow` say when requests are served that are authenticated.
    #[must_use]
    pub fn controlled(self, flow: Arc<dyn RequestFlow>) -> Self {
        let flow = Some(flow);
        Self { flow, ..self }
    }

    /// Asks `gate` about each request that is authenticated.
    #[must_use]
    pub fn behind(self, gate: Arc<dyn RequestGate>) -> Self {
        let gate = Some(gate);
        Self { gate, ..self }
    }

    /// The address, with the actual port for port 0.
    pub fn address(&self) -> &Listen {
        &self.address
    }

    /// Writes the [address for clients](Listener::client_address) and a newline to `path`,
    /// atomically, so that a reader sees either all of it or no file.
    ///
    /// # Errors
    ///
    /// [`ServeError::AddressFile`].
    pub fn publish(&self, path: &Path) -> Result<(), ServeError> {
        let failed = |source| ServeError::AddressFile {
            path: path.into(),
            source,
        };
        let new = path.with_extension("new");
        fs::write(&new, format!("{}\n", self.client_address())).map_err(failed)?;
        fs::rename(&new, path).map_err(failed)
    }

    /// Serves routes until `stop`. Open streams must watch `stop` themselves, since a graceful
    /// shutdown waits for them.
    pub(crate) async fn serve(
        self,
        routes: Routes,
        stop: CancellationToken,
        metrics: BoundaryMetrics,
        limit_metrics: LimitMetrics,
    ) -> Result<(), ServeError> {
        let served_at = self.client_address();
        let Self {
            socket,
            address,
            hosts,
            authenticator,
            tls,
            limits,
            flow,
            gate,
            recorder,
        } = self;
        let boundary = Boundary {
            metrics,
            limits: limit_metrics.clone(),
            hosts: match address {
                Listen::Tcp(_) => Some(hosts),
                Listen::Unix(_) => None,
            },
        };
        let bounded = move |service| BoundaryService {
            service,
            boundary: boundary.clone(),
        };
        let recorded = {
            let recorder = recorder.clone();
            move |service| RecordedService {
                service,
                recorder: recorder.clone(),
            }
        };
        let authenticated = move |service| AuthenticationService {
            service,
            authenticator: Arc::clone(&authenticator),
            recorder: recorder.clone(),
        };
        let controlled = move |service| FlowService {
            service,
            flow: flow.clone(),
        };
        let gated = move |service| GateService {
            service,
            gate: gate.clone(),
        };
        let service = ServiceBuilder::new()
            .layer(layer_fn(DeadlineService))
            .layer(layer_fn(AdoptContext))
            .layer(layer_fn(bounded))
            .layer(layer_fn(authenticated))
            .layer(layer_fn(recorded))
            .layer(layer_fn(controlled))
            .layer(layer_fn(gated))
            .service(routes.prepare());
        tracing::info!(address = served_at, "serving");
        let incoming = IncomingConnections::new(socket, tls, limits, limit_metrics.clone());
        let server = ConnectionServer {
            service,
            limits,
            metrics: limit_metrics,
            stop,
        };
        server.run(incoming).await;
        Ok(())
    }
}

async fn bind_unix(path: &Path) -> io::Result<net::Listener> {
    use std::os::unix::fs::PermissionsExt as _;

    if net::connect_unix(path).await.is_ok() {
        return Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another process listens there",
        ));
    }
    match fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "a file that is not a socket exists there",
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = net::listen_unix(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

#[cfg(test)]
mod tests;
