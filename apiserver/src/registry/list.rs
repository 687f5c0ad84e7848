use std::{num::NonZeroUsize, sync::Arc};

use podplane_api::ObjectKey;
use podplane_proto::{
    error::{ApiError, Reason},
    wire::ListMeta,
};
use podplane_store::{Key, ListQuery, Revision, StoreError};

use super::Registry;
use crate::{
    cache::{self, Continue, Entry, Page, Query},
    error, storage,
    strategy::Strategy,
};

/// How new a list has to be (`resourceVersion` and `resourceVersionMatch`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// As new as every acknowledged write.
    #[default]
    Latest,
    /// As it happens to be here.
    Any,
    /// At this revision or later.
    NotOlderThan(Revision),
    /// Exactly at this revision.
    Exact(Revision),
}

/// Objects, and the revision and continuation of the list that they are of.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) metadata: ListMeta,
    pub(crate) items: Vec<Arc<Entry>>,
}

impl<K: Strategy> Registry<K> {
    /// The objects that match; or, with a token, the next page of an earlier list, at its revision.
    pub(crate) async fn list(
        &self,
        query: &Query,
        limit: i64,
        token: &str,
        freshness: Freshness,
    ) -> Result<Listed, ApiError> {
        let limit =
            usize::try_from(limit).map_err(|_| error::bad_request("limit may not be negative"))?;
        let limit = NonZeroUsize::new(limit).unwrap_or(NonZeroUsize::MAX);
        let page = if token.is_empty() {
            self.first_page(query, limit, freshness).await?
        } else {
            let from = Continue::decode(token)?;
            let revision = Revision::new(from.revision)
                .ok_or_else(|| error::bad_request("continue key is not valid: no revision"))?;
            let after =
                storage::key::<K>(&ObjectKey::new(from.namespace.as_str(), from.name.as_str()))?;
            let page = self.stored(query, limit, revision, Some(after)).await;
            page.map_err(continue_error)?
        };
        let Page {
            revision,
            items,
            last,
            remaining,
        } = page;
        let token = last
            .map(|key| Continue::after(key, revision.number()).encode())
            .transpose()?;
        let metadata = ListMeta {
            r#continue: token,
            remaining_item_count: remaining.and_then(|count| i64::try_from(count).ok()),
            resource_version: Some(revision.to_string()),
        };
        Ok(Listed { metadata, items })
    }

    async fn first_page(
        &self,
        query: &Query,
        limit: NonZeroUsize,
        freshness: Freshness,
    ) -> Result<Page, ApiError> {
        match freshness {
            Freshness::Any => {}
            Freshness::Latest => self.position.reached(self.engine.acknowledged()).await?,
            Freshness::NotOlderThan(revision) => {
                self.not_in_the_future(revision)?;
                self.position.reached(revision.number()).await?;
            }
            Freshness::Exact(revision) => {
                self.not_in_the_future(revision)?;
                let page = self.stored(query, limit, revision, None).await;
                return page.map_err(error::store);
            }
        }
        Ok(self.cache.list(query, limit.get(), &self.position))
    }

    /// A revision that this server never had was of another store, or of a write that a restore undid: the client has to begin anew.
    pub(super) fn not_in_the_future(&self, revision: Revision) -> Result<(), ApiError> {
        let current = self
            .engine
            .acknowledged()
            .max(self.position.current().number());
        if revision.number() > current {
            return Err(ApiError::new(
                Reason::Expired,
                format!("Too large resource version: {revision}, current: {current}"),
            ));
        }
        Ok(())
    }

    /// Read from the store, since the cache has only the present.
    async fn stored(
        &self,
        query: &Query,
        limit: NonZeroUsize,
        revision: Revision,
        mut after: Option<Key>,
    ) -> Result<Page, StoreError> {
        let mut page = Page {
            revision,
            items: Vec::new(),
            last: None,
            remaining: None,
        };
        loop {
            let query_store = ListQuery {
                prefix: query.prefix::<K>(),
                at: Some(revision),
                after,
                limit: Some(limit),
            };
            let snapshot = self.engine.list(query_store).await?;
            let mut items = snapshot.items.iter();
            while let Some(item) = items.next() {
                // One that cannot be read is left out, as from the cache.
                let Some(entry) = cache::entry::<K>(item).filter(|entry| query.matches(entry))
                else {
                    continue;
                };
                if page.items.len() == limit.get() {
                    page.last = page.items.last().map(|last| last.key.clone());
                    return Ok(page);
                }
                page.items.push(entry);
                if page.items.len() == limit.get() && !query.selects() {
                    let remaining = items.len().saturating_add(snapshot.remaining);
                    page.remaining = (remaining > 0).then_some(remaining);
                    let last = page.items.last().map(|last| last.key.clone());
                    page.last = last.filter(|_| remaining > 0);
                    return Ok(page);
                }
            }
            match snapshot.items.last() {
                Some(item) if snapshot.remaining > 0 => after = Some(item.key.clone()),
                _ => return Ok(page),
            }
        }
    }
}

fn continue_error(error: StoreError) -> ApiError {
    if error.is_compacted() {
        return error::expired(
            "The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.",
        );
    }
    error::store(error)
}
