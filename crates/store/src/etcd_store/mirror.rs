//! The history of the store in memory: read from etcd once, then fed by one watch.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use bytes::Bytes;
use podplane_etcd::{
    EtcdClient, EtcdError,
    wire::{
        etcdserverpb::{RangeRequest, WatchCreateRequest, response_op},
        mvccpb::{Event, KeyValue, event::EventType},
    },
};
use podplane_host::{clock, task};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use uuid::Uuid;

use super::{
    Numbers,
    freshness::{self, Freshness, NORMAL, STALLED},
    keys::KeySpace,
};
use crate::{
    StoreError,
    history::{Changes, History, KeyChange},
    store::{Item, Revision},
};

/// Keys in one answer of a list. With objects of 1.5 MiB an answer stays below what a client takes.
const PAGE: i64 = 300;
/// The most revisions that a server reads from the history when it starts: etcd sends a thousand in
/// a tenth of a second.
const MAX_REPLAYED: i64 = 20_000;
/// The pause after a failure to read everything again.
const READ_AGAIN_IN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Mirror {
    history: Arc<watch::Sender<History>>,
}

impl Mirror {
    /// Reads all keys: at the revision of the last compaction or [`MAX_REPLAYED`] before the
    /// current one, so that watches from before a restart can resume, or, if etcd has been
    /// compacted later by others, at the current one.
    pub(super) async fn read(
        client: &EtcdClient,
        keys: &KeySpace,
        numbers: Numbers,
        id: Uuid,
        first: Revision,
    ) -> Result<Self, EtcdError> {
        let compacted = last_compaction(client, keys).await?;
        let oldest = compacted.map_or_else(|| numbers.etcds(first), |(revision, _)| revision);
        let from = oldest.max(freshness::current(client, keys).await? - MAX_REPLAYED);
        let history = match read_at(client, keys, numbers, (id, first), Some(from)).await {
            Err(EtcdError::Compacted) => read_now(client, keys, numbers, (id, first)).await?,
            read => read?,
        };
        Ok(Self {
            history: Arc::new(watch::Sender::new(history)),
        })
    }

    pub(super) fn history(&self) -> watch::Receiver<History> {
        self.history.subscribe()
    }

    pub(super) fn current(&self) -> Revision {
        self.history.borrow().current()
    }

    /// Compacts the mirror. False if that was done already.
    pub(super) fn compact(&self, oldest: Revision) -> Result<bool, StoreError> {
        let mut answer = Ok(false);
        self.history.send_if_modified(|history| {
            answer = history.compactable(oldest).inspect(|&needed| {
                if needed {
                    history.compact(oldest);
                }
            });
            // Wakes the watchers that fell behind.
            answer.is_ok()
        });
        answer
    }

    /// Begins to feed the mirror, until the task is dropped.
    pub(super) fn follow(
        &self,
        client: EtcdClient,
        keys: Arc<KeySpace>,
        numbers: Numbers,
        freshness: &Freshness,
    ) -> JoinSet<()> {
        let follower = Follower {
            history: Arc::clone(&self.history),
            client,
            keys,
            numbers,
            has_progress: freshness.has_progress(),
            wanted: freshness.wanted(),
            stalled: freshness.stalled(),
        };
        let mut task = JoinSet::new();
        task::spawn(&mut task, follower.run());
        task
    }
}

/// The revision that the last server noted that compacted the store, and the revision of the note.
pub(super) async fn last_compaction(
    client: &EtcdClient,
    keys: &KeySpace,
) -> Result<Option<(i64, i64)>, EtcdError> {
    let request = RangeRequest {
        key: keys.compacted(),
        ..RangeRequest::default()
    };
    let found = client.range(request).await?.kvs.pop();
    Ok(found.and_then(|found| {
        let revision = std::str::from_utf8(&found.value).ok()?.parse().ok()?;
        Some((revision, found.mod_revision))
    }))
}

/// Reads the current state, again if it is compacted meanwhile.
async fn read_now(
    client: &EtcdClient,
    keys: &KeySpace,
    numbers: Numbers,
    store: (Uuid, Revision),
) -> Result<History, EtcdError> {
    loop {
        match read_at(client, keys, numbers, store, None).await {
            Err(EtcdError::Compacted) => {}
            read => return read,
        }
    }
}

/// Reads the state at a revision, or the current one.
async fn read_at(
    client: &EtcdClient,
    keys: &KeySpace,
    numbers: Numbers,
    (id, first): (Uuid, Revision),
    at: Option<i64>,
) -> Result<History, EtcdError> {
    let page = |after: Option<&Bytes>, revision| {
        let range = keys.data_after(after);
        let request = RangeRequest {
            key: range.key,
            range_end: range.end,
            limit: PAGE,
            revision,
            ..RangeRequest::default()
        };
        let client = client.clone();
        async move { client.range(request).await }
    };
    let mut found = page(None, at.unwrap_or_default()).await?;
    let revision = match at {
        Some(revision) => revision,
        None => found.header.map_or(1, |header| header.revision),
    };
    let mut history = History::compacted_at(id, first, numbers.ours(revision));
    loop {
        let last = found.kvs.last().filter(|_| found.more);
        // etcd collects the next page meanwhile.
        let mut next = JoinSet::new();
        if let Some(last) = last {
            task::spawn(&mut next, page(Some(&last.key), revision));
        }
        for found in found.kvs {
            if let Some(item) = item(keys, numbers, found) {
                history.apply(of_one(item));
            }
        }
        match next.join_next().await {
            None => return Ok(history),
            Some(Ok(next)) => found = next?,
            Some(Err(ended)) => {
                return Err(EtcdError::NoAnswer {
                    message: ended.to_string(),
                });
            }
        }
    }
}

fn of_one(item: Item) -> Changes {
    Changes {
        revision: item.modified,
        changes: vec![KeyChange {
            place: 0,
            key: item.key.clone(),
            item: Some(Arc::new(item)),
        }],
    }
}

/// `None` for a key of the store's own.
fn item(keys: &KeySpace, numbers: Numbers, found: KeyValue) -> Option<Item> {
    Some(Item::new(
        keys.ours(&found.key)?,
        &found.value,
        numbers.ours(found.create_revision),
        numbers.ours(found.mod_revision),
    ))
}

struct Follower {
    history: Arc<watch::Sender<History>>,
    client: EtcdClient,
    keys: Arc<KeySpace>,
    numbers: Numbers,
    has_progress: Arc<AtomicBool>,
    wanted: Arc<Notify>,
    stalled: Arc<Notify>,
}

impl Follower {
    async fn run(self) {
        loop {
            let pauses = ExponentialBuilder::default()
                .with_min_delay(Duration::from_millis(10))
                .with_max_delay(Duration::from_secs(1))
                .with_jitter()
                .without_max_times();
            for pause in pauses.build() {
                let before = self.history.borrow().seen();
                match self.follow().await {
                    EtcdError::Compacted => self.read_again().await,
                    error => {
                        tracing::warn!(error = %error, "watch of etcd ended; resuming it");
                        clock::sleep(pause).await;
                    }
                }
                if self.history.borrow().seen() > before {
                    break;
                }
            }
        }
    }

    /// Feeds the mirror from one watch until that ends.
    async fn follow(&self) -> EtcdError {
        let all = self.keys.all();
        let next = self.numbers.etcds(self.history.borrow().seen());
        let create = WatchCreateRequest {
            key: all.key,
            range_end: all.end,
            start_revision: next.saturating_add(1),
            fragment: true,
            ..WatchCreateRequest::default()
        };
        let mut watching = match self.client.watch(create).await {
            Ok(watching) => watching,
            Err(error) => return error,
        };
        // Of this member: others may have other versions.
        let version = match self.client.version_at(&watching).await {
            Ok(version) => version,
            Err(error) => return error,
        };
        let has_progress = version.is_some_and(|it| it.has_safe_progress_requests());
        self.has_progress.store(has_progress, Ordering::Relaxed);
        let mut events = Vec::new();
        let mut asked: Option<clock::Instant> = None;
        let mut answered = clock::Instant::now();
        loop {
            let answer = tokio::select! {
                answer = self.client.next(&mut watching) => answer,
                () = self.wanted.notified() => {
                    // Who is not heard asks again.
                    if asked.is_none_or(|asked| asked.elapsed() >= NORMAL) {
                        asked = Some(clock::Instant::now());
                        watching.request_progress();
                    }
                    continue;
                }
                () = self.stalled.notified() => {
                    // Those who wait do not know of a watch that was opened meanwhile.
                    if answered.elapsed() < STALLED {
                        continue;
                    }
                    return self.client.abandon(watching);
                }
            };
            answered = clock::Instant::now();
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => return error,
            };
            if answer.compact_revision > 0 {
                return EtcdError::Compacted;
            }
            if answer.canceled {
                return EtcdError::NoAnswer {
                    message: answer.cancel_reason,
                };
            }
            let is_progress = answer.events.is_empty() && !answer.created && !answer.fragment;
            events.extend(answer.events);
            if !answer.fragment {
                self.apply(std::mem::take(&mut events));
            }
            if is_progress && has_progress {
                let revision = answer.header.map_or(0, |header| header.revision);
                self.see(self.numbers.ours(revision));
            }
        }
    }

    /// Makes events visible, which are those of whole commits, in order.
    fn apply(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let mut commits: Vec<(Revision, Vec<KeyChange>)> = Vec::new();
        for event in events {
            let is_put = event.r#type() == EventType::Put;
            let Some(found) = event.kv else { continue };
            let revision = self.numbers.ours(found.mod_revision);
            if commits.last().is_none_or(|(last, _)| *last != revision) {
                commits.push((revision, Vec::new()));
            }
            let (Some(key), Some((_, changes))) = (self.keys.ours(&found.key), commits.last_mut())
            else {
                continue;
            };
            changes.push(KeyChange {
                place: u32::try_from(changes.len()).unwrap_or(u32::MAX),
                key,
                item: match is_put {
                    true => item(&self.keys, self.numbers, found).map(Arc::new),
                    false => None,
                },
            });
        }
        self.history.send_modify(|history| {
            for (revision, changes) in commits {
                // After a resumption an event may come again.
                if revision <= history.seen() {
                    continue;
                }
                match changes.is_empty() {
                    true => history.see(revision),
                    false => _ = history.apply(Changes { revision, changes }),
                }
            }
        });
    }

    fn see(&self, revision: Revision) {
        self.history.send_if_modified(|history| {
            let is_newer = revision > history.seen();
            history.see(revision);
            is_newer
        });
    }

    /// Begins anew from the current state: the events until then are compacted. Watches of the
    /// mirror end.
    async fn read_again(&self) {
        let (id, first) = self.history.borrow().identity();
        match read_now(&self.client, &self.keys, self.numbers, (id, first)).await {
            Ok(history) => {
                tracing::warn!(
                    revision = %history.current(),
                    "etcd was compacted further than its watch had come; read it again"
                );
                self.history.send_replace(history);
            }
            Err(error) => {
                tracing::warn!(error = %error, "failed to read etcd again");
                clock::sleep(READ_AGAIN_IN).await;
            }
        }
    }
}

/// The items that the writes of a transaction replaced or removed.
pub(super) fn previous(
    keys: &KeySpace,
    numbers: Numbers,
    responses: Vec<podplane_etcd::wire::etcdserverpb::ResponseOp>,
) -> Vec<Option<Arc<Item>>> {
    let previous = responses.into_iter().map(|response| {
        let found = match response.response? {
            response_op::Response::ResponsePut(put) => put.prev_kv,
            response_op::Response::ResponseDeleteRange(mut deleted) => deleted.prev_kvs.pop(),
            _ => None,
        };
        item(keys, numbers, found?).map(Arc::new)
    });
    previous.collect()
}
