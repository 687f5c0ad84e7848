//! Lists and watches through REST: `resourceVersion`, `resourceVersionMatch`, `limit`, `continue`,
//! `sendInitialEvents`, bookmarks.

use std::sync::Arc;

use podplane_client::ListParams;
use podplane_http_client::HttpAnswer;
use podplane_store::Revision;

use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";

impl TestServer {
    /// A list of pods with these options.
    async fn listed(&self, options: &str) -> HttpAnswer {
        self.rest.get(&format!("{PODS}?{options}")).await.unwrap()
    }

    /// The first `count` events of a watch of pods, each with its type, name and revision.
    async fn watched(&self, options: &str, count: usize) -> Vec<String> {
        let path = format!("{PODS}?watch=1&{options}");
        let (code, events) = self.rest.watch(&path).await.unwrap();
        assert_eq!(code, 200, "{options}");
        let events = events.map(|event| event_text(&event.unwrap()));
        within(events.take(count).collect()).await
    }

    async fn create(&self, name: &str) -> u64 {
        revision(&self.pods().create(&pod(name)).await.unwrap())
    }
}

/// The options of a query, for gRPC.
fn params(options: &str) -> ListParams {
    let mut params = ListParams::default();
    for (name, value) in options
        .split('&')
        .filter_map(|option| option.split_once('='))
    {
        match name {
            "resourceVersion" => value.clone_into(&mut params.resource_version),
            "resourceVersionMatch" => value.clone_into(&mut params.resource_version_match),
            "continue" => value.clone_into(&mut params.continue_token),
            "limit" => params.limit = value.parse().unwrap(),
            other => panic!("{other}"),
        }
    }
    params
}

fn revision(pod: &Pod) -> u64 {
    pod.resource_version().parse().unwrap()
}

fn event_text(event: &Value) -> String {
    let object = &event["object"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text(&event["type"]);
    match kind.as_str() {
        "BOOKMARK" => {
            let end = &object["metadata"]["annotations"]["k8s.io/initial-events-end"];
            let end = if end == "true" { " end" } else { "" };
            format!(
                "BOOKMARK{end} {}",
                text(&object["metadata"]["resourceVersion"])
            )
        }
        "ERROR" => format!("ERROR {} {}", object["code"], text(&object["message"])),
        _ => format!("{kind} {}", text(&object["metadata"]["name"])),
    }
}

fn names(answer: &HttpAnswer) -> String {
    assert_eq!(answer.code, 200, "{}", answer.body);
    let items = answer.body["items"].as_array().unwrap();
    let names: Vec<_> = items
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect();
    names.join(" ")
}

#[tokio::test]
async fn a_list_respects_the_requested_revision() {
    let server = TestServer::start().await;
    let a = server.create("a").await;
    let b = server.create("b").await;
    let current = b.to_string();
    let future = b + 1;
    for (options, want, at) in [
        (String::new(), "a b", &current),
        ("resourceVersion=0".into(), "a b", &current),
        (
            "resourceVersion=0&resourceVersionMatch=NotOlderThan".into(),
            "a b",
            &current,
        ),
        (format!("resourceVersion={a}"), "a b", &current),
        (
            format!("resourceVersion={a}&resourceVersionMatch=NotOlderThan&limit=7"),
            "a b",
            &current,
        ),
        (
            format!("resourceVersion={a}&resourceVersionMatch=Exact"),
            "a",
            &a.to_string(),
        ),
        (format!("resourceVersion={a}&limit=7"), "a", &a.to_string()),
        (format!("resourceVersion={b}"), "a b", &current),
    ] {
        let answer = server.listed(&options).await;
        assert_eq!(names(&answer), want, "{options}");
        let grpc = server.pods().list(&params(&options)).await.unwrap();
        let same: Vec<_> = grpc.items.iter().map(Object::name).collect();
        assert_eq!(same.join(" "), want, "{options}");
        assert_eq!(&grpc.resource_version, at, "{options}");
        assert_eq!(
            answer.body["metadata"]["resourceVersion"].as_str(),
            Some(at.as_str()),
            "{options}"
        );
    }
    for how in [
        "",
        "&resourceVersionMatch=NotOlderThan",
        "&resourceVersionMatch=Exact",
        "&limit=1",
    ] {
        let answer = server
            .listed(&format!("resourceVersion={future}{how}"))
            .await;
        let want = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Timeout", "code": 504,
            "message": format!("Timeout: Too large resource version: {future}, current: {b}"),
            "details": {
                "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                "retryAfterSeconds": 1,
            },
        });
        assert_eq!((answer.code, &answer.body), (504, &want), "{how}");
        let options = format!("resourceVersion={future}{how}");
        let error = server.pods().list(&params(&options)).await.unwrap_err();
        let told = (error.reason.as_str(), Value::from(error.message));
        assert_eq!(told, ("Timeout", want["message"].clone()));
        assert_eq!(answer.headers["retry-after"], "1");
    }
    server.stop().await;
}

/// Kubernetes' `ValidateListOptions`, and the refusals of its storage.
#[tokio::test]
async fn options_that_contradict_each_other_are_refused() {
    let server = TestServer::start().await;
    server.create("a").await;
    server.create("b").await;
    let token = server.listed("limit=1").await.body["metadata"]["continue"].clone();
    let token = token.as_str().unwrap();
    let invalid = |why: &str| {
        (
            422,
            format!("ListOptions.meta.k8s.io \"\" is invalid: {why}"),
        )
    };
    let bad = |why: &str| (400, why.to_owned());
    for (options, want) in [
        (
            "resourceVersionMatch=Exact".to_owned(),
            invalid(
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            ),
        ),
        (
            "resourceVersionMatch=Exact&resourceVersion=0".into(),
            invalid(
                "resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ),
        ),
        (
            "resourceVersionMatch=x&resourceVersion=1".into(),
            invalid(
                "resourceVersionMatch: Unsupported value: \"x\": supported values: \"Exact\", \"NotOlderThan\", \"\"",
            ),
        ),
        (
            format!("resourceVersionMatch=Exact&resourceVersion=1&continue={token}"),
            invalid(
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided",
            ),
        ),
        (
            "sendInitialEvents=true".into(),
            invalid("sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"),
        ),
        (
            "watch=1&sendInitialEvents=true".into(),
            invalid(
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ),
        ),
        (
            "watch=1&resourceVersionMatch=NotOlderThan&resourceVersion=1".into(),
            invalid(
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ),
        ),
        (
            format!("resourceVersion=2&continue={token}"),
            bad("specifying resource version is not allowed when using continue"),
        ),
        (
            "resourceVersion=x".into(),
            bad("invalid resource version: invalid digit found in string"),
        ),
        (
            "continue=e30".into(),
            bad(
                "invalid continue token: continue key is not valid: missing field `rv` at line 1 column 2",
            ),
        ),
    ] {
        let answer = server.listed(&options).await;
        let message = answer.body["message"].as_str().unwrap().to_owned();
        assert_eq!((answer.code, message), want, "{options}");
        if !options.contains("sendInitialEvents") && !options.contains("watch") {
            let error = server.pods().list(&params(&options)).await.unwrap_err();
            assert_eq!(error.message, want.1, "{options}");
        }
        if answer.code == 422 {
            assert_eq!(answer.body["details"]["kind"], "ListOptions", "{options}");
            assert_eq!(answer.body["details"]["group"], "meta.k8s.io", "{options}");
        }
    }
    // However, clients do send 0 with a token.
    let rest = server
        .listed(&format!("resourceVersion=0&continue={token}"))
        .await;
    assert_eq!(names(&rest), "b");
    server.stop().await;
}

#[tokio::test]
async fn pages_are_of_one_revision_while_writes_go_on() {
    let server = TestServer::start().await;
    for name in ["a", "c", "e", "g"] {
        server.create(name).await;
    }
    let first = server.listed("limit=2").await;
    assert_eq!(names(&first), "a c");
    assert_eq!(first.body["metadata"]["remainingItemCount"], 2);
    server.create("d").await;
    server.pods().delete("e", &at_once()).await.unwrap();
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    let second = server.listed(&format!("limit=2&continue={token}")).await;
    assert_eq!(names(&second), "e g");
    let revision = |answer: &HttpAnswer| answer.body["metadata"]["resourceVersion"].clone();
    assert_eq!(revision(&second), revision(&first));
    assert_eq!(second.body["metadata"]["continue"], Value::Null);
    server.stop().await;
}

#[tokio::test]
async fn compacted_revisions_are_expired() {
    let store = Arc::new(MemStore::new());
    let server = TestServer::with(store.clone()).await;
    let a = server.create("a").await;
    for name in ["c", "e"] {
        server.create(name).await;
    }
    let first = server.listed("limit=1").await;
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    let last = server.create("d").await;
    store.compact(Revision::new(last).unwrap()).await.unwrap();

    let exact = server
        .listed(&format!("resourceVersion={a}&resourceVersionMatch=Exact"))
        .await;
    let want = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Expired", "code": 410,
        "message": "The resourceVersion for the provided list is too old.",
    });
    assert_eq!((exact.code, exact.body), (410, want));

    let paged = server.listed(&format!("limit=1&continue={token}")).await;
    assert_eq!(
        (paged.code, &paged.body["reason"]),
        (410, &json!("Expired"))
    );
    assert_eq!(
        paged.body["message"],
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list."
    );
    let token = paged.body["metadata"]["continue"].as_str().unwrap();
    let rest = server.listed(&format!("limit=2&continue={token}")).await;
    assert_eq!(names(&rest), "c d");
    assert_eq!(
        rest.body["metadata"]["resourceVersion"],
        last.to_string().as_str()
    );
    let token = rest.body["metadata"]["continue"].as_str().unwrap();
    assert_eq!(
        names(&server.listed(&format!("continue={token}")).await),
        "e"
    );

    // The same token through gRPC has the same error, with the continue token.
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    let again = params(&format!("continue={token}"));
    let error = server.pods().list(&again).await.unwrap_err();
    assert!(error.is_expired());
    assert_eq!(error.message, paged.body["message"].as_str().unwrap());
    assert_eq!(
        error.continue_token.as_deref(),
        paged.body["metadata"]["continue"].as_str()
    );
    server.stop().await;
}

#[tokio::test]
async fn a_watch_begins_at_the_requested_revision() {
    let server = TestServer::start().await;
    let a = server.create("a").await;
    let b = server.create("b").await;
    let send = "resourceVersionMatch=NotOlderThan&sendInitialEvents";
    for (options, want) in [
        (String::new(), vec!["ADDED a", "ADDED b"]),
        ("resourceVersion=0".into(), vec!["ADDED a", "ADDED b"]),
        (format!("resourceVersion={a}"), vec!["ADDED b"]),
        (
            format!("{send}=true&allowWatchBookmarks=true"),
            vec!["ADDED a", "ADDED b", &format!("BOOKMARK end {b}")],
        ),
        (
            format!("{send}=true&allowWatchBookmarks=true&resourceVersion={a}"),
            vec!["ADDED a", "ADDED b", &format!("BOOKMARK end {b}")],
        ),
        (format!("{send}=true"), vec!["ADDED a", "ADDED b"]),
        (format!("{send}=false&resourceVersion={a}"), vec!["ADDED b"]),
        ("resourceVersion=1".into(), vec!["ADDED a", "ADDED b"]),
    ] {
        let seen = server.watched(&options, want.len()).await;
        assert_eq!(seen, want, "{options}");
    }
    // From now: present objects are not sent.
    for version in ["", "&resourceVersion=0"] {
        let path = format!("{PODS}?watch=1&{send}=false{version}");
        let (_, mut events) = server.rest.watch(&path).await.unwrap();
        let name = format!("new{}", version.len());
        server.create(&name).await;
        let event = within(events.next()).await.unwrap().unwrap();
        assert_eq!(event_text(&event), format!("ADDED {name}"));
    }
    server.stop().await;
}

/// As in Kubernetes, the error about a revision is in the stream, where every reflector looks for
/// it.
#[tokio::test]
async fn a_watch_from_a_revision_that_is_not_kept_is_expired() {
    let store = Arc::new(MemStore::new());
    let server = TestServer::with(store.clone()).await;
    let a = server.create("a").await;
    let b = server.create("b").await;
    let future = b + 1_000_000;
    let seen = server
        .watched(&format!("resourceVersion={future}"), 2)
        .await;
    assert_eq!(
        seen,
        [format!(
            "ERROR 410 too large resource version: {future} ({b})"
        )]
    );
    let bad = server
        .rest
        .get(&format!("{PODS}?watch=1&resourceVersion=x"))
        .await;
    assert_eq!(bad.unwrap().code, 400);
    assert!(a < b);
    server.stop().await;
}

#[tokio::test]
async fn a_watch_ends_when_its_time_is_up() {
    let server = TestServer::start().await;
    server.create("a").await;
    let path = format!("{PODS}?watch=1&timeoutSeconds=1");
    let (_, events) = server.rest.watch(&path).await.unwrap();
    let seen: Vec<_> = within(events.map(|event| event_text(&event.unwrap())).collect()).await;
    assert_eq!(seen, ["ADDED a"]);
    server.stop().await;
}

#[tokio::test]
async fn a_selecting_watch_reports_objects_that_stop_matching_as_deleted() {
    let server = TestServer::start().await;
    let pods = server.pods();
    for (selector, change) in [
        ("labelSelector=app%3Dweb", "/metadata/labels/app"),
        ("fieldSelector=spec.nodeName%3Df", "/status/phase"),
    ] {
        let name = if selector.starts_with('l') { "l" } else { "f" };
        let path = format!("{PODS}?watch=1&{selector}");
        let (_, events) = server.rest.watch(&path).await.unwrap();
        let mut pod = pod_with(
            json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"nodeName": name}}),
        );
        pod = pods.create(&pod).await.unwrap();
        if change.starts_with("/metadata") {
            pod.metadata.labels = None;
            pods.update(&pod).await.unwrap();
        } else {
            pods.delete(name, &at_once()).await.unwrap();
        }
        let events = events.map(|event| event_text(&event.unwrap()));
        let seen: Vec<_> = within(events.take(2).collect()).await;
        assert_eq!(
            seen,
            [format!("ADDED {name}"), format!("DELETED {name}")],
            "{selector}"
        );
    }
    server.stop().await;
}

/// A write through one connection is in the next list through any other.
#[tokio::test(flavor = "multi_thread")]
async fn every_list_has_all_acknowledged_writes() {
    let server = TestServer::start().await;
    let mut running = JoinSet::new();
    for writer in 0..4 {
        let (pods, rest) = (server.pods(), server.rest.clone());
        running.spawn(async move {
            for index in 0..20 {
                let name = format!("p{writer}-{index}");
                pods.create(&pod(&name)).await.unwrap();
                let path = format!("{PODS}?fieldSelector=metadata.name%3D{name}");
                assert_eq!(names(&rest.get(&path).await.unwrap()), name);
                let path = format!("{PODS}/{name}");
                let deleted = rest.send(http::Method::DELETE, &path, None).await;
                assert_eq!(deleted.unwrap().code, 200);
                let error = pods.get(&name).await.unwrap_err();
                assert!(error.is_not_found(), "{error}");
            }
        });
    }
    while let Some(done) = within(running.join_next()).await {
        done.unwrap();
    }
    server.stop().await;
}
