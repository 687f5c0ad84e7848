//! The answer to a client whose connection is not served.

use std::{convert::Infallible, io};

use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tonic::{
    Code,
    codegen::http::{Request, Response, StatusCode, header},
};

use super::rewound::Rewound;
use crate::boundary::{failure, is_grpc};

/// The beginning of HTTP/2 with prior knowledge (RFC 9113 §3.4), which gRPC clients send.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0";
/// The most bytes that are read of a request of HTTP/1.
const MAX_READ: u64 = 64 * 1024;

/// An answer to each request of a connection.
#[derive(Clone, Debug)]
pub(super) struct ConnectionAnswer {
    /// The code and its name in `Status`.
    pub(super) code: (StatusCode, &'static str),
    pub(super) grpc: Code,
    /// The seconds of `Retry-After`.
    pub(super) retry_after: Option<u64>,
    pub(super) message: String,
}

impl ConnectionAnswer {
    /// Tells the client, in the protocol of its request. The caller limits the time.
    pub(super) async fn send<S>(self, mut stream: Rewound<S>) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut start = [0; HTTP2_PREFACE.len()];
        let mut known = 0;
        // Enough to tell one protocol from the other.
        while known < start.len() && HTTP2_PREFACE.starts_with(&start[..known]) {
            match stream.read(&mut start[known..]).await? {
                0 => break,
                more => known += more,
            }
        }
        let start = &start[..known];
        stream.rewind(start);
        match start.first() {
            Some(_) if start == HTTP2_PREFACE => self.http2(stream).await,
            // A method.
            Some(first) if first.is_ascii_uppercase() => self.http1(stream).await,
            _ => Ok(()),
        }
    }

    /// Answers each request of the connection, so that a gRPC client shows the message.
    async fn http2<S>(self, stream: Rewound<S>) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let refuse = service_fn(|request: Request<Incoming>| {
            let is_grpc = is_grpc(request.headers());
            let mut refused: Response<_> = failure(self.code, self.grpc, &self.message, is_grpc);
            if let Some(seconds) = self.retry_after {
                refused
                    .headers_mut()
                    .insert(header::RETRY_AFTER, seconds.into());
            }
            std::future::ready(Ok::<_, Infallible>(refused))
        });
        http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(16)
            .serve_connection(TokioIo::new(stream), refuse)
            .await
            .map_err(io::Error::other)
    }

    async fn http1<S>(self, mut stream: Rewound<S>) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Self {
            code: (code, _),
            retry_after,
            message,
            ..
        } = self;
        let retry = retry_after.map(|seconds| format!("Retry-After: {seconds}\r\n"));
        let answer = format!(
            "HTTP/1.0 {code}\r\nContent-Type: text/plain\r\n{}\r\n{message}\n",
            retry.unwrap_or_default()
        );
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing with unread bytes would reset the connection before the client has read the
        // answer.
        tokio::io::copy(&mut stream.take(MAX_READ), &mut tokio::io::sink()).await?;
        Ok(())
    }
}
