//! The connections of a socket: those within the limits, with TLS once their handshake is done.
//! Each handshake and each refusal is a task of its own.

use std::{
    collections::BTreeMap,
    io,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use podplane_host::{
    clock,
    net::{self, RemoteEnd, Stream},
    task,
};
use tokio::{
    io::AsyncReadExt as _,
    task::{AbortHandle, JoinSet},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::{Code, codegen::http::StatusCode};

use super::{
    connection::{Connection, ConnectionTerms},
    refused::ConnectionAnswer,
    rewound::Rewound,
};
use crate::{
    limits::{ConnectionCounts, ConnectionRefusal, LimitMetrics, ServerLimits},
    peer::Peer,
    tls::{ServerTls, TlsPeer},
};

/// The limit of a handshake, from the accepted connection on.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most handshakes at once. A further connection ends the oldest of them, so that clients that
/// never finish theirs do not keep others away: a handshake takes milliseconds.
const MAX_HANDSHAKES: usize = 512;
/// The most refused clients that are told so at once; further ones are only disconnected.
const MAX_REFUSALS: usize = 64;
/// The limit of the time to tell a client that it is refused.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);
/// The seconds after which a refused client should try again.
const RETRY_AFTER: u64 = 1;
/// The first byte of a TLS connection: the type of a handshake record.
const HANDSHAKE_RECORD: u8 = 0x16;

/// A socket whose connections are ready to be served.
pub(super) struct IncomingConnections {
    socket: net::Listener,
    tls: Option<ServerTls>,
    limits: ServerLimits,
    metrics: LimitMetrics,
    counts: ConnectionCounts,
    handshakes: JoinSet<(u64, Option<Connection>)>,
    /// The running ones, the oldest first.
    running: BTreeMap<u64, AbortHandle>,
    accepted: u64,
    refusals: JoinSet<()>,
}

impl IncomingConnections {
    pub(super) fn new(
        socket: net::Listener,
        tls: Option<ServerTls>,
        limits: ServerLimits,
        metrics: LimitMetrics,
    ) -> Self {
        Self {
            socket,
            tls,
            limits,
            counts: ConnectionCounts::new(limits, metrics.clone()),
            metrics,
            handshakes: JoinSet::new(),
            running: BTreeMap::new(),
            accepted: 0,
            refusals: JoinSet::new(),
        }
    }

    /// The next connection to serve.
    pub(super) fn poll_accept(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Connection>> {
        loop {
            while let Poll::Ready(Some(_)) = self.refusals.poll_join_next(context) {}
            while let Poll::Ready(Some(ended)) = self.handshakes.poll_join_next(context) {
                // One that was aborted is not among the running ones any longer.
                let Ok((number, connection)) = ended else {
                    continue;
                };
                self.running.remove(&number);
                if let Some(connection) = connection {
                    return Poll::Ready(Ok(connection));
                }
            }
            let (stream, remote) = ready!(self.socket.poll_accept(context))?;
            let counted = match self.counts.admit(remote.into()) {
                Ok(counted) => counted,
                Err(refusal) => {
                    tracing::debug!(?remote, %refusal, "refused connection");
                    self.refuse(stream, refusal);
                    continue;
                }
            };
            let terms = ConnectionTerms {
                stall: self.limits.stall,
                metrics: self.metrics.clone(),
                counted,
            };
            match self.tls.clone() {
                None => {
                    let connection = Connection::plain(stream, Peer::from(remote), terms);
                    return Poll::Ready(Ok(connection));
                }
                Some(tls) => self.begin(stream, remote, tls, terms),
            }
        }
    }

    fn begin(&mut self, stream: Stream, remote: RemoteEnd, tls: ServerTls, terms: ConnectionTerms) {
        while self.running.len() >= MAX_HANDSHAKES
            && let Some((_, oldest)) = self.running.pop_first()
        {
            tracing::debug!("ended the oldest of {MAX_HANDSHAKES} handshakes");
            oldest.abort();
        }
        self.accepted += 1;
        let number = self.accepted;
        let handshake = async move {
            let done = clock::timeout(HANDSHAKE_TIMEOUT, secured(stream, remote, tls, terms)).await;
            let done = done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            if let Err(error) = &done {
                tracing::debug!(?remote, %error, "TLS handshake failed");
            }
            (number, done.ok().flatten())
        };
        let started = task::spawn(&mut self.handshakes, handshake);
        self.running.insert(number, started);
    }

    /// Tells the client why it is refused, unless many are being told.
    fn refuse(&mut self, stream: Stream, refusal: ConnectionRefusal) {
        if self.refusals.len() >= MAX_REFUSALS {
            return;
        }
        let answer = ConnectionAnswer {
            code: (StatusCode::TOO_MANY_REQUESTS, "TooManyRequests"),
            grpc: Code::ResourceExhausted,
            retry_after: Some(RETRY_AFTER),
            message: refusal.to_string(),
        };
        let tls = self.tls.clone();
        let telling = async move {
            match tls {
                None => answer.send(Rewound::new(stream, &[])).await,
                Some(tls) => match handshake(stream, tls).await? {
                    Some(stream) => answer.send(Rewound::new(stream, &[])).await,
                    None => Ok(()),
                },
            }
        };
        task::spawn(&mut self.refusals, async move {
            // The client has gone, or does not listen.
            _ = clock::timeout(REFUSAL_TIMEOUT, telling).await;
        });
    }
}

/// Answers the handshake of a client. `None` if the client did not begin one, and was told so.
async fn secured(
    stream: Stream,
    remote: RemoteEnd,
    tls: ServerTls,
    terms: ConnectionTerms,
) -> io::Result<Option<Connection>> {
    let client_trust = tls.client_trust.clone();
    let Some(stream) = handshake(stream, tls).await? else {
        return Ok(None);
    };
    let (_, session) = stream.get_ref();
    let chain = session.peer_certificates().unwrap_or_default().to_vec();
    let peer = Peer::Tls(Arc::new(TlsPeer::new(remote, chain, client_trust)));
    Ok(Some(Connection::secure(stream, peer, terms)))
}

/// The handshake alone.
async fn handshake(
    mut stream: Stream,
    tls: ServerTls,
) -> io::Result<Option<TlsStream<Rewound<Stream>>>> {
    let mut first = [0];
    stream.read_exact(&mut first).await?;
    let stream = Rewound::new(stream, &first);
    if first[0] != HANDSHAKE_RECORD {
        without_tls().send(stream).await?;
        return Ok(None);
    }
    Ok(Some(TlsAcceptor::from(tls.config).accept(stream).await?))
}

/// The answer to a client that speaks HTTP without TLS to a port that has TLS only.
fn without_tls() -> ConnectionAnswer {
    ConnectionAnswer {
        code: (StatusCode::BAD_REQUEST, "BadRequest"),
        grpc: Code::InvalidArgument,
        retry_after: None,
        // The words of Go's server, so that people find it.
        message: "Client sent an HTTP request to an HTTPS server.".to_owned(),
    }
}
