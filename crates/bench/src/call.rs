//! gRPC calls with minimal overhead: the message is bytes, the answer is counted, and nothing
//! stands between the call and HTTP/2.
//!
//! Neither `podplane-client` nor `podplane-http-client` can do this: the one decodes every message,
//! which would cost the load generator more than it costs the server, and the other speaks HTTP/1.1
//! with a connection for each request.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::Incoming,
    client::conn::http2::{Builder, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinSet,
};
use tokio_rustls::TlsConnector;

/// The length of the prefix of each message: a compression flag and the message length.
pub(crate) const PREFIX: usize = 5;

/// Large enough that no answer waits for the client's flow control.
const WINDOW: u32 = 64 * 1024 * 1024;

/// A connection. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// The bearer token of its user.
    token: Option<&'static str>,
    _driver: Arc<JoinSet<()>>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self> {
        Self::with_window(address, WINDOW).await
    }

    /// Opens a connection with a receive window of `window` bytes.
    pub(crate) async fn with_window(address: SocketAddr, window: u32) -> Result<Self> {
        Self::over(connected(address).await?, window).await
    }

    /// Opens a connection with TLS.
    pub(crate) async fn secured(address: SocketAddr, config: &Arc<ClientConfig>) -> Result<Self> {
        let stream = connected(address).await?;
        let name = ServerName::from(address.ip());
        let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream);
        Self::over(stream.await.context("failed to start TLS")?, WINDOW).await
    }

    async fn over(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        window: u32,
    ) -> Result<Self> {
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .initial_connection_window_size(WINDOW)
            .max_concurrent_streams(1024)
            .handshake(TokioIo::new(stream))
            .await
            .context("failed to start HTTP/2")?;
        let mut driver = JoinSet::new();
        // Errors of the connection are returned by each call on it.
        driver.spawn(async move { _ = connection.await });
        Ok(Self {
            sender,
            token: None,
            _driver: Arc::new(driver),
        })
    }

    /// The same for the user of a token.
    pub(crate) fn by(self, token: &'static str) -> Self {
        let token = Some(token);
        Self { token, ..self }
    }

    /// Makes a unary call; returns the size of the answer.
    pub(crate) async fn unary(&mut self, path: &str, message: Bytes) -> Result<usize> {
        let mut size = 0;
        self.read(path, message, |data| size += data.len()).await?;
        Ok(size)
    }

    /// Makes a unary call; returns the message of the answer.
    pub(crate) async fn answer(&mut self, path: &str, message: Bytes) -> Result<Bytes> {
        let mut bytes = BytesMut::new();
        self.read(path, message, |data| bytes.extend_from_slice(data))
            .await?;
        ensure!(bytes.len() >= PREFIX, "{path}: an answer without a message");
        Ok(bytes.split_off(PREFIX).freeze())
    }

    async fn read(
        &mut self,
        path: &str,
        message: Bytes,
        mut each: impl FnMut(&[u8]),
    ) -> Result<()> {
        let mut answer = self.send(path, message).await?;
        let mut done = false;
        while let Some(frame) = answer.frame().await {
            let frame = frame.context("failed to read an answer")?;
            if let Some(data) = frame.data_ref() {
                each(data);
            } else if let Some(trailers) = frame.trailers_ref() {
                succeeded(path, trailers)?;
                done = true;
            }
        }
        ensure!(done, "{path}: an answer without a status");
        Ok(())
    }

    /// Makes a call with a stream of answers.
    pub(crate) async fn stream(&mut self, path: &str, message: Bytes) -> Result<Answers> {
        let body = self.send(path, message).await?;
        Ok(Answers {
            body,
            skip: 0,
            prefix: BytesMut::with_capacity(PREFIX),
        })
    }

    async fn send(&mut self, path: &str, message: Bytes) -> Result<Incoming> {
        self.sender.ready().await?;
        let mut request = Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(token) = self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(message))?;
        let answer = self
            .sender
            .send_request(request)
            .await
            .context("failed to call")?;
        if answer.headers().contains_key("grpc-status") {
            succeeded(path, answer.headers())?;
        }
        Ok(answer.into_body())
    }
}

async fn connected(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A stream of messages, which are only counted.
#[derive(Debug)]
pub(crate) struct Answers {
    body: Incoming,
    /// The bytes of the current message that are still to come.
    skip: usize,
    /// The received part of the next prefix.
    prefix: BytesMut,
}

impl Answers {
    /// Waits for more data, and returns the number of messages that began in it.
    pub(crate) async fn next(&mut self) -> Result<u64> {
        let frame = self.body.frame().await.context("the stream ended")??;
        let Some(data) = frame.data_ref() else {
            bail!("the stream ended: {:?}", frame.trailers_ref());
        };
        let mut data = &data[..];
        let mut begun = 0;
        loop {
            let skipped = self.skip.min(data.len());
            self.skip -= skipped;
            data = &data[skipped..];
            let wanted = (PREFIX - self.prefix.len()).min(data.len());
            self.prefix.put_slice(&data[..wanted]);
            data = &data[wanted..];
            if self.prefix.len() < PREFIX {
                return Ok(begun);
            }
            let length = [
                self.prefix[1],
                self.prefix[2],
                self.prefix[3],
                self.prefix[4],
            ];
            self.skip = usize::try_from(u32::from_be_bytes(length))?;
            self.prefix.clear();
            begun += 1;
        }
    }
}

/// Encodes a message with its prefix.
pub(crate) fn framed(message: &impl Message) -> Result<Bytes> {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length)?);
    message.encode(&mut bytes)?;
    Ok(bytes.freeze())
}

fn succeeded(path: &str, trailers: &HeaderMap) -> Result<()> {
    match trailers.get("grpc-status").map(http::HeaderValue::as_bytes) {
        Some(b"0") => Ok(()),
        _ => bail!("{path}: {trailers:?}"),
    }
}
