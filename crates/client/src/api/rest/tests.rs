use std::{
    convert::Infallible,
    sync::{Mutex, PoisonError},
};

use http::Response;
use kube::client::Body;

use super::*;

const REFUSED: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"unknown","reason":"Invalid","code":422}"#;
/// The first event that Kubernetes' API server sends with an etcd before 3.4.25.
const NO_PROGRESS: &str = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the required storage feature RequestWatchProgress is disabled","reason":"InternalError","code":500}}"#;
const PART: &str =
    r#"{"type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"a"}}}"#;
const LIST: &str = r#"{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}"#;

type Seen = Arc<Mutex<Vec<bool>>>;

/// Calls to a server that answers a streamed list with this. It records which of the requests were
/// for streamed lists.
fn server(code: u16, answer: &'static str) -> (RestCalls, Seen) {
    let seen = Seen::default();
    let recorded = Arc::clone(&seen);
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let streamed = query.contains("sendInitialEvents=true");
        let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.push(streamed);
        let (code, body) = if streamed {
            (code, answer)
        } else {
            (200, LIST)
        };
        let mut response = Response::new(Body::from(body.as_bytes().to_vec()));
        *response.status_mut() = http::StatusCode::from_u16(code).expect("a code of HTTP");
        std::future::ready(Ok::<_, Infallible>(response))
    });
    (RestCalls::new(kube::Client::new(service, "default")), seen)
}

/// The names that two lists have, and which requests were for streamed lists.
async fn listed_twice(code: u16, answer: &'static str) -> (Vec<String>, Vec<bool>) {
    let (calls, seen) = server(code, answer);
    let mut names = Vec::new();
    for _ in 0..2 {
        let params = ListParams::default();
        let name = |node: Node| node.metadata.name.unwrap_or_default();
        let list = calls.list_all_as::<Node, _>("", &params, name).await;
        let list = list.expect("the list");
        assert_eq!(list.resource_version, "7");
        names = list.items;
    }
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    (names, seen.clone())
}

#[tokio::test]
async fn a_list_that_cannot_be_streamed_is_read_in_pages() {
    for answer in [NO_PROGRESS, PART] {
        let (names, streamed) = listed_twice(200, answer).await;
        assert_eq!(names, ["a", "b"], "{answer}");
        assert_eq!(streamed, [true, false, true, false], "{answer}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_know_streamed_lists_is_asked_once() {
    let (names, streamed) = listed_twice(422, REFUSED).await;
    assert_eq!(names, ["a", "b"]);
    assert_eq!(streamed, [true, false, false]);
}
