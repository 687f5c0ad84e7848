//! Random histories against a simple model: the whole content at every revision.

use std::{collections::BTreeMap, num::NonZeroUsize, sync::Arc};

use podplane_store::{
    Commit, FIRST_REVISION, Guard, Item, Key, KeyEvent, ListQuery, Prefix, Revision, Store,
    StoreError, Txn, Watch, Write,
};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_oneof, proptest};

use crate::{EngineFixture, suite};

/// Few keys, so that operations often meet.
const KEYS: [&str; 5] = ["a", "a/1", "a/2", "b/1", "c"];
const PREFIXES: [&str; 4] = ["", "a", "a/", "b/1"];
/// One key under each prefix, written last, so that the reader of a watch knows when it has seen
/// everything.
const ENDS: [&str; 4] = ["~end", "a~end", "a/~end", "b/1~end"];

#[derive(Clone, Debug)]
enum ModelOp {
    Commit {
        guards: Vec<GuardOp>,
        writes: BTreeMap<usize, Option<u8>>,
    },
    Compact {
        back: u64,
    },
    Pause,
}

#[derive(Clone, Debug)]
enum GuardOp {
    Absent(usize),
    Present(usize),
    /// At the revision of the present item or, if `stale`, at an earlier one.
    At {
        key: usize,
        stale: bool,
    },
    NoneUnder(usize),
    /// Except the present item of the key or, if `stale`, an earlier version of it.
    OnlyUnder {
        prefix: usize,
        key: usize,
        stale: bool,
    },
    AtMostUnder {
        prefix: usize,
        items: usize,
    },
    /// Than the current revision or, if `stale`, than the one before.
    NoneNewerUnder {
        prefix: usize,
        stale: bool,
    },
}

fn ops() -> impl Strategy<Value = Vec<ModelOp>> {
    let guard = prop_oneof![
        (0..KEYS.len()).prop_map(GuardOp::Absent),
        (0..KEYS.len()).prop_map(GuardOp::Present),
        (0..KEYS.len(), any::<bool>()).prop_map(|(key, stale)| GuardOp::At { key, stale }),
        (1..PREFIXES.len()).prop_map(GuardOp::NoneUnder),
        (1..PREFIXES.len(), 0..KEYS.len(), any::<bool>())
            .prop_map(|(prefix, key, stale)| GuardOp::OnlyUnder { prefix, key, stale }),
        (1..PREFIXES.len(), 0..4usize)
            .prop_map(|(prefix, items)| GuardOp::AtMostUnder { prefix, items }),
        (1..PREFIXES.len(), any::<bool>())
            .prop_map(|(prefix, stale)| GuardOp::NoneNewerUnder { prefix, stale }),
    ];
    let writes = prop::collection::btree_map(
        0..KEYS.len(),
        prop::option::weighted(0.7, any::<u8>()),
        0..4,
    );
    let commit = (prop::collection::vec(guard, 0..2), writes)
        .prop_map(|(guards, writes)| ModelOp::Commit { guards, writes });
    prop::collection::vec(
        prop_oneof![12 => commit, 1 => (0..6u64).prop_map(|back| ModelOp::Compact { back }), 1 => Just(ModelOp::Pause)],
        1..40,
    )
}

/// The content of a store at one revision.
type Content = BTreeMap<Key, Arc<Item>>;

#[derive(Default)]
struct StoreModel {
    contents: BTreeMap<Revision, Content>,
    oldest: Option<Revision>,
}

impl StoreModel {
    fn now(&self) -> (Revision, Content) {
        let last = self.contents.last_key_value();
        last.map_or((FIRST_REVISION, Content::new()), |(revision, content)| {
            (*revision, content.clone())
        })
    }

    fn holds(&self, guard: &Guard) -> bool {
        let (_, content) = self.now();
        match guard {
            Guard::Absent(key) => !content.contains_key(key),
            Guard::Present(key) => content.contains_key(key),
            Guard::At { key, revision } => content
                .get(key)
                .is_some_and(|item| item.modified == *revision),
            Guard::NoneUnder(prefix) => !content.keys().any(|key| prefix.contains(key)),
            Guard::OnlyUnder {
                prefix,
                key,
                revision,
            } => content
                .values()
                .filter(|item| prefix.contains(&item.key))
                .all(|item| (&item.key, item.modified) == (key, *revision)),
            Guard::AtMostUnder { prefix, items } => {
                let under = content.keys().filter(|key| prefix.contains(key));
                under.count() <= *items
            }
            Guard::NoneNewerUnder { prefix, revision } => {
                let mut under = content.values().filter(|item| prefix.contains(&item.key));
                under.all(|item| item.modified <= *revision)
            }
        }
    }

    fn commit(&mut self, revision: Revision, writes: &[Write]) {
        let (_, mut content) = self.now();
        for write in writes {
            match write {
                Write::Put { key, value } => {
                    let created = content.get(key).map_or(revision, |item| item.created);
                    let item = Item::new(key.clone(), value, created, revision);
                    content.insert(key.clone(), Arc::new(item));
                }
                Write::Delete { key } => {
                    content.remove(key);
                }
            }
        }
        self.contents.insert(revision, content);
    }
}

pub(crate) fn check<F: EngineFixture>() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // 256 cases, or PROPTEST_CASES; fewer where a store takes long to make.
    let all = ProptestConfig::default();
    let config = ProptestConfig {
        failure_persistence: None,
        cases: all.cases / F::COST,
        ..all
    };
    proptest!(config, |(ops in ops())| runtime.block_on(suite::within_deadline(run::<F>(ops))));
}

async fn run<F: EngineFixture>(ops: Vec<ModelOp>) {
    let mut fixture = F::new().await;
    let mut model = StoreModel::default();
    model.contents.insert(F::first(), Content::new());
    for op in ops {
        match op {
            ModelOp::Commit { guards, writes } => {
                commit(fixture.store(), &mut model, &guards, writes).await
            }
            ModelOp::Compact { back } => {
                let (current, _) = model.now();
                let oldest =
                    Revision::new(current.number().saturating_sub(back)).unwrap_or(FIRST_REVISION);
                fixture.store().compact(oldest).await.unwrap();
                model.oldest = model.oldest.max(Some(oldest));
            }
            ModelOp::Pause => fixture = fixture.pause().await,
        }
    }
    let end = ENDS
        .iter()
        .fold(Txn::new(), |txn, end| txn.put(suite::key(end), ""));
    let revision = fixture.store().commit(end.clone()).await.unwrap().revision;
    model.commit(revision, &end.writes);
    let fixture = fixture.pause().await;
    compare(fixture.store(), &model).await;
}

async fn commit(
    store: &impl Store,
    model: &mut StoreModel,
    guards: &[GuardOp],
    writes: BTreeMap<usize, Option<u8>>,
) {
    let (current, content) = model.now();
    let key = |index: usize| suite::key(KEYS[index]);
    let revision_of = |index: usize, stale: bool| {
        let item = content.get(&key(index));
        let modified = item.map_or(current, |item| item.modified);
        Revision::new(modified.number() - u64::from(stale)).unwrap_or(FIRST_REVISION)
    };
    let guards: Vec<Guard> = guards
        .iter()
        .map(|guard| match *guard {
            GuardOp::Absent(index) => Guard::Absent(key(index)),
            GuardOp::Present(index) => Guard::Present(key(index)),
            GuardOp::NoneUnder(index) => Guard::NoneUnder(PREFIXES[index].into()),
            GuardOp::At { key: index, stale } => Guard::At {
                key: key(index),
                revision: revision_of(index, stale),
            },
            GuardOp::OnlyUnder {
                prefix,
                key: index,
                stale,
            } => Guard::OnlyUnder {
                prefix: PREFIXES[prefix].into(),
                key: key(index),
                revision: revision_of(index, stale),
            },
            GuardOp::AtMostUnder { prefix, items } => Guard::AtMostUnder {
                prefix: PREFIXES[prefix].into(),
                items,
            },
            GuardOp::NoneNewerUnder { prefix, stale } => Guard::NoneNewerUnder {
                prefix: PREFIXES[prefix].into(),
                revision: Revision::new(current.number() - u64::from(stale))
                    .unwrap_or(FIRST_REVISION),
            },
        })
        .collect();
    let writes = writes.into_iter().map(|(index, value)| match value {
        // Some values are so large that an engine splits them.
        Some(value @ 240..) => Write::Put {
            key: key(index),
            value: vec![value; 600 * usize::from(value)].into(),
        },
        Some(value) => Write::Put {
            key: key(index),
            value: vec![value].into(),
        },
        None => Write::Delete { key: key(index) },
    });
    let txn = Txn {
        guards,
        writes: writes.collect(),
        reclaims: false,
        lifetime: None,
    };
    match store.commit(txn.clone()).await {
        Ok(committed) => {
            assert!(txn.guards.iter().all(|guard| model.holds(guard)), "{txn:?}");
            let before: Vec<_> = txn
                .writes
                .iter()
                .map(|write| content.get(write.key()).cloned())
                .collect();
            assert_eq!(committed.previous, before);
            let changes = txn
                .writes
                .iter()
                .any(|w| matches!(w, Write::Put { .. }) || content.contains_key(w.key()));
            assert_eq!(changes, committed.revision > current);
            if changes {
                model.commit(committed.revision, &txn.writes);
            }
        }
        Err(StoreError::Conflict { guard, .. }) => {
            assert!(!model.holds(&txn.guards[guard]));
            assert!(txn.guards[..guard].iter().all(|guard| model.holds(guard)));
        }
        Err(err) => panic!("{err}"),
    }
}

/// Reads everything at every revision, and watches from every revision.
async fn compare(store: &impl Store, model: &StoreModel) {
    let oldest = model.oldest.unwrap_or(FIRST_REVISION);
    for (&at, content) in &model.contents {
        for prefix in PREFIXES.map(Prefix::from) {
            if at < oldest {
                let query = ListQuery {
                    prefix: prefix.clone(),
                    at: Some(at),
                    ..ListQuery::default()
                };
                assert!(store.list(query).await.unwrap_err().is_compacted());
                assert!(store.watch(prefix, at).await.unwrap_err().is_compacted());
                continue;
            }
            let expected: Vec<Arc<Item>> = content
                .values()
                .filter(|item| prefix.contains(&item.key))
                .cloned()
                .collect();
            assert_eq!(paged(store, &prefix, at).await, expected);
            watch(store, model, prefix, at).await;
        }
        for key in KEYS.map(suite::key) {
            match store.get(&key, Some(at)).await {
                Ok(item) => assert_eq!((item.as_ref(), at >= oldest), (content.get(&key), true)),
                Err(err) => assert!(err.is_compacted() && at < oldest),
            }
        }
    }
}

async fn paged(store: &impl Store, prefix: &Prefix, at: Revision) -> Vec<Arc<Item>> {
    let mut items: Vec<Arc<Item>> = Vec::new();
    loop {
        let after = items.last().map(|item| item.key.clone());
        let limit = NonZeroUsize::new(2);
        let page = store
            .list(ListQuery {
                prefix: prefix.clone(),
                at: Some(at),
                after,
                limit,
            })
            .await
            .unwrap();
        items.extend(page.items);
        if page.remaining == 0 {
            return items;
        }
    }
}

/// Checks that a watch, replayed on the content at its first revision, yields the content of every
/// later one.
async fn watch(store: &impl Store, model: &StoreModel, prefix: Prefix, after: Revision) {
    let (end, _) = model.now();
    let under = |content: &Content| -> Content {
        content
            .iter()
            .filter(|(key, _)| prefix.contains(key))
            .map(|(key, item)| (key.clone(), item.clone()))
            .collect()
    };
    let mut content = under(&model.contents[&after]);
    let mut watch = store.watch(prefix.clone(), after).await.unwrap();
    let mut last = after;
    while last < end {
        let Commit { revision, events } = watch.next().await.unwrap();
        assert!(revision > last && !events.is_empty());
        for (_, unchanged) in model.contents.range(last..revision) {
            assert_eq!(
                content,
                under(unchanged),
                "the watch left out a commit before {revision}"
            );
        }
        for event in events {
            let before = match event {
                KeyEvent::Put { item, previous } => {
                    (content.insert(item.key.clone(), item), previous)
                }
                KeyEvent::Delete { previous } => (content.remove(&previous.key), Some(previous)),
            };
            assert_eq!(before.0, before.1);
        }
        last = revision;
    }
    assert_eq!(content, under(&model.contents[&end]));
}
