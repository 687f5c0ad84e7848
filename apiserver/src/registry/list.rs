use std::num::NonZeroUsize;

use podplane_api::{ObjectKey, selector::FieldSet};
use podplane_proto::{
    codec,
    error::ApiError,
    wire::{ListMeta, ObjectList},
};
use podplane_store::{ListQuery, Revision, StoreError};

use super::Registry;
use crate::{
    cache::{Continue, Page, Query},
    error, storage,
    strategy::Strategy,
};

impl<K: Strategy> Registry<K> {
    /// The objects that match, as new as every acknowledged write; or the next page of an earlier list, at its revision.
    pub(crate) async fn list(
        &self,
        query: &Query,
        limit: i64,
        token: &str,
    ) -> Result<ObjectList, ApiError> {
        let limit =
            usize::try_from(limit).map_err(|_| error::bad_request("limit may not be negative"))?;
        let limit = NonZeroUsize::new(limit).unwrap_or(NonZeroUsize::MAX);
        let page = if token.is_empty() {
            self.position.reached(self.engine.acknowledged()).await?;
            self.cache.list(query, limit.get(), &self.position)
        } else {
            self.next_page(query, limit, &Continue::decode(token)?)
                .await?
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
        Ok(ObjectList {
            metadata: Some(metadata),
            items,
        })
    }

    /// Read from the store, since the cache has only the present.
    async fn next_page(
        &self,
        query: &Query,
        limit: NonZeroUsize,
        from: &Continue,
    ) -> Result<Page, ApiError> {
        let revision = Revision::new(from.revision)
            .ok_or_else(|| error::bad_request("continue key is not valid: no revision"))?;
        let mut after =
            storage::key::<K>(&ObjectKey::new(from.namespace.as_str(), from.name.as_str()))?;
        let mut page = Page {
            revision,
            items: Vec::new(),
            last: None,
            remaining: None,
        };
        let mut last = None;
        loop {
            let query_store = ListQuery {
                prefix: query.prefix::<K>(),
                at: Some(revision),
                after: Some(after),
                limit: Some(limit),
            };
            let snapshot = self
                .engine
                .list(query_store)
                .await
                .map_err(continue_error)?;
            let mut items = snapshot.items.iter();
            while let Some(item) = items.next() {
                let object: K = storage::decode(item).map_err(|error| error::internal(&error))?;
                let labels = object.metadata().labels.clone().unwrap_or_default();
                if !query.matches(object.namespace(), &labels, &FieldSet::of(&object)) {
                    continue;
                }
                if page.items.len() == limit.get() {
                    page.last = last;
                    return Ok(page);
                }
                page.items
                    .push(codec::encode(&object).map_err(|error| error::unencodable(&error))?);
                last = Some(object.key());
                if page.items.len() == limit.get() && !query.selects() {
                    let remaining = items.len().saturating_add(snapshot.remaining);
                    page.remaining = (remaining > 0).then_some(remaining);
                    page.last = last.filter(|_| remaining > 0);
                    return Ok(page);
                }
            }
            match snapshot.items.last() {
                Some(item) if snapshot.remaining > 0 => after = item.key.clone(),
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
