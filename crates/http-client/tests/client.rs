//! The client against servers that send prepared bytes.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use futures::StreamExt as _;
use http::Method;
use podplane_http_client::HttpClient;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UnixListener},
    task::JoinSet,
};

/// A server that answers one request with these bytes, then closes, and returns the request.
async fn answering(bytes: &'static str) -> (HttpClient, JoinSet<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = HttpClient::new(listener.local_addr().unwrap().to_string());
    let mut server = JoinSet::new();
    server.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = String::new();
        // The document of a POST ends with a brace, a GET with an empty line.
        let end = |request: &str| {
            if request.starts_with('P') {
                "}"
            } else {
                "\r\n\r\n"
            }
        };
        while !request.ends_with(end(&request)) {
            request.push(stream.read_u8().await.unwrap().into());
        }
        stream.write_all(bytes.as_bytes()).await.unwrap();
        request
    });
    (client, server)
}

#[tokio::test]
async fn sends_a_document_and_reads_another() {
    let (client, mut server) =
        answering("HTTP/1.1 201 Created\r\ncontent-length: 7\r\n\r\n{\"a\":1}").await;
    let sent = client.send_json(Method::POST, "/path?query", &json!({"b": 2}));
    let answer = sent.await.unwrap();
    assert_eq!((answer.code, &answer.body), (201, &json!({"a": 1})));
    assert_eq!(answer.document().unwrap(), json!({"a": 1}));
    let request = server.join_next().await.unwrap().unwrap().to_lowercase();
    assert!(request.starts_with("post /path?query http/1.1\r\n"));
    assert!(request.contains("host: 127.0.0.1:") && request.contains("application/json"));
}

#[tokio::test]
async fn a_refusal_is_an_error_with_the_message_of_its_status() {
    let (client, _server) =
        answering("HTTP/1.1 404 Not Found\r\ncontent-length: 18\r\n\r\n{\"message\":\"gone\"}")
            .await;
    let error = client.get("/").await.unwrap().document().unwrap_err();
    assert_eq!(error.to_string(), "gone");
}

#[tokio::test]
async fn a_body_that_breaks_off_is_an_error() {
    let (client, _server) = answering("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf").await;
    let error = client.get("/").await.unwrap_err();
    assert_eq!(error.to_string(), "failed to read the answer");
}

#[tokio::test]
async fn a_watch_returns_each_line_and_ends_with_the_body() {
    let (client, _server) =
        answering("HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n[1]\n[2]\n").await;
    let (code, events) = client.watch("/").await.unwrap();
    let events: Vec<_> = events.map(Result::unwrap).collect().await;
    assert_eq!((code, events), (200, vec![json!([1]), json!([2])]));
}

#[tokio::test]
async fn a_server_that_never_answers_runs_into_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let _paused = UnixListener::bind(&socket).unwrap();
    let client = HttpClient::new(format!("unix:{}", socket.display()));
    let client = client.with_timeout(Duration::from_millis(20));
    let error = client.get("/").await.unwrap_err().to_string();
    assert!(error.contains("within 20ms"), "{error}");
}
