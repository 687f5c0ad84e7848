//! The engine on Debian's etcd, each store on one of its own.

use std::sync::Arc;

use clap::Parser as _;
use podplane_etcd::EtcdFlags;
use podplane_store::{
    CommitResult, EtcdStore, HistoryWatch, Item, Key, ListQuery, Prefix, Revision, Snapshot, Store,
    StoreError, StoreStatus, Txn,
};

use crate::EngineFixture;

/// For the largest commit of the contract; etcd's default is 1.5 MiB.
const FLAGS: [&str; 3] = ["--max-request-bytes", "16777216", "--unsafe-no-fsync"];

#[derive(Debug, clap::Parser)]
struct Program {
    #[command(flatten)]
    etcd: EtcdFlags,
}

/// The engine as its users read it: after asking it how new it is.
#[derive(Debug)]
pub(crate) struct Fresh(EtcdStore);

impl Store for Fresh {
    type Watch = HistoryWatch;

    const IS_SHARED: bool = EtcdStore::IS_SHARED;

    async fn commit(&self, txn: Txn) -> Result<CommitResult, StoreError> {
        self.0.commit(txn).await
    }

    async fn get(&self, key: &Key, at: Option<Revision>) -> Result<Option<Arc<Item>>, StoreError> {
        self.0.current().await?;
        self.0.get(key, at).await
    }

    async fn list(&self, query: ListQuery) -> Result<Snapshot, StoreError> {
        self.0.current().await?;
        self.0.list(query).await
    }

    async fn watch(&self, prefix: Prefix, after: Revision) -> Result<HistoryWatch, StoreError> {
        self.0.current().await?;
        self.0.watch(prefix, after).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.0.current().await?;
        self.0.compact(revision).await
    }

    async fn oldest_within(&self, history_bytes: u64) -> Result<Revision, StoreError> {
        self.0.current().await?;
        self.0.oldest_within(history_bytes).await
    }

    async fn maintain(&self) -> Result<(), StoreError> {
        self.0.maintain().await
    }

    async fn current(&self) -> Result<Revision, StoreError> {
        self.0.current().await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        self.0.current().await?;
        self.0.status().await
    }
}

pub(crate) struct Etcd {
    store: Fresh,
    etcd: podplane_test_etcd::Etcd,
}

async fn open(etcd: &podplane_test_etcd::Etcd) -> Fresh {
    let Program { etcd: flags } =
        Program::parse_from(["test", "--etcd-endpoints", &etcd.endpoint()]);
    Fresh(EtcdStore::open(&flags).await.unwrap())
}

impl EngineFixture for Etcd {
    type Store = Fresh;

    const COST: u32 = 16;

    async fn new() -> Self {
        let etcd = podplane_test_etcd::Etcd::start(&FLAGS);
        let etcd = etcd.expect("the contract is not tested without etcd");
        Self {
            store: open(&etcd).await,
            etcd,
        }
    }

    /// The first write to etcd is the record of the store.
    fn first() -> Revision {
        Revision::new(2).unwrap()
    }

    fn store(&self) -> &Fresh {
        &self.store
    }
}

/// A fixture that opens the store again at each pause, as a server that is restarted does.
pub(crate) struct EtcdReopened(Etcd);

impl EngineFixture for EtcdReopened {
    type Store = Fresh;

    const COST: u32 = 16;

    async fn new() -> Self {
        Self(Etcd::new().await)
    }

    fn first() -> Revision {
        Etcd::first()
    }

    fn store(&self) -> &Fresh {
        self.0.store()
    }

    async fn pause(self) -> Self {
        let Etcd { store, etcd } = self.0;
        drop(store);
        Self(Etcd {
            store: open(&etcd).await,
            etcd,
        })
    }
}
