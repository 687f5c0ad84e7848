//! Deciding commits before they are durable: each sees those staged before it; readers see none of
//! them.

use std::{collections::BTreeMap, sync::Arc};

use super::{Changes, History, KeyChange};
use crate::{
    StoreError,
    store::{CommitResult, Guard, Item, Key, Prefix, Revision, Txn, Write},
};

#[derive(Debug)]
pub(crate) struct StagedCommits<'a> {
    base: &'a History,
    current: Revision,
    /// The state of the keys that staged commits have changed.
    latest: BTreeMap<Key, Option<Arc<Item>>>,
    commits: Vec<Changes>,
}

impl<'a> StagedCommits<'a> {
    pub(crate) fn on(base: &'a History) -> Self {
        Self {
            base,
            current: base.current(),
            latest: BTreeMap::new(),
            commits: Vec::new(),
        }
    }

    pub(crate) fn commit(&mut self, txn: Txn) -> Result<CommitResult, StoreError> {
        for (index, guard) in txn.guards.iter().enumerate() {
            self.check(index, guard)?;
        }
        let revision = self.current.next();
        let mut previous = Vec::with_capacity(txn.writes.len());
        let mut changes = Vec::with_capacity(txn.writes.len());
        for (place, write) in (0..).zip(txn.writes) {
            let before = self.latest(write.key()).cloned();
            match write {
                Write::Put { key, value } => {
                    let created = before.as_ref().map_or(revision, |item| item.created);
                    let item = Item::new(key.clone(), &value, created, revision);
                    changes.push(KeyChange {
                        place,
                        key,
                        item: Some(Arc::new(item)),
                    });
                }
                Write::Delete { key } if before.is_some() => changes.push(KeyChange {
                    place,
                    key,
                    item: None,
                }),
                Write::Delete { .. } => {}
            }
            previous.push(before);
        }
        if changes.is_empty() {
            return Ok(CommitResult {
                revision: self.current,
                previous,
            });
        }
        self.current = revision;
        self.latest.extend(
            changes
                .iter()
                .map(|change| (change.key.clone(), change.item.clone())),
        );
        self.commits.push(Changes { revision, changes });
        Ok(CommitResult { revision, previous })
    }

    pub(crate) fn into_commits(self) -> Vec<Changes> {
        self.commits
    }

    pub(crate) fn check(&self, index: usize, guard: &Guard) -> Result<(), StoreError> {
        let conflict = |key: &Key, current: Option<&Arc<Item>>| {
            let current = current.map(|item| item.modified);
            Err(StoreError::Conflict {
                guard: index,
                key: key.clone(),
                current,
            })
        };
        match guard {
            Guard::Absent(key) => match self.latest(key) {
                None => Ok(()),
                present => conflict(key, present),
            },
            Guard::Present(key) => match self.latest(key) {
                None => conflict(key, None),
                Some(_) => Ok(()),
            },
            Guard::At { key, revision } => match self.latest(key) {
                Some(item) if item.modified == *revision => Ok(()),
                other => conflict(key, other),
            },
            Guard::NoneUnder(prefix) => match self.first_under(prefix, |_| true) {
                None => Ok(()),
                Some(item) => conflict(&item.key, Some(item)),
            },
            Guard::OnlyUnder {
                prefix,
                key,
                revision,
            } => {
                let other = |item: &Item| item.key != *key || item.modified != *revision;
                match self.first_under(prefix, other) {
                    None => Ok(()),
                    Some(item) => conflict(&item.key, Some(item)),
                }
            }
            Guard::NoneNewerUnder { prefix, revision } => {
                match self.first_under(prefix, |item| item.modified > *revision) {
                    None => Ok(()),
                    Some(item) => conflict(&item.key, Some(item)),
                }
            }
            Guard::AtMostUnder { prefix, items } => {
                if self.under(prefix).nth(*items).is_none() {
                    return Ok(());
                }
                let newest = self.under(prefix).max_by_key(|item| item.modified);
                newest.map_or(Ok(()), |item| conflict(&item.key, Some(item)))
            }
        }
    }

    fn latest(&self, key: &Key) -> Option<&Arc<Item>> {
        match self.latest.get(key) {
            Some(staged) => staged.as_ref(),
            None => self.base.latest(key),
        }
    }

    fn first_under<'s>(
        &'s self,
        prefix: &'s Prefix,
        wanted: impl Fn(&Item) -> bool,
    ) -> Option<&'s Arc<Item>> {
        let unchanged = self.unchanged_under(prefix).find(|item| wanted(item));
        let staged = self.staged_under(prefix).find(|item| wanted(item));
        unchanged
            .into_iter()
            .chain(staged)
            .min_by(|a, b| a.key.cmp(&b.key))
    }

    /// The present items under the prefix, in no particular order.
    fn under<'s>(&'s self, prefix: &'s Prefix) -> impl Iterator<Item = &'s Arc<Item>> {
        self.unchanged_under(prefix)
            .chain(self.staged_under(prefix))
    }

    /// The items under the prefix that no staged commit has changed, in key order.
    fn unchanged_under<'s>(&'s self, prefix: &'s Prefix) -> impl Iterator<Item = &'s Arc<Item>> {
        let base = self.base.latest_under(prefix);
        base.filter(move |item| !self.latest.contains_key(&item.key))
    }

    /// The items under the prefix that a staged commit has put, in key order.
    fn staged_under<'s>(&'s self, prefix: &'s Prefix) -> impl Iterator<Item = &'s Arc<Item>> {
        let from = (
            std::ops::Bound::Included(prefix.as_bytes()),
            std::ops::Bound::Unbounded,
        );
        let staged = self.latest.range::<[u8], _>(from);
        let staged = staged.take_while(|(key, _)| prefix.contains(key));
        staged.filter_map(|(_, item)| item.as_ref())
    }
}
