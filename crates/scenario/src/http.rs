//! HTTP requests to the services of a cluster, over TCP or a unix socket.

use ::http::{Method, Request, StatusCode, header};
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::{Duration, timeout},
};

/// The time limit of an answer. A paused service accepts connections and never answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// The answer of a service.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

impl Answer {
    /// Parses the body of a successful answer. Fails for other answers, with the message of their
    /// body.
    pub(crate) fn json(&self) -> Result<Value> {
        if self.status.is_success() {
            return serde_json::from_slice(&self.body).context("the answer is not JSON");
        }
        // A Kubernetes Status has the reason in its message.
        let status: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        match status["message"].as_str() {
            Some(message) => bail!("{message}"),
            None => bail!("{}", self.status),
        }
    }
}

/// Sends a request to the service at `HOST:PORT` or `unix:PATH`, with a body and its media type if
/// it has one.
pub(crate) async fn send(
    address: &str,
    method: Method,
    path: &str,
    body: Option<(&str, &Value)>,
) -> Result<Answer> {
    let exchange = async {
        match address.strip_prefix("unix:") {
            Some(socket) => over(UnixStream::connect(socket).await?, method, path, body).await,
            None => over(TcpStream::connect(address).await?, method, path, body).await,
        }
    };
    match timeout(PATIENCE, exchange).await {
        Ok(answer) => answer,
        Err(_) => bail!("no answer from {address} within {PATIENCE:?}"),
    }
}

async fn over(
    io: impl AsyncRead + AsyncWrite + Unpin,
    method: Method,
    path: &str,
    body: Option<(&str, &Value)>,
) -> Result<Answer> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await?;
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost");
    let mut bytes = Bytes::new();
    if let Some((media, body)) = body {
        request = request.header(header::CONTENT_TYPE, media);
        bytes = body.to_string().into();
    }
    let request = request.body(Full::new(bytes)).context("invalid request")?;
    let exchange = async move {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        anyhow::Ok(Answer { status, body })
    };
    tokio::pin!(connection, exchange);
    // The connection reads and writes; if it ends first, the exchange returns the reason.
    tokio::select! {
        answer = &mut exchange => answer,
        ended = &mut connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(error.into()),
        },
    }
}
