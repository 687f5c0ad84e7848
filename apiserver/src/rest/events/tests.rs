use futures::StreamExt as _;
use podplane_store::{Key, MemStore, Txn};
use serde_json::json;
use tokio::task::JoinSet;

use super::*;
use crate::{
    cache::Feeder,
    engine::Engine,
    rest::{request::RequestOptions, resource::ListedItem},
};

struct EventsFixture {
    core: Registry<Event>,
    view: EventsV1,
    _feed: JoinSet<()>,
}

impl EventsFixture {
    async fn start() -> Self {
        let engine = Engine::new(MemStore::new()).await.unwrap();
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
        let key = Key::try_from("/registry/namespaces/default").unwrap();
        let txn = Txn::new().put(key, namespace.to_string());
        engine.commit(txn).await.unwrap();
        let cache = Registry::<Event>::cache();
        let mut feeder = Feeder::new();
        feeder.add(cache.clone());
        let core = Registry::new(engine.clone(), cache, feeder.position());
        let feed = feeder.fill(&engine).await.unwrap();
        let mut running = JoinSet::new();
        running.spawn(async move { feed.run().await.unwrap() });
        Self {
            view: EventsV1::new(core.clone()),
            core,
            _feed: running,
        }
    }

    fn core(&self) -> &dyn Resource {
        self.core.any()
    }

    /// Patches the event named `a` through the newer form; returns the result.
    async fn patched(&self, patch: Patch) -> Result<Value, ApiError> {
        let (key, options) = (key("a"), options());
        let patched = self
            .view
            .patch(&key, ObjectPart::Main, &patch, &options)
            .await;
        patched.map(|written| written.document)
    }
}

fn options() -> WriteOptions {
    WriteOptions {
        write: WriteParams::by_server(),
        validation: FieldValidation::Strict,
        duplicates: Vec::new(),
    }
}

fn list(query: &str) -> ListOptions {
    let uri = format!("http://a/?{query}").parse().unwrap();
    RequestOptions::parse(&uri)
        .unwrap()
        .list("default")
        .unwrap()
}

fn event(name: &str) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "podplane.io/c", "reportingInstance": "i",
        "action": "Do", "reason": "Done", "type": "Normal", "note": "it is done",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": name, "namespace": "default"},
    })
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

#[tokio::test]
async fn serves_every_event_in_both_forms() {
    let fixture = EventsFixture::start().await;
    let ends = Instant::now() + std::time::Duration::from_secs(60);
    let mut watch = fixture.view.watch(&list(""), ends).await.unwrap();
    let created = fixture.view.create(event("a"), &options()).await.unwrap();
    assert_eq!(created.document["apiVersion"], "events.k8s.io/v1");
    assert_eq!(created.document["note"], "it is done");
    let kept = fixture.core().get(&key("a")).await.unwrap();
    assert_eq!(kept["apiVersion"], "v1");
    assert_eq!(kept["message"], "it is done");
    assert_eq!(kept["involvedObject"]["name"], "a");

    let old = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "b", "namespace": "default"}, "message": "old", "count": 4,
        "involvedObject": {"kind": "Pod", "name": "b", "namespace": "default"}, "source": {"component": "kubelet"},
    });
    fixture.core().create(old, &options()).await.unwrap();
    let seen = fixture.view.get(&key("b")).await.unwrap();
    assert_eq!(seen["note"], "old");
    assert_eq!(seen["deprecatedCount"], 4);
    assert_eq!(seen["deprecatedSource"]["component"], "kubelet");

    for name in ["a", "b"] {
        let notice = watch.next().await.unwrap().unwrap();
        assert_eq!(notice.document["regarding"]["name"], name);
    }
    let selected = list("fieldSelector=regarding.name%3Db");
    let Documents { items, .. } = fixture.view.list(&selected).await.unwrap();
    let items: Result<Vec<_>, _> = items.into_iter().map(ListedItem::document).collect();
    let items = items.unwrap();
    assert_eq!(items.len(), 1);
    assert_eq!(items[0]["metadata"]["name"], "b");
    let cells = fixture.view.cells(items[0].clone(), Timestamp::UNIX_EPOCH);
    assert!(cells.unwrap().contains(&json!("old")));
}

#[tokio::test]
async fn the_new_form_is_validated_by_its_own_rules() {
    let fixture = EventsFixture::start().await;
    let mut bad = event("a");
    bad["eventTime"] = Value::Null;
    let error = fixture.view.create(bad, &options()).await.unwrap_err();
    assert_eq!(
        error.message,
        "Event.events.k8s.io \"a\" is invalid: eventTime: Required value"
    );
    let mut unknown = event("a");
    unknown["message"] = "the other form's".into();
    let error = fixture.view.create(unknown, &options()).await.unwrap_err();
    assert!(
        error.message.contains("unknown field \"message\""),
        "{error}"
    );
}

#[tokio::test]
async fn a_patch_changes_only_the_series_of_an_event() {
    let fixture = EventsFixture::start().await;
    fixture.view.create(event("a"), &options()).await.unwrap();
    let again = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:09.000000Z"}});
    for patch in [Patch::Merge(again.clone()), Patch::Strategic(again)] {
        assert_eq!(fixture.patched(patch).await.unwrap()["series"]["count"], 2);
    }
    let json = json!([{"op": "test", "path": "/note", "value": "it is done"}, {"op": "replace", "path": "/series/count", "value": 3}]);
    let patched = fixture.patched(Patch::Json(json)).await.unwrap();
    assert_eq!(patched["series"]["count"], 3);

    let other = Patch::Merge(json!({"note": "something else"}));
    assert_eq!(
        fixture.patched(other).await.unwrap_err().message,
        "Event.events.k8s.io \"a\" is invalid: message: Invalid value: \"something else\": field is immutable"
    );
    let wrong = Patch::Merge(json!({"message": "x"}));
    let error = fixture.patched(wrong).await.unwrap_err();
    assert!(
        error.message.contains("unknown field \"message\""),
        "{error}"
    );
}
