//! The connections of a TLS socket: handshakes, each in a task of its own.

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
use tokio_rustls::TlsAcceptor;

use super::{connection::Connection, plaintext, rewound::Rewound};
use crate::{
    peer::Peer,
    tls::{ServerTls, TlsPeer},
};

/// The limit of a handshake, from the accepted connection on.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most handshakes at once. A further connection ends the oldest of them, so that clients that
/// never finish theirs do not keep others away: a handshake takes milliseconds.
const MAX_HANDSHAKES: usize = 512;
/// The first byte of a TLS connection: the type of a handshake record.
const HANDSHAKE_RECORD: u8 = 0x16;

/// A socket whose connections are ready once their handshake is.
pub(super) struct TlsSocket {
    socket: net::Listener,
    tls: ServerTls,
    handshakes: JoinSet<(u64, Option<Connection>)>,
    /// The running ones, the oldest first.
    running: BTreeMap<u64, AbortHandle>,
    accepted: u64,
}

impl TlsSocket {
    pub(super) fn new(socket: net::Listener, tls: ServerTls) -> Self {
        Self {
            socket,
            tls,
            handshakes: JoinSet::new(),
            running: BTreeMap::new(),
            accepted: 0,
        }
    }

    /// The next connection whose handshake is done.
    pub(super) fn poll_accept(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Connection>> {
        loop {
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
            self.begin(stream, remote);
        }
    }

    fn begin(&mut self, stream: Stream, remote: RemoteEnd) {
        while self.running.len() >= MAX_HANDSHAKES
            && let Some((_, oldest)) = self.running.pop_first()
        {
            tracing::debug!("ended the oldest of {MAX_HANDSHAKES} handshakes");
            oldest.abort();
        }
        self.accepted += 1;
        let number = self.accepted;
        let tls = self.tls.clone();
        let handshake = async move {
            let done = clock::timeout(HANDSHAKE_TIMEOUT, handshake(stream, remote, tls)).await;
            let done = done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            if let Err(error) = &done {
                tracing::debug!(?remote, %error, "TLS handshake failed");
            }
            (number, done.ok().flatten())
        };
        let started = task::spawn(&mut self.handshakes, handshake);
        self.running.insert(number, started);
    }
}

/// Answers the handshake of a client. `None` if the client did not begin one, and was told so.
async fn handshake(
    mut stream: Stream,
    remote: RemoteEnd,
    tls: ServerTls,
) -> io::Result<Option<Connection>> {
    let mut first = [0];
    stream.read_exact(&mut first).await?;
    let stream = Rewound::new(stream, &first);
    if first[0] != HANDSHAKE_RECORD {
        plaintext::answer(stream).await?;
        return Ok(None);
    }
    let stream = TlsAcceptor::from(tls.config).accept(stream).await?;
    let (_, session) = stream.get_ref();
    let chain = session.peer_certificates().unwrap_or_default().to_vec();
    let peer = TlsPeer::new(remote, chain, tls.client_trust);
    Ok(Some(Connection::secure(stream, Peer::Tls(Arc::new(peer)))))
}
