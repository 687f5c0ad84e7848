//! A handle to the store of any engine: the one type through which the rest of this crate reads and
//! writes. A panic below it ends the process ([`crate::fatal`]).

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::BoxStream};
use podplane_store::{
    Commit, CommitResult, Item, Key, ListQuery, Prefix, Revision, Snapshot, Store, StoreError,
    StoreStatus, Txn, Watch as _,
};
use tokio::sync::watch;

use crate::fatal::OrAbort;

/// [`Store`] with boxed futures, so that not everything has the engine as a type parameter.
trait AnyStore: fmt::Debug + Send + Sync {
    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<CommitResult, StoreError>>;
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Arc<Item>>, StoreError>>;
    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Snapshot, StoreError>>;
    fn watch(
        &self,
        after: Revision,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Result<Commit, StoreError>>, StoreError>>;
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>>;
    fn oldest_within(&self, history_bytes: u64) -> BoxFuture<'_, Result<Revision, StoreError>>;
    fn maintain(&self) -> BoxFuture<'_, Result<(), StoreError>>;
    fn back_up(self: Arc<Self>) -> BoxStream<'static, Result<Bytes, StoreError>>;
    fn current(&self) -> BoxFuture<'_, Result<Revision, StoreError>>;
    fn status(&self) -> BoxFuture<'_, Result<StoreStatus, StoreError>>;
}

impl<S: Store> AnyStore for S {
    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<CommitResult, StoreError>> {
        Store::commit(self, txn).boxed()
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Arc<Item>>, StoreError>> {
        Store::get(self, key, None).boxed()
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Snapshot, StoreError>> {
        Store::list(self, query).boxed()
    }

    fn watch(
        &self,
        after: Revision,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Result<Commit, StoreError>>, StoreError>> {
        async move {
            Ok(Store::watch(self, Prefix::all(), after)
                .await?
                .into_stream()
                .boxed())
        }
        .boxed()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        Store::compact(self, revision).boxed()
    }

    fn oldest_within(&self, history_bytes: u64) -> BoxFuture<'_, Result<Revision, StoreError>> {
        Store::oldest_within(self, history_bytes).boxed()
    }

    fn maintain(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Store::maintain(self).boxed()
    }

    fn back_up(self: Arc<Self>) -> BoxStream<'static, Result<Bytes, StoreError>> {
        podplane_store::back_up(self).boxed()
    }

    fn current(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        Store::current(self).boxed()
    }

    fn status(&self) -> BoxFuture<'_, Result<StoreStatus, StoreError>> {
        Store::status(self).boxed()
    }
}

/// A handle to the store. Cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    store: Arc<dyn AnyStore>,
    /// The number of the last revision that any client of this server may know: of an acknowledged
    /// commit, or of one that was read or caused a refusal.
    known: Arc<AtomicU64>,
    /// Other processes write to the engine: it has to be asked what their clients may know.
    is_shared: bool,
    /// The revision at which the store began; earlier ones belong to the store that it was restored
    /// from.
    first: Revision,
    /// The time after which a shared engine deletes objects that expire.
    expiry: Option<Duration>,
    failure: watch::Sender<Option<StoreError>>,
}

impl Engine {
    pub(crate) async fn new<S: Store>(store: S) -> Result<Self, StoreError> {
        let StoreStatus { current, first, .. } = Store::status(&store).await?;
        Ok(Self {
            store: Arc::new(store),
            known: Arc::new(AtomicU64::new(current.number())),
            is_shared: S::IS_SHARED,
            first,
            expiry: None,
            failure: watch::Sender::new(None),
        })
    }

    /// Lets an engine that can do so delete objects that expire.
    pub(crate) fn expiring(self, after: Duration) -> Self {
        Self {
            expiry: Some(after),
            ..self
        }
    }

    /// The time after which objects that expire are deleted.
    pub(crate) fn expiry(&self) -> Option<Duration> {
        self.expiry
    }

    pub(crate) async fn commit(&self, txn: Txn) -> Result<CommitResult, StoreError> {
        let committed = OrAbort(self.store.commit(txn)).await;
        match &committed {
            Ok(committed) => self.know(committed.revision),
            Err(StoreError::Conflict { current, .. }) => self.know_change(*current).await?,
            Err(error) => self.note(error),
        }
        committed
    }

    pub(crate) async fn get(&self, key: &Key) -> Result<Option<Arc<Item>>, StoreError> {
        let found = OrAbort(self.store.get(key)).await?;
        self.know_change(found.as_ref().map(|item| item.modified))
            .await?;
        Ok(found)
    }

    fn know(&self, revision: Revision) {
        self.known.fetch_max(revision.number(), Ordering::AcqRel);
    }

    /// Notes the revision of a key that a client learns of, also by a refusal: the client may read
    /// the key next and must not find an older state, although the commit that changed it may not
    /// be acknowledged yet.
    async fn know_change(&self, modified: Option<Revision>) -> Result<(), StoreError> {
        let revision = match modified {
            Some(modified) => modified,
            // Reads that matter ask the engine.
            None if self.is_shared => return Ok(()),
            // A deletion leaves no item with its revision.
            None => OrAbort(self.store.current()).await?,
        };
        self.know(revision);
        Ok(())
    }

    pub(crate) async fn list(&self, query: ListQuery) -> Result<Snapshot, StoreError> {
        OrAbort(self.store.list(query)).await
    }

    /// Streams every commit after a revision.
    pub(crate) async fn watch(
        &self,
        after: Revision,
    ) -> Result<BoxStream<'static, Result<Commit, StoreError>>, StoreError> {
        let commits = OrAbort(self.store.watch(after)).await?;
        Ok(OrAbort(commits).boxed())
    }

    pub(crate) async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        OrAbort(self.store.compact(revision))
            .await
            .inspect_err(|error| self.note(error))
    }

    /// The oldest revision since which the history takes at most `history_bytes`.
    pub(crate) async fn oldest_within(&self, history_bytes: u64) -> Result<Revision, StoreError> {
        OrAbort(self.store.oldest_within(history_bytes)).await
    }

    /// Lets the store do its periodic maintenance.
    pub(crate) async fn maintain(&self) -> Result<(), StoreError> {
        OrAbort(self.store.maintain()).await
    }

    /// Streams a backup of the current state, in pieces.
    pub(crate) fn back_up(&self) -> BoxStream<'static, Result<Bytes, StoreError>> {
        OrAbort(Arc::clone(&self.store).back_up()).boxed()
    }

    pub(crate) async fn status(&self) -> Result<StoreStatus, StoreError> {
        OrAbort(self.store.status()).await
    }

    fn note(&self, error: &StoreError) {
        if matches!(error, StoreError::Poisoned { .. }) {
            self.failure.send_replace(Some(error.clone()));
        }
    }

    /// Waits until the store refuses all writes; only opening it again can help.
    pub(crate) async fn failure(&self) -> StoreError {
        let mut failure = self.failure.subscribe();
        let failed = failure
            .wait_for(Option::is_some)
            .await
            .map(|error| error.clone());
        failed.ok().flatten().unwrap_or(StoreError::Unavailable)
    }

    /// True if other servers may use the store.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The revision at which the store began.
    pub(crate) fn first(&self) -> Revision {
        self.first
    }

    /// Waits until reads see what other servers have acknowledged: a decision that ends without a
    /// commit has no guard that would tell.
    pub(crate) async fn catch_up(&self) -> Result<(), StoreError> {
        match self.is_shared {
            true => OrAbort(self.store.current()).await.map(drop),
            false => Ok(()),
        }
    }

    /// The revision that a reader must have reached to see every write that was acknowledged or
    /// visible to any client before the call.
    pub(crate) async fn acknowledged(&self) -> Result<u64, StoreError> {
        match self.is_shared {
            true => Ok(OrAbort(self.store.current()).await?.number()),
            false => Ok(self.known()),
        }
    }

    /// The same, as far as clients of this server are concerned.
    pub(crate) fn known(&self) -> u64 {
        self.known.load(Ordering::Acquire)
    }
}
