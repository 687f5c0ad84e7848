//! The HTTP/1.1 client of tests and scenarios: paths and JSON, over TCP, with TLS or without, or a
//! unix socket.
//!
//! It knows nothing of podplane and fills in no defaults, so that a test sends exactly what it
//! says. Each request has a connection of its own. Start at [`HttpClient`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod tls;

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1, rt};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    net::{TcpStream, UnixStream},
    task::JoinSet,
    time,
};

pub use tls::ClientTls;

/// The beginning of the address of a server with TLS.
const HTTPS: &str = "https://";

/// A client of one server.
#[derive(Clone, Debug)]
pub struct HttpClient {
    /// `HOST:PORT` or `unix:PATH`
    address: String,
    tls: Option<tls::Connector>,
    timeout: Option<Duration>,
}

/// A server's whole answer.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// HTTP's status code.
    pub code: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The document; a string if the body is not JSON.
    pub body: Value,
    /// The body as it was sent.
    pub bytes: Bytes,
}

impl HttpAnswer {
    /// Returns the document of a successful answer.
    ///
    /// # Errors
    ///
    /// For other answers, with the message of their Kubernetes Status if they have one.
    pub fn document(self) -> Result<Value> {
        if (200..300).contains(&self.code) {
            return Ok(self.body);
        }
        match self.body["message"].as_str() {
            Some(message) => bail!("{message}"),
            None => bail!("HTTP status {}", self.code),
        }
    }
}

impl HttpClient {
    /// A client of the server at `HOST:PORT` or `unix:PATH`, which waits for ever.
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            tls: None,
            timeout: None,
        }
    }

    /// A client of the server at `https://HOST:PORT`, which waits for ever. The files are read now.
    ///
    /// # Errors
    ///
    /// An address without `https://`, and files that cannot be used.
    pub fn with_tls(address: &str, tls: &ClientTls) -> Result<Self> {
        let bare = address.strip_prefix(HTTPS);
        let bare = bare.with_context(|| format!("want https://HOST:PORT, not {address:?}"))?;
        let authority: http::uri::Authority = bare
            .parse()
            .with_context(|| format!("invalid address {address:?}"))?;
        let host = authority.host().trim_matches(['[', ']']);
        Ok(Self {
            tls: Some(tls::Connector::new(tls, host)?),
            ..Self::new(bare)
        })
    }

    /// A client of a server that may have TLS: one at `https://HOST:PORT` has the authority
    /// `ca.crt` of this directory, and is shown the certificate `admin.pem`.
    ///
    /// # Errors
    ///
    /// Files that cannot be used.
    pub fn as_admin_of(dir: &Path, address: &str) -> Result<Self> {
        match address.starts_with(HTTPS) {
            true => Self::with_tls(address, &ClientTls::of_dir(dir, "admin")),
            false => Ok(Self::new(address)),
        }
    }

    /// Limits the time of each answer. A paused process accepts connections and never answers.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self {
            timeout: Some(timeout),
            ..self
        }
    }

    /// Sends any bytes with any headers. `Host` is added if it is not among them.
    ///
    /// # Errors
    ///
    /// If no answer comes, or not all of it.
    pub async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<HttpAnswer> {
        let exchange = async {
            let (response, _connection) = self.request(method, path, headers, body.into()).await?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.context("failed to read the answer")?;
            let body = body.to_bytes();
            let text = || Value::String(String::from_utf8_lossy(&body).into_owned());
            Ok(HttpAnswer {
                code: parts.status.as_u16(),
                headers: parts.headers,
                body: serde_json::from_slice(&body).unwrap_or_else(|_| text()),
                bytes: body,
            })
        };
        let Some(limit) = self.timeout else {
            return exchange.await;
        };
        let answer = time::timeout(limit, exchange).await;
        answer.unwrap_or_else(|_| bail!("no answer from {} within {limit:?}", self.address))
    }

    /// Sends a request, with a body of a media type.
    ///
    /// # Errors
    ///
    /// If no answer comes, or not all of it.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<HttpAnswer> {
        let Some((media, body)) = body else {
            return self.exchange(method, path, &[], "").await;
        };
        let headers = [(header::CONTENT_TYPE.as_str(), media)];
        self.exchange(method, path, &headers, body.to_string())
            .await
    }

    /// Reads the document at a path.
    ///
    /// # Errors
    ///
    /// If no answer comes, or not all of it.
    pub async fn get(&self, path: &str) -> Result<HttpAnswer> {
        self.send(Method::GET, path, None).await
    }

    /// Sends a document.
    ///
    /// # Errors
    ///
    /// If no answer comes, or not all of it.
    pub async fn send_json(&self, method: Method, path: &str, body: &Value) -> Result<HttpAnswer> {
        self.send(method, path, Some(("application/json", body)))
            .await
    }

    /// Watches: the status code of the answer, and the events.
    ///
    /// # Errors
    ///
    /// If no answer begins.
    pub async fn watch(
        &self,
        path: &str,
    ) -> Result<(u16, impl Stream<Item = Result<Value>> + Send + use<>)> {
        let (response, connection) = self.request(Method::GET, path, &[], Bytes::new()).await?;
        let code = response.status().as_u16();
        let lines = WatchLines {
            body: response.into_body(),
            unread: Vec::new(),
            _connection: connection,
        };
        let events = stream::try_unfold(lines, |mut lines| async move {
            let event = lines.next().await?;
            Ok(event.map(|event| (event, lines)))
        });
        Ok((code, events.boxed()))
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<(Response<Incoming>, ConnectionTask)> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Full::new(body)).context("invalid request")?;
        let socket = self.address.strip_prefix("unix:");
        let host = if socket.is_some() {
            "localhost"
        } else {
            &self.address
        };
        let host = HeaderValue::from_str(host)?;
        request.headers_mut().entry(header::HOST).or_insert(host);
        let response = match (socket, &self.tls) {
            (Some(socket), _) => over(UnixStream::connect(socket).await, request).await,
            (None, Some(tls)) => {
                // Boxed: the state of a TLS connection is large, and most callers have none.
                let stream = Box::pin(tls.connect(&self.address)).await;
                Box::pin(over(stream, request)).await
            }
            (None, None) => over(TcpStream::connect(&self.address).await, request).await,
        };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        response.with_context(|| format!("failed to call {scheme}://{}{path}", self.address))
    }
}

/// The task that reads and writes a connection. It ends when this is dropped.
type ConnectionTask = JoinSet<()>;

/// Sends a request over a new connection.
async fn over<S>(
    stream: std::io::Result<S>,
    request: Request<Full<Bytes>>,
) -> Result<(Response<Incoming>, ConnectionTask)>
where
    TokioIo<S>: rt::Read + rt::Write + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream?)).await?;
    let mut task = JoinSet::new();
    // Errors of the connection are returned by the request and by its body.
    task.spawn(async move { _ = connection.await });
    Ok((sender.send_request(request).await?, task))
}

/// The documents of a watch, one in each line.
struct WatchLines {
    body: Incoming,
    /// Bytes that were read and not returned yet.
    unread: Vec<u8>,
    _connection: ConnectionTask,
}

impl WatchLines {
    async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map(Some)
                    .context("invalid event of the watch");
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    let frame = frame.context("failed to read the watch")?;
                    self.unread
                        .extend_from_slice(&frame.into_data().unwrap_or_default());
                }
            }
        }
    }
}
