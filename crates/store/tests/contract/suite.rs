//! The cases of the contract, generic over the engine.

use std::{num::NonZeroUsize, pin::pin, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt};
use podplane_store::{
    Commit, CommitResult, Guard, Item, Key, KeyEvent, ListQuery, MAX_COMMIT_BYTES, MAX_VALUE_BYTES,
    MAX_WRITES, Prefix, Revision, Snapshot, Store, StoreError, Txn, TxnLimit, Watch,
};
use tokio::task::JoinSet;

use crate::EngineFixture;

pub(crate) async fn within_deadline(case: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(60), case)
        .await
        .expect("the case waits for what never comes");
}

pub(crate) fn key(text: &str) -> Key {
    Key::try_from(text).unwrap()
}

pub(crate) async fn put(store: &impl Store, at: &str, value: &str) -> Revision {
    store
        .commit(Txn::new().put(key(at), value.to_owned()))
        .await
        .unwrap()
        .revision
}

async fn delete(store: &impl Store, at: &str) -> Revision {
    store
        .commit(Txn::new().delete(key(at)))
        .await
        .unwrap()
        .revision
}

async fn list(
    store: &impl Store,
    prefix: &str,
    at: Option<Revision>,
) -> Result<Snapshot, StoreError> {
    store
        .list(ListQuery {
            prefix: prefix.into(),
            at,
            ..ListQuery::default()
        })
        .await
}

fn keys(snapshot: &Snapshot) -> Vec<String> {
    snapshot
        .items
        .iter()
        .map(|item| item.key.to_string())
        .collect()
}

fn item(at: &str, value: &str, created: Revision, modified: Revision) -> Arc<Item> {
    Arc::new(Item::new(key(at), value.as_bytes(), created, modified))
}

fn number(revision: u64) -> Revision {
    Revision::new(revision).unwrap()
}

pub(crate) async fn a_new_store_is_empty_and_keeps_its_id<F: EngineFixture>() {
    let fixture = F::new().await;
    let first = fixture.store().status().await.unwrap();
    assert_eq!(
        (first.current, first.oldest, first.keys),
        (F::first(), F::first(), 0)
    );
    assert_eq!(
        list(fixture.store(), "", None).await.unwrap().revision,
        F::first()
    );
    let fixture = fixture.pause().await;
    assert_eq!(fixture.store().status().await.unwrap().id, first.id);
    assert_ne!(F::new().await.store().status().await.unwrap().id, first.id);
}

pub(crate) async fn every_commit_takes_the_next_revision<F: EngineFixture>() {
    let mut fixture = F::new().await;
    let mut last = F::first();
    for round in 0..20 {
        let revision = put(fixture.store(), &format!("key{}", round % 3), "v").await;
        assert!(revision > last);
        last = revision;
        fixture = fixture.pause().await;
        assert_eq!(fixture.store().status().await.unwrap().current, last);
    }
}

pub(crate) async fn an_item_knows_when_it_was_created_and_modified<F: EngineFixture>() {
    let fixture = F::new().await;
    let created = put(fixture.store(), "a", "1").await;
    put(fixture.store(), "other", "").await;
    let modified = put(fixture.store(), "a", "2").await;
    let fixture = fixture.pause().await;
    let expected = item("a", "2", created, modified);
    assert_eq!(
        fixture.store().get(&key("a"), None).await.unwrap(),
        Some(expected)
    );
    let deleted = delete(fixture.store(), "a").await;
    let fixture = fixture.pause().await;
    assert_eq!(fixture.store().get(&key("a"), None).await.unwrap(), None);
    let again = put(fixture.store(), "a", "3").await;
    let fixture = fixture.pause().await;
    let at = async |revision| {
        fixture
            .store()
            .get(&key("a"), Some(revision))
            .await
            .unwrap()
    };
    assert_eq!(at(again).await, Some(item("a", "3", again, again)));
    assert_eq!(at(deleted).await, None);
    assert_eq!(at(modified).await, Some(item("a", "2", created, modified)));
    assert_eq!(at(created).await, Some(item("a", "1", created, created)));
    assert_eq!(at(F::first()).await, None);
}

pub(crate) async fn a_commit_returns_the_previous_items<F: EngineFixture>() {
    let fixture = F::new().await;
    let first = put(fixture.store(), "a", "1").await;
    let fixture = fixture.pause().await;
    let txn = Txn::new()
        .put(key("b"), "2")
        .put(key("a"), "2")
        .delete(key("c"));
    let CommitResult { previous, .. } = fixture.store().commit(txn).await.unwrap();
    assert_eq!(previous, [None, Some(item("a", "1", first, first)), None]);
}

pub(crate) async fn a_commit_that_changes_nothing_takes_no_revision<F: EngineFixture>() {
    let fixture = F::new().await;
    let revision = put(fixture.store(), "a", "1").await;
    for txn in [
        Txn::new(),
        Txn::new().delete(key("missing")),
        Txn::new().guard(Guard::Present(key("a"))),
    ] {
        assert_eq!(
            fixture.store().commit(txn).await.unwrap().revision,
            revision
        );
    }
    let failing = Txn::new().guard(Guard::Absent(key("a")));
    assert!(
        fixture
            .store()
            .commit(failing)
            .await
            .unwrap_err()
            .is_conflict()
    );
    let guarded = Txn::new()
        .guard(Guard::Present(key("missing")))
        .delete(key("missing"));
    assert!(
        fixture
            .store()
            .commit(guarded)
            .await
            .unwrap_err()
            .is_conflict()
    );
    assert_eq!(fixture.store().status().await.unwrap().current, revision);
    assert!(
        put(fixture.store(), "a", "1").await > revision,
        "an equal value is a change"
    );
}

pub(crate) async fn each_kind_of_guard_holds_or_conflicts<F: EngineFixture>() {
    let fixture = F::new().await;
    let old = put(fixture.store(), "dir/b", "1").await;
    let new = put(fixture.store(), "dir/b", "2").await;
    put(fixture.store(), "gone", "").await;
    delete(fixture.store(), "gone").await;
    let fixture = fixture.pause().await;
    let at = |at: &str, revision| Guard::At {
        key: key(at),
        revision,
    };
    let only = |prefix: &str, at: &str, revision| Guard::OnlyUnder {
        prefix: prefix.into(),
        key: key(at),
        revision,
    };
    let at_most = |prefix: &str, items| Guard::AtMostUnder {
        prefix: prefix.into(),
        items,
    };
    let none_newer = |prefix: &str, revision| Guard::NoneNewerUnder {
        prefix: prefix.into(),
        revision,
    };
    let holding = [
        Guard::Absent(key("dir/a")),
        Guard::Absent(key("gone")),
        Guard::Absent(key("dir/")),
        Guard::Present(key("dir/b")),
        at("dir/b", new),
        Guard::NoneUnder("dir/c".into()),
        Guard::NoneUnder("gone".into()),
        only("dir/", "dir/b", new),
        only("dir/b", "dir/b", new),
        only("gone", "dir/b", old),
        at_most("dir/", 1),
        at_most("dir/b", 1),
        at_most("gone", 0),
        at_most("", usize::MAX),
        none_newer("dir/", new),
        none_newer("gone", old),
    ];
    for guard in holding {
        fixture
            .store()
            .commit(Txn::new().guard(guard).put(key("x"), ""))
            .await
            .unwrap();
    }
    let conflicting = [
        (Guard::Absent(key("dir/b")), "dir/b", Some(new)),
        (Guard::Present(key("dir/a")), "dir/a", None),
        (Guard::Present(key("gone")), "gone", None),
        (at("dir/b", old), "dir/b", Some(new)),
        (at("dir/b", new.max(number(1000))), "dir/b", Some(new)),
        (at("dir/a", new), "dir/a", None),
        (Guard::NoneUnder("dir/".into()), "dir/b", Some(new)),
        (Guard::NoneUnder("dir/b".into()), "dir/b", Some(new)),
        (Guard::NoneUnder(Prefix::all()), "dir/b", Some(new)),
        (only("dir/", "dir/b", old), "dir/b", Some(new)),
        (only("dir/", "dir/c", new), "dir/b", Some(new)),
        (at_most("dir/", 0), "dir/b", Some(new)),
        (none_newer("dir/", old), "dir/b", Some(new)),
    ];
    for (failing, at, modified) in conflicting {
        let txn = Txn::new()
            .guard(Guard::Present(key("x")))
            .guard(failing.clone())
            .put(key("y"), "");
        match fixture.store().commit(txn).await {
            Err(StoreError::Conflict {
                guard: 1,
                key: found,
                current,
            }) => {
                assert_eq!((found, current), (key(at), modified), "{failing:?}");
            }
            other => panic!("{failing:?}: {other:?}"),
        }
    }
    assert_eq!(fixture.store().get(&key("y"), None).await.unwrap(), None);
}

pub(crate) async fn a_guard_of_a_count_sees_every_earlier_commit<F: EngineFixture>() {
    let fixture = F::new().await;
    let first = put(fixture.store(), "dir/a", "").await;
    let fixture = fixture.pause().await;
    let add = |name: String| {
        let guard = Guard::AtMostUnder {
            prefix: "dir/".into(),
            items: 2,
        };
        let txn = Txn::new().guard(guard).put(key(&name), "");
        fixture.store().commit(txn)
    };
    // At once, so that an engine decides several of them before the first is durable.
    let commits = (0..20).map(|n| add(format!("dir/{n:02}")));
    let mut revisions = Vec::new();
    let mut conflicts = Vec::new();
    for answer in futures::future::join_all(commits).await {
        match answer {
            Ok(committed) => revisions.push(committed.revision),
            Err(StoreError::Conflict { current, .. }) => conflicts.push(current),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((revisions.len(), conflicts.len()), (2, 18));
    let newest = revisions.into_iter().max();
    assert!(newest > Some(first));
    assert!(conflicts.iter().all(|current| *current == newest));
    // An item that leaves makes room for one more.
    delete(fixture.store(), "dir/a").await;
    add("dir/b".to_owned()).await.unwrap();
    assert!(add("dir/c".to_owned()).await.unwrap_err().is_conflict());
}

pub(crate) async fn a_commit_is_applied_whole_or_not_at_all<F: EngineFixture>() {
    let fixture = F::new().await;
    let before = put(fixture.store(), "a", "old").await;
    let txn = Txn::new()
        .put(key("a"), "new")
        .put(key("b"), "new")
        .delete(key("a0"));
    let refused = txn.clone().guard(Guard::Absent(key("a")));
    assert!(
        fixture
            .store()
            .commit(refused)
            .await
            .unwrap_err()
            .is_conflict()
    );
    let fixture = fixture.pause().await;
    assert_eq!(keys(&list(fixture.store(), "", None).await.unwrap()), ["a"]);
    assert_eq!(fixture.store().status().await.unwrap().current, before);

    let revision = fixture.store().commit(txn).await.unwrap().revision;
    let fixture = fixture.pause().await;
    let snapshot = list(fixture.store(), "", None).await.unwrap();
    assert_eq!(
        snapshot.items,
        [
            item("a", "new", before, revision),
            item("b", "new", revision, revision)
        ]
    );
    assert_eq!(
        list(fixture.store(), "", Some(before)).await.unwrap().items,
        [item("a", "old", before, before)]
    );
}

pub(crate) async fn refuses_oversized_requests_naming_the_limit<F: EngineFixture>() {
    let fixture = F::new().await;
    let value = |size| Txn::new().put(key("a"), vec![7; size]);
    fixture
        .store()
        .commit(value(MAX_VALUE_BYTES))
        .await
        .unwrap();
    let refused = fixture
        .store()
        .commit(value(MAX_VALUE_BYTES + 1))
        .await
        .unwrap_err();
    assert!(
        matches!(refused, StoreError::TooLarge { limit: TxnLimit::ValueBytes, size } if size == MAX_VALUE_BYTES + 1)
    );
    assert_eq!(
        refused.to_string(),
        "number of bytes in a value of 1572865 is over the limit of 1572864"
    );

    let most = MAX_COMMIT_BYTES / MAX_VALUE_BYTES;
    let large = |count: usize| {
        (0..count).fold(Txn::new(), |txn, n| {
            txn.put(key(&format!("k{n}")), vec![7; MAX_VALUE_BYTES])
        })
    };
    fixture.store().commit(large(most)).await.unwrap();
    let refused = fixture.store().commit(large(most + 1)).await.unwrap_err();
    assert!(matches!(
        refused,
        StoreError::TooLarge {
            limit: TxnLimit::CommitBytes,
            ..
        }
    ));

    let puts =
        |count: usize| (0..count).fold(Txn::new(), |txn, n| txn.put(key(&format!("k{n}")), ""));
    fixture.store().commit(puts(MAX_WRITES)).await.unwrap();
    let refused = fixture
        .store()
        .commit(puts(MAX_WRITES + 1))
        .await
        .unwrap_err();
    assert!(matches!(
        refused,
        StoreError::TooLarge {
            limit: TxnLimit::Writes,
            ..
        }
    ));
    let twice = fixture
        .store()
        .commit(Txn::new().put(key("a"), "").delete(key("a")))
        .await
        .unwrap_err();
    assert!(matches!(twice, StoreError::DuplicateWrite { key: found } if found == key("a")));
    let fixture = fixture.pause().await;
    let kept = fixture.store().get(&key("a"), None).await.unwrap().unwrap();
    assert_eq!(kept.value_len(), MAX_VALUE_BYTES);
}

/// Sizes around the one at which an engine may split a value, and the largest one.
pub(crate) async fn large_values_are_kept_whole<F: EngineFixture>() {
    const PART: usize = 64 * 1024;
    let value = |size: usize, seed: usize| -> Vec<u8> {
        (0..size)
            .map(|at| u8::try_from((at / 7 + seed) % 251).unwrap())
            .collect()
    };
    let sizes = [
        0,
        PART - 1,
        PART,
        PART + 1,
        2 * PART,
        2 * PART + 1,
        MAX_VALUE_BYTES,
    ];
    let mut fixture = F::new().await;
    let mut revisions = Vec::new();
    for (seed, size) in sizes.into_iter().enumerate() {
        let txn = Txn::new()
            .put(key("a/replaced"), value(size, seed))
            .put(key(&format!("b/{seed}")), value(size, seed));
        revisions.push(fixture.store().commit(txn).await.unwrap().revision);
    }
    for _ in 0..2 {
        let store = fixture.store();
        for (seed, (size, revision)) in sizes.into_iter().zip(&revisions).enumerate() {
            for at in ["a/replaced", &format!("b/{seed}")] {
                let found = store.get(&key(at), Some(*revision)).await.unwrap();
                assert!(
                    *found.unwrap().value() == *value(size, seed),
                    "{at} of {size}"
                );
            }
        }
        let mut watch = store.watch("a/".into(), F::first()).await.unwrap();
        for (seed, size) in sizes.into_iter().enumerate() {
            let commit = watch.next().await.unwrap();
            let [KeyEvent::Put { item, .. }] = commit.events.as_slice() else {
                panic!("{size}");
            };
            assert!(*item.value() == *value(size, seed), "watched {size}");
        }
        fixture = fixture.pause().await;
    }
    // Deleting or replacing a value frees all of it.
    let last = *revisions.last().unwrap();
    fixture.store().compact(last).await.unwrap();
    let fixture = fixture.pause().await;
    let held = |values: usize, keys: usize| u64::try_from(values + keys).unwrap();
    let all: usize = sizes.iter().sum();
    assert_eq!(
        fixture.store().status().await.unwrap().memory_bytes,
        held(
            all + MAX_VALUE_BYTES,
            "b/0".len() * sizes.len() + "a/replaced".len()
        )
    );
    delete(fixture.store(), "a/replaced").await;
    let last = delete(fixture.store(), "b/6").await;
    fixture.store().compact(last).await.unwrap();
    let fixture = fixture.pause().await;
    assert_eq!(
        fixture.store().status().await.unwrap().memory_bytes,
        held(all - MAX_VALUE_BYTES, "b/0".len() * (sizes.len() - 1))
    );
}

pub(crate) async fn concurrent_compare_and_set_loses_no_update<F: EngineFixture>() {
    const WRITERS: usize = 8;
    const EACH: usize = 25;
    let fixture = Arc::new(F::new().await);
    put(fixture.store(), "counter", "0").await;
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let fixture = Arc::clone(&fixture);
        writers.spawn(async move {
            for _ in 0..EACH {
                while let Err(err) = increment(fixture.store()).await {
                    assert!(err.is_conflict(), "{err}");
                }
            }
        });
    }
    writers.join_all().await;
    let counter = fixture
        .store()
        .get(&key("counter"), None)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(*counter.value(), *(WRITERS * EACH).to_string().as_bytes());
}

/// Also where an engine decides several commits before any of them is durable.
pub(crate) async fn one_of_concurrent_creates_wins<F: EngineFixture>() {
    const WRITERS: usize = 16;
    let fixture = Arc::new(F::new().await);
    for round in 0..20 {
        // By `kind`: the same key; different keys of a directory that must be empty; the latter
        // with another guard; and a directory that must contain only the item that was read.
        for kind in 0..4 {
            let dir = format!("{round}/{kind}/");
            let alone = key(&format!("{dir}alone"));
            let read = match kind {
                3 => put(fixture.store(), &format!("{dir}alone"), "").await,
                _ => F::first(),
            };
            let mut writers = JoinSet::new();
            for writer in 0..WRITERS {
                let fixture = Arc::clone(&fixture);
                let own = key(&format!("{dir}{writer}"));
                let txn = match kind {
                    0 => Txn::new()
                        .guard(Guard::Absent(key(&dir)))
                        .put(key(&dir), ""),
                    1 => Txn::new()
                        .guard(Guard::NoneUnder(dir.clone().into()))
                        .put(own, ""),
                    3 => Txn::new()
                        .guard(Guard::OnlyUnder {
                            prefix: dir.clone().into(),
                            key: alone.clone(),
                            revision: read,
                        })
                        .put(alone.clone(), ""),
                    _ => Txn::new()
                        .guard(Guard::Absent(own.clone()))
                        .guard(Guard::NoneUnder(dir.clone().into()))
                        .put(own, ""),
                };
                writers.spawn(async move { fixture.store().commit(txn).await });
            }
            let (won, lost): (Vec<_>, Vec<_>) = writers
                .join_all()
                .await
                .into_iter()
                .partition(Result::is_ok);
            assert_eq!((won.len(), lost.len()), (1, WRITERS - 1), "{dir}");
            let left = list(fixture.store(), &dir, None).await.unwrap();
            assert_eq!(left.items.len(), 1);
            // Each refusal names the commit that won.
            let winner = &left.items[0];
            for refused in lost {
                assert!(
                    matches!(refused, Err(StoreError::Conflict { ref key, current, .. }) if (key, current) == (&winner.key, Some(winner.modified)))
                );
            }
        }
    }
}

async fn increment(store: &impl Store) -> Result<CommitResult, StoreError> {
    let counter = store.get(&key("counter"), None).await?.unwrap();
    let next = std::str::from_utf8(&counter.value())
        .unwrap()
        .parse::<usize>()
        .unwrap()
        + 1;
    let unchanged = Guard::At {
        key: key("counter"),
        revision: counter.modified,
    };
    store
        .commit(
            Txn::new()
                .guard(unchanged)
                .put(key("counter"), next.to_string()),
        )
        .await
}

pub(crate) async fn a_list_is_continued_at_its_revision_while_writes_go_on<F: EngineFixture>() {
    let mut fixture = F::new().await;
    for n in 0..10 {
        put(fixture.store(), &format!("pods/{n}"), "old").await;
    }
    put(fixture.store(), "podsx", "not under the prefix").await;
    let whole = list(fixture.store(), "pods/", None).await.unwrap();
    let mut query = ListQuery {
        prefix: "pods/".into(),
        limit: NonZeroUsize::new(3),
        ..ListQuery::default()
    };
    let mut pages = Vec::new();
    for round in 0.. {
        let page = fixture.store().list(query.clone()).await.unwrap();
        assert_eq!(page.revision, whole.revision);
        assert_eq!(page.remaining, 10 - pages.len() - page.items.len());
        query.at = Some(page.revision);
        query.after = page.items.last().map(|item| item.key.clone());
        pages.extend(page.items);
        if page.remaining == 0 {
            assert_eq!(round, 3);
            break;
        }
        let txn = Txn::new()
            .put(key("pods/5"), "new")
            .put(key(&format!("pods/7{round}")), "")
            .delete(key("pods/8"));
        fixture.store().commit(txn).await.unwrap();
        fixture = fixture.pause().await;
    }
    assert_eq!(pages, whole.items);
}

pub(crate) async fn a_list_respects_its_prefix_and_order<F: EngineFixture>() {
    let fixture = F::new().await;
    for at in ["b/2", "a", "b/10", "b", "c/1", "b0"] {
        put(fixture.store(), at, "").await;
    }
    let fixture = fixture.pause().await;
    for (prefix, expected) in [
        ("", vec!["a", "b", "b/10", "b/2", "b0", "c/1"]),
        ("b", vec!["b", "b/10", "b/2", "b0"]),
        ("b/", vec!["b/10", "b/2"]),
        ("d", vec![]),
    ] {
        assert_eq!(
            keys(&list(fixture.store(), prefix, None).await.unwrap()),
            expected
        );
    }
    let from = |after: &str| ListQuery {
        prefix: "b/".into(),
        after: Some(key(after)),
        ..ListQuery::default()
    };
    for (after, expected) in [
        ("b/10", vec!["b/2"]),
        ("a", vec!["b/10", "b/2"]),
        ("c", vec![]),
    ] {
        assert_eq!(
            keys(&fixture.store().list(from(after)).await.unwrap()),
            expected
        );
    }
}

pub(crate) async fn refuses_future_revisions<F: EngineFixture>() {
    let fixture = F::new().await;
    let current = put(fixture.store(), "a", "").await;
    let fixture = fixture.pause().await;
    let (store, asked) = (fixture.store(), number(current.number() + 1));
    let refusals = [
        store.get(&key("a"), Some(asked)).await.unwrap_err(),
        list(store, "", Some(asked)).await.unwrap_err(),
        store.watch(Prefix::all(), asked).await.unwrap_err(),
        store.compact(asked).await.unwrap_err(),
    ];
    for refusal in refusals {
        assert!(
            matches!(refusal, StoreError::Future { asked: a, current: c } if (a, c) == (asked, current))
        );
    }
}

pub(crate) async fn a_watch_yields_commits_after_it_began<F: EngineFixture>() {
    let fixture = F::new().await;
    let created = put(fixture.store(), "a", "1").await;
    let mut watch = fixture.store().watch(Prefix::all(), created).await.unwrap();
    let modified = put(fixture.store(), "a", "2").await;
    let deleted = delete(fixture.store(), "a").await;
    let again = put(fixture.store(), "a", "3").await;
    let (one, two) = (
        item("a", "1", created, created),
        item("a", "2", created, modified),
    );
    let three = item("a", "3", again, again);
    for (revision, event) in [
        (
            modified,
            KeyEvent::Put {
                item: two.clone(),
                previous: Some(one),
            },
        ),
        (deleted, KeyEvent::Delete { previous: two }),
        (
            again,
            KeyEvent::Put {
                item: three,
                previous: None,
            },
        ),
    ] {
        assert_eq!(
            watch.next().await.unwrap(),
            Commit {
                revision,
                events: vec![event]
            }
        );
        assert_eq!(watch.position(), revision);
    }
}

pub(crate) async fn a_watch_from_the_past_catches_up<F: EngineFixture>() {
    let fixture = F::new().await;
    for n in 0..30 {
        put(fixture.store(), &format!("key{}", n % 4), &n.to_string()).await;
    }
    let fixture = fixture.pause().await;
    let watch = fixture
        .store()
        .watch(Prefix::all(), F::first())
        .await
        .unwrap();
    let live = put(fixture.store(), "live", "").await;
    let seen: Vec<Commit> = watch
        .into_stream()
        .take(31)
        .map(Result::unwrap)
        .collect()
        .await;
    let revisions: Vec<Revision> = seen.iter().map(|commit| commit.revision).collect();
    assert!(revisions.is_sorted_by(|a, b| a < b));
    assert_eq!(revisions.last(), Some(&live));
    // Resumed after any revision, a watch goes on with the next one.
    for (at, revision) in revisions.iter().enumerate() {
        let rest = fixture
            .store()
            .watch(Prefix::all(), *revision)
            .await
            .unwrap()
            .into_stream();
        let rest: Vec<Commit> = rest.take(30 - at).map(Result::unwrap).collect().await;
        assert_eq!(rest, seen[at + 1..]);
    }
}

pub(crate) async fn a_watch_shows_only_its_prefix_but_whole_commits<F: EngineFixture>() {
    let fixture = F::new().await;
    let mut watch = fixture
        .store()
        .watch("pods/".into(), F::first())
        .await
        .unwrap();
    put(fixture.store(), "nodes/a", "").await;
    let txn = Txn::new()
        .put(key("pods/b"), "")
        .put(key("nodes/a"), "")
        .put(key("pods/a"), "")
        .put(key("pods"), "");
    let revision = fixture.store().commit(txn).await.unwrap().revision;
    let commit = watch.next().await.unwrap();
    let keys: Vec<String> = commit
        .events
        .iter()
        .map(|event| event.key().to_string())
        .collect();
    assert_eq!(
        (commit.revision, keys),
        (revision, vec!["pods/b".to_owned(), "pods/a".to_owned()])
    );
}

pub(crate) async fn watchers_of_concurrent_writers_see_every_commit_once_in_order<
    F: EngineFixture,
>() {
    const WRITERS: usize = 8;
    const EACH: usize = 40;
    let fixture = Arc::new(F::new().await);
    let mut watchers = JoinSet::new();
    for _ in 0..4 {
        let watch = fixture
            .store()
            .watch(Prefix::all(), F::first())
            .await
            .unwrap();
        watchers.spawn(
            watch
                .into_stream()
                .take(WRITERS * EACH)
                .map(Result::unwrap)
                .collect::<Vec<_>>(),
        );
    }
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let fixture = Arc::clone(&fixture);
        writers.spawn(async move {
            let mut revisions = Vec::new();
            for n in 0..EACH {
                let txn = Txn::new()
                    .put(key(&format!("{writer}/{n}")), "")
                    .put(key("shared"), n.to_string());
                revisions.push(fixture.store().commit(txn).await.unwrap().revision);
            }
            revisions
        });
    }
    let mut committed = writers.join_all().await.concat();
    committed.sort_unstable();
    for seen in watchers.join_all().await {
        assert!(
            seen.iter()
                .map(|commit| commit.revision)
                .eq(committed.iter().copied())
        );
        assert!(seen.iter().all(|commit| commit.events.len() == 2));
        let chained = seen
            .windows(2)
            .all(|pair| match (&pair[0].events[1], &pair[1].events[1]) {
                (KeyEvent::Put { item, .. }, KeyEvent::Put { previous, .. }) => {
                    previous.as_ref() == Some(item)
                }
                _ => false,
            });
        assert!(chained, "each commit saw the one before");
    }
}

pub(crate) async fn the_position_of_a_watch_advances_past_other_prefixes<F: EngineFixture>() {
    let fixture = F::new().await;
    let mut watch = fixture
        .store()
        .watch("pods/".into(), F::first())
        .await
        .unwrap();
    assert_eq!(watch.position(), F::first());
    let other = put(fixture.store(), "nodes/a", "").await;
    while watch.position() < other {
        // There is nothing to return: the watch can only wait or advance.
        assert!(
            tokio::time::timeout(Duration::from_millis(10), watch.next())
                .await
                .is_err()
        );
    }
    assert_eq!(watch.position(), other);
}

pub(crate) async fn a_stalled_watcher_blocks_no_writer_and_ends_when_compacted<F: EngineFixture>() {
    let fixture = F::new().await;
    let mut stalled = fixture
        .store()
        .watch(Prefix::all(), F::first())
        .await
        .unwrap();
    let mut behind = fixture
        .store()
        .watch(Prefix::all(), F::first())
        .await
        .unwrap();
    let mut last = F::first();
    for n in 0..500 {
        last = put(fixture.store(), "a", &n.to_string()).await;
    }
    let mut seen = 0;
    while behind.position() < last {
        behind.next().await.unwrap();
        seen += 1;
    }
    assert_eq!(seen, 500);
    fixture.store().compact(last).await.unwrap();
    assert!(
        matches!(stalled.next().await, Err(StoreError::Compacted { oldest }) if oldest == last)
    );
    let next = put(fixture.store(), "a", "next").await;
    assert_eq!(
        behind.next().await.unwrap().revision,
        next,
        "who had caught up is not disturbed"
    );
}

pub(crate) async fn a_dropped_wait_loses_no_commit<F: EngineFixture>() {
    let fixture = F::new().await;
    let mut watch = fixture
        .store()
        .watch(Prefix::all(), F::first())
        .await
        .unwrap();
    assert!(watch.next().now_or_never().is_none());
    let revision = put(fixture.store(), "a", "").await;
    assert_eq!(watch.next().await.unwrap().revision, revision);
    {
        let mut waiting = pin!(watch.next());
        assert!(futures::poll!(waiting.as_mut()).is_pending());
    }
    let revision = put(fixture.store(), "a", "").await;
    assert_eq!(watch.next().await.unwrap().revision, revision);
}

pub(crate) async fn a_compaction_keeps_its_revision_and_drops_earlier_ones<F: EngineFixture>() {
    let fixture = F::new().await;
    let first = put(fixture.store(), "a", "1").await;
    put(fixture.store(), "gone", "").await;
    let second = fixture
        .store()
        .commit(Txn::new().put(key("a"), "2").delete(key("gone")))
        .await
        .unwrap()
        .revision;
    let third = delete(fixture.store(), "a").await;
    fixture.store().compact(second).await.unwrap();
    let fixture = fixture.pause().await;
    let store = fixture.store();
    store.compact(first).await.unwrap();
    let status = store.status().await.unwrap();
    assert_eq!((status.oldest, status.keys), (second, 0));
    assert_eq!(store.status().await.unwrap().current, third);

    let compacted = |err| matches!(err, StoreError::Compacted { oldest } if oldest == second);
    assert!(compacted(
        store.get(&key("a"), Some(first)).await.unwrap_err()
    ));
    assert!(compacted(list(store, "", Some(first)).await.unwrap_err()));
    assert!(compacted(
        store.watch(Prefix::all(), first).await.unwrap_err()
    ));

    let two = item("a", "2", first, second);
    assert_eq!(
        list(store, "", Some(second)).await.unwrap().items,
        std::slice::from_ref(&two)
    );
    let mut watch = store.watch(Prefix::all(), second).await.unwrap();
    let deletion = Commit {
        revision: third,
        events: vec![KeyEvent::Delete { previous: two }],
    };
    assert_eq!(watch.next().await.unwrap(), deletion);

    // The revision counter goes on even when all history is compacted, deletions included.
    store.compact(third).await.unwrap();
    let fixture = fixture.pause().await;
    assert_eq!(fixture.store().status().await.unwrap().current, third);
    assert!(put(fixture.store(), "a", "").await > third);
}

pub(crate) async fn a_compaction_frees_memory<F: EngineFixture>() {
    let fixture = F::new().await;
    let mut last = F::first();
    for n in 0..50 {
        last = put(fixture.store(), "a", &"x".repeat(1000)).await;
        put(fixture.store(), &format!("temporary{n}"), "").await;
        last = last.max(delete(fixture.store(), &format!("temporary{n}")).await);
    }
    let before = fixture.store().status().await.unwrap().memory_bytes;
    assert!(before > 50_000, "{before}");
    fixture.store().compact(last).await.unwrap();
    assert_eq!(fixture.store().status().await.unwrap().memory_bytes, 1001);
    let fixture = fixture.pause().await;
    assert_eq!(fixture.store().status().await.unwrap().memory_bytes, 1001);
}

pub(crate) async fn history_can_be_bounded_by_bytes<F: EngineFixture>() {
    let fixture = F::new().await;
    let kilobyte = |n: usize| format!("{n:1000}");
    let mut last = F::first();
    for n in 0..50 {
        last = put(fixture.store(), "a", &kilobyte(n)).await;
        put(fixture.store(), &format!("kept{n}"), &kilobyte(n)).await;
    }
    put(fixture.store(), "gone", &kilobyte(0)).await;
    let deleted = delete(fixture.store(), "gone").await;
    // The same holds for a history that was loaded from disk.
    let mut fixture = fixture.pause().await;
    let status = fixture.store().status().await.unwrap();
    // 49 versions of `a`, one of `gone`, and the tombstone of `gone`.
    assert_eq!(status.history_bytes, 49 * 1001 + 1004 + 4);
    for (bytes, expected) in [
        (60_000, 49 * 1001 + 1008),
        (20_000, 18 * 1001 + 1008),
        (1008, 1008),
        (0, 0),
    ] {
        let store = fixture.store();
        let oldest = store.oldest_within(bytes).await.unwrap();
        store.compact(oldest).await.unwrap();
        let status = store.status().await.unwrap();
        assert_eq!((status.oldest, status.history_bytes), (oldest, expected));
        assert_eq!(
            status.memory_bytes - status.history_bytes,
            1001 + 40 * 1006 + 10 * 1005
        );
        // No more is dropped than necessary.
        assert_eq!(store.oldest_within(bytes).await.unwrap(), oldest);
        assert!(bytes > 0 || oldest == deleted);
        assert!(bytes < 1008 || oldest <= last);
        fixture = fixture.pause().await;
    }
}

/// Changes are found again by their place in the whole commit.
pub(crate) async fn partly_compacted_commits_keep_their_other_changes<F: EngineFixture>() {
    let mut fixture = F::new().await;
    let txn = Txn::new()
        .put(key("a"), "")
        .put(key("b"), "")
        .put(key("c"), "");
    fixture.store().commit(txn).await.unwrap();
    for (deleted, left) in [("a", vec!["b", "c"]), ("b", vec!["c"])] {
        let revision = delete(fixture.store(), deleted).await;
        fixture.store().compact(revision).await.unwrap();
        fixture = fixture.pause().await;
        assert_eq!(keys(&list(fixture.store(), "", None).await.unwrap()), left);
    }
    let fixture = fixture.pause().await;
    assert_eq!(keys(&list(fixture.store(), "", None).await.unwrap()), ["c"]);
}

pub(crate) async fn a_watch_ends_when_the_store_does<F: EngineFixture>() {
    let fixture = F::new().await;
    let watch = fixture
        .store()
        .watch(Prefix::all(), F::first())
        .await
        .unwrap();
    let revision = put(fixture.store(), "a", "").await;
    drop(fixture);
    let rest: Vec<_> = watch.into_stream().collect().await;
    match rest.as_slice() {
        [Ok(commit), Err(StoreError::Unavailable)] => assert_eq!(commit.revision, revision),
        other => panic!("{other:?}"),
    }
}
