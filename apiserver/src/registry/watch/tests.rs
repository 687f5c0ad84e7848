//! Tests of watches that need a paused clock, or a history that is dropped; in one process without
//! sockets.

use std::{pin::pin, sync::Arc};

use podplane_api::{Object as _, core::Node};
use podplane_proto::error::Reason;
use podplane_store::MemStore;
use tokio::task::JoinSet;

use super::*;
use crate::{
    cache::Feeder,
    engine::Engine,
    registry::{ObjectPart, Registry, WriteParams},
};

struct WatchFixture {
    registry: Registry<Node>,
    _feed: JoinSet<()>,
}

impl WatchFixture {
    async fn start() -> Self {
        let engine = Engine::new(MemStore::new()).await.unwrap();
        let cache = Registry::<Node>::cache();
        let mut feeder = Feeder::new();
        feeder.add(cache.clone());
        let registry = Registry::new(engine.clone(), cache, feeder.position());
        let feed = feeder.fill(&engine).await.unwrap();
        let mut running = JoinSet::new();
        running.spawn(async move { feed.run().await.unwrap() });
        Self {
            registry,
            _feed: running,
        }
    }

    async fn create(&self, name: &str) -> Node {
        let mut node = Node::default();
        node.metadata.name = Some(name.into());
        self.registry
            .create(node, &WriteParams::by_server())
            .await
            .unwrap()
    }

    async fn watch(
        &self,
        after: &str,
        bookmarks: bool,
    ) -> Result<impl Stream<Item = Result<StreamEvent, ApiError>> + use<>, ApiError> {
        let options = WatchOptions {
            query: Query::default(),
            start: WatchStart::parse(after)?,
            bookmarks,
            ends: None,
            announce_end: false,
        };
        self.registry.watch(options).await
    }
}

/// The node of an event of the watch.
fn node(event: StreamEvent) -> Node {
    let StreamEvent::Change(change) = event else {
        panic!("a bookmark: {event:?}");
    };
    Node::from_json(change.document().unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_idle_watch_gets_a_bookmark_each_minute() {
    let server = WatchFixture::start().await;
    let created = server.create("n").await;
    let mut events = pin!(
        server
            .watch(created.resource_version(), true)
            .await
            .unwrap()
    );
    for _ in 0..3 {
        let before = Instant::now();
        let event = events.next().await.unwrap().unwrap();
        let StreamEvent::Bookmark(revision) = event else {
            panic!("{event:?}");
        };
        assert_eq!(revision.to_string(), created.resource_version());
        assert!(before.elapsed() >= BOOKMARK_EVERY && before.elapsed() < BOOKMARK_EVERY * 2);
    }
}

/// So that a client that comes back afterwards resumes near the present.
#[tokio::test(start_paused = true)]
async fn a_watch_gets_a_bookmark_before_its_end() {
    let server = WatchFixture::start().await;
    let created = server.create("n").await;
    let begun = Instant::now();
    let lasts = BOOKMARK_EVERY + Duration::from_secs(30);
    let options = WatchOptions {
        query: Query::default(),
        start: WatchStart::parse(created.resource_version()).unwrap(),
        bookmarks: true,
        ends: Some(begun + lasts),
        announce_end: false,
    };
    let mut events = pin!(server.registry.watch(options).await.unwrap());
    for due in [BOOKMARK_EVERY, lasts - BOOKMARK_BEFORE_END] {
        let event = events.next().await.unwrap().unwrap();
        assert!(matches!(event, StreamEvent::Bookmark(_)), "{event:?}");
        let late = begun.elapsed() - due;
        assert!(late < Duration::from_millis(100), "{late:?} late");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_now_sees_only_later_objects() {
    let server = WatchFixture::start().await;
    server.create("a").await;
    let options = WatchOptions {
        query: Query::default(),
        start: WatchStart::Now,
        bookmarks: false,
        ends: None,
        announce_end: false,
    };
    let mut events = pin!(server.registry.watch(options).await.unwrap());
    server.create("b").await;
    assert_eq!(node(events.next().await.unwrap().unwrap()).name(), "b");
}

#[tokio::test(start_paused = true)]
async fn sends_no_unrequested_bookmarks() {
    let server = WatchFixture::start().await;
    let created = server.create("n").await;
    let mut events = pin!(
        server
            .watch(created.resource_version(), false)
            .await
            .unwrap()
    );
    assert!(
        clock::timeout(BOOKMARK_EVERY * 5, events.next())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_watch_that_falls_behind_expires() {
    let server = WatchFixture::start().await;
    let first = server.create("a").await;
    let mut slow = pin!(server.watch(first.resource_version(), false).await.unwrap());
    let mut quick = pin!(server.watch(first.resource_version(), false).await.unwrap());
    let second = server.create("b").await;
    let third = server.create("c").await;
    assert_eq!(node(quick.next().await.unwrap().unwrap()).name(), "b");

    let forgotten: Revision = second.resource_version().parse().unwrap();
    server.registry.forget(forgotten);
    let error = slow.next().await.unwrap().unwrap_err();
    assert_eq!(error.reason, Reason::Expired);
    assert!(slow.next().await.is_none());
    // A watch that has seen the dropped changes goes on, and so does one that begins after them.
    assert_eq!(node(quick.next().await.unwrap().unwrap()).name(), "c");
    let mut later = pin!(
        server
            .watch(second.resource_version(), false)
            .await
            .unwrap()
    );
    assert_eq!(node(later.next().await.unwrap().unwrap()), third);
    let refused = server.watch(first.resource_version(), false).await;
    let error = refused.err().expect("the history begins later");
    assert_eq!(error.reason, Reason::Expired);
    assert_eq!(
        error.message,
        format!(
            "too old resource version: {} ({forgotten})",
            first.resource_version()
        )
    );
}

/// The server's memory holds the present and the kept history, even if a client does not read.
#[tokio::test]
async fn an_unread_watch_costs_no_memory_and_expires() {
    const UPDATES: usize = 200;
    let server = WatchFixture::start().await;
    let mut node_a = server.create("a").await;
    let mut stalled = pin!(
        server
            .watch(node_a.resource_version(), false)
            .await
            .unwrap()
    );
    let mut quick = pin!(
        server
            .watch(node_a.resource_version(), false)
            .await
            .unwrap()
    );
    // It is read once, as by a client that then hangs.
    server.create("b").await;
    for watch in [&mut stalled, &mut quick] {
        assert_eq!(node(watch.next().await.unwrap().unwrap()).name(), "b");
    }
    let mut entries = Vec::new();
    for update in 0..UPDATES {
        let labels = node_a.metadata.labels.get_or_insert_default();
        labels.insert("update".into(), update.to_string());
        node_a = server
            .registry
            .update(node_a, ObjectPart::Main, &WriteParams::by_server())
            .await
            .unwrap();
        assert_eq!(node(quick.next().await.unwrap().unwrap()), node_a);
        let entry = server.registry.get(&node_a.key()).await.unwrap();
        entries.push(Arc::downgrade(&entry));
    }
    server
        .registry
        .forget(node_a.resource_version().parse().unwrap());
    let held = entries.iter().filter(|entry| entry.strong_count() > 0);
    assert_eq!(held.count(), 1, "only the present one");
    let error = stalled.next().await.unwrap().unwrap_err();
    assert_eq!(error.reason, Reason::Expired);
    assert!(stalled.next().await.is_none());
}
