//! The in-memory history: each key's versions since the last compaction, and the commits that made
//! them.
//!
//! Values are kept in memory, compressed: a control plane's data is small, and lists and watches
//! then need no disk read. The price is about half of the bytes of all live values and of all
//! retained history, plus about 400 bytes for each version.

mod staged;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
    sync::Arc,
};

use uuid::Uuid;

pub(crate) use self::staged::StagedCommits;
pub use self::watch::HistoryWatch;
use crate::{
    FIRST_REVISION, StoreError,
    store::{
        Commit, Guard, Item, Key, KeyEvent, ListQuery, Prefix, Revision, Snapshot, StoreStatus,
    },
};

/// The change of one key by one commit: a new item, or none for a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyChange {
    /// The index among the changes of the commit. Compaction leaves gaps.
    pub(crate) place: u32,
    pub(crate) key: Key,
    pub(crate) item: Option<Arc<Item>>,
}

/// The changes of one commit, in the order of its writes; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) revision: Revision,
    pub(crate) changes: Vec<KeyChange>,
}

/// The id of a change: the revision of its commit and its place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChangeId {
    pub(crate) revision: Revision,
    pub(crate) place: u32,
}

/// A change that no readable revision can see any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnreachableChange {
    pub(crate) id: ChangeId,
    /// The size of the value, which determines the number of records on disk.
    pub(crate) value_bytes: usize,
}

#[derive(Debug)]
struct KeyVersion {
    id: ChangeId,
    item: Option<Arc<Item>>,
}

#[derive(Debug)]
pub(crate) struct History {
    id: Uuid,
    first: Revision,
    current: Revision,
    /// The revision up to which every commit is here: later than `current` where a shared engine
    /// has revisions without commits of this store.
    seen: Revision,
    oldest: Revision,
    /// The versions of each key, oldest first, never empty. At most one version is as old as
    /// `oldest`, and it is not a deletion.
    keys: BTreeMap<Key, Vec<KeyVersion>>,
    /// All commits after `oldest`.
    commits: VecDeque<Commit>,
    present: usize,
    bytes: u64,
    /// The part of `bytes` in [superseded] versions.
    superseded: u64,
}

impl History {
    pub(crate) fn new(id: Uuid) -> Self {
        Self::compacted_at(id, FIRST_REVISION, FIRST_REVISION)
    }

    /// A history that begins at a compaction; the retained changes are then [applied](Self::apply)
    /// first.
    pub(crate) fn compacted_at(id: Uuid, first: Revision, oldest: Revision) -> Self {
        Self {
            id,
            first,
            current: oldest,
            seen: oldest,
            oldest,
            keys: BTreeMap::new(),
            commits: VecDeque::new(),
            present: 0,
            bytes: 0,
            superseded: 0,
        }
    }

    pub(crate) fn current(&self) -> Revision {
        self.current
    }

    /// The id of the store, and its first revision.
    pub(crate) fn identity(&self) -> (Uuid, Revision) {
        (self.id, self.first)
    }

    /// The oldest revision that can be read.
    pub(crate) fn oldest(&self) -> Revision {
        self.oldest
    }

    /// The revision up to which every commit is here.
    pub(crate) fn seen(&self) -> Revision {
        self.seen
    }

    /// Notes that every commit up to a revision is here.
    pub(crate) fn see(&mut self, revision: Revision) {
        self.seen = self.seen.max(revision);
    }

    /// The commits after a revision, as far as they are retained.
    pub(crate) fn commits_after(&self, revision: Revision) -> impl Iterator<Item = &Commit> {
        let first = self
            .commits
            .partition_point(|commit| commit.revision <= revision);
        self.commits.range(first..)
    }

    /// Checks a guard in the current state.
    pub(crate) fn check(&self, index: usize, guard: &Guard) -> Result<(), StoreError> {
        StagedCommits::on(self).check(index, guard)
    }

    pub(crate) fn status(&self, disk_bytes: Option<u64>) -> StoreStatus {
        StoreStatus {
            id: self.id,
            first: self.first,
            current: self.current,
            oldest: self.oldest,
            keys: self.present,
            memory_bytes: self.bytes,
            history_bytes: self.superseded,
            disk_bytes,
        }
    }

    pub(crate) fn latest(&self, key: &Key) -> Option<&Arc<Item>> {
        self.keys.get(key)?.last()?.item.as_ref()
    }

    /// The items under a prefix at the current revision.
    pub(crate) fn latest_under<'a>(
        &'a self,
        prefix: &'a Prefix,
    ) -> impl Iterator<Item = &'a Arc<Item>> {
        self.range(prefix, None)
            .filter_map(|versions| versions.last()?.item.as_ref())
    }

    pub(crate) fn get(
        &self,
        key: &Key,
        at: Option<Revision>,
    ) -> Result<Option<Arc<Item>>, StoreError> {
        let at = self.readable(at)?;
        Ok(self
            .keys
            .get(key)
            .and_then(|versions| version_at(versions, at))
            .cloned())
    }

    pub(crate) fn list(&self, query: &ListQuery) -> Result<Snapshot, StoreError> {
        let ListQuery {
            prefix,
            at,
            after,
            limit,
        } = query;
        let revision = self.readable(*at)?;
        let mut present = self
            .range(prefix, after.as_ref())
            .filter_map(|versions| version_at(versions, revision));
        let limit = limit.map_or(usize::MAX, |limit| limit.get());
        let items = present.by_ref().take(limit).cloned().collect();
        Ok(Snapshot {
            revision,
            items,
            remaining: present.count(),
        })
    }

    /// The first commit after `position` that touches the prefix, and the revision up to which the
    /// search came.
    pub(crate) fn next_after(
        &self,
        position: Revision,
        prefix: &Prefix,
    ) -> Result<(Revision, Option<Commit>), StoreError> {
        if position < self.oldest {
            return Err(StoreError::Compacted {
                oldest: self.oldest,
            });
        }
        let found = self
            .commits_after(position)
            .find_map(|commit| part_under(commit, prefix));
        Ok(found.map_or((self.current, None), |commit| {
            (commit.revision, Some(commit))
        }))
    }

    /// Makes a commit visible. Returns the changes that no readable revision can see; there are
    /// some only while a store whose last compaction was cut short is opened.
    pub(crate) fn apply(&mut self, commit: Changes) -> Vec<UnreachableChange> {
        let Changes { revision, changes } = commit;
        self.current = self.current.max(revision);
        self.see(revision);
        let mut unreachable = Vec::new();
        let mut events = Vec::with_capacity(changes.len());
        for KeyChange { place, key, item } in changes {
            let previous = self.latest(&key).cloned();
            self.bytes += size(&key, item.as_deref());
            self.present += usize::from(item.is_some());
            self.present -= usize::from(previous.is_some());
            let version = KeyVersion {
                id: ChangeId { revision, place },
                item: item.clone(),
            };
            let versions = self.keys.entry(key.clone()).or_default();
            if versions.is_empty() {
                // Most keys have one version, and a vector would allocate room for four.
                versions.reserve_exact(1);
            }
            versions.push(version);
            if revision <= self.oldest {
                self.prune(&key, &mut unreachable);
            }
            events.extend(match (item, previous) {
                (Some(item), previous) => Some(KeyEvent::Put { item, previous }),
                (None, Some(previous)) => Some(KeyEvent::Delete { previous }),
                (None, None) => None,
            });
        }
        if revision > self.oldest {
            self.superseded += superseded(&events);
            self.commits.push_back(Commit { revision, events });
        }
        unreachable
    }

    /// Drops the history that only revisions before `oldest` can see, and returns those changes.
    pub(crate) fn compact(&mut self, oldest: Revision) -> Vec<UnreachableChange> {
        if oldest <= self.oldest {
            return Vec::new();
        }
        self.oldest = oldest;
        let kept = self
            .commits
            .partition_point(|commit| commit.revision <= oldest);
        let dropped: Vec<Commit> = self.commits.drain(..kept).collect();
        if self.commits.capacity() / 4 > self.commits.len() {
            self.commits.shrink_to(2 * self.commits.len());
        }
        for commit in &dropped {
            self.superseded -= superseded(&commit.events);
        }
        let touched: BTreeSet<&Key> = dropped
            .iter()
            .flat_map(|commit| &commit.events)
            .map(KeyEvent::key)
            .collect();
        let mut unreachable = Vec::new();
        for key in touched {
            self.prune(key, &mut unreachable);
        }
        unreachable
    }

    /// True if a compaction at `oldest` would change anything; an error if it is in the future.
    pub(crate) fn compactable(&self, oldest: Revision) -> Result<bool, StoreError> {
        if oldest > self.current {
            return Err(StoreError::Future {
                asked: oldest,
                current: self.current,
            });
        }
        Ok(oldest > self.oldest)
    }

    /// The oldest revision since which at most `bytes` are superseded.
    pub(crate) fn oldest_within(&self, bytes: u64) -> Revision {
        let mut left = self.superseded;
        let mut oldest = self.oldest;
        for commit in &self.commits {
            if left <= bytes {
                break;
            }
            left -= superseded(&commit.events);
            oldest = commit.revision;
        }
        oldest
    }

    fn prune(&mut self, key: &Key, unreachable: &mut Vec<UnreachableChange>) {
        let Some(versions) = self.keys.get_mut(key) else {
            return;
        };
        let mut pruned = versions.partition_point(|version| version.id.revision <= self.oldest);
        // The newest of the old versions is the one that `oldest` reads; a deletion reads the same
        // as no version.
        if versions[..pruned]
            .last()
            .is_some_and(|version| version.item.is_some())
        {
            pruned -= 1;
        }
        for version in versions.drain(..pruned) {
            self.bytes -= size(key, version.item.as_deref());
            unreachable.push(UnreachableChange {
                id: version.id,
                value_bytes: version.item.map_or(0, |item| item.value_len()),
            });
        }
        match versions.len() {
            0 => _ = self.keys.remove(key),
            1 => versions.shrink_to_fit(),
            _ => {}
        }
    }

    fn readable(&self, at: Option<Revision>) -> Result<Revision, StoreError> {
        match at {
            None => Ok(self.current),
            Some(at) if at > self.current => Err(StoreError::Future {
                asked: at,
                current: self.current,
            }),
            Some(at) if at < self.oldest => Err(StoreError::Compacted {
                oldest: self.oldest,
            }),
            Some(at) => Ok(at),
        }
    }

    fn range<'a>(
        &'a self,
        prefix: &'a Prefix,
        after: Option<&Key>,
    ) -> impl Iterator<Item = &'a [KeyVersion]> {
        let from = match after.map(Key::as_bytes) {
            Some(after) if after >= prefix.as_bytes() => Bound::Excluded(after),
            _ => Bound::Included(prefix.as_bytes()),
        };
        let keys = self.keys.range::<[u8], _>((from, Bound::Unbounded));
        keys.take_while(|(key, _)| prefix.contains(key))
            .map(|(_, versions)| versions.as_slice())
    }
}

fn version_at(versions: &[KeyVersion], at: Revision) -> Option<&Arc<Item>> {
    let newer = versions.partition_point(|version| version.id.revision <= at);
    versions[..newer].last()?.item.as_ref()
}

fn part_under(commit: &Commit, prefix: &Prefix) -> Option<Commit> {
    let events: Vec<KeyEvent> = commit
        .events
        .iter()
        .filter(|event| prefix.contains(event.key()))
        .cloned()
        .collect();
    (!events.is_empty()).then_some(Commit {
        revision: commit.revision,
        events,
    })
}

/// The bytes that a commit turned into history. A replaced version is retained as long as the
/// commit that replaced it, and so is the tombstone of a deletion.
fn superseded(events: &[KeyEvent]) -> u64 {
    events
        .iter()
        .map(|event| match event {
            KeyEvent::Put { item, previous } => previous
                .as_ref()
                .map_or(0, |before| size(&item.key, Some(before))),
            KeyEvent::Delete { previous } => {
                size(&previous.key, Some(previous)) + size(&previous.key, None)
            }
        })
        .sum()
}

fn size(key: &Key, item: Option<&Item>) -> u64 {
    let bytes = key.as_bytes().len() + item.map_or(0, Item::value_len);
    // A usize always fits; saturating only avoids a cast.
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
