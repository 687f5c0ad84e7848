//! The limits of users: seats, watches, and the parts of long lists.

use std::sync::Arc;

use http::Method;
use podplane_client::{ListParams, Reason};
use podplane_http_client::HttpAnswer;
use podplane_service_runtime::{
    authentication::{AuthenticationRefusal, Authenticator, RequestContext},
    identity::{AUTHENTICATED, Identity},
    peer::Peer,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;
use crate::flow::FlowLimits;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Believes the header `x-user`.
#[derive(Debug)]
struct ByHeader;

impl Authenticator for ByHeader {
    fn authenticate(
        &self,
        peer: Option<Peer>,
        headers: &http::HeaderMap,
    ) -> Result<RequestContext, AuthenticationRefusal> {
        let user = headers.get("x-user").and_then(|user| user.to_str().ok());
        let identity = match user {
            Some(user) => Identity::new(user, [AUTHENTICATED]),
            None => Identity::anonymous(),
        };
        Ok(RequestContext {
            identity: Arc::new(identity),
            peer,
            impersonation: Ok(None),
        })
    }
}

async fn server_with(flow: FlowLimits) -> TestServer {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await;
    let listener = listener.unwrap().authenticating(Arc::new(ByHeader));
    let rules = ServerRules {
        flow,
        ..uncounted()
    };
    TestServer::on(listener, rules, MemStore::new()).await
}

async fn get_by(server: &TestServer, user: &str, path: &str) -> HttpAnswer {
    let headers = [("x-user", user)];
    let answer = server.rest.exchange(Method::GET, path, &headers, "");
    within(answer).await.unwrap()
}

impl TestServer {
    /// Waits until a metric has a line that begins so.
    async fn metric(&self, line: &str) {
        within(async {
            loop {
                let answer = self.rest.get("/metrics").await.unwrap();
                let text = answer.body.as_str().unwrap();
                if text.lines().any(|one| one == line) {
                    return;
                }
                time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

/// Begins a create whose body does not arrive, so that it keeps its seat.
async fn begin_create(server: &TestServer, user: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).await.unwrap();
    let head = format!(
        "POST {PODS} HTTP/1.1\r\nHost: {}\r\nX-User: {user}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{",
        server.address
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn a_user_who_takes_all_seats_waits_and_others_do_not() {
    // Of 49 seats the level of users has 4 (20 of 245 shares), and one user 3.
    let server = server_with(FlowLimits {
        seats: 49,
        watches_of_user: 0,
        has_users: true,
    })
    .await;
    let labels = "{priority_level=\"global-default\",flow_schema=\"global-default\"}";
    let executing = format!("apiserver_flowcontrol_current_executing_requests{labels}");
    let waiting = format!("apiserver_flowcontrol_current_inqueue_requests{labels}");
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(begin_create(&server, "flood").await);
    }
    server.metric(&format!("{executing} 3")).await;
    let own = get_by(&server, "flood", PODS);
    let others = async {
        server.metric(&format!("{waiting} 1")).await;
        for _ in 0..5 {
            assert_eq!(get_by(&server, "ada", PODS).await.code, 200);
        }
        // The request of the flood still waits, until one of its creates ends.
        server.metric(&format!("{waiting} 1")).await;
        let mut ended = taken.pop().unwrap();
        ended.write_all(b"}").await.unwrap();
        let mut answer = [0; 12];
        within(ended.read_exact(&mut answer)).await.unwrap();
        ended
    };
    let (own, ended) = tokio::join!(own, others);
    assert_eq!(own.code, 200);
    server.metric(&format!("{waiting} 0")).await;
    drop((taken, ended));
    server.metric(&format!("{executing} 0")).await;
    server.stop().await;
}

#[tokio::test]
async fn a_watch_too_many_is_refused_over_rest_and_grpc() {
    let server = server_with(FlowLimits {
        watches_of_user: 2,
        ..FlowLimits::default()
    })
    .await;
    // The client without a name is its address.
    let pods = server.pods();
    let params = ListParams::default();
    let watch = || pods.watch(&params, "");
    let (first, second) = (watch().await.unwrap(), watch().await.unwrap());
    let refused = watch().await.err().unwrap();
    assert_eq!(refused.reason, Reason::TooManyRequests);
    assert_eq!(refused.retry_after_seconds, Some(1));
    assert!(
        refused.message.contains("this user has 2 open"),
        "{refused}"
    );
    let refused = within(server.rest.get(&format!("{PODS}?watch=1"))).await;
    let refused = refused.unwrap();
    assert_eq!(refused.code, 429);
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(refused.body["reason"], "TooManyRequests");
    server
        .metric("podplane_watches_refused_total{reason=\"user\"} 2")
        .await;
    drop(first);
    within(async {
        while watch().await.is_err() {
            time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    drop(second);
    drop(pods);
    server.stop().await;
}

#[tokio::test]
async fn a_long_list_has_all_objects_in_every_form() {
    let server = TestServer::start().await;
    let names: Vec<_> = (0..301).map(|number| format!("p-{number:03}")).collect();
    for name in &names {
        server.pods().create(&pod(name)).await.unwrap();
    }
    let listed = server.pods().list(&ListParams::default()).await.unwrap();
    let found: Vec<_> = listed.items.iter().map(|pod| pod.name()).collect();
    assert_eq!(found, names, "over gRPC");
    let short = ListParams {
        limit: 100,
        ..ListParams::default()
    };
    let short = server.pods().list(&short).await.unwrap();
    assert_eq!(short.items, listed.items[..100]);
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    for (accept, elements, name) in [
        ("application/json", "items", "/metadata/name"),
        (table, "rows", "/object/metadata/name"),
        (metadata, "items", "/metadata/name"),
    ] {
        let listed = async |query: &str| {
            let path = format!("{PODS}{query}");
            let headers = [("accept", accept)];
            let answer = server.rest.exchange(Method::GET, &path, &headers, "");
            within(answer).await.unwrap().document().unwrap()
        };
        let long = listed("").await;
        let found: Vec<_> = long[elements].as_array().unwrap().iter().collect();
        let found_names: Vec<_> = found
            .iter()
            .map(|one| one.pointer(name).unwrap().as_str().unwrap())
            .collect();
        assert_eq!(found_names, names, "{accept}");
        // A short list, which is rendered at once, has the same fields.
        let mut short = listed("?limit=100").await;
        let first = short[elements]
            .as_array()
            .unwrap()
            .iter()
            .collect::<Vec<_>>();
        if accept != table {
            assert_eq!(first, found[..100]);
        }
        let mut long = long.clone();
        for list in [&mut long, &mut short] {
            list[elements] = json!([]);
            list["metadata"] = json!({});
        }
        assert_eq!(long, short, "{accept}");
    }
    let headers = [("accept", "application/yaml")];
    let yaml = server.rest.exchange(Method::GET, PODS, &headers, "");
    let yaml = within(yaml).await.unwrap().body;
    assert!(yaml.as_str().unwrap().contains("name: p-300"));
    server.stop().await;
}
