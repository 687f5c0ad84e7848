//! Listening sockets and the HTTP and gRPC server.

mod connection;
mod handshakes;
mod plaintext;
mod rewound;

use std::{
    fmt, io,
    net::SocketAddr,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use futures::stream;
use podplane_host::{fs, net};
use tokio_util::sync::CancellationToken;
use tonic::{service::Routes, transport::Server};
use tower::layer::layer_fn;

use self::{connection::Connection, handshakes::TlsSocket};
use crate::{
    authentication::{AuthenticationService, Authenticator, PeerAuthenticator},
    boundary::{AllowedHosts, Boundary, BoundaryMetrics, BoundaryService},
    gate::{GateService, RequestGate},
    peer::Peer,
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
    /// The transport failed while serving.
    #[error("failed to serve gRPC")]
    Transport(#[from] tonic::transport::Error),
}

/// `sun_path` has 108 bytes, one of them the terminating zero.
pub const MAX_SOCKET_PATH: usize = 107;

/// The most open requests and watches of a connection, as many as the clients of the benchmark use.
/// tonic has no limit by default.
const MAX_STREAMS: u32 = 1024;
/// The most header bytes of an HTTP/2 request, as much as gRPC clients send. HTTP/1 has limits of
/// its own in hyper.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

/// A bound socket that is not served yet.
#[derive(Debug)]
pub struct Listener {
    socket: net::Listener,
    address: Listen,
    hosts: AllowedHosts,
    authenticator: Arc<dyn Authenticator>,
    tls: Option<ServerTls>,
    recorder: Option<Arc<dyn RequestRecorder>>,
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
            gate: None,
        })
    }

    /// Binds a socket, and [publishes](Listener::publish) its address if there is a file for it.
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::bind`] and [`Listener::publish`].
    pub async fn published(listen: &Listen, file: Option<&Path>) -> Result<Self, ServeError> {
        let listener = Self::bind(listen).await?;
        if let Some(file) = file {
            listener.publish(file)?;
        }
        Ok(listener)
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
    ) -> Result<(), ServeError> {
        let served_at = self.client_address();
        let boundary = Boundary {
            metrics,
            hosts: match self.address {
                Listen::Tcp(_) => Some(self.hosts),
                Listen::Unix(_) => None,
            },
        };
        let bounded = move |service| BoundaryService {
            service,
            boundary: boundary.clone(),
        };
        let (authenticator, recorder) = (self.authenticator, self.recorder);
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
        let gate = self.gate;
        let gated = move |service| GateService {
            service,
            gate: gate.clone(),
        };
        let server = Server::builder()
            .accept_http1(true)
            .max_concurrent_streams(MAX_STREAMS)
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .layer(layer_fn(AdoptContext))
            .layer(layer_fn(bounded))
            .layer(layer_fn(authenticated))
            .layer(layer_fn(recorded))
            .layer(layer_fn(gated))
            .add_routes(routes);
        tracing::info!(address = served_at, "serving");
        let stop = stop.cancelled_owned();
        let Some(tls) = self.tls else {
            let incoming = stream::poll_fn(move |context| {
                let accepted = self.socket.poll_accept(context);
                let connection = |(stream, remote)| Connection::plain(stream, Peer::from(remote));
                accepted.map_ok(connection).map(Some)
            });
            return Ok(server.serve_with_incoming_shutdown(incoming, stop).await?);
        };
        let mut socket = TlsSocket::new(self.socket, tls);
        let incoming = stream::poll_fn(move |context| socket.poll_accept(context).map(Some));
        Ok(server.serve_with_incoming_shutdown(incoming, stop).await?)
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
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints_addresses() {
        for text in ["127.0.0.1:0", "[::1]:7080", "unix:/run/x.sock"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        for text in ["", "7080", "localhost:1", "unix:", "127.0.0.1:99999"] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn rejects_a_port_in_use() {
        let first = Listener::bind(&"127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let error = Listener::bind(first.address()).await.unwrap_err();
        assert!(
            matches!(error, ServeError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
        );
    }

    #[tokio::test]
    async fn replaces_only_dead_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let listen = Listen::Unix(dir.path().join("s"));
        drop(Listener::bind(&listen).await.unwrap());
        let live = Listener::bind(&listen).await.unwrap();
        assert!(Listener::bind(&listen).await.is_err());
        drop(live);
    }

    #[tokio::test]
    async fn reports_a_socket_path_that_is_too_long() {
        let listen = Listen::Unix(PathBuf::from(format!("/tmp/{}", "x".repeat(120))));
        let error = Listener::bind(&listen).await.unwrap_err();
        assert!(error.to_string().contains("has 125 bytes"), "{error}");
    }
}
