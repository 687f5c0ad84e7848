//! A connection as tonic wants it.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use podplane_host::net::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::rewound::Rewound;
use crate::peer::Peer;

/// A connection, whose requests carry its peer in their extensions.
#[derive(Debug)]
pub(super) struct Connection {
    transport: Transport,
    peer: Peer,
}

#[derive(Debug)]
enum Transport {
    Plain(Stream),
    Tls(Box<TlsStream<Rewound>>),
}

impl Connection {
    /// A connection without TLS.
    pub(super) fn plain(stream: Stream, peer: Peer) -> Self {
        Self {
            transport: Transport::Plain(stream),
            peer,
        }
    }

    /// A connection after its handshake.
    pub(super) fn secure(stream: TlsStream<Rewound>, peer: Peer) -> Self {
        Self {
            transport: Transport::Tls(Box::new(stream)),
            peer,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

macro_rules! either {
    ($connection:expr, $name:ident => $call:expr) => {
        match &mut $connection.get_mut().transport {
            Transport::Plain(stream) => {
                let $name = Pin::new(stream);
                $call
            }
            Transport::Tls(stream) => {
                let $name = Pin::new(stream);
                $call
            }
        }
    };
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_write(context, buffer))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_write_vectored(context, buffers))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_shutdown(context))
    }
}
