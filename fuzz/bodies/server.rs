//! An API server in this process, with its objects in memory, for inputs that are requests.
#![allow(dead_code, reason = "each target uses a part of it")]

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use bytes::Bytes;
use clap::Parser;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use podplane_apiserver::ApiserverConfig;
use tokio::{runtime::Runtime, task::JoinHandle, time};
use tokio_util::sync::CancellationToken;
use tonic::{
    body::Body,
    transport::{Channel, Endpoint},
};
use tower::ServiceExt as _;

/// The time in which a server must start, and answer a request.
const DEADLINE: Duration = Duration::from_secs(10);

/// The time for the part of a stream that is looked at.
const STREAM_TIME: Duration = Duration::from_millis(2);

/// The objects that every input finds, by the path of their kind.
const OBJECTS: [(&str, &str); 19] = [
    (
        "/api/v1/nodes",
        r#"{"metadata":{"name":"n","labels":{"a":"b"}},"spec":{"podCIDR":"10.0.0.0/24","podCIDRs":["10.0.0.0/24"]}}"#,
    ),
    (
        "/api/v1/namespaces/default/pods",
        r#"{"metadata":{"name":"p","labels":{"app":"a"},"annotations":{"x":"y"}},"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],"env":[{"name":"E","value":"v"}]}],"tolerations":[{"key":"k","operator":"Exists"}]}}"#,
    ),
    (
        "/api/v1/namespaces/default/events",
        r#"{"metadata":{"name":"e"},"involvedObject":{"kind":"Pod","name":"p","namespace":"default"},"reason":"R","message":"m","type":"Normal"}"#,
    ),
    (
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        r#"{"metadata":{"name":"l"},"spec":{"holderIdentity":"h","leaseDurationSeconds":15}}"#,
    ),
    ("/api/v1/namespaces", r#"{"metadata":{"name":"s"}}"#),
    (
        "/api/v1/namespaces/default/services",
        r#"{"metadata":{"name":"s"},"spec":{"selector":{"app":"a"},"ports":[{"port":80}]}}"#,
    ),
    (
        "/apis/apps/v1/namespaces/default/deployments",
        r#"{"metadata":{"name":"d"},"spec":{"replicas":2,"selector":{"matchLabels":{"app":"d"}},"template":{"metadata":{"labels":{"app":"d"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#,
    ),
    (
        "/apis/apps/v1/namespaces/default/replicasets",
        r#"{"metadata":{"name":"r"},"spec":{"selector":{"matchLabels":{"app":"r"}},"template":{"metadata":{"labels":{"app":"r"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#,
    ),
    (
        "/apis/apps/v1/namespaces/default/controllerrevisions",
        r#"{"metadata":{"name":"c"},"revision":1,"data":{"a":1}}"#,
    ),
    (
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        r#"{"metadata":{"name":"b"},"spec":{"minAvailable":1,"selector":{"matchLabels":{"app":"a"}}}}"#,
    ),
    (
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        r#"{"metadata":{"name":"high"},"value":7}"#,
    ),
    (
        "/api/v1/namespaces/default/serviceaccounts",
        r#"{"metadata":{"name":"a"}}"#,
    ),
    (
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
        r#"{"metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}"#,
    ),
    (
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        r#"{"metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}"#,
    ),
    (
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
        r#"{"metadata":{"name":"b"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"r"},"subjects":[{"kind":"ServiceAccount","name":"a","namespace":"default"}]}"#,
    ),
    (
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        r#"{"metadata":{"name":"b"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"u"}]}"#,
    ),
    (
        "/apis/networking.x-k8s.io/v1/clustercidrs",
        r#"{"metadata":{"name":"c"},"spec":{"perNodeHostBits":8,"ipv4":"10.0.0.0/16"}}"#,
    ),
    ("/api/v1/nodes", r#"{"metadata":{"name":"m"}}"#),
    (
        "/api/v1/namespaces/default/pods",
        r#"{"metadata":{"name":"q","finalizers":["a.b/c"],"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"u"}]},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}"#,
    ),
];

thread_local! {
    static SERVER: RefCell<Option<TestServer>> = const { RefCell::new(None) };
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    apiserver: ApiserverConfig,
}

/// A running server with [`OBJECTS`].
pub(crate) struct TestServer {
    runtime: Runtime,
    running: JoinHandle<()>,
    stop: CancellationToken,
    channel: Channel,
    /// The revision of the store at which it had [`OBJECTS`] and nothing else.
    revision: RefCell<String>,
    _dir: tempfile::TempDir,
}

/// An answer; a stream's is cut off.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// Calls `requests` with a server that has [`OBJECTS`] and nothing else. A server to which
/// something was written is not used again; `are_reads` says that nothing can be.
pub(crate) fn with(are_reads: bool, requests: impl FnOnce(&TestServer)) {
    SERVER.with_borrow_mut(|kept| {
        let server = kept.take().unwrap_or_else(TestServer::start);
        requests(&server);
        assert!(!server.running.is_finished(), "the server ended");
        match are_reads || server.is_unchanged() {
            true => *kept = Some(server),
            false => server.end(),
        }
    });
}

impl TestServer {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let socket = dir.path().join("s");
        let listen = format!("unix:{}", socket.display());
        let flags = [
            "apiserver",
            "--store=memory",
            "--ip-policy=off",
            "--listen",
            &listen,
        ];
        let Flags { apiserver } = Flags::parse_from(flags);
        let stop = CancellationToken::new();
        let serving = podplane_apiserver::run(apiserver, stop.clone());
        let running = runtime.spawn(async { serving.await.expect("the server runs") });
        let channel = {
            let _inside = runtime.enter();
            let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()));
            endpoint.expect("the path of a socket").connect_lazy()
        };
        let server = Self {
            runtime,
            running,
            stop,
            channel,
            revision: RefCell::default(),
            _dir: dir,
        };
        server.wait_until_served();
        for (path, object) in OBJECTS {
            let answer = server.rest(Method::POST, path, &[JSON], object.into());
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert_eq!(answer.status, StatusCode::CREATED, "{object}: {text}");
        }
        server.revision.replace(server.current_revision());
        server
    }

    fn wait_until_served(&self) {
        let begun = Instant::now();
        let path = self._dir.path().join("s");
        while !path.exists() || self.get("/readyz").status != StatusCode::OK {
            assert!(begun.elapsed() < DEADLINE, "the server does not start");
            self.runtime
                .block_on(async { time::sleep(Duration::from_micros(200)).await });
        }
    }

    fn end(self) {
        let Self {
            runtime,
            running,
            stop,
            channel,
            ..
        } = self;
        stop.cancel();
        drop(channel);
        let ended = runtime.block_on(async { time::timeout(DEADLINE, running).await });
        ended.expect("the server ends").expect("without a panic");
    }

    /// The revision of the newest write to any kind.
    fn current_revision(&self) -> String {
        let answer = self.get("/api/v1/namespaces?limit=1");
        let list: serde_json::Value = serde_json::from_slice(&answer.body).expect("a list");
        list["metadata"]["resourceVersion"].to_string()
    }

    fn is_unchanged(&self) -> bool {
        self.current_revision() == *self.revision.borrow()
    }

    /// Calls `write`, which returns true if it has undone what it wrote. The server can then be
    /// used again.
    pub(crate) fn undone(&self, write: impl FnOnce() -> bool) {
        let was_unchanged = self.is_unchanged();
        if write() && was_unchanged {
            self.revision.replace(self.current_revision());
        }
    }

    fn get(&self, path: &str) -> Answer {
        self.rest(Method::GET, path, &[], Bytes::new())
    }

    pub(crate) fn rest(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://localhost{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::new(Full::new(body)));
        let is_stream = path.contains("watch") || path.contains("follow");
        self.send(request.expect("a request"), is_stream)
    }

    /// Sends one message to a method, and returns the answer with its trailers among the headers.
    pub(crate) fn grpc(&self, path: &str, message: &[u8], is_stream: bool) -> Answer {
        let length = u32::try_from(message.len()).expect("inputs are small");
        let framed = [&[0][..], &length.to_be_bytes(), message].concat();
        let request = Request::post(format!("http://localhost{path}"))
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .body(Body::new(Full::from(framed)))
            .expect("a request");
        self.send(request, is_stream)
    }

    fn send(&self, request: Request<Body>, is_stream: bool) -> Answer {
        let called = async {
            let answer = self.channel.clone().oneshot(request).await;
            read(answer.expect("an answer"), is_stream).await
        };
        let answered = self
            .runtime
            .block_on(async { time::timeout(DEADLINE, called).await });
        answered.expect("the server answers in time")
    }
}

/// Reads a whole answer, or the beginning of a stream.
async fn read(answer: Response<Body>, is_stream: bool) -> Answer {
    let (parts, mut body) = answer.into_parts();
    let mut answer = Answer {
        status: parts.status,
        headers: parts.headers,
        body: Vec::new(),
    };
    loop {
        let frame = match is_stream {
            false => body.frame().await,
            true => match time::timeout(STREAM_TIME, body.frame()).await {
                Ok(frame) => frame,
                Err(_) => return answer,
            },
        };
        match frame {
            None => return answer,
            Some(frame) => {
                let frame = frame.expect("the answer does not end early");
                if let Some(data) = frame.data_ref() {
                    answer.body.extend_from_slice(data);
                } else if let Ok(trailers) = frame.into_trailers() {
                    answer.headers.extend(trailers);
                }
            }
        }
    }
}

pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");
