//! The engine on Debian's etcd, each store on one of its own.

use clap::Parser as _;
use podplane_etcd::EtcdFlags;
use podplane_store::{EtcdStore, Revision};

use crate::EngineFixture;

/// For the largest commit of the contract; etcd's default is 1.5 MiB.
const FLAGS: [&str; 3] = ["--max-request-bytes", "16777216", "--unsafe-no-fsync"];

#[derive(Debug, clap::Parser)]
struct Program {
    #[command(flatten)]
    etcd: EtcdFlags,
}

pub(crate) struct Etcd {
    store: EtcdStore,
    etcd: podplane_test_etcd::Etcd,
}

async fn open(etcd: &podplane_test_etcd::Etcd) -> EtcdStore {
    let Program { etcd: flags } =
        Program::parse_from(["test", "--etcd-endpoints", &etcd.endpoint()]);
    EtcdStore::open(&flags).await.unwrap()
}

impl EngineFixture for Etcd {
    type Store = EtcdStore;

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

    fn store(&self) -> &EtcdStore {
        &self.store
    }
}

/// A fixture that opens the store again at each pause, as a server that is restarted does.
pub(crate) struct EtcdReopened(Etcd);

impl EngineFixture for EtcdReopened {
    type Store = EtcdStore;

    const COST: u32 = 16;

    async fn new() -> Self {
        Self(Etcd::new().await)
    }

    fn first() -> Revision {
        Etcd::first()
    }

    fn store(&self) -> &EtcdStore {
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
