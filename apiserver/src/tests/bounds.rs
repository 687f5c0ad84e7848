//! Bounds of the server's memory and disk, also under more load than it can keep.

use std::{sync::Arc, time::Instant};

use http::Method;
use podplane_api::core::Event;
use podplane_store::{SledStore, StoreStatus};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;

const MIB: u64 = 1 << 20;
const PODS: &str = "/api/v1/namespaces/default/pods";
const MERGE_PATCH: &str = "application/merge-patch+json";

async fn bounded(bounds: HistoryBounds, store: impl Store) -> TestServer {
    let rules = ServerRules {
        bounds,
        ..uncounted()
    };
    TestServer::at("127.0.0.1:0", rules, store).await
}

/// Waits until `is_so` returns true.
async fn wait_until(what: &str, within: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < within, "not in time: {what}");
        time::sleep(Duration::from_millis(20)).await;
    }
}

/// One large object, changed again and again: neither the number of commits nor their age is a
/// reason to compact.
#[tokio::test]
async fn history_is_bounded_by_its_bytes() {
    let store = Arc::new(MemStore::new());
    let bounds = HistoryBounds {
        history_bytes: 2 * MIB,
        ..HistoryBounds::default()
    };
    let server = bounded(bounds, store.clone()).await;
    let mut watch = server.pods().watch(&Default::default(), "").await.unwrap();
    server.pods().create(&pod("a")).await.unwrap();
    let path = format!("{PODS}/a");
    for round in 0..300 {
        let value = format!("{round:060000}");
        let patch = json!({"metadata": {"annotations": {"large": value}}}).to_string();
        let headers = [("content-type", MERGE_PATCH)];
        let patched = server.rest.exchange(Method::PATCH, &path, &headers, patch);
        assert_eq!(within(patched).await.unwrap().code, 200);
        let _ = next(&mut watch).await;
        // Some is written between two checks.
        let StoreStatus { history_bytes, .. } = store.status().await.unwrap();
        assert!(history_bytes < 16 * MIB, "round {round}: {history_bytes}");
    }
    wait_until("history within its bound", DEADLINE, async || {
        store.status().await.unwrap().history_bytes <= 2 * MIB
    })
    .await;
    // The caches and the watches go on.
    server.pods().create(&pod("b")).await.unwrap();
    loop {
        if event_text(&next(&mut watch).await) == "added b" {
            break;
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn events_are_bounded_by_their_number_and_age() {
    let bounds = HistoryBounds {
        max_events: 50,
        event_ttl: Duration::from_secs(3),
        ..HistoryBounds::default()
    };
    let server = bounded(bounds, MemStore::new()).await;
    let events = server.client.namespaced::<Event>("default");
    for n in 0..200 {
        let at = format!("2100-01-01T00:{:02}:{:02}Z", n / 60, n % 60);
        let event = json!({"metadata": {"name": format!("e{n:03}"), "namespace": "default"}, "involvedObject": {"namespace": "default"}, "lastTimestamp": at});
        events.create(&object(event)).await.unwrap();
    }
    let names = async || -> Vec<String> {
        let list = events.list(&Default::default()).await.unwrap();
        let names = list.items.iter().map(|event| event.name().to_owned());
        names.collect()
    };
    wait_until("no more than 50 events", DEADLINE, async || {
        names().await.len() <= 50
    })
    .await;
    let expected: Vec<_> = (150..200).map(|n| format!("e{n:03}")).collect();
    assert_eq!(names().await, expected, "the oldest went");
    let now = json!({"metadata": {"name": "now", "namespace": "default"}, "involvedObject": {"namespace": "default"}});
    for name in &expected {
        events.delete(name, &Default::default()).await.unwrap();
    }
    events.create(&object(now)).await.unwrap();
    wait_until("the event expired", DEADLINE, async || {
        names().await.is_empty()
    })
    .await;
    server.stop().await;
}

/// Like kubectl, the client reads no answer before it has written all.
#[tokio::test]
async fn refuses_an_oversized_body_while_the_client_still_writes() {
    const BYTES: usize = 32 << 20;
    let server = TestServer::start().await;
    let mut connection = TcpStream::connect(&server.address).await.unwrap();
    let head = format!(
        "POST {PODS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {BYTES}\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    connection.write_all(&vec![b' '; BYTES]).await.unwrap();
    let mut answer = vec![0; 4096];
    let read = within(connection.read(&mut answer)).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]);
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    server.stop().await;
}

/// Takes the 30 seconds after which the server gives up.
#[tokio::test]
async fn a_request_with_an_incomplete_body_times_out() {
    let server = TestServer::start().await;
    let mut connection = TcpStream::connect(&server.address).await.unwrap();
    let head = format!(
        "POST {PODS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let read = time::timeout(Duration::from_secs(60), connection.read(&mut answer));
    let read = read.await.expect("an answer in time").unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(
        answer.contains("did not arrive within 30 seconds"),
        "{answer}"
    );
    server.stop().await;
}

/// Much is written and most of it is deleted: the files and the history shrink while the server
/// runs.
#[tokio::test]
async fn the_files_shrink_after_churn() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(SledStore::open(dir.path()).unwrap());
    let bounds = HistoryBounds {
        history_bytes: MIB,
        ..HistoryBounds::default()
    };
    let server = bounded(bounds, store.clone()).await;
    let large = |name: &str| {
        let env = json!([{"name": "LARGE", "value": "x".repeat(1_000_000)}]);
        pod_with(
            json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i", "env": env}]}}),
        )
    };
    let disk_bytes = async || store.status().await.unwrap().disk_bytes.unwrap();
    for n in 0..25 {
        server
            .pods()
            .create(&large(&format!("p{n}")))
            .await
            .unwrap();
    }
    let most = disk_bytes().await;
    assert!(most > 48 * MIB, "{most}");
    for n in 0..25 {
        server
            .pods()
            .delete(&format!("p{n}"), &at_once())
            .await
            .unwrap();
    }
    wait_until("32 MiB on disk", Duration::from_secs(150), async || {
        disk_bytes().await <= 32 * MIB
    })
    .await;
    server.pods().create(&large("after")).await.unwrap();
    server.stop().await;
    drop(store);
    let store = SledStore::open(dir.path()).unwrap();
    let after = podplane_store::Key::try_from("/registry/pods/default/after").unwrap();
    assert!(store.get(&after, None).await.unwrap().is_some());
}
