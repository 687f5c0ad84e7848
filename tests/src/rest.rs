//! A client of the Kubernetes REST API that knows nothing of podplane: paths and JSON, without any
//! defaults.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use http::{HeaderMap, Method, Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Rest {
    client: Client<HttpConnector, Full<Bytes>>,
    address: String,
}

/// A server's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP's status code.
    pub code: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The document; a string if the body is not JSON.
    pub body: Value,
}

impl Rest {
    /// A client of the server at `HOST:PORT`.
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            address: address.into(),
        }
    }

    /// Sends a request, with a body of a media type.
    ///
    /// # Errors
    ///
    /// If no answer comes.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Answer> {
        read(self.request(method, path, body).await?).await
    }

    /// Sends any bytes with any headers.
    ///
    /// # Errors
    ///
    /// If no answer comes.
    pub async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer> {
        let uri = format!("http://{}{path}", self.address);
        let request = Request::builder().method(method).uri(&uri);
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        let request = request
            .body(Full::new(body.into()))
            .context("make a request")?;
        read(self.client.request(request).await.context(uri)?).await
    }

    /// Reads the document at a path.
    ///
    /// # Errors
    ///
    /// If no answer comes.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.send(Method::GET, path, None).await
    }

    /// Sends a document.
    ///
    /// # Errors
    ///
    /// If no answer comes.
    pub async fn send_json(&self, method: Method, path: &str, body: &Value) -> Result<Answer> {
        self.send(method, path, Some(("application/json", body)))
            .await
    }

    /// Watches: the status code of the answer, and the events.
    ///
    /// # Errors
    ///
    /// If no answer comes.
    pub async fn watch(
        &self,
        path: &str,
    ) -> Result<(u16, impl Stream<Item = Result<Value>> + Send + use<>)> {
        let response = self.request(Method::GET, path, None).await?;
        let code = response.status().as_u16();
        let lines = Lines {
            body: response.into_body(),
            read: Vec::new(),
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
        body: Option<(&str, &Value)>,
    ) -> Result<http::Response<Incoming>> {
        let uri = format!("http://{}{path}", self.address);
        let mut request = Request::builder().method(method).uri(&uri);
        let mut bytes = Bytes::new();
        if let Some((media, body)) = body {
            request = request.header(header::CONTENT_TYPE, media);
            bytes = body.to_string().into();
        }
        let request = request.body(Full::new(bytes)).context("make a request")?;
        self.client.request(request).await.context(uri)
    }
}

async fn read(response: http::Response<Incoming>) -> Result<Answer> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.context("read the answer")?.to_bytes();
    let text = || Value::String(String::from_utf8_lossy(&body).into_owned());
    Ok(Answer {
        code: parts.status.as_u16(),
        headers: parts.headers,
        body: serde_json::from_slice(&body).unwrap_or_else(|_| text()),
    })
}

/// The documents of a body, one in each line.
struct Lines {
    body: Incoming,
    /// Bytes that were read and not returned yet.
    read: Vec<u8>,
}

impl Lines {
    async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map(Some)
                    .context("an event of the watch");
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    let frame = frame.context("read the watch")?;
                    self.read
                        .extend_from_slice(&frame.into_data().unwrap_or_default());
                }
            }
        }
    }
}
