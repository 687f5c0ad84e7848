//! The connection to a server, replaced when the client's certificate is renewed.

use std::{
    io,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, Uri, header::AUTHORIZATION};
use hyper_util::rt::TokioIo;
use podplane_host::{clock, fs, net};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tonic::{
    body::Body,
    transport::{self, channel},
};
use tower::Service;

use crate::{
    credentials::Credentials,
    endpoint::{Endpoint, EndpointError, EndpointTarget, Uris},
};

/// The limit of a connection attempt. A call waits for it and then fails as unavailable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval of probes on an idle connection, so that a watch over a dead link ends instead of
/// hanging.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// A channel to a server, for clients with generated code. It connects at its first use and again
/// whenever the connection is lost. Cheap to clone; all clones share a connection.
///
/// Once the files of a client's certificate have changed, the next call begins a new connection
/// with them. The earlier one stays open until its streams have ended, so that no watch is lost; a
/// server looks at the certificate when a call begins.
#[derive(Clone, Debug)]
pub struct Channel(ChannelKind);

#[derive(Debug)]
enum ChannelKind {
    /// One without credentials.
    Fixed(channel::Channel),
    Rotating {
        rotation: Arc<Rotation>,
        /// The one that the next call uses. No handle keeps it longer, or an earlier connection
        /// would stay open as long as its handle.
        ready: Option<channel::Channel>,
    },
}

impl Clone for ChannelKind {
    fn clone(&self) -> Self {
        match self {
            Self::Fixed(channel) => Self::Fixed(channel.clone()),
            Self::Rotating { rotation, .. } => Self::Rotating {
                rotation: Arc::clone(rotation),
                ready: None,
            },
        }
    }
}

/// The part that the clones of a channel with credentials share.
#[derive(Debug)]
struct Rotation {
    credentials: Arc<Credentials>,
    builder: transport::Endpoint,
    target: EndpointTarget,
    latest: Mutex<Latest>,
}

/// The newest connection, and the configuration that it began with.
#[derive(Debug)]
struct Latest {
    config: Option<Arc<ClientConfig>>,
    channel: channel::Channel,
}

impl From<channel::Channel> for Channel {
    /// A channel without credentials.
    fn from(channel: channel::Channel) -> Self {
        Self(ChannelKind::Fixed(channel))
    }
}

impl Channel {
    /// The channel of an endpoint.
    pub(crate) fn of(endpoint: &Endpoint) -> Result<Self, EndpointError> {
        let Endpoint {
            target,
            credentials,
        } = endpoint.clone();
        if let EndpointTarget::Uris(uris) = &target {
            uris.iter()
                .try_for_each(|uri| check(uri, credentials.as_deref()))?;
        }
        let origin = match &target {
            EndpointTarget::Uris(uris) => uris.first.clone(),
            // These have no authority; requests still need one, and this is what peers expect.
            EndpointTarget::Unix(_) | EndpointTarget::File(_) => {
                Uri::from_static("http://localhost")
            }
        };
        // The connector below knows the address, and adds TLS itself.
        let builder = channel::Channel::builder(Uri::from_static("http://localhost"))
            .origin(origin)
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        let Some(credentials) = credentials else {
            return Ok(Self::from(build(&builder, target, None)));
        };
        let latest = Latest {
            config: credentials.config(),
            channel: build(&builder, target.clone(), Some(Arc::clone(&credentials))),
        };
        Ok(Self(ChannelKind::Rotating {
            rotation: Arc::new(Rotation {
                credentials,
                builder,
                target,
                latest: Mutex::new(latest),
            }),
            ready: None,
        }))
    }
}

impl Rotation {
    /// The channel for the files as they are now: a new one if they have changed.
    fn channel(&self) -> channel::Channel {
        let config = self.credentials.config();
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if config.as_ref().map(Arc::as_ptr) != latest.config.as_ref().map(Arc::as_ptr) {
            let credentials = Some(Arc::clone(&self.credentials));
            let channel = build(&self.builder, self.target.clone(), credentials);
            *latest = Latest { config, channel };
        }
        latest.channel.clone()
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = transport::Error;
    type Future = channel::ResponseFuture;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        match &mut self.0 {
            ChannelKind::Fixed(channel) => channel.poll_ready(context),
            ChannelKind::Rotating { rotation, ready } => {
                let channel = ready.get_or_insert_with(|| rotation.channel());
                channel.poll_ready(context)
            }
        }
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match &mut self.0 {
            ChannelKind::Fixed(channel) => channel.call(request),
            ChannelKind::Rotating { rotation, ready } => {
                if let Some(token) = &rotation.credentials.token {
                    let token = (*token.current()).clone();
                    request.headers_mut().insert(AUTHORIZATION, token);
                }
                let mut channel = ready.take().expect("poll_ready goes before call");
                channel.call(request)
            }
        }
    }
}

fn build(
    builder: &transport::Endpoint,
    target: EndpointTarget,
    credentials: Option<Arc<Credentials>>,
) -> channel::Channel {
    let reached = Arc::new(AtomicUsize::new(0));
    builder.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let (target, credentials) = (target.clone(), credentials.clone());
        let reached = Arc::clone(&reached);
        async move {
            let stream = connect(&target, credentials.as_deref(), &reached).await?;
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    }))
}

trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// Connects to a server. `reached` is the number of the one that was reached last.
async fn connect(
    target: &EndpointTarget,
    credentials: Option<&Credentials>,
    reached: &AtomicUsize,
) -> io::Result<Box<dyn Transport>> {
    match target {
        EndpointTarget::Uris(uris) => connect_to_one(uris, credentials, reached).await,
        EndpointTarget::Unix(path) => Ok(Box::new(net::connect_unix(path).await?)),
        EndpointTarget::File(file) => {
            let text = fs::read_to_string_async(file).await?;
            let endpoint = text.trim().parse::<Endpoint>().map_err(io::Error::other)?;
            match endpoint.target {
                EndpointTarget::Uris(uris) => {
                    let check = |uri| check(uri, credentials).map_err(io::Error::other);
                    uris.iter().try_for_each(check)?;
                    connect_to_one(&uris, credentials, reached).await
                }
                EndpointTarget::Unix(path) => Ok(Box::new(net::connect_unix(path).await?)),
                EndpointTarget::File(_) => {
                    let why = format!(
                        "{} has no address to connect to: {endpoint}",
                        file.display()
                    );
                    Err(io::Error::other(why))
                }
            }
        }
    }
}

/// Tries each server once, beginning with the one that was reached last.
async fn connect_to_one(
    uris: &Uris,
    credentials: Option<&Credentials>,
    reached: &AtomicUsize,
) -> io::Result<Box<dyn Transport>> {
    let count = 1 + uris.others.len();
    let begin = reached.load(Ordering::Relaxed);
    let mut failed = Vec::new();
    for (number, uri) in uris.iter().enumerate().cycle().skip(begin).take(count) {
        let limit = CONNECT_TIMEOUT / u32::try_from(count).unwrap_or(u32::MAX);
        let connected = clock::timeout(limit, connect_tcp(uri, credentials)).await;
        match connected.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => {
                reached.store(number, Ordering::Relaxed);
                return Ok(stream);
            }
            Err(error) if count == 1 => return Err(error),
            Err(error) => failed.push(format!("{}: {error}", shown(uri))),
        }
    }
    Err(io::Error::other(failed.join("; ")))
}

/// Checks that the credentials suffice for the address and may be sent to it.
fn check(uri: &Uri, credentials: Option<&Credentials>) -> Result<(), EndpointError> {
    let has = |part: fn(&Credentials) -> bool| credentials.is_some_and(part);
    if is_https(uri) {
        return match has(|credentials| credentials.tls.is_some()) {
            true => Ok(()),
            false => Err(EndpointError::MissingAuthority(shown(uri))),
        };
    }
    match has(|credentials| credentials.token.is_some()) && !is_near(uri) {
        true => Err(EndpointError::TokenWithoutTls(shown(uri))),
        false => Ok(()),
    }
}

fn shown(uri: &Uri) -> String {
    uri.to_string().trim_end_matches('/').to_owned()
}

fn is_https(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}

/// The host, an IPv6 address without brackets.
fn host(uri: &Uri) -> &str {
    let host = uri.host().unwrap_or_default();
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Returns true for an address of this machine alone.
fn is_near(uri: &Uri) -> bool {
    let host = host(uri);
    let address = host.parse::<IpAddr>();
    address.map_or(host.eq_ignore_ascii_case("localhost"), |address| {
        address.is_loopback()
    })
}

async fn connect_tcp(
    uri: &Uri,
    credentials: Option<&Credentials>,
) -> io::Result<Box<dyn Transport>> {
    let default = if is_https(uri) { 443 } else { 80 };
    let stream = net::connect_tcp((host(uri), uri.port_u16().unwrap_or(default))).await?;
    if !is_https(uri) {
        return Ok(Box::new(stream));
    }
    let config = credentials.and_then(Credentials::config);
    let config = config.ok_or(io::ErrorKind::PermissionDenied)?;
    let name = credentials.and_then(|credentials| credentials.server_name.clone());
    let of_host = || ServerName::try_from(host(uri).to_owned()).map_err(io::Error::other);
    let name = name.map_or_else(of_host, Ok)?;
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    Ok(Box::new(stream))
}
