use std::{num::NonZeroUsize, sync::Arc};

use podplane_api::{
    ObjectKey,
    validation::{ErrorList, FieldPath},
};
use podplane_proto::{error::ApiError, wire::ListMeta};
use podplane_store::{Key, ListQuery, Revision, StoreError};

use super::KindRegistry;
use crate::{
    cache::{self, CachedObject, CachedPage, Continue, Query},
    error, storage,
};

/// Kubernetes' message (`apiserver/pkg/storage/etcd3/errors.go`).
const INCONSISTENT_CONTINUE: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// The required freshness of a list (`resourceVersion` and `resourceVersionMatch`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// As new as every acknowledged write.
    #[default]
    Latest,
    /// Any state of the cache.
    Any,
    /// At this revision or later.
    NotOlderThan(Revision),
    /// Exactly at this revision.
    Exact(Revision),
}

const EXACT: &str = "Exact";
pub(crate) const NOT_OLDER_THAN: &str = "NotOlderThan";

impl Freshness {
    /// The part of Kubernetes' `ValidateListOptions` about a list's revision.
    pub(crate) fn validate(version: &str, version_match: &str, token: &str) -> ErrorList {
        let mut errors = ErrorList::new();
        if version_match.is_empty() {
            return errors;
        }
        let path = FieldPath::new("resourceVersionMatch");
        let mut forbidden = |why: &str| errors.forbidden(&path, why);
        if version.is_empty() {
            forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if !token.is_empty() {
            forbidden("resourceVersionMatch is forbidden when continue is provided");
        }
        if version_match == EXACT && version == "0" {
            forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
        if !matches!(version_match, EXACT | NOT_OLDER_THAN) {
            errors.not_supported(&path, version_match, &[EXACT, NOT_OLDER_THAN, ""]);
        }
        errors
    }

    /// Parses `resourceVersion` and `resourceVersionMatch` of a list with that limit and continue
    /// token.
    pub(crate) fn parse(
        version: &str,
        version_match: &str,
        limit: i64,
        token: &str,
    ) -> Result<Self, ApiError> {
        match version {
            "" => return Ok(Self::Latest),
            "0" => return Ok(Self::Any),
            _ if !token.is_empty() => {
                let why = "specifying resource version is not allowed when using continue";
                return Err(error::bad_request(why));
            }
            _ => {}
        }
        let revision: Revision = version
            .parse()
            .map_err(|error| error::bad_request(format!("invalid resource version: {error}")))?;
        Ok(match version_match {
            EXACT => Self::Exact(revision),
            // A limit asks for pages, and all pages have one revision.
            "" if limit > 0 => Self::Exact(revision),
            _ => Self::NotOlderThan(revision),
        })
    }
}

/// A page of objects, with the metadata of its list.
#[derive(Debug)]
pub(crate) struct ListPage {
    pub(crate) metadata: ListMeta,
    pub(crate) items: Vec<Arc<CachedObject>>,
}

impl KindRegistry {
    /// Lists the objects that match; with a token, the next page of an earlier list, at its
    /// revision.
    pub(crate) async fn list(
        &self,
        query: &Query,
        limit: i64,
        token: &str,
        freshness: Freshness,
    ) -> Result<ListPage, ApiError> {
        let limit =
            usize::try_from(limit).map_err(|_| error::bad_request("limit may not be negative"))?;
        let limit = NonZeroUsize::new(limit).unwrap_or(NonZeroUsize::MAX);
        let page = if token.is_empty() {
            self.first_page(query, limit, freshness).await?
        } else {
            self.next_page(query, limit, Continue::decode(token)?)
                .await?
        };
        let CachedPage {
            revision,
            items,
            last,
            remaining,
        } = page;
        let token = last
            .map(|key| Continue::after(key, revision).encode())
            .transpose()?;
        let metadata = ListMeta {
            r#continue: token,
            remaining_item_count: remaining.and_then(|count| i64::try_from(count).ok()),
            resource_version: Some(revision.to_string()),
        };
        Ok(ListPage { metadata, items })
    }

    async fn next_page(
        &self,
        query: &Query,
        limit: NonZeroUsize,
        from: Continue,
    ) -> Result<CachedPage, ApiError> {
        let number = match from.revision {
            ..0 => self.engine.acknowledged().await.map_err(error::store)?,
            revision => revision.unsigned_abs(),
        };
        let revision = Revision::new(number).ok_or_else(|| {
            error::bad_request("invalid continue token: continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
        })?;
        let key = ObjectKey::new(from.namespace.as_str(), from.name.as_str());
        let after = storage::key_of(&*self.kind, &key)?;
        match self.stored(query, limit, revision, Some(after)).await {
            Err(error) if error.is_compacted() => Err(ApiError {
                continue_token: Some(from.inconsistent().encode()?),
                ..error::expired(INCONSISTENT_CONTINUE)
            }),
            page => page.map_err(error::store),
        }
    }

    async fn first_page(
        &self,
        query: &Query,
        limit: NonZeroUsize,
        freshness: Freshness,
    ) -> Result<CachedPage, ApiError> {
        match freshness {
            Freshness::Any => {}
            Freshness::Latest => self.fresh().await?,
            Freshness::NotOlderThan(revision) => {
                self.of_this_store(revision).await?;
                self.position.reached(revision.number()).await?;
            }
            Freshness::Exact(revision) => {
                self.of_this_store(revision).await?;
                let page = self.stored(query, limit, revision, None).await;
                return page.map_err(error::store);
            }
        }
        Ok(self.cache.list(query, limit.get(), &self.position))
    }

    /// Checks that this store has had the revision. A revision from before a restore is refused
    /// even if a newer one would do: the client has to start over.
    pub(super) async fn of_this_store(&self, revision: Revision) -> Result<(), ApiError> {
        let first = self.engine.first();
        if revision < first {
            return Err(error::too_old_revision(revision, first));
        }
        if revision.number() > self.newest() {
            // Another server may have given it out.
            self.fresh().await?;
        }
        let current = self.newest();
        if revision.number() > current {
            return Err(error::too_large_revision(revision, current));
        }
        Ok(())
    }

    /// The number of the newest revision that any client of this server may know.
    pub(super) fn newest(&self) -> u64 {
        let position = self.position.current().number();
        self.engine.known().max(position)
    }

    /// Lists at a revision of the store's history; the cache has only the present.
    async fn stored(
        &self,
        query: &Query,
        limit: NonZeroUsize,
        revision: Revision,
        mut after: Option<Key>,
    ) -> Result<CachedPage, StoreError> {
        let mut page = CachedPage {
            revision,
            items: Vec::new(),
            last: None,
            remaining: None,
        };
        loop {
            let query_store = ListQuery {
                prefix: query.prefix(&*self.kind),
                at: Some(revision),
                after,
                limit: Some(limit),
            };
            let snapshot = self.engine.list(query_store).await?;
            let mut items = snapshot.items.iter();
            while let Some(item) = items.next() {
                // An item that cannot be read is left out, as in the cache.
                let Some(entry) =
                    cache::entry(&*self.kind, item).filter(|entry| query.matches(entry))
                else {
                    continue;
                };
                if page.items.len() == limit.get() {
                    page.last = page.items.last().map(|last| last.key());
                    return Ok(page);
                }
                page.items.push(entry);
                if page.items.len() == limit.get() && !query.selects() {
                    let remaining = items.len().saturating_add(snapshot.remaining);
                    page.remaining = (remaining > 0).then_some(remaining);
                    let last = page.items.last().map(|last| last.key());
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
