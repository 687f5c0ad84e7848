//! The answer to a client that speaks HTTP without TLS to a port that has TLS only.

use std::{convert::Infallible, io};

use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::{
    Code,
    codegen::http::{Request, StatusCode},
};

use super::rewound::Rewound;
use crate::boundary::{failure, is_grpc};

/// The words of Go's server, so that people find it.
const MESSAGE: &str = "Client sent an HTTP request to an HTTPS server.";
/// The beginning of HTTP/2 with prior knowledge (RFC 9113 §3.4), which gRPC clients send.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0";
/// The most bytes that are read of a request of HTTP/1.
const MAX_READ: u64 = 64 * 1024;

/// Tells the client that the port has TLS, in the protocol of its request. The caller limits the
/// time.
pub(super) async fn answer(mut stream: Rewound) -> io::Result<()> {
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
        Some(_) if start == HTTP2_PREFACE => http2(stream).await,
        // A method.
        Some(first) if first.is_ascii_uppercase() => http1(stream).await,
        _ => Ok(()),
    }
}

/// Answers each request of the connection, so that a gRPC client shows the message.
async fn http2(stream: Rewound) -> io::Result<()> {
    let refuse = service_fn(async |request: Request<Incoming>| {
        let code = (StatusCode::BAD_REQUEST, "BadRequest");
        let is_grpc = is_grpc(request.headers());
        let refused = failure(code, Code::InvalidArgument, MESSAGE, is_grpc);
        Ok::<_, Infallible>(refused)
    });
    http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(16)
        .serve_connection(TokioIo::new(stream), refuse)
        .await
        .map_err(io::Error::other)
}

async fn http1(mut stream: Rewound) -> io::Result<()> {
    let answer = format!("HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n{MESSAGE}\n");
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    // Closing with unread bytes would reset the connection before the client has read the answer.
    tokio::io::copy(&mut stream.take(MAX_READ), &mut tokio::io::sink()).await?;
    Ok(())
}
