//! Tests of the boundary over real sockets, around handlers that panic.

#![expect(clippy::panic, reason = "handlers that panic are what is tested")]

use std::{convert::Infallible, task::Poll};

use axum::{
    Router,
    body::Body as AxumBody,
    http::{self, HeaderValue, Method},
    routing::get,
};
use futures::{future::BoxFuture, stream};
use http_body_util::BodyExt as _;
use podplane_http_client::HttpClient;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tonic::{
    body::Body,
    server::NamedService,
    transport::{Channel, Endpoint},
};
use tower::ServiceExt as _;

use crate::{Process, Services, Tasks, boundary::AllowedHosts, server::Listener};

/// A gRPC service that panics before it answers, while it answers, and in a stream.
#[derive(Clone, Debug)]
struct Panics;

impl NamedService for Panics {
    const NAME: &'static str = "test.Panics";
}

impl tonic::codegen::Service<http::Request<Body>> for Panics {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match request.uri().path() {
            "/test.Panics/Call" => panic!("in the call"),
            "/test.Panics/Answer" => Box::pin(async {
                tokio::task::yield_now().await;
                panic!("in the answer")
            }),
            _ => Box::pin(async {
                let mut response = http::Response::new(Body::new(broken()));
                let grpc = HeaderValue::from_static("application/grpc");
                response
                    .headers_mut()
                    .insert(http::header::CONTENT_TYPE, grpc);
                Ok(response)
            }),
        }
    }
}

/// A body that panics after its first chunk.
fn broken() -> AxumBody {
    AxumBody::from_stream(stream::unfold(true, |first| async move {
        assert!(first, "in the stream");
        Some((Ok::<_, Infallible>("piece"), false))
    }))
}

async fn panics(headers: http::HeaderMap) -> &'static str {
    tokio::task::yield_now().await;
    assert!(headers.is_empty(), "the request had a secret");
    "no headers"
}

/// A process with handlers that panic.
struct Server {
    tasks: Tasks,
    client: HttpClient,
    grpc: Channel,
}

impl Server {
    async fn start(allowed: &str) -> Self {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let names = allowed.split(',').filter(|name| !name.is_empty());
        let names = names.map(|name| name.parse().unwrap()).collect();
        let listener = listener.allowing(AllowedHosts { names });
        let address = listener.address().to_string();
        let mut tasks = Tasks::new(CancellationToken::new());
        let mut process = Process::new(tonic_health::pb::FILE_DESCRIPTOR_SET);
        let mut services = Services::default();
        services.add(Panics);
        process.serve(listener, services);
        let router = Router::new()
            .route("/panics", get(panics))
            .route("/stream", get(|| async { broken() }));
        process.with_http(router);
        process.start(&mut tasks).await;
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        Self {
            tasks,
            client: HttpClient::new(address),
            grpc: endpoint.connect_lazy(),
        }
    }

    /// The code and the text of an answer without a body of its own.
    async fn ask(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let answer = self.client.exchange(method, path, headers, "").await;
        let answer = answer.unwrap();
        let text = match answer.body {
            Value::String(text) => text,
            document => document.to_string(),
        };
        (answer.code, text)
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.ask(Method::GET, path, &[]).await
    }

    /// The status of a gRPC call, from its headers or trailers.
    async fn call(&self, method: &str) -> String {
        let request = http::Request::post(format!("/test.Panics/{method}"))
            .header("content-type", "application/grpc");
        let request = request.body(Body::empty()).unwrap();
        let response = self.grpc.clone().oneshot(request).await.unwrap();
        let headers = response.headers().clone();
        let body = response.into_body().collect().await.unwrap();
        let status = headers
            .get("grpc-status")
            .or(body.trailers().and_then(|t| t.get("grpc-status")));
        status.unwrap().to_str().unwrap().to_owned()
    }

    async fn stop(self) {
        self.tasks.stop().cancel();
        drop((self.client, self.grpc));
        self.tasks.run().await.unwrap();
    }
}

const INTERNAL: &str = "13";

#[tokio::test]
async fn panic_ends_only_its_request() {
    let server = Server::start("").await;
    let (code, text) = server.get("/panics").await;
    assert_eq!(code, 500);
    assert!(text.contains(r#""reason":"InternalError""#), "{text}");
    assert!(!text.contains("secret"), "{text}");
    let broken = server.client.get("/stream").await;
    assert!(broken.is_err(), "the stream ends with an error: {broken:?}");
    for method in ["Call", "Answer", "Stream"] {
        assert_eq!(server.call(method).await, INTERNAL, "{method}");
    }
    assert_eq!(server.get("/livez").await, (200, "ok".into()));
    let (_, metrics) = server.get("/metrics").await;
    assert!(
        metrics.contains("podplane_request_panics_total 5\n"),
        "{metrics}"
    );
    server.stop().await;
}

#[tokio::test]
async fn refuses_hosts_and_pages_that_are_not_allowed() {
    let server = Server::start("podplane.example").await;
    let ask = |headers| server.ask(Method::GET, "/livez", headers);
    for headers in [
        &[][..],
        &[("host", "localhost:1")],
        &[("host", "podplane.example")],
        &[("host", "127.0.0.1:80"), ("origin", "http://127.0.0.1")],
    ] {
        assert_eq!(ask(headers).await, (200, "ok".into()), "{headers:?}");
    }
    let (code, text) = ask(&[("host", "evil.example")]).await;
    assert_eq!(code, 421);
    assert!(
        text.contains("--allowed-hosts") && text.contains("evil.example"),
        "{text}"
    );
    let (code, text) = ask(&[("origin", "http://evil.example")]).await;
    assert_eq!(code, 403);
    assert!(
        text.contains("--allowed-hosts") && text.contains("http://evil.example"),
        "{text}"
    );
    let (_, metrics) = server.get("/metrics").await;
    for reason in ["host", "origin"] {
        let line = format!("podplane_requests_refused_total{{reason=\"{reason}\"}} 1\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
    server.stop().await;
}

#[tokio::test]
async fn grpc_methods_reject_other_media_types() {
    let server = Server::start("").await;
    for media in ["", "text/plain", "application/json"] {
        for service in ["test.Panics/Call", "grpc.health.v1.Health/Check"] {
            let path = format!("/{service}");
            let headers = [("content-type", media)];
            let (code, _) = server.ask(Method::POST, &path, &headers).await;
            assert_eq!(code, 415, "{media} {service}");
        }
    }
    server.stop().await;
}
