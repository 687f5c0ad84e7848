//! What the server does without being asked.

mod compaction;
mod namespaces;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{self, BoxFuture},
    stream,
};
use podplane_api::{ObjectKey, Scope, core::Namespace, jiff::Timestamp};
use podplane_proto::error::{ApiError, Reason};
use podplane_store::{Prefix, Revision, StoreError};
use tokio::time;

use crate::{
    Bounds,
    cache::{Position, Query},
    engine::Engine,
    registry::{DeleteOptions, Registry, Write},
    storage,
    strategy::{SYSTEM_NAMESPACES, Strategy},
};

/// How often, at most, expired objects are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// How often, while something is written, is looked whether there are too many events.
const LIMIT_EVERY: Duration = Duration::from_millis(200);

/// How many objects of a namespace are deleted at once, so that they share syncs of the disk.
const AT_ONCE: usize = 32;

/// A kind, to those who care for all kinds alike.
pub(crate) trait Kind: Send + Sync {
    /// Where its objects in a namespace are; nothing for kinds that are in none.
    fn prefix_in(&self, namespace: &str) -> Option<Prefix>;

    /// Deletes what is in a namespace and not being deleted yet. Returns how many objects were there.
    fn empty<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<usize, ApiError>>;

    /// Removes what has not happened since.
    fn sweep(&self, since: Timestamp) -> BoxFuture<'_, Result<(), ApiError>>;

    /// Removes the oldest of the events that are more than that many.
    fn limit(&self, most: usize) -> BoxFuture<'_, Result<(), ApiError>>;

    /// Forgets changes up to a revision.
    fn trim(&self, oldest: Revision);
}

impl<K: Strategy> Kind for Registry<K> {
    fn prefix_in(&self, namespace: &str) -> Option<Prefix> {
        (K::SCOPE == Scope::Namespaced).then(|| storage::namespace_prefix::<K>(namespace))
    }

    fn empty<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<usize, ApiError>> {
        async move {
            let keys = self.keys(&Query::namespace(namespace)).await?;
            let found = keys.len();
            let delete = |key| {
                let registry = self.clone();
                async move { registry.delete(&key, &DeleteOptions::default()).await }
            };
            let mut deleting = stream::iter(keys).map(delete).buffer_unordered(AT_ONCE);
            while let Some(deleted) = deleting.next().await {
                unless_gone(deleted)?;
            }
            Ok(found)
        }
        .boxed()
    }

    fn sweep(&self, since: Timestamp) -> BoxFuture<'_, Result<(), ApiError>> {
        remove_old(self, self.not_since(since)).boxed()
    }

    fn limit(&self, most: usize) -> BoxFuture<'_, Result<(), ApiError>> {
        remove_old(self, self.oldest_beyond(most)).boxed()
    }

    fn trim(&self, oldest: Revision) {
        self.forget(oldest);
    }
}

/// Removes objects that have not happened again.
async fn remove_old<K: Strategy>(
    registry: &Registry<K>,
    old: Vec<(Timestamp, ObjectKey)>,
) -> Result<(), ApiError> {
    let remove = |(last, key): (Timestamp, ObjectKey)| {
        let registry = registry.clone();
        async move { registry.remove_unless_since(&key, last).await }
    };
    let mut removing = stream::iter(old).map(remove).buffer_unordered(AT_ONCE);
    while let Some(removed) = removing.next().await {
        unless_gone(removed)?;
    }
    Ok(())
}

/// What somebody else removed needs no removal.
fn unless_gone<T>(removed: Result<T, ApiError>) -> Result<(), ApiError> {
    match removed {
        Err(error) if error.reason != Reason::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The state that upkeep works on: that of the whole server.
pub(crate) struct Upkeep {
    pub(crate) engine: Engine,
    pub(crate) position: Position,
    pub(crate) namespaces: Registry<Namespace>,
    pub(crate) kinds: Vec<Arc<dyn Kind>>,
    pub(crate) bounds: Bounds,
}

impl Upkeep {
    /// Makes the namespaces that are always there, where they are not. All at once, so that they share a sync of the disk.
    pub(crate) async fn create_system_namespaces(&self) -> Result<(), ApiError> {
        let create = async |name: &str| {
            // Asked first, so that a server whose disk is full still starts, and serves reads.
            if self.namespaces.get(&ObjectKey::new("", name)).await.is_ok() {
                return Ok(());
            }
            let mut namespace = Namespace::default();
            namespace.metadata.name = Some(name.to_owned());
            match self.namespaces.create(namespace, &Write::default()).await {
                Err(error) if error.reason != Reason::AlreadyExists => Err(error),
                _ => Ok(()),
            }
        };
        future::try_join_all(SYSTEM_NAMESPACES.into_iter().map(create)).await?;
        Ok(())
    }

    /// Ends with the error that makes the store take no more writes, so that the process ends and is started again.
    pub(crate) async fn report_failure(self: Arc<Self>) -> Result<(), StoreError> {
        Err(self.engine.failure().await)
    }

    /// Removes expired objects for ever.
    pub(crate) async fn sweep(self: Arc<Self>) -> Result<(), ApiError> {
        let ttl = self.bounds.event_ttl;
        let every = SWEEP_EVERY.min(ttl / 10).max(Duration::from_millis(200));
        loop {
            time::sleep(every).await;
            let since = Timestamp::now().saturating_sub(ttl);
            let since = since.unwrap_or(Timestamp::MIN);
            for kind in &self.kinds {
                if let Err(error) = kind.sweep(since).await {
                    tracing::warn!(%error, "failed to remove expired objects; trying again in {every:?}");
                }
            }
        }
    }

    /// Removes events that are too many, for ever.
    pub(crate) async fn limit(self: Arc<Self>) -> Result<(), ApiError> {
        loop {
            let seen = self.position.current();
            for kind in &self.kinds {
                if let Err(error) = kind.limit(self.bounds.max_events).await {
                    tracing::warn!(%error, "failed to remove events that are too many; trying again");
                    time::sleep(SWEEP_EVERY).await;
                }
            }
            self.position
                .reached(seen.number().saturating_add(1))
                .await?;
            time::sleep(LIMIT_EVERY).await;
        }
    }
}
