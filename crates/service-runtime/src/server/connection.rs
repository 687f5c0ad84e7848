//! A connection that is served: its transport, and the deadlines of a client that does nothing.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use podplane_host::{clock, net::Stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};
use tokio_rustls::server::TlsStream;

use super::rewound::Rewound;
use crate::{
    limits::{CountedConnection, LimitMetrics, Slowness},
    peer::Peer,
};

/// The limit of the time until the first byte of a request, from the accepted connection or the end
/// of its handshake on. After that, hyper limits the time for the head of each request of HTTP/1,
/// and pings find dead peers of HTTP/2.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection, which ends with an error when its client sends nothing at all, or takes nothing of
/// what is sent to it.
#[derive(Debug)]
pub(super) struct Connection {
    transport: Transport,
    peer: Peer,
    /// Until the first byte has arrived.
    silence: Option<Pin<Box<Sleep>>>,
    /// The time in which some byte must be written.
    stall: Duration,
    /// Set while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    metrics: LimitMetrics,
    _counted: CountedConnection,
}

#[derive(Debug)]
enum Transport {
    Plain(Stream),
    Tls(Box<TlsStream<Rewound<Stream>>>),
}

/// The part of a connection that does not depend on its transport.
#[derive(Debug)]
pub(super) struct ConnectionTerms {
    pub(super) stall: Duration,
    pub(super) metrics: LimitMetrics,
    pub(super) counted: CountedConnection,
}

impl Connection {
    /// A connection without TLS.
    pub(super) fn plain(stream: Stream, peer: Peer, terms: ConnectionTerms) -> Self {
        Self::new(Transport::Plain(stream), peer, terms)
    }

    /// A connection after its handshake.
    pub(super) fn secure(
        stream: TlsStream<Rewound<Stream>>,
        peer: Peer,
        terms: ConnectionTerms,
    ) -> Self {
        Self::new(Transport::Tls(Box::new(stream)), peer, terms)
    }

    fn new(transport: Transport, peer: Peer, terms: ConnectionTerms) -> Self {
        let ConnectionTerms {
            stall,
            metrics,
            counted,
        } = terms;
        Self {
            transport,
            peer,
            silence: Some(Box::pin(clock::sleep(FIRST_BYTE_TIMEOUT))),
            stall,
            stalled: None,
            metrics,
            _counted: counted,
        }
    }

    /// The other end.
    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Passes on the result of a write, and ends with an error if none has succeeded for too long.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stall = self.stall;
        let timer = self
            .stalled
            .get_or_insert_with(|| Box::pin(clock::sleep(stall)));
        if timer.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.stalled = None;
        self.metrics.cut_off(Slowness::Connection);
        let why = "the client takes nothing of what is sent";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }
}

macro_rules! either {
    ($connection:expr, $name:ident => $call:expr) => {
        match &mut $connection.transport {
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
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let read = either!(this, stream => stream.poll_read(context, buffer));
        let Some(silence) = &mut this.silence else {
            return read;
        };
        if read.is_ready() {
            this.silence = None;
            return read;
        }
        if silence.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        this.silence = None;
        this.metrics.cut_off(Slowness::Silent);
        let why = "the client sends nothing";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = either!(self, stream => stream.poll_write(context, buffer));
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = either!(self, stream => stream.poll_write_vectored(context, buffers));
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = either!(self, stream => stream.poll_flush(context));
        self.written(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = either!(self, stream => stream.poll_shutdown(context));
        self.written(context, shut)
    }
}
