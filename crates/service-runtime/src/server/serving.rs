//! The accept loop, and the connections that it serves.

use std::{future::poll_fn, io, pin::pin, time::Duration};

use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use podplane_host::{clock, task};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::{
    Status,
    body::Body,
    codegen::{
        Bytes, Service, StdError,
        http::{Request, Response},
    },
};
use tower::util::MapRequest;

use super::{
    connection::Connection,
    incoming::IncomingConnections,
    pace::{PacedBody, PacedExecutor},
};
use crate::{
    limits::{LimitMetrics, ServerLimits},
    peer::ConnectionState,
};

/// The most header bytes of an HTTP/2 request, as much as gRPC clients send. HTTP/1 has limits of
/// its own in hyper.
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// The limit of the time for the head of a request of HTTP/1, from the end of the one before on.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval of pings, and the time for their answers, after which a connection of HTTP/2 is
/// closed: its peer is dead, or its network.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// The most streams of a connection that the client has reset before they were looked at
/// (CVE-2023-44487, "rapid reset"), and those that the server had to reset. One more closes the
/// connection.
const MAX_PENDING_RESETS: usize = 50;
const MAX_LOCAL_RESETS: usize = 1024;
/// The delay after a failure to accept, such as too many open files, which lasts a while.
const ACCEPT_DELAY: Duration = Duration::from_secs(1);

/// A server of one socket.
pub(super) struct ConnectionServer<S> {
    pub(super) service: S,
    pub(super) limits: ServerLimits,
    pub(super) metrics: LimitMetrics,
    pub(super) stop: CancellationToken,
}

impl<S, B> ConnectionServer<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<StdError> + Send,
    B: http_body::Body<Data = Bytes, Error = Status> + Unpin + Send + 'static,
{
    /// Serves until it is stopped, and then until all connections have ended.
    pub(super) async fn run(self, mut incoming: IncomingConnections) {
        let mut connections = JoinSet::new();
        loop {
            // An accepted connection is not lost: it is handed over in the same poll.
            let accepted = tokio::select! {
                () = self.stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = poll_fn(|context| incoming.poll_accept(context)) => accepted,
            };
            match accepted {
                Ok(connection) => {
                    task::spawn(&mut connections, self.connection(connection));
                }
                Err(error) if is_of_client(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, retry_in = ?ACCEPT_DELAY, "failed to accept connections");
                    let stopped = self.stop.cancelled();
                    _ = clock::timeout(ACCEPT_DELAY, stopped).await;
                }
            }
        }
        // The port is free from here on.
        drop(incoming);
        while connections.join_next().await.is_some() {}
    }

    /// Serves one connection.
    fn connection(&self, connection: Connection) -> impl Future<Output = ()> + Send + use<S, B> {
        let mut builder = auto::Builder::new(PacedExecutor {
            stall: self.limits.stall,
            metrics: self.metrics.clone(),
        });
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.limits.max_streams)
            .max_header_list_size(MAX_HEADER_BYTES)
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_LOCAL_RESETS);
        let (peer, state) = (connection.peer().clone(), ConnectionState::default());
        let service = MapRequest::new(self.service.clone(), move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(state.clone());
            request
        });
        let paced = tower::util::MapResponse::new(service, |answer: Response<B>| {
            answer.map(PacedBody::new)
        });
        let service = TowerToHyperService::new(paced);
        let stop = self.stop.clone();
        async move {
            let served = builder.serve_connection(TokioIo::new(connection), service);
            let mut served = pin!(served);
            let ended = tokio::select! {
                ended = served.as_mut() => ended,
                () = stop.cancelled() => {
                    served.as_mut().graceful_shutdown();
                    served.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "connection ended");
            }
        }
    }
}

/// True if only the client of one connection is at fault.
fn is_of_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}
