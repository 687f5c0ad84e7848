//! The background work of the server.

mod compaction;
mod endpoints;
mod namespaces;
mod services;
#[cfg(test)]
mod tests;

pub(crate) use endpoints::ServerEndpoints;
pub(crate) use services::ServiceUpkeep;

use std::{sync::Arc, time::Duration};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{self, BoxFuture},
    stream,
};
use podplane_api::{
    ObjectKey, Scope,
    core::{Namespace, ServiceAccount},
    jiff::Timestamp,
    kinds::{
        SYSTEM_NAMESPACES, priority_class::system_priority_classes,
        service_account::default_account,
    },
    scheduling::PriorityClass,
    strategy::Strategy,
};
use podplane_host::clock;
use podplane_proto::error::{ApiError, Reason};
use podplane_store::{Prefix, Revision, StoreError};

use crate::{
    HistoryBounds,
    cache::{Position, Query},
    engine::Engine,
    registry::{DeleteOptions, KindRegistry, Registry, WriteParams},
    served::ServedKinds,
    storage,
};

/// The longest interval between two sweeps for expired objects.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The interval of checks for too many events while writes go on.
const LIMIT_EVERY: Duration = Duration::from_millis(200);

/// The number of objects of a namespace that are deleted concurrently, so that they share syncs of
/// the disk.
const AT_ONCE: usize = 32;

/// A kind, for work that is the same for all kinds.
pub(crate) trait UpkeepKind: Send + Sync {
    /// The key prefix of its objects in a namespace; `None` for cluster-scoped kinds.
    fn prefix_in(&self, namespace: &str) -> Option<Prefix>;

    /// Deletes the objects of a namespace that are not being deleted yet. Returns the number of
    /// objects found.
    fn empty<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<usize, ApiError>>;

    /// Removes objects that last occurred at `since` or before.
    fn sweep(&self, since: Timestamp) -> BoxFuture<'_, Result<(), ApiError>>;

    /// Removes the oldest events in excess of `most`.
    fn limit(&self, most: usize) -> BoxFuture<'_, Result<(), ApiError>>;

    /// Drops cached changes up to a revision.
    fn trim(&self, oldest: Revision);
}

impl UpkeepKind for KindRegistry {
    fn prefix_in(&self, namespace: &str) -> Option<Prefix> {
        let is_in_one = self.names().scope == Scope::Namespaced;
        is_in_one.then(|| storage::namespace_prefix_of(self.kind(), namespace))
    }

    fn empty<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<usize, ApiError>> {
        async move {
            let keys = self.keys(&Query::namespace(namespace)).await?;
            let found = keys.len();
            let delete = |key| {
                let registry = self.clone();
                async move { registry.delete(&key, &DeleteOptions::by_server()).await }
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

/// Removes old objects, unless they occurred again.
async fn remove_old(
    registry: &KindRegistry,
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

/// Ignores an object that another client removed already.
fn unless_gone<T>(removed: Result<T, ApiError>) -> Result<(), ApiError> {
    match removed {
        Err(error) if error.reason != Reason::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Creates an object unless one of its name exists.
async fn create_missing<K: Strategy>(registry: &Registry<K>, object: K) -> Result<(), ApiError> {
    // Read first, so that a server whose disk is full still starts, and serves reads.
    if registry.get(&object.key()).await.is_ok() {
        return Ok(());
    }
    match registry.create(object, &WriteParams::by_server()).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

/// The state of the server that upkeep needs.
pub(crate) struct Upkeep {
    pub(crate) engine: Engine,
    pub(crate) position: Position,
    pub(crate) namespaces: Registry<Namespace>,
    pub(crate) accounts: Registry<ServiceAccount>,
    pub(crate) classes: Registry<PriorityClass>,
    pub(crate) kinds: ServedKinds,
    pub(crate) bounds: HistoryBounds,
}

impl Upkeep {
    /// Creates missing system namespaces and built-in priority classes, concurrently, so that they
    /// share a sync of the disk.
    pub(crate) async fn create_system_objects(&self) -> Result<(), ApiError> {
        let namespaces = SYSTEM_NAMESPACES.map(|name| {
            let mut namespace = Namespace::default();
            namespace.metadata.name = Some(name.to_owned());
            create_missing(&self.namespaces, namespace)
        });
        let classes = system_priority_classes().map(|class| create_missing(&self.classes, class));
        future::try_join(
            future::try_join_all(namespaces),
            future::try_join_all(classes),
        )
        .await
        .map(drop)
    }

    /// Creates the default accounts of namespaces that have none, in case a version without
    /// accounts wrote the store. Only a failure is logged, so that a server whose disk is full
    /// still starts; the controller-manager tries again.
    pub(crate) async fn create_default_accounts(&self) {
        let create = |namespace: ObjectKey| async move {
            let account = default_account(&namespace.name);
            let created = create_missing(&self.accounts, account).await;
            (namespace, created)
        };
        let keys = self.namespaces.keys(&Query::default()).await;
        let keys = keys.unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to list the namespaces for their default accounts");
            Vec::new()
        });
        let mut creating = stream::iter(keys).map(create).buffer_unordered(AT_ONCE);
        while let Some((namespace, created)) = creating.next().await {
            match created {
                // Namespaces that are ending need none.
                Err(error) if !matches!(error.reason, Reason::Forbidden | Reason::NotFound) => {
                    tracing::warn!(%namespace, %error, "failed to create the default service account");
                }
                _ => {}
            }
        }
    }

    /// Waits until the store refuses writes and returns that error, so that the process ends and is
    /// restarted.
    pub(crate) async fn report_failure(self: Arc<Self>) -> Result<(), StoreError> {
        Err(self.engine.failure().await)
    }

    /// Removes expired objects. Never completes.
    pub(crate) async fn sweep(self: Arc<Self>) -> Result<(), ApiError> {
        let ttl = self.bounds.event_ttl;
        let every = SWEEP_EVERY.min(ttl / 10).max(Duration::from_millis(200));
        loop {
            clock::sleep(every).await;
            let since = clock::timestamp().saturating_sub(ttl);
            let since = since.unwrap_or(Timestamp::MIN);
            for kind in &self.kinds.now().stored {
                if let Err(error) = kind.sweep(since).await {
                    tracing::warn!(%error, retry_in = ?every, "failed to remove expired objects; trying again");
                }
            }
        }
    }

    /// Removes events in excess of the limit, until the server stops.
    pub(crate) async fn limit(self: Arc<Self>) -> Result<(), ApiError> {
        loop {
            let seen = self.position.current();
            for kind in &self.kinds.now().stored {
                if let Err(error) = kind.limit(self.bounds.max_events).await {
                    tracing::warn!(%error, retry_in = ?SWEEP_EVERY, "failed to remove events that are too many; trying again");
                    clock::sleep(SWEEP_EVERY).await;
                }
            }
            self.position
                .reached(seen.number().saturating_add(1))
                .await?;
            clock::sleep(LIMIT_EVERY).await;
        }
    }
}
