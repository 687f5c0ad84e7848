//! Limits of sockets, by clients over real ones.

use std::{net::SocketAddr, time::Duration};

use axum::{Router, body, routing::get};
use futures::stream;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use podplane_http_client::HttpClient;
use prometheus_client::registry::Registry;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};
use tonic::codegen::Bytes;

use super::*;

/// The parts of an answer that never ends.
const PART: usize = 32 << 10;

struct TestSocket {
    address: SocketAddr,
    registry: Registry,
    stop: CancellationToken,
    serving: JoinSet<Result<(), ServeError>>,
}

impl TestSocket {
    /// Serves `/` with a short answer, and `/endless` with one that never ends.
    async fn start(limits: ServerLimits) -> Self {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await;
        let listener = listener.unwrap().limited(limits);
        let Listen::Tcp(address) = *listener.address() else {
            panic!("a TCP socket");
        };
        let endless = || async {
            let part = Bytes::from(vec![b'x'; PART]);
            let parts = stream::repeat_with(move || Ok::<_, io::Error>(part.clone()));
            body::Body::from_stream(parts)
        };
        let routes = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/endless", get(endless));
        let mut registry = Registry::default();
        let metrics = BoundaryMetrics::new(&mut registry);
        let limit_metrics = LimitMetrics::new(&mut registry);
        let stop = CancellationToken::new();
        let mut serving = JoinSet::new();
        serving.spawn(listener.serve(Routes::from(routes), stop.clone(), metrics, limit_metrics));
        Self {
            address,
            registry,
            stop,
            serving,
        }
    }

    fn client(&self) -> HttpClient {
        HttpClient::new(self.address.to_string())
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A metric's line in the text of all.
    fn has(&self, line: &str) -> bool {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text.lines().any(|one| one == line)
    }

    async fn reaches(&self, line: &str) {
        while !self.has(line) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn end(mut self) {
        self.stop.cancel();
        self.serving.join_next().await.unwrap().unwrap().unwrap();
    }
}

fn few(all: usize, of_client: usize) -> ServerLimits {
    ServerLimits {
        max_connections: all,
        max_connections_per_client: of_client,
        ..ServerLimits::default()
    }
}

/// A connection that was served once and is open.
async fn served(socket: &TestSocket) -> TcpStream {
    let mut stream = socket.connect().await;
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    stream
}

#[tokio::test]
async fn a_connection_too_many_is_answered_and_the_next_is_served() {
    let socket = TestSocket::start(few(10, 2)).await;
    let (first, _second) = (served(&socket).await, served(&socket).await);
    let mut refused = socket.connect().await;
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    refused.write_all(request).await.unwrap();
    let mut answer = String::new();
    refused.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.0 429 Too Many Requests\r\n")
            && answer.contains("\r\nRetry-After: 1\r\n")
            && answer.contains("too many connections from this address"),
        "{answer}"
    );
    let mut health = tonic_health::pb::health_client::HealthClient::new(
        tonic::transport::Endpoint::from_shared(format!("http://{}", socket.address))
            .unwrap()
            .connect_lazy(),
    );
    let refused = health.check(tonic_health::pb::HealthCheckRequest::default());
    let refused = refused.await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("too many connections"));
    assert!(socket.has("podplane_connections_refused_total{reason=\"client\"} 2"));
    assert!(socket.has("podplane_connections 2"));
    drop(first);
    socket.reaches("podplane_connections 1").await;
    assert_eq!(socket.client().get("/").await.unwrap().code, 200);
    drop(_second);
    socket.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_nothing_is_disconnected() {
    let socket = TestSocket::start(ServerLimits::default()).await;
    let mut silent = socket.connect().await;
    let mut nothing = Vec::new();
    silent.read_to_end(&mut nothing).await.unwrap();
    assert!(socket.has("podplane_slow_clients_total{reason=\"silent\"} 1"));
    socket.reaches("podplane_connections 0").await;
    socket.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_disconnected() {
    let socket = TestSocket::start(ServerLimits::default()).await;
    let mut stalled = socket.connect().await;
    let request = b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stalled.write_all(request).await.unwrap();
    socket
        .reaches("podplane_slow_clients_total{reason=\"connection\"} 1")
        .await;
    socket.reaches("podplane_connections 0").await;
    // What was sent before arrives; the rest does not.
    let mut rest = Vec::new();
    _ = stalled.read_to_end(&mut rest).await;
    assert!(rest.starts_with(b"HTTP/1.1 200"));
    socket.end().await;
}

#[tokio::test(start_paused = true)]
async fn only_the_stream_that_is_not_read_is_reset() {
    let socket = TestSocket::start(ServerLimits::default()).await;
    let stream = socket.connect().await;
    let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(1 << 16)
        .initial_connection_window_size(1 << 20)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .unwrap();
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let mut answers = Vec::new();
    for _ in 0..2 {
        let request =
            tonic::codegen::http::Request::get(format!("http://{}/endless", socket.address));
        let request = request.body(Empty::new()).unwrap();
        answers.push(sender.send_request(request).await.unwrap().into_body());
    }
    let (mut read, mut stalled) = (answers.remove(0), answers.remove(0));
    let stalled_line = "podplane_slow_clients_total{reason=\"stream\"} 1";
    while !socket.has(stalled_line) {
        read.frame().await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut received = 0;
    let reset = loop {
        match stalled.frame().await.unwrap() {
            Ok(frame) => received += frame.data_ref().map_or(0, Bytes::len),
            Err(error) => break error,
        }
    };
    assert!(received <= 1 << 16, "{received} bytes");
    assert!(format!("{reset:?}").contains("CANCEL"), "{reset:?}");
    read.frame().await.unwrap().unwrap();
    assert!(socket.has(stalled_line), "the other stream goes on");
    drop((sender, read));
    driver.abort_all();
    socket.end().await;
}

#[tokio::test]
async fn streams_that_are_reset_at_once_end_their_connection() {
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const GOAWAY: u8 = 7;
    const ENHANCE_YOUR_CALM: u32 = 11;
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let socket = TestSocket::start(ServerLimits::default()).await;
    let mut client = socket.connect().await;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    // HPACK: the static entries of GET, http and `/`, and an authority.
    let head = [&[0x82, 0x86, 0x84, 0x41, 9][..], b"localhost"].concat();
    for number in 0..500 {
        let stream = 2 * number + 1;
        // END_STREAM and END_HEADERS.
        bytes.extend(frame(HEADERS, 5, stream, &head));
        bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    client.write_all(&bytes).await.unwrap();
    let mut received = Vec::new();
    // Closed, or reset since the server has not read everything.
    _ = client.read_to_end(&mut received).await;
    let mut rest = &received[..];
    let mut ended_by = None;
    while let [high, middle, low, kind, _, _, _, _, _, payload @ ..] = rest {
        let length = u32::from_be_bytes([0, *high, *middle, *low]);
        let (payload, more) = payload.split_at(usize::try_from(length).unwrap());
        if *kind == GOAWAY {
            ended_by = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        rest = more;
    }
    assert_eq!(ended_by, Some(ENHANCE_YOUR_CALM));
    socket.end().await;
}

#[test]
fn parses_and_prints_addresses() {
    for text in ["127.0.0.1:0", "[::1]:7080", "unix:/run/x.sock"] {
        assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
    }
    for text in ["", "7080", "localhost:1", "unix:", "127.0.0.1:99999"] {
        assert!(text.parse::<Listen>().is_err(), "{text}");
    }
}

#[tokio::test]
async fn rejects_a_port_in_use() {
    let first = Listener::bind(&"127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let error = Listener::bind(first.address()).await.unwrap_err();
    assert!(
        matches!(error, ServeError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    );
}

#[tokio::test]
async fn replaces_only_dead_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let listen = Listen::Unix(dir.path().join("s"));
    drop(Listener::bind(&listen).await.unwrap());
    let live = Listener::bind(&listen).await.unwrap();
    assert!(Listener::bind(&listen).await.is_err());
    drop(live);
}

#[tokio::test]
async fn reports_a_socket_path_that_is_too_long() {
    let listen = Listen::Unix(PathBuf::from(format!("/tmp/{}", "x".repeat(120))));
    let error = Listener::bind(&listen).await.unwrap_err();
    assert!(error.to_string().contains("has 125 bytes"), "{error}");
}
