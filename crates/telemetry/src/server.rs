//! Where a server listens.

use std::{
    fmt, fs, io,
    net::SocketAddr,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    str::FromStr,
};

use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    service::Routes,
    transport::{Server, server::TcpIncoming},
};
use tower::layer::layer_fn;

use crate::{
    boundary::{AllowedHosts, Boundary, Bounded, Metrics},
    trace::Adopt,
};

/// Where to listen: `HOST:PORT` with a numeric host, port 0 for any free one, or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// Not an address to listen on.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is no address to listen on: want HOST:PORT with a numeric host, such as 127.0.0.1:0 or [::1]:7080, or unix:/path"
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

/// Why a server does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be had.
    #[error("listen on {listen}")]
    Listen {
        /// The address asked for.
        listen: Listen,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A unix socket's path is longer than the kernel takes.
    #[error("listen on unix:{}: the path has {} bytes, and Linux allows a socket {MAX_SOCKET_PATH}: choose a shorter directory", .0.display(), .0.as_os_str().len())]
    SocketPathTooLong(PathBuf),
    /// The file that tells others the address cannot be written.
    #[error("write the address to {}", path.display())]
    AddressFile {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The transport failed while serving.
    #[error("serve gRPC")]
    Transport(#[from] tonic::transport::Error),
}

/// `sun_path` has 108 bytes, one of them the terminating zero.
pub const MAX_SOCKET_PATH: usize = 107;

/// Requests and watches that one connection may have open, as many as the clients of the benchmark use. tonic has no limit by itself.
const MAX_STREAMS: u32 = 1024;
/// Headers of one request over HTTP/2, as large as gRPC clients send them. HTTP/1 has limits of its own in hyper.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

/// A bound address on which nothing is answered yet.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Listen,
    hosts: AllowedHosts,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Binds. A unix socket left behind by a process that is gone is replaced; one that answers is not. Its mode is 0600.
    ///
    /// # Errors
    ///
    /// [`ServeError::Listen`] with the system's reason, `AddrInUse` among them; [`ServeError::SocketPathTooLong`].
    pub async fn bind(listen: &Listen) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Listen {
            listen: listen.clone(),
            source,
        };
        match listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                let address = Listen::Tcp(listener.local_addr().map_err(failed)?);
                Ok(Self {
                    socket: Socket::Tcp(listener),
                    address,
                    hosts: AllowedHosts::default(),
                })
            }
            Listen::Unix(path) if path.as_os_str().len() > MAX_SOCKET_PATH => {
                Err(ServeError::SocketPathTooLong(path.clone()))
            }
            Listen::Unix(path) => {
                let listener = bind_unix(path).await.map_err(failed)?;
                Ok(Self {
                    socket: Socket::Unix(listener),
                    address: listen.clone(),
                    hosts: AllowedHosts::default(),
                })
            }
        }
    }

    /// Binds, and [publishes](Listener::publish) the address if there is a file for it.
    ///
    /// # Errors
    ///
    /// Those of both.
    pub async fn published(listen: &Listen, file: Option<&Path>) -> Result<Self, ServeError> {
        let listener = Self::bind(listen).await?;
        if let Some(file) = file {
            listener.publish(file)?;
        }
        Ok(listener)
    }

    /// The same, for requests that are addressed to these hosts too.
    #[must_use]
    pub fn allowing(self, hosts: AllowedHosts) -> Self {
        Self { hosts, ..self }
    }

    /// The address, with the port that was given for port 0.
    pub fn address(&self) -> &Listen {
        &self.address
    }

    /// Tells others the address: writes it to `path` and a newline, in one step, so that a reader sees all of it or nothing.
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
        fs::write(&new, format!("{}\n", self.address)).map_err(failed)?;
        fs::rename(&new, path).map_err(failed)
    }

    /// Serves routes until `stop`. Open streams must watch `stop` themselves, since a graceful shutdown waits for them.
    pub(crate) async fn serve(
        self,
        routes: Routes,
        stop: CancellationToken,
        metrics: Metrics,
    ) -> Result<(), ServeError> {
        let boundary = Boundary {
            metrics,
            hosts: match self.address {
                Listen::Tcp(_) => Some(self.hosts),
                Listen::Unix(_) => None,
            },
        };
        let bounded = move |service| Bounded {
            service,
            boundary: boundary.clone(),
        };
        let server = Server::builder()
            .accept_http1(true)
            .max_concurrent_streams(MAX_STREAMS)
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .layer(layer_fn(Adopt))
            .layer(layer_fn(bounded))
            .add_routes(routes);
        tracing::info!(address = %self.address, "serving");
        let stop = stop.cancelled_owned();
        match self.socket {
            Socket::Tcp(listener) => {
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                server.serve_with_incoming_shutdown(incoming, stop).await?;
            }
            Socket::Unix(listener) => {
                server
                    .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop)
                    .await?;
            }
        }
        Ok(())
    }
}

async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::PermissionsExt as _;

    if UnixStream::connect(path).await.is_ok() {
        return Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another process answers there",
        ));
    }
    match fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "a file that is no socket is there",
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print() {
        for text in ["127.0.0.1:0", "[::1]:7080", "unix:/run/x.sock"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        for text in ["", "7080", "localhost:1", "unix:", "127.0.0.1:99999"] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_refused() {
        let first = Listener::bind(&"127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let error = Listener::bind(first.address()).await.unwrap_err();
        assert!(
            matches!(error, ServeError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
        );
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let listen = Listen::Unix(dir.path().join("s"));
        drop(Listener::bind(&listen).await.unwrap());
        let live = Listener::bind(&listen).await.unwrap();
        assert!(Listener::bind(&listen).await.is_err());
        drop(live);
    }

    #[tokio::test]
    async fn a_path_too_long_is_named() {
        let listen = Listen::Unix(PathBuf::from(format!("/tmp/{}", "x".repeat(120))));
        let error = Listener::bind(&listen).await.unwrap_err();
        assert!(error.to_string().contains("has 125 bytes"), "{error}");
    }
}
