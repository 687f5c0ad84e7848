//! The HTTP server.

use std::{
    convert::Infallible,
    future, io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use podplane_error_chain::one_line;
use podplane_host::{clock, net, task};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    StreamRequest, StreamUrls, port_forward,
    remote_command::{self, RemoteCommandProtocol},
    tokens::StreamTokens,
};
use crate::cri::sandboxes::lock;

/// The only protocol that connections are upgraded to.
const SPDY: &str = "SPDY/3.1";
/// The header with the protocols that a client knows, and with the one that the server chose.
const PROTOCOL_VERSION: &str = "x-stream-protocol-version";
/// The delay after a connection that could not be accepted, as with too many open files.
const RETRY: Duration = Duration::from_secs(1);
/// The longest time until a connection is upgraded.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for a client to close its connection after the end.
const LINGER: Duration = Duration::from_secs(5);

/// The address of a server that is not served yet.
#[derive(Debug)]
pub struct StreamListener {
    listener: net::Listener,
    urls: Arc<StreamUrls>,
}

impl StreamListener {
    /// Listens at a free port of the loopback address.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub async fn bind() -> io::Result<Self> {
        let listener = net::listen_tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        let urls = StreamUrls {
            address: listener.tcp_address()?,
            tokens: StreamTokens::default(),
        };
        Ok(Self {
            listener,
            urls: Arc::new(urls),
        })
    }

    /// The URLs that it will serve.
    pub fn urls(&self) -> Arc<StreamUrls> {
        self.urls.clone()
    }
}

/// Serves until `stop`, which ends all sessions.
///
/// # Errors
///
/// The panic of a connection.
pub async fn serve(
    listener: StreamListener,
    stop: CancellationToken,
) -> Result<(), tokio::task::JoinError> {
    let StreamListener { listener, urls } = listener;
    let mut connections = JoinSet::new();
    loop {
        // Losing any of these waits loses nothing.
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = future::poll_fn(|context| listener.poll_accept(context)) => accepted,
            Some(ended) = connections.join_next() => {
                ended?;
                continue;
            }
        };
        match accepted {
            Ok((connection, _)) => {
                task::spawn(&mut connections, serve_connection(connection, urls.clone()));
            }
            Err(error) => {
                tracing::debug!(error = %one_line(&error), "failed to accept a streaming connection");
                clock::sleep(RETRY).await;
            }
        }
    }
    connections.shutdown().await;
    Ok(())
}

/// A connection that becomes a session.
struct Upgrade {
    connection: OnUpgrade,
    session: SessionKind,
}

enum SessionKind {
    RemoteCommand(StreamRequest, RemoteCommandProtocol),
    PortForward(StreamRequest),
}

async fn serve_connection(connection: net::Stream, urls: Arc<StreamUrls>) {
    let upgrade = Arc::new(Mutex::new(None));
    let service = service_fn(|request| {
        let answer = answer(request, &urls.tokens, &upgrade);
        async move { Ok::<_, Infallible>(answer) }
    });
    let http = http1::Builder::new()
        .serve_connection(TokioIo::new(connection), service)
        .with_upgrades();
    match clock::timeout(HEADER_TIMEOUT, http).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::debug!(error = %one_line(&error), "a streaming connection failed");
        }
        Err(_) => return,
    }
    let upgraded = lock(&upgrade).take();
    let Some(Upgrade {
        connection,
        session,
    }) = upgraded
    else {
        return;
    };
    let connection = match connection.await {
        Ok(connection) => TokioIo::new(connection),
        Err(error) => {
            tracing::debug!(error = %one_line(&error), "a streaming connection failed");
            return;
        }
    };
    let (driver, streams) = podplane_spdy::serve(connection);
    let work = async {
        match session {
            SessionKind::RemoteCommand(request, protocol) => {
                remote_command::run(streams, request, protocol).await;
            }
            SessionKind::PortForward(request) => port_forward::run(streams, request).await,
        }
    };
    let mut driver = Box::pin(driver);
    // The streams end when the client closes the connection, and the work with them.
    let mut work = Box::pin(work);
    let driven = tokio::select! {
        driven = &mut driver => {
            work.await;
            Some(driven)
        }
        () = &mut work => clock::timeout(LINGER, driver).await.ok(),
    };
    if let Some(Err(error)) = driven {
        tracing::debug!(error = %one_line(&error), "a streaming session failed");
    }
}

/// Answers a request, and leaves its upgrade, if it has one.
fn answer(
    mut request: Request<Incoming>,
    tokens: &StreamTokens,
    upgrade: &Mutex<Option<Upgrade>>,
) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::POST) {
        return refusal(StatusCode::METHOD_NOT_ALLOWED, "use GET or POST");
    }
    let wanted = request.headers().get(header::UPGRADE);
    let wanted = wanted
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if !wanted.eq_ignore_ascii_case(SPDY) {
        let text = format!("cannot upgrade to {wanted:?}: only {SPDY} is spoken");
        return refusal(StatusCode::BAD_REQUEST, &text);
    }
    let mut parts = request.uri().path().trim_start_matches('/').split('/');
    let (path, token) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    let found = tokens.take(token).filter(|found| found.path() == path);
    let Some(found) = found.filter(|_| parts.next().is_none()) else {
        let text = "unknown or used token: a URL can be used once, within a minute";
        return refusal(StatusCode::NOT_FOUND, text);
    };
    let offered: Vec<&str> = request
        .headers()
        .get_all(PROTOCOL_VERSION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|values| values.split(','))
        .map(str::trim)
        .collect();
    let (session, protocol) = match found {
        found @ StreamRequest::PortForward(_) => {
            if !offered.is_empty() && !offered.contains(&port_forward::PROTOCOL) {
                return no_common_protocol(&offered);
            }
            (SessionKind::PortForward(found), port_forward::PROTOCOL)
        }
        found => {
            let Some(protocol) = RemoteCommandProtocol::choose(&offered) else {
                return no_common_protocol(&offered);
            };
            let name = protocol.name();
            (SessionKind::RemoteCommand(found, protocol), name)
        }
    };
    *lock(upgrade) = Some(Upgrade {
        connection: hyper::upgrade::on(&mut request),
        session,
    });
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONNECTION, "Upgrade"),
        (header::UPGRADE, SPDY),
        (header::HeaderName::from_static(PROTOCOL_VERSION), protocol),
    ] {
        headers.insert(name, header::HeaderValue::from_static(value));
    }
    response
}

fn no_common_protocol(offered: &[&str]) -> Response<Full<Bytes>> {
    let text = format!("none of the protocols {offered:?} is spoken");
    refusal(StatusCode::FORBIDDEN, &text)
}

fn refusal(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{text}\n")));
    *response.status_mut() = status;
    response
}
