//! Writers, and the acknowledgements they got.

use std::{
    collections::BTreeMap,
    ops::Bound,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt as _;
use podplane_store::{
    Commit, Key, KeyEvent, ListQuery, Prefix, Revision, SledStore, Store, Txn, Watch,
};
use tokio::{sync::watch, task::JoinSet};

/// Each writer has keys of its own, and one commit in progress.
const WRITERS: u64 = 8;
/// The amount of data by value size: less for large values, since the disk is in memory.
#[derive(Clone, Copy, Debug)]
struct LoadSize {
    /// The number of items of a writer, which it replaces in turn.
    keys: u64,
    /// The history to keep. Compaction is more frequent than in production, since that is where
    /// space is reused.
    keep: u64,
    compact_every: u64,
    /// The most commits before the power is cut.
    most_commits: u64,
}

impl LoadSize {
    fn of(value_bytes: usize) -> Self {
        match value_bytes {
            ..=65536 => Self {
                keys: 6,
                keep: 60,
                compact_every: 40,
                most_commits: 400,
            },
            _ => Self {
                keys: 2,
                keep: 8,
                compact_every: 5,
                most_commits: 60,
            },
        }
    }
}

/// The most commits to wait for before the power is cut.
pub(crate) fn most_commits(value_bytes: usize) -> u64 {
    LoadSize::of(value_bytes).most_commits
}

/// The commit number `step` of a writer: it replaces one of its items and moves its marker: two
/// puts and a delete.
fn txn(writer: u64, step: u64, value_bytes: usize) -> Txn {
    let txn = Txn::new()
        .put(item(writer, step, value_bytes), value(step, value_bytes))
        .put(marker(writer, step), "");
    match step.checked_sub(1) {
        Some(before) => txn.delete(marker(writer, before)),
        None => txn,
    }
}

fn item(writer: u64, step: u64, value_bytes: usize) -> Key {
    let keys = LoadSize::of(value_bytes).keys;
    Key::try_from(format!("item/{writer}/{}", step % keys)).unwrap()
}

fn marker(writer: u64, step: u64) -> Key {
    Key::try_from(format!("marker/{writer}/{step}")).unwrap()
}

/// Bytes that neither repeat nor equal those of another step.
fn value(step: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(step);
    let mut value = vec![0; bytes];
    random.fill(&mut value);
    value
}

/// The acknowledged commits, none of which may be missing.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcknowledgedCommits {
    /// The last step of each writer, and its revision.
    last: BTreeMap<u64, (u64, Revision)>,
    /// Every commit, by revision.
    commits: BTreeMap<Revision, (u64, u64)>,
    compacted: Option<Revision>,
}

impl AcknowledgedCommits {
    fn step(&mut self, writer: u64, step: u64, revision: Revision) {
        self.last.insert(writer, (step, revision));
        self.commits.insert(revision, (writer, step));
    }

    pub(crate) fn commits(&self) -> usize {
        self.commits.len()
    }
}

/// Writers on a store.
#[derive(Debug)]
pub(crate) struct Load {
    store: Arc<SledStore>,
    acknowledged: Arc<Mutex<AcknowledgedCommits>>,
    count: watch::Receiver<u64>,
    stop: Arc<AtomicBool>,
    writers: JoinSet<()>,
}

impl Load {
    /// Starts writers that go on after the acknowledged commits.
    pub(crate) fn begin(
        store: SledStore,
        before: &AcknowledgedCommits,
        value_bytes: usize,
    ) -> Self {
        let store = Arc::new(store);
        let acknowledged = Arc::new(Mutex::new(before.clone()));
        let stop = Arc::new(AtomicBool::new(false));
        let LoadSize {
            keep,
            compact_every,
            ..
        } = LoadSize::of(value_bytes);
        let (counter, count) = watch::channel(0);
        let counter = Arc::new(counter);
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let next = before.last.get(&writer).map_or(0, |(step, _)| step + 1);
            let (store, acknowledged) = (Arc::clone(&store), Arc::clone(&acknowledged));
            let (stop, counter) = (Arc::clone(&stop), Arc::clone(&counter));
            writers.spawn(async move {
                for step in next.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let committed = store.commit(txn(writer, step, value_bytes)).await.unwrap();
                    let revision = committed.revision;
                    acknowledged.lock().unwrap().step(writer, step, revision);
                    counter.send_modify(|count| *count += 1);
                    if revision.number().is_multiple_of(compact_every)
                        && let Some(oldest) = Revision::new(revision.number().saturating_sub(keep))
                    {
                        store.compact(oldest).await.unwrap();
                        store.maintain().await.unwrap();
                        let mut acknowledged = acknowledged.lock().unwrap();
                        acknowledged.compacted = acknowledged.compacted.max(Some(oldest));
                    }
                }
            });
        }
        Self {
            store,
            acknowledged,
            count,
            stop,
            writers,
        }
    }

    /// Waits for `commits` acknowledgements and then for `then`, so that the end comes at any point
    /// of a write.
    pub(crate) async fn reach(&mut self, commits: u64, then: Duration) {
        tokio::select! {
            reached = self.count.wait_for(|count| *count >= commits) => drop(reached.unwrap()),
            ended = self.writers.join_next() => panic!("a writer ended: {ended:?}"),
        }
        tokio::time::sleep(then).await;
    }

    pub(crate) fn acknowledged(&self) -> AcknowledgedCommits {
        self.acknowledged.lock().unwrap().clone()
    }

    pub(crate) async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.writers.join_all().await;
        drop(self.store);
    }
}

/// Opens the store and checks that it has every acknowledged commit, and beyond them at most the
/// one commit that each writer had in progress. Returns the state for the next writers.
pub(crate) async fn verify(
    dir: &Path,
    acknowledged: &AcknowledgedCommits,
    value_bytes: usize,
) -> (SledStore, AcknowledgedCommits) {
    let store = SledStore::open(dir).unwrap();
    let status = store.status().await.unwrap();
    assert!(Some(status.oldest) >= acknowledged.compacted);

    let mut found = AcknowledgedCommits {
        compacted: Some(status.oldest),
        ..AcknowledgedCommits::default()
    };
    for writer in 0..WRITERS {
        let acknowledged = acknowledged.last.get(&writer);
        let markers = keys(&store, &format!("marker/{writer}/")).await;
        let items = keys(&store, &format!("item/{writer}/")).await;
        let Some((key, revision)) = markers.first_key_value() else {
            assert!(acknowledged.is_none() && items.is_empty());
            continue;
        };
        assert_eq!(markers.len(), 1, "commits are whole: {markers:?}");
        let step: u64 = key.rsplit('/').next().unwrap().parse().unwrap();
        match acknowledged {
            Some((last, at)) if *last == step => assert_eq!(revision, at),
            Some((last, at)) => assert!(*last + 1 == step && at < revision, "{last} {step}"),
            None => assert_eq!(step, 0),
        }
        let keys = LoadSize::of(value_bytes).keys;
        assert_eq!(items.len() as u64, keys.min(step + 1));
        for step in step.saturating_sub(keys - 1)..=step {
            let found = store
                .get(&item(writer, step, value_bytes), None)
                .await
                .unwrap()
                .unwrap();
            assert!(
                *found.value() == *value(step, value_bytes),
                "{writer} {step} has its value"
            );
        }
        found.step(writer, step, *revision);
    }
    let first = status.oldest;
    let mut commits = store.watch(Prefix::all(), first).await.unwrap();
    let mut history = BTreeMap::new();
    while let Some(commit) = commits.next().now_or_never() {
        let Commit { revision, events } = commit.unwrap();
        history.insert(revision, events);
    }
    let after = (Bound::Excluded(first), Bound::Unbounded);
    for (revision, (writer, step)) in acknowledged.commits.range(after) {
        let events = history.get(revision);
        let events =
            events.unwrap_or_else(|| panic!("{revision}, acknowledged, is not in the history"));
        let put = events.iter().any(
            |event| matches!(event, KeyEvent::Put { item, .. } if item.key == marker(*writer, *step)),
        );
        assert!(put, "{revision} is another commit now: {events:?}");
    }
    (store, found)
}

async fn keys(store: &SledStore, prefix: &str) -> BTreeMap<String, Revision> {
    let query = ListQuery {
        prefix: prefix.into(),
        ..ListQuery::default()
    };
    let items = store.list(query).await.unwrap().items;
    items
        .into_iter()
        .map(|item| (item.key.to_string(), item.modified))
        .collect()
}
