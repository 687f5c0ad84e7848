use podplane_api::core::Event;
use podplane_store::MemStore;
use serde_json::json;
use tokio::task::JoinSet;

use super::*;
use crate::{
    cache::Feeder,
    registry::{Freshness, WriteParams},
};

struct UpkeepFixture {
    engine: Engine,
    position: Position,
    events: Registry<Event>,
    _feed: JoinSet<()>,
}

impl UpkeepFixture {
    /// A server with namespaces and events, without its loops.
    async fn start() -> Self {
        let engine = Engine::new(MemStore::new()).await.unwrap();
        let mut feeder = Feeder::new();
        let position = feeder.position();
        let (namespaces, events) = (Registry::<Namespace>::cache(), Registry::<Event>::cache());
        let classes = Registry::<PriorityClass>::cache();
        let accounts = Registry::<ServiceAccount>::cache();
        feeder.add(namespaces.clone());
        feeder.add(events.clone());
        feeder.add(classes.clone());
        feeder.add(accounts.clone());
        let namespaces = Registry::new(engine.clone(), namespaces, position.clone());
        let events = Registry::new(engine.clone(), events, position.clone());
        let classes = Registry::new(engine.clone(), classes, position.clone());
        let accounts = Registry::new(engine.clone(), accounts, position.clone());
        let feed = feeder.fill(&engine).await.unwrap();
        let mut running = JoinSet::new();
        running.spawn(async move { feed.run().await.unwrap() });
        let upkeep = Upkeep {
            engine: engine.clone(),
            position: position.clone(),
            namespaces,
            accounts,
            classes,
            kinds: ServedKinds::default(),
            bounds: HistoryBounds::default(),
        };
        upkeep.create_system_objects().await.unwrap();
        upkeep.create_system_objects().await.unwrap();
        Self {
            engine,
            position,
            events,
            _feed: running,
        }
    }

    async fn event(&self, name: &str, last: &str) {
        let event = json!({"metadata": {"name": name, "namespace": "default"}, "involvedObject": {}, "lastTimestamp": last});
        self.events
            .create(
                serde_json::from_value(event).unwrap(),
                &WriteParams::by_server(),
            )
            .await
            .unwrap();
    }

    async fn names(&self) -> Vec<String> {
        let keys = self.events.keys(&Query::default()).await.unwrap();
        keys.into_iter().map(|key| key.name).collect()
    }
}

#[tokio::test]
async fn expired_events_are_swept_and_others_stay() {
    let server = UpkeepFixture::start().await;
    server.event("old", "2100-01-01T00:00:00Z").await;
    server.event("young", "2100-01-01T00:30:00Z").await;
    server
        .events
        .sweep("2099-12-31T23:59:59Z".parse().unwrap())
        .await
        .unwrap();
    assert_eq!(server.names().await, ["old", "young"]);
    server
        .events
        .sweep("2100-01-01T00:00:00Z".parse().unwrap())
        .await
        .unwrap();
    assert_eq!(server.names().await, ["young"]);
}

#[tokio::test]
async fn the_oldest_events_go_when_there_are_too_many() {
    let server = UpkeepFixture::start().await;
    for (name, minute) in [("c", 3), ("a", 1), ("e", 5), ("b", 2), ("d", 4)] {
        server
            .event(name, &format!("2100-01-01T00:0{minute}:00Z"))
            .await;
    }
    server.names().await;
    server.events.limit(5).await.unwrap();
    assert_eq!(server.names().await, ["a", "b", "c", "d", "e"]);
    server.events.limit(2).await.unwrap();
    assert_eq!(server.names().await, ["d", "e"]);
}

#[tokio::test]
async fn a_page_of_a_list_that_was_compacted_away_is_expired() {
    let server = UpkeepFixture::start().await;
    for name in ["a", "b", "c"] {
        server.event(name, "2100-01-01T00:00:00Z").await;
    }
    let first = server
        .events
        .list(&Query::default(), 1, "", Freshness::Latest)
        .await
        .unwrap();
    let metadata = first.metadata;
    assert_eq!(metadata.remaining_item_count, Some(2));
    let token = metadata.r#continue.unwrap();
    let second = server
        .events
        .list(&Query::default(), 1, &token, Freshness::Latest)
        .await
        .unwrap();
    assert_eq!(second.metadata.remaining_item_count, Some(1));

    server.event("d", "2100-01-01T00:00:00Z").await;
    server.names().await;
    server
        .engine
        .compact(server.position.current())
        .await
        .unwrap();
    let error = server
        .events
        .list(&Query::default(), 1, &token, Freshness::Latest)
        .await
        .unwrap_err();
    assert_eq!(error.reason, Reason::Expired);
    assert!(
        error
            .message
            .starts_with("The provided continue parameter is too old"),
        "{error}"
    );
}

#[tokio::test]
async fn a_namespace_is_not_released_while_something_is_in_it() {
    let server = UpkeepFixture::start().await;
    let prefix = server.events.prefix_in("default").unwrap();
    server.event("a", "2100-01-01T00:00:00Z").await;
    let key = podplane_store::Key::try_from("/registry/namespaces/default").unwrap();
    let guarded = podplane_store::Txn::new()
        .guard(podplane_store::Guard::NoneUnder(prefix))
        .delete(key);
    assert!(
        server
            .engine
            .commit(guarded)
            .await
            .unwrap_err()
            .is_conflict()
    );
    assert_eq!(server.events.empty("default").await.unwrap(), 1);
    assert_eq!(server.events.empty("default").await.unwrap(), 0);
}
