//! The address of a server, and the one place where a channel to it is built.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use hyper_util::rt::TokioIo;
use podplane_host::{fs, net};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity, Uri};

/// The limit of a connection attempt. A call waits for it and then fails as unavailable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval of probes on an idle connection, so that a watch over a dead link ends instead of
/// hanging.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// The address of a gRPC server: `HOST:PORT`, `http://HOST:PORT`, `https://HOST:PORT`, `unix:PATH`,
/// or `file:PATH`. The file holds an address of another form, except `https`, once there is a
/// server.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    target: EndpointTarget,
    tls: Option<TlsIdentity>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum EndpointTarget {
    Uri(Uri),
    Unix(PathBuf),
    File(PathBuf),
}

/// A client's trusted authority and its own identity, in PEM. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsIdentity {
    /// The authority that signed the server's certificate.
    pub ca: Vec<u8>,
    /// The client's certificate and private key, if the server asks for one.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsIdentity(..)")
    }
}

/// An invalid address or invalid TLS material.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The text is not an address.
    #[error(
        "invalid server address {0:?}: want HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:/path"
    )]
    Address(String),
    /// The TLS material is not PEM, or the address is without TLS.
    #[error("failed to use TLS with {0:?}")]
    Tls(String, #[source] tonic::transport::Error),
}

impl Endpoint {
    /// The same server, reached with TLS. The address must be `https://`.
    #[must_use]
    pub fn with_tls(self, identity: TlsIdentity) -> Self {
        Self {
            tls: Some(identity),
            ..self
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let refused = || EndpointError::Address(text.into());
        let target = match text
            .strip_prefix("unix://")
            .or_else(|| text.strip_prefix("unix:"))
        {
            Some("") => return Err(refused()),
            Some(path) => EndpointTarget::Unix(path.into()),
            None if let Some(path) = text.strip_prefix("file:") => match path {
                "" => return Err(refused()),
                path => EndpointTarget::File(path.into()),
            },
            None => {
                let uri = if text.contains("://") {
                    text.to_owned()
                } else {
                    format!("http://{text}")
                };
                let uri: Uri = uri.parse().map_err(|_| refused())?;
                let scheme_known = matches!(uri.scheme_str(), Some("http" | "https"));
                if !scheme_known || uri.port().is_none() || !matches!(uri.path(), "" | "/") {
                    return Err(refused());
                }
                EndpointTarget::Uri(uri)
            }
        };
        Ok(Self { target, tls: None })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            EndpointTarget::Uri(uri) => f.write_str(uri.to_string().trim_end_matches('/')),
            EndpointTarget::Unix(path) => write!(f, "unix:{}", path.display()),
            EndpointTarget::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

/// Builds a channel to the server. It connects at its first use and again whenever the connection
/// is lost. Cheap to clone.
///
/// # Errors
///
/// [`EndpointError::Tls`] if the TLS material is invalid. An unreachable server is an error of each
/// call, not of this function.
pub fn channel(endpoint: &Endpoint) -> Result<Channel, EndpointError> {
    let uri = match &endpoint.target {
        EndpointTarget::Uri(uri) => uri.clone(),
        // A unix socket has no authority; requests still need one, and this is what peers expect.
        EndpointTarget::Unix(_) | EndpointTarget::File(_) => Uri::from_static("http://localhost"),
    };
    let mut builder = Channel::builder(uri)
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    if let Some(TlsIdentity { ca, client }) = &endpoint.tls {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
        if let Some((certificate, key)) = client {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        builder = builder
            .tls_config(tls)
            .map_err(|source| EndpointError::Tls(endpoint.to_string(), source))?;
    }
    Ok(match &endpoint.target {
        EndpointTarget::Uri(_) => {
            builder.connect_with_connector_lazy(tower::service_fn(async |uri: Uri| {
                connect(&uri).await.map(TokioIo::new)
            }))
        }
        EndpointTarget::Unix(path) => {
            let path = path.clone();
            builder.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async move { net::connect_unix(path).await.map(TokioIo::new) }
            }))
        }
        EndpointTarget::File(path) => {
            let path = path.clone();
            builder.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async move { connect_as_written(&path).await.map(TokioIo::new) }
            }))
        }
    })
}

/// Connects over TCP.
async fn connect(uri: &Uri) -> io::Result<net::Stream> {
    let host = uri.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16();
    let default = || match uri.scheme_str() {
        Some("https") => 443,
        _ => 80,
    };
    net::connect_tcp((host, port.unwrap_or_else(default))).await
}

/// Connects to the address that the file has now.
async fn connect_as_written(file: &Path) -> io::Result<net::Stream> {
    let text = fs::read_to_string_async(file).await?;
    let endpoint = text.trim().parse::<Endpoint>().map_err(io::Error::other)?;
    match endpoint.target {
        EndpointTarget::Uri(uri) if uri.scheme_str() == Some("http") => connect(&uri).await,
        EndpointTarget::Unix(path) => net::connect_unix(path).await,
        EndpointTarget::Uri(_) | EndpointTarget::File(_) => {
            let why = format!(
                "{} has no address to connect to: {endpoint}",
                file.display()
            );
            Err(io::Error::other(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print() {
        for (text, want) in [
            ("127.0.0.1:7080", "http://127.0.0.1:7080"),
            ("http://localhost:1", "http://localhost:1"),
            ("https://[::1]:7080/", "https://[::1]:7080"),
            ("unix:/run/cri.sock", "unix:/run/cri.sock"),
            ("unix:///run/cri.sock", "unix:/run/cri.sock"),
            ("file:/run/apiserver.address", "file:/run/apiserver.address"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), want);
        }
    }

    #[test]
    fn rejects_invalid_addresses() {
        for text in [
            "",
            "localhost",
            "ftp://a:1",
            "http://a:1/path",
            "unix:",
            "file:",
            "a b:1",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let identity = TlsIdentity {
            ca: b"ca".into(),
            client: Some((b"cert".into(), b"secret".into())),
        };
        let endpoint = "https://a:1"
            .parse::<Endpoint>()
            .unwrap()
            .with_tls(identity.clone());
        assert_eq!(
            format!("{endpoint:?} {identity:?}"),
            "Endpoint(https://a:1) TlsIdentity(..)"
        );
    }
}
