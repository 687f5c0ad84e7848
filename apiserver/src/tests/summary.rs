//! The summary and the page: streams, their rights, and their end.

use std::pin::Pin;

use http::{Method, header};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use super::*;

const CLUSTER: &str = "/summary/v1alpha1/cluster";
const MAP: &str = "/summary/v1alpha1/map";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Longer than the time between two summaries.
const PAUSE: Duration = Duration::from_millis(300);

type Lines = Pin<Box<dyn Stream<Item = Value> + Send>>;

/// Opens a stream, and returns its first line.
async fn open(server: &TestServer, path: &str) -> (Lines, Value) {
    let (code, lines) = within(server.rest.watch(path)).await.unwrap();
    assert_eq!(code, 200, "{path}");
    let mut lines: Lines = Box::pin(lines.map(|line| line.unwrap()));
    let first = line(&mut lines).await;
    (lines, first)
}

/// The next line that is not a bookmark.
async fn line(lines: &mut Lines) -> Value {
    loop {
        let line = within(lines.next()).await.expect("the stream goes on");
        if line["type"] != "BOOKMARK" {
            return line;
        }
    }
}

async fn make_node(server: &TestServer, name: &str, cidr: &str) {
    let node = json!({
        "metadata": {"name": name},
        "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
    });
    let answer = server.ask(Method::POST, "/api/v1/nodes", &node).await;
    assert_eq!(answer.code, 201, "{:?}", answer.body);
}

/// Creates a pod on a node, with an address.
async fn make_pod(server: &TestServer, name: &str, node: &str, ip: &str) {
    let pod = json!({
        "metadata": {"name": name},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
    });
    let answer = server.ask(Method::POST, PODS, &pod).await;
    assert_eq!(answer.code, 201, "{:?}", answer.body);
    let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
    let path = format!("{PODS}/{name}/status");
    let answer = server.ask(Method::PATCH, &path, &status).await;
    assert_eq!(answer.code, 200, "{:?}", answer.body);
}

async fn delete_pod(server: &TestServer, name: &str) {
    let path = format!("{PODS}/{name}?gracePeriodSeconds=0");
    let answer = server.ask(Method::DELETE, &path, &Value::Null).await;
    assert_eq!(answer.code, 200, "{:?}", answer.body);
}

/// A map after a line of its stream, as a page changes it.
fn applied(mut shown: Value, line: Value) -> Value {
    if line["type"] == "SCENE" {
        return line;
    }
    assert_eq!(line["type"], "CELLS");
    for cell in line["cells"].as_array().unwrap() {
        let cells = shown["view"]["cells"].as_array_mut().unwrap();
        let same = |known: &&mut Value| known["prefix"] == cell["prefix"];
        *cells.iter_mut().find(same).unwrap() = cell.clone();
    }
    shown["view"]["counts"] = line["counts"].clone();
    shown
}

#[tokio::test]
async fn a_pod_that_is_made_now_is_on_the_streams() {
    let server = TestServer::start().await;
    make_node(&server, "a", "10.244.1.0/24").await;
    let (mut cluster, first) = open(&server, &format!("{CLUSTER}?watch=true")).await;
    assert_eq!(first["type"], "CLUSTER");
    assert_eq!(first["nodes"][0]["name"], "a");
    assert_eq!(first["nodes"][0]["blocks"][0]["cidr"], "10.244.1.0/24");
    let (mut map, scene) = open(&server, &format!("{MAP}?watch=true&columns=16&rows=16")).await;
    assert_eq!(scene["type"], "SCENE");
    assert_eq!(scene["view"]["counts"]["gateway"], 1);

    make_pod(&server, "web", "a", "10.244.1.7").await;
    loop {
        let changes = line(&mut cluster).await;
        assert_eq!(changes["type"], "CHANGES");
        assert!(changes["findings"].is_null() || changes["findings"] == json!([]));
        if changes["nodes"][0]["used"] == 1 {
            break;
        }
    }
    let mut shown = scene;
    while shown["view"]["counts"]["pod"] != 1 {
        shown = applied(shown, line(&mut map).await);
    }
    let of = within(
        server
            .rest
            .get("/summary/v1alpha1/addresses?prefix=10.244.1.7/32"),
    );
    let addresses = of.await.unwrap().document().unwrap();
    assert_eq!(
        addresses["items"],
        json!([{"ip": "10.244.1.7", "state": "pod",
            "holders": [{"kind": "pod", "name": "default/web", "node": "a"}]}])
    );
    let node = within(server.rest.get("/summary/v1alpha1/nodes/a"))
        .await
        .unwrap();
    assert_eq!(node.body["node"]["used"], 1);
    assert_eq!(
        node.body["addresses"].as_array().unwrap().len(),
        2,
        "gateway and pod"
    );
    assert!(node.body.as_object().unwrap().contains_key("leaseFiles"));
    assert!(node.body["leaseFiles"].is_null());
    let blocks = within(server.rest.get("/summary/v1alpha1/blocks")).await;
    let blocks = blocks.unwrap().document().unwrap();
    let assigned =
        json!({"cidr": "10.244.1.0/24", "state": "assigned", "node": "a", "details": ""});
    let listed = blocks["blocks"].as_array().unwrap();
    assert!(listed.contains(&assigned), "{blocks}");
    assert_eq!(blocks["held"], json!([]));
    let gone = within(server.rest.get("/summary/v1alpha1/nodes/b"))
        .await
        .unwrap();
    assert_eq!((gone.code, &gone.body["kind"]), (404, &json!("Status")));
    server.stop().await;
}

#[tokio::test]
async fn the_findings_follow_on_a_stream_and_are_in_every_whole_document() {
    let server = TestServer::start().await;
    make_node(&server, "a", "10.244.1.0/24").await;
    make_pod(&server, "lost", "a", "10.244.9.7").await;
    let found = |document: &Value| document["findings"][0]["code"] == "pod-outside-block";
    let whole = within(server.rest.get(CLUSTER)).await.unwrap();
    assert!(found(&whole.body), "{:#}", whole.body);

    let other = TestServer::start().await;
    make_node(&other, "a", "10.244.1.0/24").await;
    make_pod(&other, "lost", "a", "10.244.9.7").await;
    let (mut stream, mut document) = open(&other, &format!("{CLUSTER}?watch=true")).await;
    while !found(&document) {
        document = line(&mut stream).await;
    }
    assert!(document["checks"].is_array());
    drop(stream);
    server.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn changes_of_cells_lead_to_the_map_of_now() {
    let server = TestServer::start().await;
    for (name, cidr) in [("a", "10.244.1.0/24"), ("b", "10.244.2.0/24")] {
        make_node(&server, name, cidr).await;
    }
    let path = format!("{MAP}?columns=16&rows=16&prefix=10.244.0.0/22");
    let (mut stream, mut shown) = open(&server, &format!("{path}&watch=true")).await;
    let mut random = fastrand::Rng::with_seed(7);
    let mut pods: Vec<u32> = Vec::new();
    for number in 0..40 {
        match random.u8(..) % 3 {
            0 if !pods.is_empty() => {
                let gone = pods.swap_remove(random.usize(..pods.len()));
                delete_pod(&server, &format!("p{gone}")).await;
            }
            1 if number == 20 => make_node(&server, "c", "10.244.3.0/25").await,
            _ => {
                // Duplicates and addresses outside of the node's block are among them.
                let node = ["a", "b"][random.usize(..2)];
                let ip = format!("10.244.{}.{}", random.u8(1..3), random.u8(2..12));
                make_pod(&server, &format!("p{number}"), node, &ip).await;
                pods.push(number);
            }
        }
    }
    // The stream is compared with the map whenever it pauses; lines that come between are applied.
    let settled = async {
        loop {
            match time::timeout(PAUSE, stream.next()).await {
                Ok(line) => match line.expect("the stream goes on") {
                    line if line["type"] == "BOOKMARK" => {}
                    line => shown = applied(std::mem::take(&mut shown), line),
                },
                Err(_pause) => {
                    let now = server.rest.get(&path).await.unwrap().body;
                    let cluster = server.rest.get(CLUSTER).await.unwrap().body;
                    if cluster["pods"]["running"] == pods.len() && shown["view"] == now["view"] {
                        return now;
                    }
                }
            }
        }
    };
    let now = within(settled).await;
    assert_eq!(shown["blocks"], now["blocks"]);
    server.stop().await;
}

#[tokio::test]
async fn wrong_parameters_are_named() {
    let server = TestServer::start().await;
    let empty = within(server.rest.get(MAP)).await.unwrap();
    assert_eq!(empty.code, 404, "{:?}", empty.body);
    make_node(&server, "a", "10.244.1.0/24").await;
    for (path, code, named) in [
        ("map?rows=7", 400, "rows"),
        ("map?prefix=10.244.1.1/24", 400, "10.244.1.0/24"),
        ("map?prefix=10.245.0.0/16", 400, "10.245.0.0/16"),
        ("map?network=10.9.0.0/16", 404, "10.9.0.0/16"),
        ("map?watch=perhaps", 400, "perhaps"),
        ("addresses?limit=0", 400, "limit"),
        ("pods/default/web/trace", 404, "default/web"),
        ("pods/default/web/explanation", 404, "podplane ui"),
        ("recording", 404, "podplane replay --ui"),
        ("nothing", 404, "could not find"),
    ] {
        let path = format!("/summary/v1alpha1/{path}");
        let changed = async {
            loop {
                let answer = server.rest.get(&path).await.unwrap();
                // The node may not be in the summary yet.
                let message = answer.body["message"].as_str().unwrap_or_default();
                if !message.contains("has no network") {
                    return answer;
                }
            }
        };
        let answer = within(changed).await;
        let message = answer.body["message"].as_str().unwrap();
        assert_eq!(
            (answer.code, &answer.body["kind"]),
            (code, &json!("Status")),
            "{path}"
        );
        assert!(message.contains(named), "{path}: {message}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_reader_that_reads_nothing_holds_nobody_up_and_streams_end_with_the_server() {
    let server = TestServer::start().await;
    make_node(&server, "a", "10.244.1.0/24").await;
    let mut idle = TcpStream::connect(&server.address).await.unwrap();
    let request = format!(
        "GET {MAP}?watch=true&columns=128&rows=128 HTTP/1.1\r\nhost: {}\r\n\r\n",
        server.address
    );
    idle.write_all(request.as_bytes()).await.unwrap();
    let (mut stream, _) = open(&server, &format!("{CLUSTER}?watch=true")).await;
    for number in 0..100_u8 {
        make_pod(
            &server,
            &format!("p{number}"),
            "a",
            &format!("10.244.1.{}", number + 2),
        )
        .await;
    }
    while line(&mut stream).await["nodes"][0]["used"] != 100 {}
    server.stop.cancel();
    while within(stream.next()).await.is_some() {}
    server.stop().await;
    drop(idle);
}

#[tokio::test]
async fn the_page_is_served_with_its_headers() {
    let server = TestServer::start().await;
    let page = within(server.rest.get("/ui/")).await.unwrap();
    assert_eq!(page.code, 200);
    assert!(page.bytes.starts_with(b"<!doctype html>"));
    let policy = &page.headers[header::CONTENT_SECURITY_POLICY];
    assert!(policy.to_str().unwrap().starts_with("default-src 'none'"));
    let session = within(server.rest.get("/ui/session")).await.unwrap();
    // Nobody has a name, and nobody needs one.
    assert_eq!(session.code, 200);
    assert_eq!(session.body["source"], "apiserver");
    assert_eq!(session.body["user"], Value::Null);
    let outside = within(server.rest.get("/ui/../api")).await.unwrap();
    assert_eq!(outside.code, 404);
    server.stop().await;
}
